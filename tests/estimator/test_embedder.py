"""Embedding images, and caching embeddings."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.clouds import conv4
from tests.helpers.layouts import class_folders, encoded, picture, write_folder
from torch import Tensor, nn

from nearshot.data.augment import centre_crop, normalise_images, view_of
from nearshot.data.images import fit_to_square
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.estimator import Embedder
from nearshot.estimator.embedding_cache import EmbeddingCache
from nearshot.models import Backbone, build_backbone, load_backbone, save_backbone
from nearshot.models.pair import BackbonePair, split_pair

SIDE = 16
LITE_SIDE = 64


@pytest.fixture
def backbone() -> Backbone:
    return conv4()


@pytest.fixture
def folder(tmp_path: Path) -> list[Path]:
    """The paths of seven images."""
    write_folder(tmp_path / "images", class_folders("a", 7, side=SIDE))
    return sorted((tmp_path / "images").rglob("*.png"))


def test_features_are_those_of_evaluation(backbone: Backbone, folder: list[Path]) -> None:
    """What `nearshot evaluate` measures is what a classifier of one's own photos uses."""
    images = torch.from_numpy(np.stack([picture(seed, SIDE) for seed in range(7)]))
    with torch.inference_mode():
        normalised = normalise_images(centre_crop(images, SIDE), *backbone.spec.normalisation)
        expected = backbone(normalised).numpy()
    for batch_size in (None, 1, 3):
        features = Embedder(backbone, batch_size=batch_size)(folder)
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_views_are_averaged_and_cached_apart(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    images = torch.from_numpy(np.stack([picture(seed, SIDE) for seed in range(7)]))
    embedded = []
    with torch.inference_mode():
        for number in range(3):
            view = view_of(images, number, SIDE)
            embedded.append(backbone(normalise_images(view, *backbone.spec.normalisation)))
    expected = torch.stack(embedded).mean(0)
    cache = tmp_path / "cache"
    single = Embedder(backbone, cache_dir=cache)(folder)
    for _ in range(2):  # the second time from the cache
        averaged = Embedder(backbone, cache_dir=cache, n_views=3)(folder)
        np.testing.assert_allclose(averaged, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(single - averaged).max() > 1e-3
    np.testing.assert_array_equal(Embedder(backbone, cache_dir=cache)(folder), single)


class Means(nn.Module):
    """A network that is not a `Backbone`."""

    input_size = 20

    def forward(self, images: Tensor) -> Tensor:
        assert images.shape[1:] == (3, 20, 20)
        return images.mean((2, 3))


def test_a_network_that_is_not_a_backbone_gets_normalised_images() -> None:
    grey = [np.full((9, 9), value, np.uint8) for value in (0, 255)]
    features = Embedder(Means().eval())(grey)
    expected = [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225]
    np.testing.assert_allclose(features[0], expected, rtol=1e-5)


def test_a_function_gets_squares_and_is_not_cached(tmp_path: Path) -> None:
    def function(images: Any) -> list[list[float]]:
        return [[float(image[0, 0, 0]), len(image)] for image in images]

    grey = [np.full((9, 9), value, np.uint8) for value in (0, 255)]
    embedder = Embedder(function, cache_dir=tmp_path)
    assert [embedder.key, embedder.dim, embedder.centre] == [None, None, None]
    np.testing.assert_array_equal(embedder(grey), [[0, 224], [255, 224]])
    assert embedder.dim == 2
    assert not list(tmp_path.iterdir())  # nothing identifies a function


@pytest.mark.parametrize(
    ("backbone", "options", "message"),
    [
        ("nowhere.safetensors", {}, "nowhere.safetensors"),
        (Means(), {}, "training mode"),
        (Means().eval(), {"device": "gpu"}, "device .*'gpu'"),
        (Means().eval(), {"n_views": 0}, "n_views .*got 0"),
        (Means().eval(), {"input_size": 1.5}, "input_size .*got 1.5"),
        (lambda images: np.zeros(3), {}, r"backbone .*\(1, dim\) .*got \(3,\)"),
        (lambda images: images.mean((1, 2)), {"n_views": 2}, "n_views .*got 2"),
    ],
)
def test_invalid_parameters(backbone: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(NearshotError, match=message):
        Embedder(backbone, **options)([picture(0)])


@pytest.fixture(scope="module")
def lite() -> Backbone:
    """A network that offers several feature sets, for small images."""
    return load_backbone("efficientnet-lite0", input_size=LITE_SIDE)


@pytest.mark.parametrize("n_views", [1, 2])
def test_all_sets_are_side_by_side_in_one_vector(
    lite: Backbone, folder: list[Path], tmp_path: Path, n_views: int
) -> None:
    embedder = Embedder(lite, cache_dir=tmp_path / "cache", all_sets=True, n_views=n_views)
    features = embedder(folder)
    sets = embedder.feature_sets
    assert sets is not None
    assert features.shape == (7, sets.dim)
    assert embedder.dim == sets.dim
    squares = []
    for path in folder:
        image = Image.open(path).convert("RGB")
        square = fit_to_square(image, LITE_SIDE, interpolation="bicubic", crop=lite.spec.crop)
        squares.append(square)
    images = torch.from_numpy(np.stack(squares))
    with torch.inference_mode():
        views = [view_of(images, number, LITE_SIDE) for number in range(n_views)]
        normalised = [normalise_images(view, *lite.spec.normalisation) for view in views]
        expected = torch.stack([lite.flat_features(view) for view in normalised]).mean(0)
    np.testing.assert_allclose(features, expected, rtol=2e-3, atol=1e-4)
    (plain,) = sets.plain
    alone = Embedder(lite, n_views=n_views)
    assert alone.feature_sets is None
    np.testing.assert_allclose(features[:, plain.columns], alone(folder), rtol=1e-3, atol=1e-6)


def test_cached_sets_are_equal_to_the_bit_and_small(
    lite: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    embedder = Embedder(lite, cache_dir=tmp_path, all_sets=True)
    cold = embedder(folder)
    n_embedded = count_embedded(embedder)
    np.testing.assert_array_equal(embedder(folder), cold)
    assert n_embedded() == 0
    files = list(tmp_path.rglob("*.f16"))
    assert len(files) == 7
    assert max(file.stat().st_size for file in files) < 12_000
    alone = Embedder(lite, cache_dir=tmp_path)
    assert alone.key != embedder.key
    assert alone(folder).shape == (7, lite.embedding_dim)


def test_values_beyond_float16_are_its_largest(folder: list[Path]) -> None:
    large = load_backbone("efficientnet-lite0", input_size=LITE_SIDE)
    with torch.no_grad():
        large.blocks[-1].project[1].weight.fill_(1e9)  # type: ignore[index, union-attr]
    features = Embedder(large, all_sets=True)(folder)
    assert np.isfinite(features).all()
    assert features.max() == np.finfo(np.float16).max


def test_two_networks_are_side_by_side(
    lite: Backbone, backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    """Each embeds an image as it does alone, and shares the cache that it has alone."""
    cache = tmp_path / "cache"
    first = Embedder(lite, cache_dir=cache, all_sets=True)
    second = Embedder(backbone, cache_dir=cache, all_sets=True)
    expected = np.concatenate([first(folder), second(folder)], axis=1)
    pair = Embedder(BackbonePair(lite, backbone), cache_dir=cache, all_sets=True)
    np.testing.assert_array_equal(pair(folder), expected)
    cold = Embedder(BackbonePair(lite, backbone), all_sets=True)
    np.testing.assert_allclose(cold(folder), expected, rtol=1e-3, atol=1e-4)
    assert pair.feature_sets == cold.feature_sets
    assert pair.feature_sets is not None
    assert pair.dim == pair.feature_sets.dim == expected.shape[1]
    assert pair.key not in (first.key, second.key)
    assert pair.centre is None
    plain_alone = Embedder(BackbonePair(lite, backbone))
    assert plain_alone.feature_sets is not None
    assert len(plain_alone.feature_sets.candidates) == 1
    assert plain_alone(folder[:1]).shape == (1, lite.embedding_dim + backbone.embedding_dim)


def test_the_centre_of_two_networks_is_zero_where_there_is_none(lite: Backbone) -> None:
    mean = torch.arange(1.0, 65.0)
    centred = conv4()
    centred.spec = replace(centred.spec, training_mean=mean[: centred.embedding_dim])
    embedder = Embedder(BackbonePair(lite, centred), all_sets=True)
    assert embedder.centre is not None
    assert embedder.feature_sets is not None
    plain = embedder.feature_sets.plain[1]
    np.testing.assert_array_equal(embedder.centre[plain.columns], centred.spec.training_mean)
    assert np.count_nonzero(embedder.centre) == centred.embedding_dim


def test_an_image_is_an_error_where_one_of_two_networks_has_no_direction(
    lite: Backbone, backbone: Backbone, folder: list[Path]
) -> None:
    for parameter in backbone.parameters():
        nn.init.zeros_(parameter)
    errors = Embedder(BackbonePair(lite, backbone)).attempt(folder)
    assert all(isinstance(error, InputError) for error in errors)


def test_two_networks_by_name_or_path(backbone: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "a+b.safetensors"
    save_backbone(backbone, path)
    assert split_pair(path) is None  # an existing path wins
    assert Embedder(path).dim == backbone.embedding_dim
    assert split_pair(f"{path}+auto") == (str(path), "auto")
    assert split_pair(f"auto+{path}") == ("auto", str(path))
    pair = Embedder(f"{path}+{path}")
    assert pair.dim == 2 * backbone.embedding_dim
    assert pair.spec.name == "conv4-32+conv4-32"
    pair = Embedder("efficientnet-lite0+efficientnet-lite2", input_size=LITE_SIDE)
    assert [network.spec.name for network in pair.networks] == list(
        split_pair(pair.spec.name) or ()
    )
    assert [network.spec.input_size for network in pair.networks] == [LITE_SIDE, LITE_SIDE]
    for text in ("a+", "+", "a+b+c"):
        with pytest.raises(InputError, match="backbone"):
            split_pair(text)


def test_unreadable_images_do_not_stop_the_others(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "notes.jpg").write_text("dear diary")
    images: list[Any] = [
        folder[0],
        tmp_path / "notes.jpg",
        folder[1],
        tmp_path / "gone.png",
        picture(2, SIDE),
    ]
    embedder = Embedder(backbone, batch_size=2)
    results = embedder.attempt(images)
    assert isinstance(results[1], FileFormatError)
    assert isinstance(results[3], InputError)
    features = [result for result in results if isinstance(result, np.ndarray)]
    np.testing.assert_allclose(np.stack(features), embedder(folder[:3]), rtol=1e-5, atol=1e-6)
    with pytest.raises(FileFormatError, match=r"notes.jpg .*1 more of 5 images"):
        embedder(images)


def test_no_images_are_an_error(backbone: Backbone) -> None:
    with pytest.raises(InputError, match="images .*got 0"):
        Embedder(backbone)([])


def count_embedded(embedder: Embedder) -> Callable[[], int]:
    """Return a function that counts the images that the network itself embeds from now on."""
    counts: list[int] = []
    network = embedder.networks[0]
    embed_squares = network.embed_squares

    def counting(squares: Any) -> Any:
        counts.append(len(squares))
        return embed_squares(squares)

    network.embed_squares = counting  # type: ignore[method-assign]
    return lambda: sum(counts)


def test_a_feature_of_zeros_is_an_error(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    for parameter in backbone.parameters():
        nn.init.zeros_(parameter)
    for _ in range(2):  # the second time from the cache
        errors = Embedder(backbone, cache_dir=tmp_path).attempt(folder)
        for path, error in zip(folder, errors, strict=True):
            assert isinstance(error, InputError)
            assert str(path) in str(error)
            assert "input_size" in str(error)


def test_an_image_is_embedded_once(backbone: Backbone, folder: list[Path], tmp_path: Path) -> None:
    embedder = Embedder(backbone, cache_dir=tmp_path / "cache")
    n_embedded = count_embedded(embedder)
    first = embedder(folder[:5])
    assert n_embedded() == 5
    np.testing.assert_array_equal(embedder(folder[:5]), first)
    assert n_embedded() == 5
    renamed = folder[0].rename(folder[0].with_name("renamed.png"))
    folder[1].write_bytes(encoded(picture(77, SIDE)))
    again = embedder([renamed, folder[1], folder[6]])
    assert n_embedded() == 7  # a new name changes nothing, new content does
    np.testing.assert_array_equal(again[0], first[0])
    assert not np.array_equal(again[1], first[1])
    assert len(list(tmp_path.rglob("*.f32"))) == 7


def test_other_weights_sizes_and_views_have_other_keys(backbone: Backbone) -> None:
    torch.manual_seed(1)
    embedders = [Embedder(backbone), Embedder(backbone, n_views=2)]
    others = [build_backbone("conv4-32", input_size=size) for size in (SIDE, 32)]
    embedders += [Embedder(other.eval()) for other in others]
    assert len({embedder.key for embedder in embedders}) == 4


def test_a_damaged_entry_is_replaced(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    first = Embedder(backbone, cache_dir=tmp_path / "cache")(folder)
    entries = sorted((tmp_path / "cache").rglob("*.f32"))
    entries[0].write_bytes(b"")
    entries[1].write_bytes(entries[2].read_bytes()[:-4])
    content = bytearray(entries[3].read_bytes())
    content[-1] ^= 1
    entries[3].write_bytes(content)
    embedder = Embedder(backbone, cache_dir=tmp_path / "cache")
    n_embedded = count_embedded(embedder)
    np.testing.assert_allclose(embedder(folder), first, rtol=1e-5, atol=1e-6)
    assert n_embedded() == 3


def test_the_oldest_entries_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearshot.estimator.embedding_cache.MAX_CACHED", 10)
    cache = EmbeddingCache(tmp_path, "k" * 64, 2)
    for number in range(11):
        cache.put(f"{number:064}", np.array([number, 0], np.float32))
        os.utime(cache.folder / f"{number:064}.f32", (number, number))
    cache.prune()
    assert len(list(cache.folder.glob("*.f32"))) == 9
    assert cache.get(f"{1:064}") is None
    kept = cache.get(f"{2:064}")
    assert kept is not None
    assert kept.tolist() == [2, 0]


def test_a_cache_that_cannot_be_written_is_a_warning(
    backbone: Backbone, folder: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match="not cached"):
        features = Embedder(backbone, cache_dir=tmp_path / "file")(folder)
    assert features.shape == (7, backbone.embedding_dim)


def test_an_input_size_that_no_memory_holds_is_an_error() -> None:
    with pytest.raises(InputError, match=r"input_size must be at most .*100000"):
        Embedder(conv4(), input_size=100_000)
