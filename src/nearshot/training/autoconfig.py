"""Settings that adapt to the data: smaller batches and episodes for small datasets.

Only settings that the caller names as automatic change, and each change is a message. A folder of a
hundred photos has no batch of 512, and two validation classes make no 5-way episodes.
"""

import math
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
from nearshot.training.config import USUAL_SHOTS, TrainConfig

# The settings of a run, and of an evaluation, that may be automatic.
_EPISODE_SETTINGS = ("batch_size", "images_per_class", "n_shot")
_VALIDATION_SETTINGS = {
    "n_way": "validation_n_way",
    "n_shot": "validation_n_shot",
    "n_query": "validation_n_query",
}
TRAIN_SETTINGS = (*_EPISODE_SETTINGS, "least_images", *_VALIDATION_SETTINGS.values())
# With few images, many steps teach more than large batches: an epoch has at least this many
# batches, as long as they have this many images, and, where batches are not episodes, this many
# images of each class.
BATCHES_PER_EPOCH = 4
LEAST_BATCH = 64
LEAST_PER_CLASS = 4
# Of a training split.
LEAST_CLASSES = 5
LEAST_IMAGES = 50


def autoconfigure(
    config: TrainConfig, stores: Mapping[str, Store], auto: Collection[str], *, n_ranks: int = 1
) -> tuple[TrainConfig, list[str]]:
    """Return the settings, with the automatic ones adapted to the data, and a message per change.

    `stores` are the training split, and the validation split if there is one; `n_ranks` processes
    share a batch.
    """
    if not auto:
        return config, []
    check_split("training", stores["train"].labels)
    messages: list[str] = []
    if config.batch_kind == "episodes":
        config, messages = _with_episodes(config, stores["train"], auto, n_ranks)
    elif "batch_size" in auto:
        n_images = len(stores["train"])
        most = _enough(n_images, LEAST_PER_CLASS * len(stores["train"].class_names))
        batch_size = min(config.batch_size, n_images, most) // n_ranks * n_ranks
        fact = f"The training split has {counted(n_images, 'image')}{_sharing(n_ranks)}"
        messages = changes_in_words(fact, [("batch_size", config.batch_size, batch_size)])
        config = replace(config, batch_size=batch_size)
    if "val" in stores:
        check_split("validation", stores["val"].labels)
        config, more = fit_validation(config, stores["val"], auto)
        messages += more
    return config, messages


def fit_validation(
    config: TrainConfig, store: Store, auto: Collection[str]
) -> tuple[TrainConfig, list[str]]:
    """Return the settings with the automatic ones of validation adapted, and messages."""
    names = [name for name, setting in _VALIDATION_SETTINGS.items() if setting in auto]
    fitted = fit_validation_episodes(
        ImagesByClass(store.labels),
        n_way=config.validation_n_way,
        n_shot=config.validation_n_shot,
        n_query=config.validation_n_query,
        auto=names,
    )
    config = replace(
        config,
        validation_n_way=fitted.n_way,
        validation_n_shot=fitted.n_shot,
        validation_n_query=fitted.n_query,
    )
    return config, list(fitted.messages)


def check_enough(store: Store) -> None:
    """Refuse a training split that is too small to learn what holds for other classes."""
    n_classes = len(store.class_names)
    n_images = len(store)
    if n_classes < LEAST_CLASSES or n_images < LEAST_IMAGES:
        raise InputError(
            f"The training split must have at least {LEAST_CLASSES} classes and {LEAST_IMAGES} "
            f"images (got {n_classes} and {n_images}). Classify without training: nearshot predict "
            "--support FOLDER PHOTOS. Or add images, or train anyway with allow_few_images."
        )


