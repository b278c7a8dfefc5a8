"""The tasks: what an episode may contain, that they stay the same for ever, and their file."""

import hashlib
import math
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from torch import Tensor

from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.evaluation import (
    Episodes,
    EvaluationSpec,
    read_episodes,
    sample_episodes,
    write_episodes,
)
from nearshot.evaluation.episodes import EpisodeSource, digest_of
from nearshot.io import write_tensors

few = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**64 - 1)
LABELS = torch.arange(20).repeat_interleave(30)


def labels_of(sizes: list[int], seed: int = 0) -> Tensor:
    labels = torch.cat([torch.full((size,), 3 * k) for k, size in enumerate(sizes)])
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


@few
@given(
    seed=seeds,
    sizes=st.lists(st.integers(5, 40), min_size=3, max_size=8),
    n_way=st.integers(2, 3),
    n_shot=st.integers(1, 3),
    n_query=st.integers(1, 2),
)
def test_an_episode_is_what_it_should_be(
    seed: int, sizes: list[int], n_way: int, n_shot: int, n_query: int
) -> None:
    labels = labels_of(sizes)
    episodes = sample_episodes(
        labels, n_way=n_way, n_shot=n_shot, n_query=n_query, n_episodes=20, seed=seed
    )
    assert episodes.support.shape == (20, n_way, n_shot)
    assert episodes.query.shape == (20, n_way, n_query)
    classes = labels[episodes.support[:, :, 0]]  # (episode, way)
    assert (labels[episodes.support] == classes[:, :, None]).all()
    assert (labels[episodes.query] == classes[:, :, None]).all()
    for episode in range(20):
        assert len(classes[episode].unique()) == n_way
        assert len(episodes.images[episode].unique()) == n_way * (n_shot + n_query)


@few
@given(seed=seeds, cuts=st.lists(st.integers(0, 100), max_size=5))
def test_any_run_of_episodes_is_part_of_the_same_whole(seed: int, cuts: list[int]) -> None:
    source = EpisodeSource(LABELS, EvaluationSpec(n_shot=2, n_query=3, n_episodes=100, seed=seed))
    edges = [0, *sorted(cuts), 100]
    pieces = [source.draw(start, stop) for start, stop in pairwise(edges) if stop > start]
    assert torch.equal(torch.cat(pieces), source.draw(0, 100))


@few
@given(seed=seeds, n_shot=st.integers(1, 7))
def test_fewer_shots_are_the_first_of_more_and_the_queries_are_the_same(
    seed: int, n_shot: int
) -> None:
    fewer = sample_episodes(LABELS, n_shot=n_shot, n_episodes=50, seed=seed)
    more = sample_episodes(LABELS, n_shot=8, n_episodes=50, seed=seed)
    assert torch.equal(fewer.query, more.query)
    assert torch.equal(fewer.support, more.support[:, :, :n_shot])


def test_the_episodes_of_a_seed_are_the_same_for_ever() -> None:
    """If this fails, published numbers change their meaning: mend the drawing, not the digest."""
    episodes = sample_episodes(LABELS, n_episodes=1000, seed=7)
    content = episodes.images.numpy().astype("<i8").tobytes()
    expected = "d67dccb172a19910cce0a50c7601c16b30d654b80483b3dbabe700afcb85d981"
    assert hashlib.sha256(content).hexdigest() == expected


def test_drawing_follows_its_description() -> None:
    """A second implementation, from the module's documentation alone, with Python's integers."""
    labels = labels_of([9, 14, 11, 8], seed=3)
    episodes = sample_episodes(labels, n_way=3, n_shot=2, n_query=4, n_episodes=5, seed=11)
    mask = 2**64 - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def fraction(counter: int) -> float:
        return (mix((mix(11) + counter * 0x9E3779B97F4A7C15) & mask) >> 11) / 2**53

    def draw(things: list[int], first_counter: int, n_draws: int) -> list[int]:
        things = list(things)
        for t in range(n_draws):
            position = t + math.floor(fraction(first_counter + t) * (len(things) - t))
            things[t], things[position] = things[position], things[t]
        return things[:n_draws]

    by_class = [(labels == label).nonzero()[:, 0].tolist() for label in labels.unique().tolist()]
    for e in range(5):
        classes = draw(list(range(4)), 2**32 * e, 3)
        for w, k in enumerate(classes):
            images = draw(by_class[k], 2**32 * e + 2**16 * (w + 1), 6)
            assert episodes.query[e, w].tolist() == images[:4]
            assert episodes.support[e, w].tolist() == images[4:]


def test_the_digest_is_of_the_questions() -> None:
    episodes = sample_episodes(LABELS, n_episodes=100, seed=4)
    one_shot = sample_episodes(LABELS, n_shot=1, n_episodes=100, seed=4)
    assert digest_of(episodes.images.split(7), n_query=15) == episodes.digest == one_shot.digest
    others = [
        sample_episodes(LABELS, n_episodes=100, seed=5),
        sample_episodes(LABELS, n_episodes=101, seed=4),
        sample_episodes(LABELS, n_episodes=100, seed=4, n_query=14),
    ]
    assert episodes.digest not in {other.digest for other in others}


