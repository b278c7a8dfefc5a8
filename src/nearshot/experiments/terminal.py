"""A table in a terminal, as wide as it is: lines end at spaces, a word is broken where it must be, a number never."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.text import Text

__all__ = ["InTerminal"]

LEAST = 6  # characters of a text that is broken anywhere
# Where lines may end, from what is read best to what is read worst: at spaces; in texts also after a hyphen and the
# like; in numbers before their interval; in texts anywhere.
SPACES, HYPHENS, INTERVALS, ANYWHERE = range(4)
TRIED = ((SPACES, 2), (SPACES, 1), (HYPHENS, 2), (HYPHENS, 1), (INTERVALS, 1), (ANYWHERE, 1))  # and between columns
AFTER = re.compile(r"(?<=[-,_/=])|(?=\+)")
GLUED = "\0"  # before a part of a word that no space goes before


@dataclass(frozen=True)
class InTerminal:
    """What rich prints of a table.

    Attributes:
        title: lines above it.
        headings: of the columns.
        rows: texts.
        numbers: of each column whether it holds numbers, which stand to the right and are not broken.
        notes: sentences under it.
    """

    title: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[bool, ...]
    notes: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines."""
        width = options.max_width
        yield from (_line(line, "table.title") for text in self.title for line in _filled(text.split(" "), width))
        gap, widths = self._layout(width)
        for line in self._cut(self.headings, widths, gap):
            yield _line(line, "table.header")
        yield _line("─" * (sum(widths) + gap * (len(widths) - 1)))
        for row in self.rows:
            yield from map(_line, self._cut(row, widths, gap))
        yield from (_line(line, "table.caption") for text in self.notes for line in _filled(text.split(" "), width))

    def _layout(self, width: int) -> tuple[int, list[int]]:
        """Return the space between columns and their widths: with lines that end where they are read best."""
        columns = [[heading, *texts] for heading, *texts in zip(self.headings, *self.rows, strict=True)]
        whole = [max(map(cell_len, texts)) for texts in columns]
        least = [
            [max(_longest(text, kind, is_number) for text in texts) for kind in range(ANYWHERE + 1)]
            for texts, is_number in zip(columns, self.numbers, strict=True)
        ]
        for kind, gap in TRIED:  # where there is too little room for the last too, the table is wider
            widths = [one[kind] for one in least]
            room = width - gap * (len(columns) - 1) - sum(widths)
            if room >= 0:
                break
        for better in range(kind - 1, SPACES - 1, -1):
            room -= self._widen(widths, [one[better] for one in least], room)
        return gap, self._shared(columns, widths, whole, room)

    def _shared(
        self, columns: Sequence[Sequence[str]], widths: Sequence[int], whole: Sequence[int], room: int
    ) -> list[int]:
        """Return the widths of columns that share the room that is left; what numbers do not use of it, texts have."""

        def used(widths: Sequence[int]) -> list[int]:
            return [
                max(cell_len(line) for text in texts for line in _wrapped(text, width, is_number))
                for texts, width, is_number in zip(columns, widths, self.numbers, strict=True)
            ]

        first = used(_filled_up(widths, whole, room))
        of_texts = [a if is_number else b for a, b, is_number in zip(first, whole, self.numbers, strict=True)]
        return used(_filled_up(first, of_texts, room + sum(widths) - sum(first)))

    def _widen(self, widths: list[int], wished: Sequence[int], room: int) -> int:
        """Widen columns to what they wish for, those of one heading together, while there is room; return the cost."""
        groups = {
            heading: [i for i, other in enumerate(self.headings) if other == heading] for heading in self.headings
        }
        spent = 0
        for cost, places in sorted((sum(wished[i] - widths[i] for i in places), places) for places in groups.values()):
            if cost <= room - spent:
                spent += cost
                for i in places:
                    widths[i] = wished[i]
        return spent

    def _cut(self, row: Sequence[str], widths: Sequence[int], gap: int) -> Iterator[str]:
        """Yield the lines of a row."""
        cells = [_wrapped(*one) for one in zip(row, widths, self.numbers, strict=True)]
        is_heading = row is self.headings
        for texts in _on_lines(cells, bottom=is_heading):
            aligned = [
                " " * (width - cell_len(text)) + text if is_number else text + " " * (width - cell_len(text))
                for text, width, is_number in zip(texts, widths, self.numbers, strict=True)
            ]
            yield (" " * gap).join(aligned).rstrip()


