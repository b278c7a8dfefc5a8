"""Damage files that nearshot reads back, and count what happens.

    python benchmarks/damage.py --copies 200

Every reader gets copies of a good file in which a bit is flipped, a block is zeroed or duplicated,
or the end is cut off. The outcome must be one of
- equal: the damage does not matter, and the content is the same;
- recomputed: a cache computes the entry again;
- refused: one sentence (an error of nearshot).
Anything else (a traceback, or other content) is a bug. JSON that people edit has no checksum, and
is not among the files. Writes benchmarks/results/damage.json and .md.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from nearshot import FewShotClassifier, load_backbone
from nearshot.data import Store, prepare_folder
from nearshot.errors import NearshotError
from nearshot.estimator.embedding_cache import EmbeddingCache
from nearshot.evaluation import (
    FeatureSet,
    evaluate_features,
    load_features,
    read_episodes,
    sample_episodes,
    save_features,
    write_episodes,
)
from nearshot.io import _checksum
from nearshot.models import build_backbone, save_backbone
from nearshot.training import TrainConfig, train
from nearshot.training.checkpoint import read_checkpoint

RESULTS = Path(__file__).parent / "results"
BLOCK = 512
OUTCOMES = ("equal", "recomputed", "refused")


@dataclass(frozen=True)
class Reader:
    """A file that is read back: its path inside of a folder, and what reading the folder gives."""

    file: str
    read: Callable[[Path], Any]


def flip(content: bytearray, rng: random.Random) -> None:
    """Flip a bit."""
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def flip_early(content: bytearray, rng: random.Random) -> None:
    """Flip a bit among the first bytes, where formats have their header."""
    content[rng.randrange(min(len(content), 200))] ^= 1 << rng.randrange(8)


def zero(content: bytearray, rng: random.Random) -> None:
    """Zero a block."""
    start = rng.randrange(len(content))
    content[start : start + BLOCK] = bytes(len(content[start : start + BLOCK]))


def truncate(content: bytearray, rng: random.Random) -> None:
    """Cut off the end."""
    del content[rng.randrange(len(content)) :]


def duplicate(content: bytearray, rng: random.Random) -> None:
    """Insert a block a second time."""
    start = rng.randrange(len(content))
    content[start:start] = content[start : start + BLOCK]


DAMAGES = {
    "bit flipped": flip,
    "bit flipped in the header": flip_early,
    "block zeroed": zero,
    "cut off": truncate,
    "block duplicated": duplicate,
}


def make_files(folder: Path) -> dict[str, Reader]:
    """Write a good file of every kind, and return the readers."""
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    photos = folder / "photos"
    data = folder / "data"
    for label in range(12):
        (photos / f"class {label}").mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(photos / f"class {label}" / f"{number}.png")
    prepare_folder(photos, name="photos", data_dir=data, side=16, progress=False)
    torch.manual_seed(0)
    backbone = build_backbone("conv4-32", input_size=16).eval()
    save_backbone(backbone, folder / "weights.safetensors", training_mean=torch.ones(32))
    images = [rng.integers(0, 255, (16, 16, 3), dtype=np.uint8) for _ in range(8)]
    labels = list("aabbccdd")
    FewShotClassifier(folder / "weights.safetensors", device="cpu").fit(images, labels).save(
        folder / "b.safetensors"
    )
    classes = torch.arange(8).repeat_interleave(20)
    features = FeatureSet(
        torch.randn(160, 16, generator=generator), classes, split="val", fingerprint="f"
    )
    save_features(features, folder / "features.safetensors")
    np.savez(folder / "plain.npz", features=features.features.numpy(), labels=classes.numpy())
    np.savez_compressed(
        folder / "compressed.npz", features=features.features.numpy(), labels=classes.numpy()
    )
    episodes = sample_episodes(classes, n_way=3, n_shot=1, n_query=3, n_episodes=50)
    write_episodes(episodes, folder / "episodes.safetensors", fingerprint="f")
    cached = rng.standard_normal(64).astype(np.float32)
    EmbeddingCache(folder / "cache", "key", 64).put("image", cached)
    config = TrainConfig(
        dataset="photos",
        backbone="conv4-32",
        epochs=2,
        batch_size=16,
        validation_n_way=2,
        validation_episodes=20,
    )
    auto = ("batch_size", "validation_n_shot", "validation_n_query")
    train(
        config,
        folder=folder / "run",
        data_dir=data,
        auto=auto,
        progress=False,
        checkpoint_seconds=0,
    )

    def answers(at: Path) -> Any:
        classifier = FewShotClassifier.load(at / "b.safetensors", device="cpu")
        return classifier.predict_proba(images), list(classifier.classes_)

    def features_of(name: str) -> Callable[[Path], Any]:
        return lambda at: (
            evaluate_features(
                load_features(at / name), n_way=3, n_query=5, n_episodes=50
            ).per_episode
        )

    def store_of(at: Path) -> Any:
        store = Store(at / "data/photos/16/train")
        store.verify()
        return (
            np.array(store.images),
            store.labels,
            store.class_names,
            store.image_names,
            store.fingerprint,
        )

    def weights_of(at: Path) -> Any:
        return load_backbone(at / "weights.safetensors").state_dict()

    def episodes_of(at: Path) -> Any:
        return read_episodes(at / "episodes.safetensors", labels=classes, fingerprint="f").images

    def checkpoint_of(at: Path) -> Any:
        return read_checkpoint(at / "run/checkpoint.pt")

    store = [(f"a store's {name}", f"data/photos/16/train/{name}") for name in STORE_FILES]
    cache = next(path.relative_to(folder) for path in (folder / "cache").rglob("*.f32"))
    return {
        "checkpoint": Reader("run/checkpoint.pt", checkpoint_of),
        "weights": Reader("weights.safetensors", weights_of),
        "bundle": Reader("b.safetensors", answers),
        "features (.safetensors)": Reader(
            "features.safetensors", features_of("features.safetensors")
        ),
        "features (.npz)": Reader("plain.npz", features_of("plain.npz")),
        "features (compressed .npz)": Reader("compressed.npz", features_of("compressed.npz")),
        "episodes": Reader("episodes.safetensors", episodes_of),
        "embedding cache": Reader(
            str(cache), lambda at: EmbeddingCache(at / "cache", "key", 64).get("image")
        ),
        **{name: Reader(file, store_of) for name, file in store},
    }


STORE_FILES = ("images.u8", "hashes.bin", "labels.npy", "names.txt", "manifest.json")


def same(first: Any, second: Any) -> bool:
    """Return whether two contents are equal, to the bit."""
    if isinstance(first, torch.Tensor):
        first = first.numpy()
        second = second.numpy() if isinstance(second, torch.Tensor) else second
    if isinstance(first, np.ndarray):
        return (
            isinstance(second, np.ndarray)
            and first.dtype == second.dtype
            and np.array_equal(first, second, equal_nan=True)
        )
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and first.keys() == second.keys()
            and all(same(first[k], second[k]) for k in first)
        )
    if isinstance(first, list | tuple):
        return (
            type(first) is type(second)
            and len(first) == len(second)
            and all(map(same, first, second))
        )
    return bool(first == second)


@contextmanager
def damaged(file: Path, content: bytes) -> Iterator[None]:
    """Replace a file's content for a while."""
    good = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(good)


