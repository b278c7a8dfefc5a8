"""Settings that give way to the data: smaller batches and smaller episodes where a dataset has few images or classes.

What somebody has asked for is never changed. What nobody has, may be: a folder of a hundred pictures has no batch of
512, and two validation classes make no 5-way episodes. Every change is a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from nearshot.data import Store
from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import InputError, look_up
from nearshot.text import counted
from nearshot.training.config import TrainConfig
from nearshot.training.episode_limits import check_classes, episodes_that_fit, leaving_out_tiny
from nearshot.training.methods import batch_kind

__all__ = ["TRAINING", "fitted"]

# The settings that may give way.
TRAINING = (
    "batch_size",
    "images_per_class",
    "n_shot",
    "least_images",
    "validation_way",
    "validation_shots",
    "validation_queries",
)
_OF_EPISODES = ("batch_size", "images_per_class", "n_shot")
_OF_VALIDATION = {"validation_way": "n_way", "validation_shots": "shots", "validation_queries": "n_query"}
_TITLES = {"train": "training", "val": "validation"}
# Of few images, many steps teach more than large batches do: an epoch has so many batches, as long as they have so many
# images, and, where no episodes see to it, so many of a class.
BATCHES_AN_EPOCH, LEAST_BATCH, LEAST_OF_A_CLASS = 4, 64, 4


def fitted(
    config: TrainConfig, stores: Mapping[str, Store], free: Collection[str], *, n_ranks: int = 1
) -> tuple[TrainConfig, list[str]]:
    """Return the settings with those that are free made to fit the data, and a sentence for each change.

    Args:
        config: the settings.
        stores: the training split, and the validation split if there is one.
        free: the names of the settings that may change, of those in `TRAINING`.
        n_ranks: among how many devices a batch is shared.
    """
    if isinstance(free, str):
        raise InputError(f"fit must be several names; for one, write [{free!r}].")
    for name in free:
        look_up(dict.fromkeys(TRAINING), name, "setting that can be fitted")
    if not free:
        return config, []
    check_classes({_TITLES[split]: store.labels for split, store in stores.items()})
    config, about_batches = _with_batches(config, stores["train"], free, n_ranks)
    if "val" not in stores:
        return config, about_batches
    small = episodes_that_fit(
        stores["val"].labels,
        "validation",
        n_way=config.validation_way,
        shots=config.validation_shots,
        n_query=config.validation_queries,
        free={name for setting, name in _OF_VALIDATION.items() if setting in free},
        leave_out=True,
    )
    config = config.changed(validation_way=small.n_way, validation_shots=small.shots, validation_queries=small.n_query)
    return config, [*about_batches, *small.said]


def _with_batches(
    config: TrainConfig, store: Store, free: Collection[str], n_ranks: int
) -> tuple[TrainConfig, list[str]]:
    if batch_kind(config) == "episodes":
        return _with_episodes(config, store, free, n_ranks)
    size, n_images = config.batch_size, len(store)
    enough = _enough(n_images, LEAST_OF_A_CLASS * len(store.class_names))
    fits = min(size, n_images, enough) // n_ranks * n_ranks
    if "batch_size" not in free or fits == size:
        return config, []
    if not fits:
        raise InputError(
            f"The training split has {counted(n_images, 'image')}, too few for {n_ranks} devices to share a batch: add "
            "images, or use fewer devices."
        )
    if enough < min(size, n_images):
        why = _too_few_steps(size, n_images)
    elif size > n_images:
        why = f"A batch of {size} different images needs that many; the training split has {n_images}"
    else:
        why = f"A batch of {size} does not divide among {n_ranks} devices"
    return config.changed(batch_size=fits), [f"{why}: batches of {fits}."]


def _enough(n_images: int, least: int = 0) -> int:
    """Return how large a batch should be at most, so that an epoch of so many images has a few steps."""
    size = max(n_images // BATCHES_AN_EPOCH, LEAST_BATCH, least)
    return size if 2 * size <= n_images else n_images


def _too_few_steps(size: int, n_images: int) -> str:
    return f"The training split has {n_images} images, which are too few steps in batches of {size}"


def _with_episodes(
    config: TrainConfig, store: Store, free: Collection[str], n_ranks: int
) -> tuple[TrainConfig, list[str]]:
    """Choose what is free of batch size, images per class and shots, so that all go together and fit the classes."""
    said: list[str] = []
    by_class = ImagesByClass(store.labels, store.class_names)
    if "least_images" in free:
        wanted = config.images_per_class if config.n_query is None else config.n_shot + config.n_query
        ways_are_free = "batch_size" in free or "images_per_class" in free
        n_needed = config.n_way or (2 if ways_are_free else config.batch_size // wanted)
        least_images, said = leaving_out_tiny(
            by_class, "training", config.least_images, wanted=wanted, n_needed=n_needed
        )
        config = config.changed(least_images=least_images)
    by_class = by_class.without_small_classes(config.least_images)
    by_class.check(EpisodeShape(n_way=2, n_shot=1, n_query=1))  # what the smallest episodes need
    may_change = set(free) & (set(_OF_EPISODES) if config.n_way is None else {"n_shot"})
    if not may_change:
        return config, said
    shape = _nearest(config, by_class, free, n_ranks)
    if shape is None:
        raise _nothing_fits(config, by_class, free, n_ranks)
    changed = config.changed(n_shot=shape.n_shot)
    if config.n_way is None:
        changed = changed.changed(batch_size=shape.batch_size, images_per_class=shape.images_per_class)
    if changed == config:
        return config, said
    n_images = int(by_class.sizes.sum())
    why = _why_not(config, by_class, n_ranks)
    is_for_steps = "batch_size" in may_change and _could_be_larger(shape, config, by_class)
    if is_for_steps and why != _too_few_steps(config.batch_size, n_images):
        why += f", and {n_images} images are to make several batches"
    return changed, [*said, f"{why}: episodes of {_described(shape)}."]


def _could_be_larger(shape: EpisodeShape, config: TrainConfig, by_class: ImagesByClass) -> bool:
    """Whether there are classes for one way more, and it is only the steps of an epoch that it would leave too few."""
    one_way_more = shape.batch_size + shape.images_per_class
    enough = _enough(int(by_class.sizes.sum()))
    return shape.n_way < len(by_class.sizes) and enough < one_way_more <= config.batch_size


def _nearest(config: TrainConfig, by_class: ImagesByClass, free: Collection[str], n_ranks: int) -> EpisodeShape | None:
    """Return of all episodes that fit those nearest to the settings: shots first, then images per class, then ways.

    They are no larger than the settings', nor, where the batch size is free and such go with what is given, than leaves
    an epoch a few steps.
    """
    sizes = [config.batch_size]
    if "batch_size" in free:
        sizes.insert(0, min(config.batch_size, _enough(int(by_class.sizes.sum()))))
    usual = config.images_per_class if config.images_per_class > config.n_shot else 2 * config.n_shot
    for size in sizes:
        found = [
            shape
            for shape in _shapes(config.changed(batch_size=size), by_class, free)
            if shape.batch_size % n_ranks == 0
        ]
        if found:
            return min(
                found,
                key=lambda one: (abs(one.n_shot - config.n_shot), abs(one.images_per_class - usual), -one.n_way),
            )
    return None


def _shapes(config: TrainConfig, by_class: ImagesByClass, free: Collection[str]) -> Iterator[EpisodeShape]:
    """Yield the episodes that keep what is given, in batches no larger than the settings'.

    What is given may be more than the data have: the sampler refuses it, and names the class.
    """
    n_classes, smallest = len(by_class.sizes), int(by_class.sizes.min())
    if config.n_way is not None and config.n_query is not None:
        for n_shot in range(1, max(1, smallest - config.n_query) + 1):
            yield EpisodeShape(config.n_way, n_shot, config.n_query)
        return
    most = min(smallest, max(2, config.batch_size // 2))
    for per_class in range(2, most + 1) if "images_per_class" in free else (config.images_per_class,):
        n_shot = config.n_shot
        if "n_shot" in free and n_shot >= per_class:
            n_shot = per_class // 2
        for n_way in range(2, max(2, min(n_classes, config.batch_size // per_class)) + 1):
            if n_shot < per_class and ("batch_size" in free or n_way * per_class == config.batch_size):
                yield EpisodeShape(n_way, n_shot, per_class - n_shot)


def _why_not(config: TrainConfig, by_class: ImagesByClass, n_ranks: int) -> str:
    """Say why the episodes of the settings do not fit."""
    try:
        shape = config.shape
    except InputError as error:  # it says so, and then what to do
        return str(error).partition(". ")[0]
    n_classes, smallest = len(by_class.sizes), int(by_class.sizes.min())
    if shape.n_way <= n_classes and shape.images_per_class <= smallest:
        n_images = int(by_class.sizes.sum())
        if shape.batch_size > _enough(n_images):
            return _too_few_steps(shape.batch_size, n_images)
        return f"A batch of {shape.batch_size} does not divide among {n_ranks} devices"
    return (
        f"Episodes of {shape.n_way} classes × {shape.images_per_class} images are too large; the training split has "
        f"{n_classes} classes of {counted(smallest, 'image')} or more"
    )


def _nothing_fits(config: TrainConfig, by_class: ImagesByClass, free: Collection[str], n_ranks: int) -> InputError:
    """Say what was given, what there is, and what would fit."""
    names = _OF_EPISODES if config.n_way is None else ("n_way", "n_query")
    given = [f"{name} {getattr(config, name)}" for name in names if name not in free]
    place = int(by_class.sizes.argmin())
    size = int(by_class.sizes[place])
    instead = _nearest(config, by_class, _OF_EPISODES, n_ranks)
    advice = "Use fewer devices" if instead is None else f"{_described(instead)}, would fit"
    shared = f" that {n_ranks} devices share" if n_ranks > 1 else ""
    return InputError(
        f"No training episodes{shared} have {' and '.join(given) or 'two images of a class'}: the training split has "
        f"{len(by_class.sizes)} classes, and the smallest, {by_class.name(place)!r}, has {counted(size, 'image')}. "
        f"{advice}."
    )


def _described(shape: EpisodeShape) -> str:
    return f"{shape.n_way} × {shape.images_per_class} = {shape.batch_size} images, {shape.n_shot}-shot"