def test_classes_with_too_few_images() -> None:
    labels = labels_of([25, 12, 30, 25, 25, 25])
    with pytest.raises(InputError, match="Class 3 has 12 images; 5-shot with 15 queries needs 20"):
        sample_episodes(labels)
    with pytest.raises(InputError, match="Class 'c3' has 12 images"):
        sample_episodes(labels, class_names=[f"c{i}" for i in range(20)])
    episodes = sample_episodes(labels, n_episodes=200, least_images=20)
    assert set(labels[episodes.images].unique().tolist()) == {0, 6, 9, 12, 15}
    with pytest.raises(InputError, match="5 classes of 20 images or more; episodes need 6"):
        sample_episodes(labels, n_way=6, least_images=20)
    assert sample_episodes(labels, n_episodes=200, least_images=13).digest == episodes.digest
    with pytest.raises(InputError, match="Class 3 has 12 images"):
        sample_episodes(labels, least_images=12)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_way", 21),
        ("n_shot", 0),
        ("n_episodes", 0),
        ("n_episodes", 1e3),
        ("seed", -1),
        ("seed", 1.5),
    ],
)
def test_impossible_requests(name: str, value: object) -> None:
    with pytest.raises(InputError, match="20 classes.* 21" if name == "n_way" else name):
        sample_episodes(LABELS, **{name: value})  # type: ignore[arg-type]


def test_overlapping_support_and_query_cannot_be_made() -> None:
    images = torch.arange(2 * 3 * 4).view(2, 3, 4).clone()
    made = Episodes(images, n_query=2)
    images[1, 2, 3] = images[1, 0, 0]  # a support image of one way is a query of another
    assert (
        made.images[1, 2, 3] != images[1, 2, 3]
    )  # changing what it was made of does not change it
    with pytest.raises(InputError, match="Episode 1 has image 12 twice"):
        Episodes(images, n_query=2)
    mistakes = (
        (images[0], "shape"),
        (images[:0], "shape"),
        (-images, "from 0 on"),
        (images[:, :, :2], "n_shot"),
    )
    for wrong, message in mistakes:
        with pytest.raises(InputError, match=message):
            Episodes(wrong, n_query=2)


def test_episodes_come_back_from_their_file(tmp_path: Path) -> None:
    episodes = sample_episodes(LABELS, n_episodes=300, seed=5)
    path = tmp_path / "tasks.safetensors"
    write_episodes(episodes, path, fingerprint="cifar-fs test 0123")
    again = read_episodes(path, labels=LABELS, fingerprint="cifar-fs test 0123")
    assert torch.equal(again.images, episodes.images)
    assert again.digest == episodes.digest
    assert again.seed == 5
    assert path.stat().st_size < 4 * episodes.images.numel() + 1000
    with pytest.raises(FileFormatError, match="fingerprint 'cifar-fs test 0123', not 'another'"):
        read_episodes(path, labels=LABELS, fingerprint="another")


def write(path: Path, support: Tensor, query: Tensor, **metadata: str) -> Path:
    defaults = {"format": "nearshot-episodes", "version": "1", "fingerprint": "f"}
    safetensors.torch.save_file({"support": support, "query": query}, path, defaults | metadata)
    return path


def test_foreign_episodes_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "tasks.safetensors"
    support = torch.tensor([[[0], [30]]]).int()
    query = torch.tensor([[[1, 2], [31, 32]]]).int()

    def read(file: Path) -> Episodes:
        return read_episodes(file, labels=LABELS, fingerprint="f")

    assert read(write(path, support, query)).seed is None
    assert read(write(path, support, query, seed="[")).seed is None
    for bad_support, bad_query, message in [
        (torch.tensor([[[1], [30]]]), query, "has image 1 twice"),
        (torch.tensor([[[30], [0]]]), query, "more than one class"),
        (torch.tensor([[[0], [600]]]), query, "image 600.* 600 images"),
        (support.float(), query, "float32"),
        (
            torch.tensor([[[0], [5]]]),
            torch.tensor([[[1, 2], [3, 4]]]),
            "two ways are the same class",
        ),
    ]:
        with pytest.raises((InputError, FileFormatError), match=message):
            read(write(path, bad_support, bad_query))
    with pytest.raises(FileFormatError, match="not an episodes file of format version 1"):
        read(write(path, support, query, version="9"))
    safetensors.torch.save_file(
        {"support": support}, path, {"format": "nearshot-episodes", "version": "1"}
    )
    with pytest.raises(FileFormatError, match="not an episodes file"):
        read(path)
    path.write_bytes(b"no such thing")
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        read(path)


@pytest.mark.parametrize(
    ("support", "query"),
    [((3, 0, 1), (3, 0, 1)), ((0, 2, 1), (0, 2, 1)), ((3, 2), (3, 2)), ((3, 2, 1), (3, 1, 1))],
)
def test_a_file_of_no_episodes_is_an_error(
    support: tuple[int, ...], query: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "episodes.safetensors"
    tensors = {
        "support": torch.zeros(support, dtype=torch.int32),
        "query": torch.zeros(query, dtype=torch.int32),
    }
    metadata = {"format": "nearshot-episodes", "version": "1", "fingerprint": "f"}
    write_tensors(path, tensors, metadata)
    with pytest.raises(NearshotError, match="episode"):
        read_episodes(path, labels=torch.zeros(9, dtype=torch.int64), fingerprint="f")