def outcome(folder: Path, reader: Reader, expected: Any, content: bytes) -> str:
    """Read a damaged copy, and return what happened."""
    with damaged(folder / reader.file, content):
        try:
            content_read = reader.read(folder)
        except NearshotError as error:
            return "refused" if "\n" not in str(error) else "error of several lines"
        except Exception as error:
            return f"{type(error).__name__}"
    if content_read is None and expected is not None:
        return "recomputed"
    return "equal" if same(expected, content_read) else "another content"


def fuzz(folder: Path, reader: Reader, n_copies: int, seed: int = 0) -> dict[str, Counter[str]]:
    """Return how often each outcome was found, by the kind of damage."""
    good = (folder / reader.file).read_bytes()
    expected = reader.read(folder)
    outcomes = {}
    for kind, damage in DAMAGES.items():
        rng = random.Random(f"{seed} {kind}")
        counts = Counter[str]()
        for _ in range(n_copies // len(DAMAGES)):
            content = bytearray(good)
            while bytes(content) == good:  # zeroing zeros is no damage
                damage(content, rng)
            counts[outcome(folder, reader, expected, bytes(content))] += 1
        outcomes[kind] = counts
    return outcomes


def table(outcomes: dict[str, dict[str, Counter[str]]]) -> str:
    """Return the outcomes as a Markdown table."""
    lines = [f"| file | {' | '.join(DAMAGES)} |", f"|---|{'---|' * len(DAMAGES)}"]
    for name, kinds in outcomes.items():
        cells = [
            ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
            for counts in kinds.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def seconds(work: Callable[[], Any]) -> float:
    """Return the shortest of three times that some work takes."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def costs(folder: Path) -> list[dict[str, Any]]:
    """Return what checking large files costs, beside opening and using them."""
    images = torch.rand(64, 3, 32, 32)
    backbone = build_backbone("resnet12", input_size=32).eval()
    save_backbone(backbone, folder / "large.safetensors")
    labels = torch.arange(20).repeat_interleave(600)
    save_features(
        FeatureSet(torch.randn(12_000, 640), labels), folder / "large-features.safetensors"
    )
    optimiser = torch.optim.SGD(backbone.parameters(), momentum=0.9)
    backbone(images).square().mean().backward()
    optimiser.step()
    torch.save(
        {"learner": backbone.state_dict(), "optimiser": optimiser.state_dict()}, folder / "large.pt"
    )

    def resume() -> None:
        state = torch.load(folder / "large.pt", weights_only=True)
        backbone.load_state_dict(state["learner"])
        optimiser.load_state_dict(state["optimiser"])
        backbone.train()(images).square().mean().backward()
        optimiser.step()

    def test_zip() -> None:
        zipfile.ZipFile(folder / "large.pt").testzip()

    works: dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]] = {
        "weights, 64 images embedded": (
            "large.safetensors",
            lambda: _checksum(folder / "large.safetensors", ""),
            lambda: load_backbone(folder / "large.safetensors")(images),
        ),
        "features, 10,000 episodes answered": (
            "large-features.safetensors",
            lambda: _checksum(folder / "large-features.safetensors", ""),
            lambda: evaluate_features(load_features(folder / "large-features.safetensors")),
        ),
        "checkpoint, one step of 64 images": ("large.pt", test_zip, resume),
    }
    return [
        {
            "what": label,
            "megabytes": (folder / name).stat().st_size / 1e6,
            "check_seconds": seconds(check),
            "total_seconds": seconds(use) + (seconds(check) if name == "large.pt" else 0),
        }
        for label, (name, check, use) in works.items()
    ]


def costs_table(costs: list[dict[str, Any]]) -> str:
    """Return the costs as a Markdown table."""
    lines = [
        "| file, and its use | MB | check, ms | open, check and use, ms | share |",
        "|---|---:|---:|---:|---:|",
    ]
    for cost in costs:
        check = 1000 * cost["check_seconds"]
        total = 1000 * cost["total_seconds"]
        lines.append(
            f"| {cost['what']} | {cost['megabytes']:.0f} | {check:.0f} | {total:.0f} | "
            f"{check / total:.1%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Damage every kind of file, measure what the checks cost, print both tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--copies", type=int, default=200, help="damaged copies of each file (default: 200)"
    )
    n_copies = parser.parse_args().copies
    folder = Path(tempfile.mkdtemp())
    try:
        outcomes = {
            name: fuzz(folder, reader, n_copies) for name, reader in make_files(folder).items()
        }
        measured = costs(folder)
    finally:
        shutil.rmtree(folder)
    (RESULTS / "damage.json").write_text(
        json.dumps({"copies": n_copies, "outcomes": outcomes, "costs": measured}, indent=2) + "\n"
    )
    (RESULTS / "damage.md").write_text(table(outcomes))
    (RESULTS / "damage-costs.md").write_text(costs_table(measured))
    print(table(outcomes), costs_table(measured), sep="\n")


if __name__ == "__main__":
    main()
