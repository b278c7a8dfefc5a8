"""What `predict`, `export` and `show` have in common: a classifier from a folder of labelled pictures, or a bundle."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nearshot.cli._warnings import print_warnings
from nearshot.data.store import data_folder
from nearshot.errors import InputError, NearshotError
from nearshot.evaluation.classifiers import ClassifierName

if TYPE_CHECKING:
    from nearshot.data.images import Pixels
    from nearshot.estimator import FewShotClassifier
    from nearshot.estimator.folders import SupportFolder

__all__ = ["SOME_UNREADABLE", "Making", "MakingOptions", "read_squares"]

BACKBONE = "resnet12-nca-cifar-fs"
SOME_UNREADABLE = 3  # the status where pictures could not be read, but all others were done
SHOWN_IGNORED = 3
OF_A_BUNDLE = ("device", "cache_dir", "no_cache")  # what can be chosen for a classifier that is made already


def _by_default(what: str, metavar: str) -> Any:
    """Say in the help what happens without an option, which is None in Python."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {what})")


@dataclass(frozen=True)
class Making:
    """How a classifier is made from labelled pictures. A bundle has all of this but device and cache in it."""

    backbone: Annotated[str | None, _by_default(f"{BACKBONE}, which comes with nearshot", "RUN|WEIGHTS|NAME")] = None
    """What turns a picture into numbers: a run's folder or a weights file of nearshot train, timm:<model>, or a
    name."""
    classifier: Annotated[ClassifierName | None, _by_default("centroid", "{centroid,soft,knn}")] = None
    """centroid: the class whose mean is nearest; soft: all images count, near ones most; knn: the nearest ones vote."""
    neighbours: Annotated[int | None, _by_default("as many as the smallest class has", "INT")] = None
    """How many images vote in knn."""
    unknown_rate: Annotated[float | None, _by_default("every picture gets a class", "SHARE")] = None
    """Answer "unknown" for pictures unlike all classes; the share, such as 0.05, of pictures of the classes that may be
    lost by it."""
    unknown_label: Annotated[str | None, _by_default("unknown", "LABEL")] = None
    """What to answer then."""
    device: str = "auto"
    """cpu or cuda; auto is a GPU if there is one."""
    cache_dir: Annotated[Path | None, _by_default("embeddings in $NEARSHOT_DATA, or in ~/.cache/nearshot", "DIR")] = (
        None
    )
    """Where embeddings are kept, so that no picture is embedded twice. It can be deleted at any time."""
    no_cache: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep no embeddings."""

    def classifier_of(self, support: Path) -> FewShotClassifier:
        """Return the classifier of a support folder or a bundle; what is odd about it is said on the error output."""
        # scikit-learn takes a second, which the help need not wait for
        from nearshot.data.walk import about_linked  # noqa: PLC0415
        from nearshot.estimator import FewShotClassifier  # noqa: PLC0415
        from nearshot.estimator.folders import read_support  # noqa: PLC0415

        cache = None if self.no_cache else self.cache_dir or data_folder() / "embeddings"
        with print_warnings():
            if support.suffix.lower() == ".onnx":
                raise InputError(
                    f"{support} is for onnxruntime; give the folder of labelled pictures, or a .safetensors bundle."
                )
            if support.suffix.lower() == ".safetensors" or support.is_file():
                self._refuse_what_is_in_the_bundle(support)
                return FewShotClassifier.load(support, device=self.device, cache_dir=cache)
            self._check()
            found = read_support(support)
            self._check_labels(found)
            if found.ignored:
                warnings.warn(_about_ignored(found.ignored), stacklevel=2)
            if found.linked:
                warnings.warn(about_linked(found.linked), stacklevel=2)
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

    def _check(self) -> None:
        """Refuse values by the names that the options have here."""
        if self.neighbours is not None and self.classifier != "knn":
            raise InputError("--neighbours is for --classifier knn only; give that, too, or leave out --neighbours.")
        if self.neighbours is not None and self.neighbours < 1:
            raise InputError(f"--neighbours must be at least 1, not {self.neighbours}.")
        if self.unknown_rate is not None and not 0 < self.unknown_rate < 1:
            raise InputError(f"--unknown-rate must be between 0 and 1, such as 0.05, not {self.unknown_rate}.")
        if self.unknown_label is not None and self.unknown_rate is None:
            raise InputError("--unknown-label is for --unknown-rate only; give that, too, such as 0.05.")

    def _check_labels(self, found: SupportFolder) -> None:
        if self.unknown_rate is None:
            return
        if len(found.paths) == 1:
            raise InputError(
                "A single picture does not tell how far is too far, so nothing can be unknown. Give a second one, of "
                "any class, or leave out --unknown-rate."
            )
        label = "unknown" if self.unknown_label is None else self.unknown_label
        if label in found.labels:
            raise InputError(f"{label!r} is a class's folder; choose another --unknown-label.")

    def _refuse_what_is_in_the_bundle(self, bundle: Path) -> None:
        for one in fields(self):
            if one.name not in OF_A_BUNDLE and getattr(self, one.name) is not None:
                flag = one.name.replace("_", "-")
                raise InputError(f"--{flag} is in the bundle {bundle} already; to change it, export again.")


MakingOptions = Annotated[Making, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="classifier")]  # as a box of the help


def backbone_file(given: str) -> str:
    """Return what `load_backbone` takes: of a run's folder, the weights that were best with five images a class."""
    if not Path(given).is_dir():
        return given
    from nearshot.training.run_folder import RunFolder  # noqa: PLC0415 (takes seconds to import)

    return str(RunFolder(given).best_weights(5, "centroid"))


def read_squares(paths: Sequence[Path], classifier: FewShotClassifier) -> Iterator[Pixels | NearshotError]:
    """Read pictures at the size that a classifier embeds them at; one that cannot be read is its error."""
    from nearshot.estimator.inputs import read_each  # noqa: PLC0415

    if classifier.embedder_ is None:
        raise InputError("This bundle classifies features, not pictures: it has no backbone.")
    side = classifier.embedder_.input_size
    return read_each(list(paths), lambda content: content.square(side))


def _about_ignored(ignored: Sequence[Path]) -> str:
    named = ", ".join(map(str, ignored[:SHOWN_IGNORED]))
    more = f" and {len(ignored) - SHOWN_IGNORED} more" if len(ignored) > SHOWN_IGNORED else ""
    return f"Left out, as no picture of a class by their names or places: {named}{more}."