def _enough(n_images: int, least: int = 0) -> int:
    """Return the largest batch size that leaves an epoch several steps.

    Where there are very few images, it is all of them.
    """
    size = max(n_images // BATCHES_PER_EPOCH, LEAST_BATCH, least)
    return size if 2 * size <= n_images else n_images


def _with_episodes(
    config: TrainConfig, store: Store, auto: Collection[str], n_ranks: int
) -> tuple[TrainConfig, list[str]]:
    """Choose the automatic ones of batch size, images per class and shots to fit the data."""
    messages: list[str] = []
    by_class = ImagesByClass(store.labels, store.class_names)
    if "least_images" in auto:
        least_images, messages = _least_images(config, by_class, auto)
        config = replace(config, least_images=least_images)
    by_class = by_class.without_small_classes(config.least_images)
    by_class.check(EpisodeShape(n_way=2, n_shot=1, n_query=1))  # what the smallest episodes need

    names: tuple[str, ...] = ("n_shot",)
    if config.n_way is None:
        names = _EPISODE_SETTINGS
    if config.method.n_shot is None:
        names = tuple(name for name in names if name != "n_shot")
    if not set(auto) & set(names):
        return config, messages
    shape = _nearest_shape(config, by_class, auto, n_ranks)
    n_classes = len(by_class.sizes)
    fact = classes_in_words("training", n_classes, int(by_class.sizes.min())) + _sharing(n_ranks)
    if shape is None:
        given = [f"{name} {_episode_setting(config, name)}" for name in names if name not in auto]
        problem = f"{fact}: no episodes fit {' and '.join(['this', *given])}"
        instead = _nearest_shape(config, by_class, _EPISODE_SETTINGS, n_ranks)
        if instead is None:
            raise InputError(f"{problem}. Use fewer devices.")
        advice = ", ".join(f"{name} {getattr(instead, name)}" for name in names)
        raise InputError(f"{problem}. Use {advice}.")

    adapted = config
    if config.n_way is None:
        adapted = replace(
            adapted, batch_size=shape.batch_size, images_per_class=shape.images_per_class
        )
    if config.method.n_shot is not None:
        method = replace(config.method, n_shot=shape.n_shot)
        adapted = replace(adapted, method=method)
    changes = [
        (name, _episode_setting(config, name), _episode_setting(adapted, name)) for name in names
    ]
    return adapted, messages + changes_in_words(fact, changes)


def _episode_setting(config: TrainConfig, name: str) -> int | None:
    return config.method.n_shot if name == "n_shot" else getattr(config, name)


def _least_images(
    config: TrainConfig, by_class: ImagesByClass, auto: Collection[str]
) -> tuple[int, list[str]]:
    """Return the least size of a class that skips a few tiny ones, and a message."""
    wanted = config.images_per_class
    if config.n_query is not None:
        wanted = (config.method.n_shot or USUAL_SHOTS) + config.n_query
    if config.n_way is not None:
        n_needed = config.n_way
    elif "batch_size" in auto or "images_per_class" in auto:
        n_needed = 2
    else:
        n_needed = config.batch_size // wanted
    return skip_tiny_classes(
        by_class, "training", config.least_images, images_per_class=wanted, n_needed=n_needed
    )


def _nearest_shape(
    config: TrainConfig, by_class: ImagesByClass, auto: Collection[str], n_ranks: int
) -> EpisodeShape | None:
    """Return the episodes that fit and are nearest to the settings.

    The nearest are those by shots, then by images per class, then with the most ways.
    They are no larger than the settings', nor, where the batch size is automatic and that is
    possible, than leaves an epoch several steps. Settings that are not automatic stay, and may ask
    for more than the data have; then the sampler raises an error that names the class.
    """
    n_shot = config.method.n_shot or USUAL_SHOTS
    images_per_class = 2 * n_shot
    if config.images_per_class > n_shot:
        images_per_class = config.images_per_class

    def distance(shape: EpisodeShape) -> tuple[int, int, int]:
        shots_apart = abs(shape.n_shot - n_shot)
        images_apart = abs(shape.images_per_class - images_per_class)
        return shots_apart, images_apart, -shape.n_way

    if config.n_way is not None and config.n_query is not None:
        shapes = _shapes_of_ways(config.n_way, config.n_query, by_class, n_ranks)
        return min(shapes, key=distance, default=None)
    if "batch_size" in auto:
        several_steps = min(config.batch_size, _enough(int(by_class.sizes.sum())))
        shapes = _shapes_of_batch(config, by_class, auto, several_steps, n_ranks)
        if shapes:
            return min(shapes, key=distance)
    shapes = _shapes_of_batch(config, by_class, auto, config.batch_size, n_ranks)
    return min(shapes, key=distance, default=None)


def _shapes_of_ways(
    n_way: int, n_query: int, by_class: ImagesByClass, n_ranks: int
) -> list[EpisodeShape]:
    """Return episodes of given ways and queries, for each number of shots that fits."""
    most_shots = max(1, int(by_class.sizes.min()) - n_query)
    shapes = []
    for n_shot in range(1, most_shots + 1):
        shape = EpisodeShape(n_way, n_shot, n_query)
        if shape.batch_size % n_ranks == 0:
            shapes.append(shape)
    return shapes


def _shapes_of_batch(
    config: TrainConfig,
    by_class: ImagesByClass,
    auto: Collection[str],
    batch_size: int,
    n_ranks: int,
) -> list[EpisodeShape]:
    """Return episodes of at most `batch_size` images.

    There is one for each number of images per class, with the most ways.
    """
    numbers_of_images: Iterable[int] = (config.images_per_class,)
    if "images_per_class" in auto:
        most = min(int(by_class.sizes.min()), max(2, batch_size // 2))
        numbers_of_images = range(2, most + 1)
    shapes = []
    for n_images in numbers_of_images:
        n_shot = config.method.n_shot or USUAL_SHOTS
        if n_shot >= n_images and ("n_shot" in auto or config.method.n_shot is None):
            n_shot = n_images // 2
        most_ways = max(2, min(len(by_class.sizes), batch_size // n_images))
        if "batch_size" in auto:
            # The images of an episode must be divisible by the number of ranks.
            step = n_ranks // math.gcd(n_images, n_ranks)
            n_way = most_ways // step * step
        else:
            fits = batch_size % n_images == 0 and batch_size % n_ranks == 0
            n_way = batch_size // n_images if fits else 0
        if 1 <= n_shot < n_images and 2 <= n_way <= most_ways:
            shapes.append(EpisodeShape(n_way, n_shot, n_images - n_shot))
    return shapes


def _sharing(n_ranks: int) -> str:
    return f", and {n_ranks} devices share a batch" if n_ranks > 1 else ""
