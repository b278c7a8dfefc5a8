"""The tasks of an evaluation: all episodes at once, or a run of them, the same for a seed on any machine and any day.

How an episode is drawn is part of the definition of a result, so it is spelled out here and depends on no library's
generator. For a seed, the random number of a counter c is SplitMix64's finaliser of mix(seed) + c · 0x9E3779B97F4A7C15
(all modulo 2⁶⁴), of which the upper 53 bits make a fraction u in [0, 1). Episode e draws its way w from counter
2³² e + w, and the t-th image of that way from counter 2³² e + 2¹⁶ (w + 1) + t. Each draw takes one of what is left, by
Fisher and Yates: the t-th of n things is at place t + ⌊u (n − t)⌋, which then changes places with place t. The classes
stand in the order of their labels and the images of a class in the order of the dataset.

Queries are drawn before support. So episodes of the same seed that differ only in their shots have the same queries,
and the support images of fewer shots are the first of those of more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nearshot.checks import is_integer
from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import FileFormatError, InputError
from nearshot.io import write_tensors

__all__ = [
    "EpisodeSource",
    "Episodes",
    "QuestionDigest",
    "digest_of",
    "read_episodes",
    "sample_episodes",
    "write_episodes",
]

FORMAT, VERSION = "nearshot-episodes", "1"
SmallClasses = Literal["raise", "leave out"] | int


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes as indices of images.

    Support and query are parts of one tensor in which no image occurs twice in an episode, so they cannot overlap;
    making an object of this type checks it.

    Attributes:
        images: (episode, way, query + shot) int64, the queries of each class first.
        n_query: how many of them are queries.
        seed: the seed that they were drawn with, if they were.
    """

    images: Tensor
    n_query: int
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", self.images.clone())  # nobody else's to change
        images = self.images
        if images.ndim != 3 or images.is_floating_point() or len(images) == 0:
            raise InputError(
                "Episodes need whole numbers of shape (episode, way, query + shot), "
                f"not {images.dtype} of shape {tuple(images.shape)}."
            )
        EpisodeShape(images.shape[1], images.shape[2] - self.n_query, self.n_query)  # checks the numbers
        in_order = images.flatten(1).sort(1).values
        if int(in_order[:, 0].min()) < 0:
            raise InputError("An image's index cannot be negative.")
        repeated = (in_order[:, 1:] == in_order[:, :-1]).nonzero()
        if len(repeated):
            episode, place = repeated[0].tolist()
            raise InputError(
                f"Episode {episode} has image {int(in_order[episode, place])} twice; support and query must differ."
            )

    @property
    def support(self) -> Tensor:
        """The support images, (episode, way, shot)."""
        return self.images[:, :, self.n_query :]

    @property
    def query(self) -> Tensor:
        """The query images, (episode, way, query)."""
        return self.images[:, :, : self.n_query]

    @property
    def shape(self) -> EpisodeShape:
        """Ways, shots and queries."""
        return EpisodeShape(self.images.shape[1], self.images.shape[2] - self.n_query, self.n_query)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digest(self) -> str:
        """A hash of what is asked: see `QuestionDigest`."""
        return digest_of(self)

    @property
    def n_classes_left_out(self) -> int:
        """How many classes were left out for having too few images: unknown here, so none."""
        return 0

    def draw(self, start: int, stop: int) -> Tensor:
        """Return the images of some episodes, as `EpisodeSource.draw` does."""
        return self.images[start:stop]


