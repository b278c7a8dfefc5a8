"""HTML that is escaped unless it was made here: a text from a file cannot become a tag."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Html", "element", "joined"]

VOID = ("br", "img", "input", "link", "meta")  # elements without an end


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | float | None) -> Html:
    """Return an element. Children and attributes are escaped, but for children that are `Html`.

    An attribute's name loses a last underscore (`class_`) and has hyphens for the others; one that is None is left
    out, and an empty one stands alone.

    >>> element("td", "a < b", class_="number", data_value=3)
    '<td class="number" data-value="3">a &lt; b</td>'
    """
    end = "" if tag in VOID else f"</{tag}>"
    return Html(f"<{tag}{_written(attributes)}>{joined(children)}{end}")


def joined(parts: Iterable[str]) -> Html:
    """Return parts one after the other, escaped where they are not HTML."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def _written(attributes: dict[str, str | float | None]) -> str:
    there = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    return "".join(
        f' {name}="{html.escape(str(value))}"' if value != "" else f" {name}" for name, value in there.items()
    )