def _on_lines(cells: Sequence[Sequence[str]], *, bottom: bool) -> Iterator[tuple[str, ...]]:
    """Yield the texts of each line; headings stand on the line below them."""
    height = max(map(len, cells))
    padded = [[""] * (height - len(cell)) + list(cell) if bottom else cell for cell in cells]
    return zip_longest(*padded, fillvalue="")


def _filled_up(widths: Sequence[int], whole: Sequence[int], room: int) -> list[int]:
    """Return widths of columns that share some room, the narrowest first, none wider than it needs.

    >>> _filled_up([4, 2, 2], [4, 3, 9], 5)
    [4, 3, 6]
    """
    filled = list(widths)
    while room > 0 and (short := [i for i in range(len(filled)) if filled[i] < whole[i]]):
        filled[min(short, key=lambda i: filled[i])] += 1
        room -= 1
    return filled


def _pieces(word: str, kind: int, is_number: bool) -> list[str]:
    """Return the parts of a word between which a line may end.

    >>> _pieces("−0.84±1.70", INTERVALS, True), _pieces("nca,seed=1", HYPHENS, False), _pieces("nca", SPACES, False)
    (['−0.84', '±1.70'], ['nca,', 'seed=', '1'], ['nca'])
    """
    if is_number:
        return re.split("(?=±)", word) if kind >= INTERVALS and word[:1] not in "(±" else [word]
    if kind < HYPHENS:
        return [word]
    parts = [part for part in AFTER.split(word) if part]
    return [piece for part in parts for piece in chop_cells(part, LEAST)] if kind == ANYWHERE else parts


def _longest(text: str, kind: int, is_number: bool) -> int:
    return max(cell_len(piece) for word in text.split(" ") for piece in _pieces(word, kind, is_number) or [""])


def _wrapped(text: str, width: int, is_number: bool) -> list[str]:
    """Return a cell's lines; what stands in brackets after a number has its own, where not all is in one.

    >>> _wrapped("63.43±0.23 (1 of 3 seeds)", 14, True)
    ['63.43±0.23', '(1 of 3 seeds)']
    >>> _wrapped("cifar-fs-nca,seed=1", 12, False), _wrapped("NCA + Mahalanobis matrix", 11, False)
    (['cifar-fs-', 'nca,seed=1'], ['NCA +', 'Mahalanobis', 'matrix'])
    """
    if cell_len(text) <= width:
        return [text]
    number, bracket, more = text.partition(" (") if is_number else (text, "", "")
    parts = [number, f"({more}"] if bracket else [number]
    return [line for part in parts for line in _filled(_fitting(part, width, is_number), width)]


def _fitting(text: str, width: int, is_number: bool) -> list[str]:
    """Return the words of a text, those that are too long in parts; a part has a mark where it follows another."""
    words = []
    for word in text.split(" "):
        kind = next((kind for kind in range(ANYWHERE) if _longest(word, kind, is_number) <= width), ANYWHERE)
        first, *others = _pieces(word, kind, is_number) or [""]
        words += [first, *(f"{GLUED}{other}" for other in others)]
    return words


def _filled(words: Sequence[str], width: int) -> list[str]:
    """Return lines of words, as many in each as there is room for.

    >>> _filled(["a", "fine", "pair", GLUED + "s"], 6)
    ['a fine', 'pairs']
    """
    lines: list[str] = []
    for word in words:
        text = word.removeprefix(GLUED)
        joined = lines[-1] + ("" if word.startswith(GLUED) else " ") + text if lines else text
        if lines and cell_len(joined) > width:
            lines.append(text)
        else:
            lines[-1:] = [joined]
    return lines


def _line(text: str, style: str = "") -> Text:
    """Return a line that is printed as it is."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")
