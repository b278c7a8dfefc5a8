"""Images: within a budget of memory, and one sentence for what cannot be decoded."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.helpers.layouts import picture

from nearshot.data import images
from nearshot.data.images import MemoryBudget, decode, fit_to_square, upright_rgb
from nearshot.errors import FileFormatError
from nearshot.estimator.read_images import read_each

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from attack import OUTCOMES, attacked, encoded_image, hostile_images


def slow_rgb(image: Image.Image) -> Image.Image:
    """The definition, in one piece and with real numbers."""
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        values = np.asarray(image, dtype=np.float64) / 257
        image = Image.fromarray(values.round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def images_of_every_mode(width: int, height: int) -> dict[str, Image.Image]:
    rgb = Image.fromarray(picture(0, height, width))
    wide = np.random.default_rng(0).integers(0, 1 << 16, (height, width), dtype=np.uint16)
    rgba = rgb.copy()
    rgba.putalpha(Image.fromarray(picture(1, height, width)[:, :, 0]))
    modes = {mode: rgb.convert(mode) for mode in ("RGB", "L", "P", "1", "CMYK", "YCbCr")}
    clear = rgb.convert("P")
    clear.info["transparency"] = 7
    grey = rgba.convert("LA")
    return {**modes, "RGBA": rgba, "LA": grey, "I;16": Image.fromarray(wide), "clear P": clear}


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_strips_change_nothing(monkeypatch: pytest.MonkeyPatch, orientation: int) -> None:
    monkeypatch.setattr(images, "PIXELS_OF_A_STRIP", 100)
    for mode, image in images_of_every_mode(37, 23).items():
        image.getexif()[0x0112] = orientation
        expected = np.asarray(slow_rgb(image))
        assert np.array_equal(np.asarray(upright_rgb(image, mode)), expected), mode


@pytest.mark.parametrize(
    ("mode", "orientation"),
    [("RGB", 1), ("RGB", 2), ("RGBA", 3), ("I;16", 4), ("P", 5), ("L", 6), ("RGB", 7), ("RGB", 8)],
)
def test_a_large_image_is_reduced_before_it_is_converted(
    monkeypatch: pytest.MonkeyPatch, mode: str, orientation: int
) -> None:
    """Its square is nearly that of the whole image."""
    monkeypatch.setattr(images, "PIXELS_OF_A_STRIP", 5000)
    smooth = Image.fromarray(picture(0, 9, 13)).resize((1301, 901), Image.Resampling.BICUBIC)
    image = smooth.convert(mode) if mode != "I;16" else smooth.convert("L")
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded_image(image, "PNG", exif=exif)
    whole = decode(data, "it", shrink_to=100)
    size = (901, 1301) if orientation > 4 else (1301, 901)
    assert whole.size == size
    monkeypatch.setattr(images, "REDUCED_FROM", 1_000_000)
    reduced = decode(data, "it", shrink_to=100)
    reduced_size = (101, 145) if orientation > 4 else (145, 101)
    assert reduced.size == reduced_size  # 901 / 9 and 1301 / 9, rounded up
    difference = fit_to_square(whole, 50).astype(int) - fit_to_square(reduced, 50)
    assert np.abs(difference).mean() < 1.5
    assert decode(data, "it", shrink_to=500).size == size
    assert decode(data, "it").size == size


def test_who_needs_more_memory_than_is_free_waits() -> None:
    budget = MemoryBudget(100)
    events = []
    others_wait = threading.Event()

    def claim(n_bytes: int) -> None:
        with budget.claimed(n_bytes):
            events.append(n_bytes)

    with budget.claimed(60):
        threads = [threading.Thread(target=claim, args=[n_bytes]) for n_bytes in (1000, 50)]
        for thread in threads:
            thread.start()
        others_wait.wait(0.2)
        assert events == []
        claim(40)
        assert events == [40]
    for thread in threads:
        thread.join()
    assert sorted(events) == [40, 50, 1000]
    assert budget.free == 100
    with pytest.raises(KeyError), budget.claimed(70):
        raise KeyError
    assert budget.free == 100


@pytest.mark.parametrize("n_attacks", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_images_end_in_an_image_or_a_sentence(n_attacks: int) -> None:
    outcomes = attacked("images", n_attacks)
    assert outcomes["mutated images"].total() == n_attacks
    assert outcomes["hostile images, six times at once"].total() == 6 * len(hostile_images())
    for counts in outcomes.values():
        assert counts.keys() == set(OUTCOMES)


def test_an_error_keeps_no_image(tmp_path: Path) -> None:
    """Errors of many images are collected; the frames of each would hold its pixels."""
    Image.new("RGB", (20_000, 1)).save(tmp_path / "thin.png")
    (result,) = read_each([tmp_path / "thin.png"], lambda content: content.square(224))
    assert isinstance(result, FileFormatError)
    assert (result.__traceback__, result.__cause__, result.__context__) == (None, None, None)
