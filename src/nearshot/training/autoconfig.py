"""Settings that adapt to the data: smaller batches and episodes where a dataset has few images or classes.

Only settings that the caller names as automatic change, and each change is a message. A folder of a
hundred photos has no batch of 512, and two validation classes make no 5-way episodes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from nearshot.data import Store
from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import InputError
from nearshot.evaluation.fit import (
    changes_in_words,
    check_split,
    classes_in_words,
    fit_validation_episodes,
    skip_tiny_classes,
)
from nearshot.text import counted
from nearshot.training.config import TrainConfig
from nearshot.training.methods import batch_kind

# The settings of a run, and of an evaluation, that may be automatic.
_EPISODE_SETTINGS = ("batch_size", "images_per_class", "n_shot")
_VALIDATION_SETTINGS = {
    "n_way": "validation_way",
    "n_shot": "validation_shots",
    "n_query": "validation_queries",
}
TRAIN_SETTINGS = (*_EPISODE_SETTINGS, "least_images", *_VALIDATION_SETTINGS.values())
# With few images, many steps teach more than large batches: an epoch has at least this many
# batches, as long as they have this many images, and, where batches are not episodes, this many
# images of each class.
BATCHES_PER_EPOCH, LEAST_BATCH, LEAST_PER_CLASS = 4, 64, 4
LEAST_CLASSES, LEAST_IMAGES = 5, 50  # of a training split


def autoconfigure(
    config: TrainConfig, stores: Mapping[str, Store], auto: Collection[str], *, n_ranks: int = 1
) -> tuple[TrainConfig, list[str]]:
    """Return the settings with the automatic ones adapted to the data, and a message for each change.

    `stores` are the training split, and the validation split if there is one; `n_ranks` processes
    share a batch.
    """
    if not auto:
        return config, []
    check_split("training", stores["train"].labels)
    messages: list[str] = []
    if batch_kind(config) == "episodes":
        config, messages = _with_episodes(config, stores["train"], auto, n_ranks)
    elif "batch_size" in auto:
        n_images, given = len(stores["train"]), config.batch_size
        most = _enough(n_images, LEAST_PER_CLASS * len(stores["train"].class_names))
        size = min(given, n_images, most) // n_ranks * n_ranks
        fact = f"The training split has {counted(n_images, 'image')}{_sharing(n_ranks)}"
        config, messages = (
            replace(config, batch_size=size),
            _changes(fact, ["batch_size"], [given], [size]),
        )
    if "val" in stores:
        check_split("validation", stores["val"].labels)
        config, more = fit_validation(config, stores["val"], auto)
        messages += more
    return config, messages


def fit_validation(
    config: TrainConfig, store: Store, auto: Collection[str]
) -> tuple[TrainConfig, list[str]]:
    """Return the settings with the automatic ones of validation adapted to its split, and a message for each change."""
    names = [name for name, setting in _VALIDATION_SETTINGS.items() if setting in auto]
    fitted = fit_validation_episodes(
        ImagesByClass(store.labels),
        n_way=config.validation_way,
        n_shot=config.validation_shots,
        n_query=config.validation_queries,
        auto=names,
    )
    config = replace(
        config,
        validation_way=fitted.n_way,
        validation_shots=fitted.n_shot,
        validation_queries=fitted.n_query,
    )
    return config, list(fitted.messages)


def check_enough(store: Store) -> None:
    """Refuse a training split of so few classes or images that nothing learnt from it holds for other classes."""
    n_classes, n_images = len(store.class_names), len(store)
    if n_classes < LEAST_CLASSES or n_images < LEAST_IMAGES:
        raise InputError(
            f"Training needs at least {LEAST_CLASSES} classes and {LEAST_IMAGES} images in the training split (got "
            f"{n_classes} and {n_images}). Classify without training: nearshot predict --support FOLDER PHOTOS. Or add "
            "images, or train anyway with --allow-few-images (in Python, allow_few_images=True)."
        )


def _enough(n_images: int, least: int = 0) -> int:
    """Return the largest batch size that leaves an epoch several steps; all images where there are very few."""
    size = max(n_images // BATCHES_PER_EPOCH, LEAST_BATCH, least)
    return size if 2 * size <= n_images else n_images


def _with_episodes(
    config: TrainConfig, store: Store, auto: Collection[str], n_ranks: int
) -> tuple[TrainConfig, list[str]]:
    """Choose the automatic ones of batch size, images per class and shots, so that they fit each other and the data."""
    messages: list[str] = []
    by_class = ImagesByClass(store.labels, store.class_names)
    if "least_images" in auto:
        wanted = (
            config.images_per_class if config.n_query is None else config.n_shot + config.n_query
        )
        ways_are_free = "batch_size" in auto or "images_per_class" in auto
        n_needed = config.n_way or (2 if ways_are_free else config.batch_size // wanted)
        least, messages = skip_tiny_classes(
            by_class, "training", config.least_images, wanted=wanted, n_needed=n_needed
        )
        config = replace(config, least_images=least)
    by_class = by_class.without_small_classes(config.least_images)
    by_class.check(EpisodeShape(n_way=2, n_shot=1, n_query=1))  # what the smallest episodes need
    names = _EPISODE_SETTINGS if config.n_way is None else ("n_shot",)
    if not set(auto) & set(names):
        return config, messages
    shape = _nearest(config, by_class, auto, n_ranks)
    fact = classes_in_words("training", len(by_class.sizes), int(by_class.sizes.min())) + _sharing(
        n_ranks
    )
    if shape is None:
        instead = _nearest(config, by_class, _EPISODE_SETTINGS, n_ranks)
        advice = (
            [f"{name} {getattr(instead, name)}" for name in _EPISODE_SETTINGS]
            if instead
            else ["fewer devices"]
        )
        given = [
            f"{name} {getattr(config, name)}" for name in _EPISODE_SETTINGS if name not in auto
        ]
        raise InputError(
            f"{fact}: no episodes fit it and {' and '.join(given)}. Use {', '.join(advice)}."
        )
    before, chosen = ([getattr(one, name) for name in names] for one in (config, shape))
    changed = dict(zip(names, chosen, strict=True))
    return replace(config, **changed), messages + _changes(fact, names, before, chosen)


def _nearest(
    config: TrainConfig, by_class: ImagesByClass, auto: Collection[str], n_ranks: int
) -> EpisodeShape | None:
    """Return the episodes nearest to the settings of all that fit: by shots, then images per class, then ways.

    They are no larger than the settings', nor, where the batch size is automatic and that is
    possible, than leaves an epoch several steps. Settings that are not automatic stay, and may ask
    for more than the data have; then the sampler raises an error that names the class.
    """
    sizes = [config.batch_size]
    if "batch_size" in auto:
        sizes.insert(0, min(config.batch_size, _enough(int(by_class.sizes.sum()))))
    usual = (
        config.images_per_class if config.images_per_class > config.n_shot else 2 * config.n_shot
    )
    n_classes, smallest = len(by_class.sizes), int(by_class.sizes.min())
    for size in sizes:
        shapes = []
        if config.n_way is not None and config.n_query is not None:
            n_shots = range(1, max(1, smallest - config.n_query) + 1)
            shapes = [EpisodeShape(config.n_way, n_shot, config.n_query) for n_shot in n_shots]
        else:
            most = min(smallest, max(2, size // 2))
            for per_class in (
                range(2, most + 1) if "images_per_class" in auto else (config.images_per_class,)
            ):
                n_shot = (
                    per_class // 2
                    if "n_shot" in auto and config.n_shot >= per_class
                    else config.n_shot
                )
                for n_way in range(2, max(2, min(n_classes, size // per_class)) + 1):
                    if n_shot < per_class and ("batch_size" in auto or n_way * per_class == size):
                        shapes.append(EpisodeShape(n_way, n_shot, per_class - n_shot))
        shapes = [shape for shape in shapes if shape.batch_size % n_ranks == 0]
        if shapes:
            return min(
                shapes,
                key=lambda one: (
                    abs(one.n_shot - config.n_shot),
                    abs(one.images_per_class - usual),
                    -one.n_way,
                ),
            )
    return None


def _sharing(n_ranks: int) -> str:
    return f", and {n_ranks} devices share a batch" if n_ranks > 1 else ""


def _changes(
    fact: str, names: Iterable[str], old: Iterable[object], new: Iterable[object]
) -> list[str]:
    """Return a message that explains the changes of settings by a fact; none where nothing changed."""
    return changes_in_words(fact, list(zip(names, old, new, strict=True)))
