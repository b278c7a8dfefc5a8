"""Embedding pictures, and keeping embeddings."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.clouds import conv4
from tests.helpers.layouts import class_folders, encoded, picture, write_folder
from torch import Tensor, nn

from nearshot.data.augment import centre_crop, normalise_images, view_of
from nearshot.errors import FileFormatError, NearshotError
from nearshot.estimator import Embedder
from nearshot.estimator.embedding_cache import EmbeddingCache
from nearshot.models import Backbone, build_backbone

SIDE = 16


@pytest.fixture
def backbone() -> Backbone:
    return conv4()


@pytest.fixture
def folder(tmp_path: Path) -> list[Path]:
    """The paths of seven pictures."""
    write_folder(tmp_path / "pictures", class_folders("a", 7, side=SIDE))
    return sorted((tmp_path / "pictures").rglob("*.png"))


def test_features_are_those_of_evaluation(backbone: Backbone, folder: list[Path]) -> None:
    """What `nearshot evaluate` measures is what a classifier of one's own photos is made of."""
    images = torch.from_numpy(np.stack([picture(seed, SIDE) for seed in range(7)]))
    with torch.inference_mode():
        expected = backbone(
            normalise_images(centre_crop(images, SIDE), *backbone.spec.normalisation)
        ).numpy()
    for batch_size in (None, 1, 3):
        features = Embedder(backbone, batch_size=batch_size)(folder)
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_views_are_averaged_and_cached_apart(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    images = torch.from_numpy(np.stack([picture(seed, SIDE) for seed in range(7)]))
    with torch.inference_mode():
        views = [
            normalise_images(view_of(images, n, SIDE), *backbone.spec.normalisation)
            for n in range(3)
        ]
        expected = sum(backbone(view) for view in views) / 3
    cache = tmp_path / "cache"
    one = Embedder(backbone, cache_dir=cache)(folder)
    for _ in range(2):  # the second time from the cache
        several = Embedder(backbone, cache_dir=cache, n_views=3)(folder)
        np.testing.assert_allclose(several, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(one - several).max() > 1e-3
    np.testing.assert_array_equal(Embedder(backbone, cache_dir=cache)(folder), one)


class Means(nn.Module):
    """A network that is no backbone."""

    input_size = 20

    def forward(self, images: Tensor) -> Tensor:
        assert images.shape[1:] == (3, 20, 20)
        return images.mean((2, 3))


def test_other_networks_and_functions(tmp_path: Path) -> None:
    grey = [np.full((9, 9), value, np.uint8) for value in (0, 255)]
    features = Embedder(Means().eval(), cache_dir=tmp_path)(grey)
    np.testing.assert_allclose(
        features[0], [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], rtol=1e-5
    )

    def function(images: Any) -> list[list[float]]:
        return [[float(image[0, 0, 0]), len(image)] for image in images]

    embedder = Embedder(function, cache_dir=tmp_path)
    assert (embedder.key, embedder.dim, embedder.centre) == (None, None, None)
    np.testing.assert_array_equal(embedder(grey), [[0, 224], [255, 224]])
    assert embedder.dim == 2
    assert not list(tmp_path.iterdir())  # nothing tells two functions apart, so nothing is kept


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("nowhere.safetensors", {}, "weights file"),
        (Means(), {}, "training mode"),
        (Means().eval(), {"device": "gpu"}, "'gpu'"),
        (lambda images: np.zeros(3), {}, r"\(1, dim\) .*got \(3,\)"),
        (lambda images: images.mean((1, 2)), {"n_views": 2}, "n_views.*function"),
    ],
)
def test_what_cannot_embed_is_refused(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(NearshotError, match=message):
        Embedder(given, **options)([picture(0)])


def test_bad_pictures_do_not_stop_the_others(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "notes.jpg").write_text("dear diary")
    mixed: list[Any] = [
        folder[0],
        tmp_path / "notes.jpg",
        folder[1],
        tmp_path / "gone.png",
        picture(2, SIDE),
    ]
    embedder = Embedder(backbone, batch_size=2)
    found = embedder.attempt(mixed)
    assert [isinstance(one, NearshotError) for one in found] == [False, True, False, True, False]
    np.testing.assert_allclose(np.stack(found[::2]), embedder(folder[:3]), rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]
    with pytest.raises(FileFormatError, match=r"notes.jpg is not an image .* \(1 more of 5 images"):
        embedder(mixed)


def counting(embedder: Embedder) -> Callable[[], int]:
    """Count the pictures that the network itself embeds from now on."""
    counts: list[int] = []
    plain = embedder.embed_squares
    embedder.embed_squares = lambda squares: counts.append(len(squares)) or plain(squares)  # type: ignore[func-returns-value, method-assign]
    return lambda: sum(counts)


def test_a_feature_of_zeros_is_an_error(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    for parameter in backbone.parameters():
        nn.init.zeros_(parameter)
    for _ in range(2):  # the second time from the cache
        errors = Embedder(backbone, cache_dir=tmp_path).attempt(folder)
        assert [str(path) in str(one) for path, one in zip(folder, errors, strict=True)] == [
            True
        ] * len(folder)
        assert all("input_size" in str(one) for one in errors)


def test_a_picture_is_embedded_once(backbone: Backbone, folder: list[Path], tmp_path: Path) -> None:
    embedder = Embedder(backbone, cache_dir=tmp_path / "cache")
    embedded = counting(embedder)
    first = embedder(folder[:5])
    assert embedded() == 5
    np.testing.assert_array_equal(embedder(folder[:5]), first)
    assert embedded() == 5
    folder[0].rename(folder[0].with_name("renamed.png"))
    folder[1].write_bytes(encoded(picture(77, SIDE)))
    again = embedder([folder[0].with_name("renamed.png"), folder[1], folder[6]])
    assert embedded() == 7  # a new name changes nothing, new content does
    np.testing.assert_array_equal(again[0], first[0])
    assert not np.array_equal(again[1], first[1])
    assert len(list(tmp_path.rglob("*.f32"))) == 7


def test_other_weights_or_sizes_have_other_keys(backbone: Backbone) -> None:
    torch.manual_seed(1)
    others = [build_backbone("conv4-32", input_size=size).eval() for size in (SIDE, 32)]
    assert len({Embedder(other).key for other in (backbone, *others)}) == 3


def test_a_damaged_entry_is_made_again(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    first = Embedder(backbone, cache_dir=tmp_path / "c")(folder)
    entries = sorted((tmp_path / "c").rglob("*.f32"))
    entries[0].write_bytes(b"")
    entries[1].write_bytes(entries[2].read_bytes()[:-4])
    content = bytearray(entries[3].read_bytes())
    content[-1] ^= 1
    entries[3].write_bytes(content)
    embedder = Embedder(backbone, cache_dir=tmp_path / "c")
    embedded = counting(embedder)
    np.testing.assert_allclose(embedder(folder), first, rtol=1e-5, atol=1e-6)
    assert embedded() == 3


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearshot.estimator.embedding_cache.MAX_CACHED", 10)
    cache = EmbeddingCache(tmp_path, "k" * 64, 2)
    for number in range(11):
        cache.put(f"{number:064}", np.array([number, 0], np.float32))
        os.utime(cache.folder / f"{number:064}.f32", (number, number))
    cache.prune()
    assert len(list(cache.folder.glob("*.f32"))) == 9
    assert cache.get(f"{1:064}") is None
    assert np.array_equal(cache.get(f"{2:064}"), [2, 0])  # type: ignore[arg-type]


def test_a_cache_that_cannot_be_written_does_not_stop(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match="not cached"):
        assert len(Embedder(backbone, cache_dir=tmp_path / "file")(folder)) == 7
