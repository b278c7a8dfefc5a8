"""The episodes of an evaluation: the same for a seed on any machine.

How an episode is drawn is part of the definition of a result, so it is defined here and depends on
no library's generator. For a seed, the random number of a counter c is SplitMix64's finaliser of
mix(seed) + c · 0x9E3779B97F4A7C15 (all modulo 2⁶⁴), of which the upper 53 bits make a fraction u in
[0, 1). Episode e draws its way w from counter 2³² e + w, and the t-th image of that way from
counter 2³² e + 2¹⁶ (w + 1) + t. Each draw is without replacement, by Fisher and Yates: the t-th of
n things is at position t + ⌊u (n − t)⌋, which is then swapped with position t. The classes are in
the order of their labels and the images of a class in the order of the dataset.

Queries are drawn before support. So episodes of the same seed that differ only in their shots have
the same queries, and the support images of fewer shots are the first of those of more.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import FileFormatError, InputError
from nearshot.evaluation.spec import EvaluationSpec
from nearshot.io import read_tensors, write_tensors

FORMAT = "nearshot-episodes"
VERSION = "1"
MOST_DIGITS = 20  # of a seed of 64 bits


class Episodes:
    """Episodes as indices of images. An image that occurs twice in an episode is refused.

    Attributes:
        images: (episode, way, query + shot) int64, the queries of each class first.
        n_query: how many of them are queries.
        seed: the seed of the episodes, if they were drawn.
    """

    n_skipped_classes = 0  # those that drew the episodes may have skipped some: it is not known

    def __init__(self, images: Tensor, n_query: int, seed: int | None = None) -> None:
        is_index = images.ndim == 3 and not images.is_floating_point()
        if not is_index or images.numel() == 0 or int(images.min()) < 0:
            came = f"{images.dtype} {tuple(images.shape)}"
            raise InputError(
                "images must be indices from 0 on, of shape (episode, way, query + shot) "
                f"(got {came})."
            )
        self.images = images.to(torch.int64, copy=True)  # the caller may change theirs
        self.n_query = n_query
        self.seed = seed
        n_way = self.images.shape[1]
        n_shot = self.images.shape[2] - n_query
        self.shape = EpisodeShape(n_way, n_shot, n_query)
        in_order = self.images.flatten(1).sort(1).values
        repeated = (in_order[:, 1:] == in_order[:, :-1]).nonzero()
        if len(repeated):
            episode, position = repeated[0].tolist()
            raise InputError(
                f"Episode {episode} has image {int(in_order[episode, position])} twice; "
                "support and query must differ."
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
    def digest(self) -> str:
        """The hash of the queries, see `digest_of`."""
        return digest_of([self.images], self.n_query)

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, start: int, stop: int) -> Tensor:
        """Return the images of episodes `start` to `stop` − 1."""
        return self.images[start:stop]


def digest_of(batches: Iterable[Tensor], n_query: int) -> str:
    """Return a hash of the queries of episodes, given in batches (episode, way, query + shot).

    It does not depend on the number of shots, nor on whether episodes were drawn, given or read
    from a file.
    """
    content = hashlib.sha256()
    shape: tuple[int, ...] = ()  # (way, query)
    for drawn in batches:
        # In NumPy, on this thread alone: the others may be busy answering.
        queries = np.ascontiguousarray(drawn.cpu().numpy()[:, :, :n_query], dtype="<i8")
        content.update(queries.tobytes())
        shape = queries.shape[1:]
    content.update(f"{shape}".encode())
    return content.hexdigest()


class EpisodeSource:
    """Episodes of `labels` (image,) that are drawn when they are needed, always the same ones."""

    def __init__(
        self, labels: Tensor, spec: EvaluationSpec, class_names: Sequence[str] | None = None
    ) -> None:
        all_classes = ImagesByClass(labels, class_names)
        by_class = all_classes.without_small_classes(spec.least_images)
        by_class.check(spec.shape)
        self.shape = spec.shape
        self.seed = spec.seed
        self.n_skipped_classes = len(all_classes.classes) - len(by_class.classes)
        self._n_episodes = spec.n_episodes
        self._sizes = by_class.sizes.numpy()
        self._starts = by_class.starts.numpy()
        self._images = by_class.images.numpy()

    def __len__(self) -> int:
        return self._n_episodes

    def draw(self, start: int, stop: int) -> Tensor:
        """Return the images of episodes `start` to `stop` − 1: (episode, way, query + shot).

        The queries come first.
        """
        n_way = self.shape.n_way
        n_images = self.shape.images_per_class
        n_episodes = stop - start
        episodes = np.arange(start, stop, dtype=np.uint64) << np.uint64(32)  # (episode,)
        ways = np.arange(n_way, dtype=np.uint64)[:, None]
        way_fractions = _fractions(self.seed, episodes + ways)  # (way, episode)
        classes = _draw_in_turn(way_fractions, np.full(n_episodes, len(self._sizes)))
        images = np.arange(n_images, dtype=np.uint64)[:, None, None]
        image_counters = episodes + ((ways + np.uint64(1)) << np.uint64(16)) + images
        image_fractions = _fractions(self.seed, image_counters)  # (image, way, episode)
        positions = _draw_in_turn(
            image_fractions.reshape(n_images, -1), self._sizes[classes].ravel()
        )  # (image, way · episode), in the class
        drawn = self._images[positions + self._starts[classes].ravel()]
        by_episode = drawn.reshape(n_images, n_way, n_episodes).transpose(2, 1, 0)
        return torch.from_numpy(np.ascontiguousarray(by_episode))


def sample_episodes(
    labels: Tensor,
    *,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 10_000,
    seed: int = 0,
    least_images: int = 1,
    class_names: Sequence[str] | None = None,
) -> Episodes:
    """Draw the episodes of an evaluation (Section 3.1), all at once, as indices of images.

    The same labels and seed give the same episodes on any machine.

    Args:
        labels: (image,) integers.
        n_way: the classes of an episode.
        n_shot: the support images of each class.
        n_query: the query images of each class.
        n_episodes: the number of episodes.
        seed: their seed.
        least_images: classes with fewer images are skipped.
        class_names: the names of the labels 0, 1, …, for messages.

    >>> labels = torch.arange(10).repeat_interleave(30)
    >>> episodes = sample_episodes(labels, n_shot=1, n_episodes=100)
    >>> episodes.support.shape, episodes.query.shape
    (torch.Size([100, 5, 1]), torch.Size([100, 5, 15]))
    """
    spec = EvaluationSpec(
        n_way=n_way,
        n_shot=n_shot,
        n_query=n_query,
        n_episodes=n_episodes,
        seed=seed,
        least_images=least_images,
    )
    source = EpisodeSource(labels, spec, class_names)
    return Episodes(source.draw(0, n_episodes), n_query, seed)


def write_episodes(episodes: Episodes, path: str | Path, *, fingerprint: str) -> None:
    """Write episodes to a small safetensors file, to measure other code on the same tasks.

    The file has two int32 tensors, `support` (episode, way, shot) and `query` (episode, way,
    query), of indices into the dataset's images; and the metadata `format` ("nearshot-episodes"),
    `version` ("1") and `fingerprint`, that of the dataset split that the indices refer to.
    """
    tensors = {
        "support": episodes.support.int().contiguous(),
        "query": episodes.query.int().contiguous(),
    }
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": fingerprint,
        "seed": json.dumps(episodes.seed),
    }
    write_tensors(path, tensors, metadata)


def read_episodes(path: str | Path, *, labels: Tensor, fingerprint: str) -> Episodes:
    """Read episodes that `write_episodes` wrote, or other code in its format.

    They are checked against the `labels` (image,) and the fingerprint of the dataset split.
    """
    metadata, tensors = read_tensors(path)
    has_format = metadata.get("format") == FORMAT and metadata.get("version") == VERSION
    if not has_format or tensors.keys() != {"support", "query"}:
        raise FileFormatError(f"{path} is not an episodes file of format version {VERSION}.")
    fingerprint_in_file = metadata.get("fingerprint")
    if fingerprint_in_file != fingerprint:
        raise FileFormatError(
            f"{path} has episodes of the dataset with fingerprint {fingerprint_in_file!r}, not "
            f"{fingerprint!r}."
        )
    query = tensors["query"]
    support = tensors["support"]
    if query.ndim != 3 or support.ndim != 3 or query.shape[:2] != support.shape[:2]:
        raise FileFormatError(
            f"{path} is damaged: support and query must be of shape (episode, way, image) (got "
            f"{tuple(support.shape)} and {tuple(query.shape)})."
        )
    images = torch.cat([query, support], dim=2)
    seed = metadata.get("seed", "")  # other code may write none
    has_seed = seed.isdecimal() and len(seed) <= MOST_DIGITS
    episodes = Episodes(images, query.shape[2], int(seed) if has_seed else None)
    check_classes(episodes, labels)
    return episodes


def check_classes(episodes: Episodes, labels: Tensor) -> None:
    """Refuse episodes whose images the dataset lacks, or whose ways are not one class each."""
    last = int(episodes.images.max())
    if last >= len(labels):
        raise InputError(
            f"episodes refer to image {last}, and the dataset has {len(labels)} images."
        )
    classes = labels.cpu()[episodes.images.cpu()]  # (episode, way, image)
    mixed = (classes != classes[:, :, :1]).any(2).any(1).nonzero()
    if len(mixed):
        raise InputError(f"In episode {int(mixed[0])} a way has images of more than one class.")
    in_order = classes[:, :, 0].sort(1).values
    repeated = (in_order[:, 1:] == in_order[:, :-1]).any(1).nonzero()
    if len(repeated):
        raise InputError(f"In episode {int(repeated[0])} two ways are the same class.")


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply SplitMix64's finaliser."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _fractions(seed: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return the random numbers u of counters, between 0 and 1."""
    key = _mix(np.array([seed], dtype=np.uint64))
    bits = _mix(counters * np.uint64(0x9E3779B97F4A7C15) + key) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _draw_in_turn(
    fractions: npt.NDArray[np.float64], upper: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """Draw without replacement from range(upper) in each column, by Fisher and Yates.

    `fractions` is (draw, column), and so is the result; `upper` (column,).
    """
    # Instead of shuffling a list for every column, remember the swaps: after draw s, position
    # `positions[s]` holds `held[s]`.
    drawn = np.empty(fractions.shape, dtype=np.int32)
    positions = np.empty_like(drawn)
    held = np.empty_like(drawn)
    for t in range(len(fractions)):
        positions[t] = t + (fractions[t] * (upper - t)).astype(np.int32)
        drawn[t] = positions[t]
        held[t] = t
        for s in range(t):
            np.copyto(drawn[t], held[s], where=positions[s] == positions[t])
            np.copyto(held[t], held[s], where=positions[s] == t)
    return drawn
