"""What `predict`, `export` and `show` have in common: a classifier from a folder of labelled pictures, or a bundle."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from nearshot.data.pictures import Pixels
from nearshot.data.store import data_folder
from nearshot.errors import InputError, NearshotError
from nearshot.estimator import FewShotClassifier
from nearshot.estimator.folders import read_support
from nearshot.estimator.pictures import read_each
from nearshot.evaluation.classifiers import ClassifierName

__all__ = ["SOME_UNREADABLE", "Making", "read_squares"]

BACKBONE = "resnet12-nca-cifar-fs"
SOME_UNREADABLE = 3  # the status where pictures could not be read, but all others were done
SHOWN_IGNORED = 3
OF_A_BUNDLE = ("device", "cache_dir", "no_cache")  # what can be chosen for a classifier that is made already


@dataclass(frozen=True)
class Making:
    """How a classifier is made from labelled pictures. A bundle has all of this but device and cache in it."""

    backbone: Annotated[str | None, tyro.conf.arg(metavar="RUN|WEIGHTS|NAME")] = None
    """What turns a picture into numbers: a run's folder or a weights file of nearshot train, timm:<model>, or a name;
    by default resnet12-nca-cifar-fs, which comes with nearshot."""
    classifier: ClassifierName | None = None
    """centroid: the class whose mean is nearest; soft: all images count, near ones most; knn: the nearest ones vote.
    By default centroid."""
    neighbours: int | None = None
    """How many images vote in knn; by default as many as the smallest class has."""
    unknown_rate: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None
    """Answer "unknown" for pictures unlike all classes; the share, such as 0.05, of pictures of the classes that may be
    lost by it. By default every picture gets a class."""
    unknown_label: Annotated[str | None, tyro.conf.arg(metavar="LABEL")] = None
    """What to answer then; by default unknown."""
    device: str = "auto"
    """cpu or cuda; auto is a GPU if there is one."""
    cache_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where embeddings are kept, so that no picture is embedded twice; by default embeddings in $NEARSHOT_DATA, or in
    ~/.cache/nearshot. It can be deleted at any time."""
    no_cache: bool = False
    """Keep no embeddings."""

    def classifier_of(self, support: Path) -> FewShotClassifier:
        """Return the classifier of a support folder or a bundle; what is odd about it is said on the error output."""
        cache = None if self.no_cache else self.cache_dir or data_folder() / "embeddings"
        with _told():
            if support.suffix.lower() == ".safetensors" or support.is_file():
                self._refuse_what_is_in_the_bundle(support)
                return FewShotClassifier.load(support, device=self.device, cache_dir=cache)
            found = read_support(support)
            if found.ignored:
                warnings.warn(_about_ignored(found.ignored), stacklevel=2)
            if len(found.class_names) == 1 and self.unknown_rate is None:
                alone = f"There is one class only, {found.labels[0]!r}, and every picture will be of it"
                warnings.warn(f"{alone}; --unknown-rate 0.05 says which pictures are not.", stacklevel=2)
            classifier = FewShotClassifier(
                backbone_file(self.backbone or BACKBONE),
                classifier=self.classifier or "centroid",
                n_neighbors=self.neighbours,
                unknown_rate=self.unknown_rate,
                unknown_label="unknown" if self.unknown_label is None else self.unknown_label,
                device=self.device,
                cache_dir=cache,
                verbose=True,
            )
            classifier.fit([str(path) for path in found.paths], list(found.labels))
            classifier.verbose = False  # what follows has a bar of its own
            return classifier

    def _refuse_what_is_in_the_bundle(self, bundle: Path) -> None:
        for one in fields(self):
            if one.name not in OF_A_BUNDLE and getattr(self, one.name) is not None:
                flag = one.name.replace("_", "-")
                raise InputError(f"--{flag} is in the bundle {bundle} already; to change it, export again.")


def backbone_file(given: str) -> str:
    """Return what `load_backbone` takes: of a run's folder, the weights that were best with five images a class."""
    if not Path(given).is_dir():
        return given
    from nearshot.training.runs import RunFolder  # noqa: PLC0415 (takes seconds to import)

    return str(RunFolder(given).best_weights(5, "centroid"))


def read_squares(paths: Sequence[Path], classifier: FewShotClassifier) -> Iterator[Pixels | NearshotError]:
    """Read pictures at the size that a classifier embeds them at; one that cannot be read is its error."""
    if classifier.embedder_ is None:
        raise InputError("This bundle classifies features, not pictures: it has no backbone.")
    side = classifier.embedder_.input_size
    return read_each(list(paths), lambda content: content.square(side))


@contextmanager
def _told() -> Iterator[None]:
    """Say warnings as sentences on the error output."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    console = Console(file=sys.stderr, markup=False, highlight=False, soft_wrap=True)
    for warning in caught:
        if issubclass(warning.category, UserWarning):  # others are for programmers
            console.print(f"nearshot: warning: {warning.message}")


def _about_ignored(ignored: Sequence[Path]) -> str:
    named = ", ".join(map(str, ignored[:SHOWN_IGNORED]))
    more = f" and {len(ignored) - SHOWN_IGNORED} more" if len(ignored) > SHOWN_IGNORED else ""
    return f"Left out, as no picture of a class by their names or places: {named}{more}."
