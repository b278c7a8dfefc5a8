"""`nearshot backbones`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from nearshot.cli._options import warn_about_skipped_files, weights_of
from nearshot.cli._tables import aligned
from nearshot.data.store import data_folder
from nearshot.text import counted, print_message

if TYPE_CHECKING:
    from nearshot.estimator.backbone_choice import BackboneChoice


@dataclass(frozen=True)
class Backbones:
    """Compare backbones on your own labelled photos, and say which one to use.

    The table has the expected accuracy of each installed or given backbone, its 95 % interval, and
    how many new photos it embeds in a second on this computer. The backbone to use is the most
    accurate, or a faster one that is at most a point less accurate. Nothing is downloaded, unless
    you name a model of timm.

    Examples:
      nearshot backbones --support ./flowers
      nearshot backbones --support ./flowers --try timm:convnext_tiny.fb_in22k runs/nca
    """

    support: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """A folder with one folder of labelled images per class."""
    others: Annotated[tuple[str, ...], tyro.conf.arg(name="try", metavar="NAME|RUN|WEIGHTS")] = ()
    """Backbones to compare with the installed ones, as for --backbone of predict; two names with a
    + between them are used together."""
    device: str = "auto"
    """cpu or cuda; auto is a GPU if there is one."""

    def run(self, console: Console) -> None:
        """Print a line for each backbone, and the one to use."""
        # These import scikit-learn.
        from nearshot.estimator import read_support  # noqa: PLC0415
        from nearshot.estimator.backbone_choice import (  # noqa: PLC0415
            best_choice,
            measure_backbone,
        )
        from nearshot.models.recommended import installed_backbones  # noqa: PLC0415

        labelled = read_support(self.support)
        warn_about_skipped_files(labelled)
        choices = []
        for name in dict.fromkeys([*self.others, *installed_backbones()]):
            print_message(f"{name}: {counted(len(labelled.paths), 'photo')} …")
            choice = measure_backbone(
                weights_of(name),
                labelled.paths,
                labelled.labels,
                device=self.device,
                cache_dir=data_folder() / "embeddings",
            )
            choices.append(replace(choice, name=name))
        console.print("\n".join(aligned(_rows(choices))))
        console.print(f"\nUse --backbone {best_choice(choices).name}")


def _rows(choices: Sequence[BackboneChoice]) -> list[tuple[str, ...]]:
    """Return the table, the most accurate backbone first."""
    rows: list[tuple[str, ...]] = [
        ("backbone", "expected accuracy", "95 % interval", "photos per second")
    ]
    for choice in sorted(choices, key=lambda choice: -choice.estimate.mean):
        low, high = choice.estimate.interval
        rows.append(
            (
                choice.name,
                f"{100 * choice.estimate.mean:.0f} %",
                f"{100 * low:.0f} to {100 * high:.0f} %",
                f"{choice.photos_per_second:.3g}",
            )
        )
    return rows