class QuestionDigest:
    """A hash of the queries of episodes, taken run by run.

    It is the same for the same questions, however many shots there are to answer them with, and whether the episodes
    were drawn, given or read from a file.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._shape: tuple[int, ...] = ()

    def update(self, drawn: Tensor, n_query: int) -> None:
        """Add the episodes of a run, (episode, way, query + shot)."""
        # In NumPy, on this thread alone, since all others may be busy answering.
        queries = np.ascontiguousarray(drawn.cpu().numpy()[:, :, :n_query], dtype="<i8")
        self._shape = queries.shape[1:]
        self._hash.update(queries.tobytes())

    def hexdigest(self) -> str:
        """Return the hash of all that was added."""
        whole = self._hash.copy()
        whole.update(f"{self._shape}".encode())
        return whole.hexdigest()


class EpisodeSource:
    """Episodes that are drawn when they are needed: any run of them, always the same.

    Args:
        labels: (image,) the class of every image.
        shape: ways, shots and queries.
        n_episodes: how many episodes there are.
        seed: which ones.
        small_classes: whether classes with too few images are an error or are left out; or a number: those with fewer
            images are left out, and others that are too small are an error.
        class_names: names for the labels, used in messages.
    """

    shape: EpisodeShape
    seed: int
    n_classes_left_out: int

    def __init__(
        self,
        labels: Tensor,
        shape: EpisodeShape,
        *,
        n_episodes: int,
        seed: int,
        small_classes: SmallClasses = "raise",
        class_names: Sequence[str] | None = None,
    ) -> None:
        if not is_integer(n_episodes) or not 1 <= n_episodes < 2**31:
            raise InputError(f"n_episodes must be a whole number, at least 1 and under 2³¹, not {n_episodes}.")
        if not is_integer(seed) or not 0 <= seed < 2**64:
            raise InputError(f"seed must be a whole number from 0 to 2⁶⁴ − 1, not {seed!r}.")
        if small_classes not in ("raise", "leave out") and not (is_integer(small_classes) and int(small_classes) > 0):
            raise InputError(
                f"small_classes must be 'raise' or 'leave out', or a number of at least 1, not {small_classes!r}."
            )
        by_class = ImagesByClass(labels, class_names)
        n_classes = len(by_class.classes)
        if small_classes != "raise":
            least = shape.images_per_class if small_classes == "leave out" else int(small_classes)
            by_class = by_class.without_small_classes(least)
        by_class.check(shape, "small_classes")
        if max(shape.n_way, shape.images_per_class) >= 2**16 - 1 or len(labels) >= 2**31:
            raise InputError(f"Episodes of {shape.n_way} ways × {shape.images_per_class} images are too large.")
        self.shape, self.seed = shape, int(seed)
        self.n_classes_left_out = n_classes - len(by_class.classes)
        self._n_episodes = int(n_episodes)
        self._sizes = by_class.sizes.numpy()
        self._starts = by_class.starts.numpy()
        self._images = by_class.images.numpy()

    def __len__(self) -> int:
        return self._n_episodes

    def draw(self, start: int, stop: int) -> Tensor:
        """Return the images of episodes `start` to `stop` − 1: (episode, way, query + shot), queries first."""
        n_way, n_images = self.shape.n_way, self.shape.images_per_class
        episodes = np.arange(start, stop, dtype=np.uint64) << np.uint64(32)  # (episode,)
        way_counters = np.arange(n_way, dtype=np.uint64)[:, None] + episodes  # (way, episode)
        classes = _draw_in_turn(_fractions(self.seed, way_counters), np.full(stop - start, len(self._sizes)))
        image_counters = (
            episodes  # (image, way, episode)
            + (np.arange(1, n_way + 1, dtype=np.uint64)[:, None] << np.uint64(16))
            + np.arange(n_images, dtype=np.uint64)[:, None, None]
        )
        fractions = _fractions(self.seed, image_counters).reshape(n_images, -1)
        places = _draw_in_turn(fractions, self._sizes[classes].ravel())  # (image, way · episode)
        images = self._images[places + self._starts[classes].ravel()]
        in_order = images.reshape(n_images, n_way, stop - start).transpose(2, 1, 0)
        return torch.from_numpy(np.ascontiguousarray(in_order))

    @property
    def digest(self) -> str:
        """A hash of what is asked: see `QuestionDigest`."""
        return digest_of(self)


def digest_of(source: EpisodeSource | Episodes) -> str:
    """Return the digest of all questions, drawn run by run."""
    digest = QuestionDigest()
    for start in range(0, len(source), 2048):
        digest.update(source.draw(start, min(start + 2048, len(source))), source.shape.n_query)
    return digest.hexdigest()


def sample_episodes(
    labels: Tensor,
    *,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 10_000,
    seed: int = 0,
    small_classes: SmallClasses = "raise",
    class_names: Sequence[str] | None = None,
) -> Episodes:
    """Draw episodes of an evaluation (Section 3.1), all at once, as indices of images.

    The same labels and seed give the same episodes on any machine and any later day.

    Args:
        labels: (image,) the class of every image, whole numbers.
        n_way: classes in an episode, w.
        n_shot: support images of each class, n.
        n_query: query images of each class, m.
        n_episodes: how many episodes.
        seed: which ones.
        small_classes: "raise" names a class with too few images in an error; "leave out" goes on without such classes;
            a number goes on without those that have fewer images.
        class_names: names for the labels 0, 1, …, used in messages.

    >>> labels = torch.arange(10).repeat_interleave(30)
    >>> episodes = sample_episodes(labels, n_shot=1, n_episodes=100)
    >>> episodes.support.shape, episodes.query.shape
    (torch.Size([100, 5, 1]), torch.Size([100, 5, 15]))
    >>> bool((labels[episodes.query] == labels[episodes.support]).all())
    True
    """
    shape = EpisodeShape(n_way, n_shot, n_query)
    source = EpisodeSource(
        labels, shape, n_episodes=n_episodes, seed=seed, small_classes=small_classes, class_names=class_names
    )
    return Episodes(source.draw(0, n_episodes), n_query, seed)


def write_episodes(episodes: Episodes, path: str | Path, *, fingerprint: str) -> None:
    """Write episodes to a small safetensors file, so that other code can be measured on the very same tasks.

    The file has two int32 tensors, `support` (episode, way, shot) and `query` (episode, way, query), of indices into
    the dataset's images in their order; and the metadata `format` ("nearshot-episodes"), `version` ("1") and
    `fingerprint`, which says of which dataset and split.

    Args:
        episodes: what to write.
        path: the file, by custom ending in `.safetensors`.
        fingerprint: the fingerprint of the dataset split that the indices refer to.
    """
    tensors = {"support": episodes.support.int().contiguous(), "query": episodes.query.int().contiguous()}
    metadata = {"format": FORMAT, "version": VERSION, "fingerprint": fingerprint, "seed": json.dumps(episodes.seed)}
    write_tensors(path, tensors, metadata)


def read_episodes(path: str | Path, *, labels: Tensor, fingerprint: str) -> Episodes:
    """Read episodes, and check them against the dataset: its fingerprint, and that each way is one class of its own.

    Args:
        path: a file that `write_episodes` wrote, or other code in its format.
        labels: (image,) the labels of the dataset split.
        fingerprint: the fingerprint of the dataset split; a file for another one is refused.
    """
    path = Path(path)
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, Any] = file.metadata() or {}
            if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
                raise FileFormatError(f"{path} is not an episodes file of format version {VERSION}.")
            support, query = file.get_tensor("support"), file.get_tensor("query")
            if support.is_floating_point() or query.is_floating_point():
                raise FileFormatError(f"{path} has indices that are not whole numbers.")
            support, query = support.long(), query.long()
    except SafetensorError as error:
        raise FileFormatError(f"{path} is not an episodes file, or is damaged: {error}.") from error
    except OSError:
        raise InputError(f"There is no episodes file {path}.") from None
    if metadata.get("fingerprint") != fingerprint:
        raise FileFormatError(
            f"{path} has episodes of the dataset with fingerprint {metadata.get('fingerprint')!r}, not {fingerprint!r}."
        )
    if support.ndim != 3 or query.ndim != 3 or support.shape[:2] != query.shape[:2]:
        raise FileFormatError(
            f"{path} has support of shape {tuple(support.shape)} and queries of shape {tuple(query.shape)}; "
            "they must be (episode, way, shot) and (episode, way, query)."
        )
    try:
        seed = json.loads(metadata.get("seed", "null"))
    except ValueError:
        seed = None
    episodes = Episodes(torch.cat([query, support], dim=2), query.shape[2], seed if isinstance(seed, int) else None)
    check_classes(episodes, labels)
    return episodes


def check_classes(episodes: Episodes, labels: Tensor) -> None:
    """Refuse episodes with images that the dataset does not have, or ways that are not one class each."""
    last = int(episodes.images.max())
    if last >= len(labels):
        raise InputError(f"The episodes refer to image {last}; the dataset has {len(labels)}.")
    classes = labels.cpu()[episodes.images.cpu()]  # (episode, way, image)
    mixed = (classes != classes[:, :, :1]).any(2).any(1).nonzero()
    if len(mixed):
        raise InputError(f"In episode {int(mixed[0])} a way has images of more than one class.")
    in_order = classes[:, :, 0].sort(1).values
    repeated = (in_order[:, 1:] == in_order[:, :-1]).any(1).nonzero()
    if len(repeated):
        raise InputError(f"In episode {int(repeated[0])} two ways are the same class.")


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _fractions(seed: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return the fraction in [0, 1) of each counter."""
    key = _mix(np.array([seed], dtype=np.uint64))
    bits = _mix(counters * np.uint64(0x9E3779B97F4A7C15) + key) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _draw_in_turn(fractions: npt.NDArray[np.float64], upper: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Draw without replacement from range(upper) in each column, by Fisher and Yates; earlier draws know no later ones.

    `fractions`: (draw, column); `upper`: (column,). Returns (draw, column).
    """
    n_draws, n_columns = fractions.shape
    drawn = np.empty((n_draws, n_columns), dtype=np.int32)
    # Instead of shuffling a list for every column, remember what was moved: place `places[s]` holds `held[s]`.
    places, held = np.empty_like(drawn), np.empty_like(drawn)
    for t in range(n_draws):
        places[t] = t + (fractions[t] * (upper - t)).astype(np.int32)
        drawn[t], held[t] = places[t], t
        for s in range(t):
            np.copyto(drawn[t], held[s], where=places[s] == places[t])
            np.copyto(held[t], held[s], where=places[s] == t)
    return drawn
