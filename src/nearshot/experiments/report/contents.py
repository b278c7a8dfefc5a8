"""What the report shows: the runs of each scale, the recipes that have a number from them, and the claims."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nearshot.experiments.claims import Claim, Verdict, check_claims
from nearshot.experiments.recipe import ALL, Found, RecipeOutputs, outputs_of
from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.results import Results, RunResult
from nearshot.experiments.scales import OWN, PAPER, Scale, scale_named
from nearshot.experiments.tables import Cell


@dataclass(frozen=True, eq=False)
class ScaleContents:
    """A scale (None if it is unknown) with its runs, and the recipes with a number on each dataset."""

    name: str
    scale: Scale | None
    runs: Sequence[RunResult]
    parts: Sequence[RecipeOutputs]

    @property
    def label(self) -> str:
        """The scale in words."""
        if self.name == OWN:
            return "runs of your own, each with its own settings; not a reproduction"
        return self.scale.label if self.scale else f"{self.name}: an unknown scale; not a reproduction"

    @property
    def is_papers(self) -> bool:
        """Whether numbers may be compared with the paper's."""
        return self.scale is not None and self.scale.is_papers


def scales_of(results: Results, scales: Sequence[Scale] = ()) -> list[ScaleContents]:
    """Return the contents of each scale that has results, the paper's first; `scales` are those of one's own."""
    own = {scale.name: scale for scale in scales}
    by_scale: dict[str, list[RunResult]] = {}
    for run in results:
        by_scale.setdefault(run.scale, []).append(run)
    contents = []
    for name in sorted(by_scale, key=lambda name: (name != PAPER.name, name)):
        scale, runs = own.get(name) or scale_named(name), by_scale[name]
        parts = [] if scale is None else _parts(Found(results, scale, tuple(sorted({run.seed for run in runs}))))
        contents.append(ScaleContents(name, scale, runs, parts))
    return contents


def _parts(found: Found) -> list[RecipeOutputs]:
    """Return the outputs of all recipes that have runs, each for the seeds that it has."""
    parts = []
    for recipe in RECIPES.values():
        for dataset in recipe.on(ALL, found.scale):
            there = found.of_seeds_that_ran(one.config for one in recipe.wanted(dataset))
            parts.append(outputs_of(recipe, replace(there, n_asked=None), dataset))
    return [part for part in parts if part.runs]


def counted_parts() -> list[RecipeOutputs]:
    """Return the outputs of recipes that need neither runs nor their results."""
    nothing = Found(Results(os.devnull), PAPER, (0,))
    counted = [one for one in RECIPES.values() if not any(one.wanted(dataset) for dataset in one.datasets)]
    parts = (outputs_of(one, nothing, one.datasets[0]) for one in counted)
    return [part for part in parts if part.tables]


def claims_of(scales: Sequence[ScaleContents]) -> Iterator[tuple[ScaleContents, str, Claim, Verdict]]:
    """Yield the paper's claims with their verdicts, for every scale and dataset that has runs."""
    for scale in scales:
        for dataset in dict.fromkeys(part.dataset for part in scale.parts):
            founds = [part.found for part in scale.parts if part.dataset == dataset]
            found = replace(founds[0], seeds=tuple(sorted({seed for one in founds for seed in one.seeds})))
            for claim, verdict in check_claims(found, dataset):
                yield scale, found.on(dataset), claim, verdict


def compared_with_paper(
    scales: Sequence[ScaleContents],
) -> Iterator[tuple[ScaleContents, RecipeOutputs, str, str, list[Cell]]]:
    """Yield all numbers that the paper has too: names of row and column, then ours, the paper's, the difference."""
    tables = ((scale, part, table) for scale in scales for part in scale.parts for table in part.tables)
    for scale, part, table in tables:
        for place in (i for i, heading in enumerate(table.headings) if heading == "difference"):
            for row in table.rows:
                cells = [item for item in row[place - 2 : place + 1] if isinstance(item, Cell)]
                if len(cells) == 3 and cells[2].value is not None:
                    name = ", ".join(item for item in row if isinstance(item, str))
                    yield scale, part, name, table.headings[place - 2], cells
