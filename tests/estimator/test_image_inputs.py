"""Pictures as people have them."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import encoded, picture
from PIL import Image

from nearshot.data.images import Pixels, decode, fit_to_square, ignore_metadata_warnings
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.estimator.image_inputs import image_list, read_each, read_image

SIDE = 16


def square(of: Any, name: str = "it") -> Pixels:
    return read_image(of, name).square(SIDE)


def test_a_file_an_image_and_an_array_of_the_same_picture_are_the_same(tmp_path: Path) -> None:
    pixels = picture(0, 40, 30)
    path = tmp_path / "a.png"
    path.write_bytes(encoded(pixels))
    expected = fit_to_square(Image.fromarray(pixels), SIDE)
    for same in (path, str(path), Image.open(path), pixels, torch.from_numpy(pixels), pixels[::-1][::-1]):
        assert np.array_equal(square(same), expected)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Image.new("RGBA", (20, 30), (10, 20, 30, 0)), 255),
        (np.full((20, 30), 7, np.uint8), 7),
        (np.full((20, 30, 1), 7, np.uint8), 7),
        (np.full((20, 30, 4), 255, np.uint8), 255),
    ],
)
def test_opened_images_and_arrays_of_other_modes(made: Any, expected: int) -> None:
    result = square(made)
    assert result.shape == (SIDE, SIDE, 3)
    assert result[3, 5].tolist() == [expected] * 3


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("gone.png", "it cannot be read: No such file"),
        (np.zeros((3, 20, 30), np.uint8), r"uint8 \(3, 20, 30\)"),
        (np.zeros(512), r"float64 \(512,\)\)\. .*backbone=None"),
    ],
)
def test_what_is_no_picture(bad: Any, message: str) -> None:
    with pytest.raises(NearshotError, match=message):
        square(bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("a.jpg", r"\['a.jpg'\]"),
        (Image.new("RGB", (3, 3)), r"\[image\]"),
        (np.zeros((30, 40, 3), np.uint8), r"uint8 \(30, 40, 3\)\)\. Give one image as"),  # or 30 grey ones
        (torch.zeros(12, 512), r"float32 \(12, 512\)\)\. .*backbone=None"),
        (np.zeros((2, 30, 40, 3), np.float32), "got float32"),
    ],
)
def test_what_is_no_list_of_pictures(bad: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        image_list(bad)


def test_a_long_thin_picture_is_refused_before_it_is_enlarged(tmp_path: Path) -> None:
    Image.new("RGB", (300_000, 1)).save(tmp_path / "thin.png")
    Image.new("RGB", (3_000, 1), "red").save(tmp_path / "line.png")
    thin, line = read_each([tmp_path / "thin.png", tmp_path / "line.png"], lambda content: content.square(84))
    assert isinstance(thin, FileFormatError)
    assert "thin.png is too long and thin: its 300000×1 pixels would be 25200000×84" in str(thin)
    assert isinstance(line, np.ndarray)
    assert np.array_equal(line, np.full((84, 84, 3), (255, 0, 0)))


def test_each_comes_in_its_place() -> None:
    made = read_each([np.full((4, 4), number, np.uint8) for number in range(30)], lambda content: content.square(2))
    assert [int(one[0, 0, 0]) for one in made if isinstance(one, np.ndarray)] == list(range(30))


def test_odd_metadata_is_silent_unless_a_filter_says_otherwise() -> None:
    """A JPEG file that is to be turned, and has a description of 1,000 letters that are not there."""
    tags = struct.pack("<HHHIIHHII", 2, 0x010E, 2, 1000, 38, 0x0112, 3, 1, 6)
    file = io.BytesIO()
    Image.new("RGB", (40, 20)).save(file, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0" + tags + bytes(4))
    with warnings.catch_warnings(record=True) as heard:
        warnings.resetwarnings()
        ignore_metadata_warnings()
        assert decode(file.getvalue(), "it").size == (20, 40)
        assert not heard
    with pytest.raises(FileFormatError, match="^it "):  # a user's own filter, which makes errors of warnings
        decode(file.getvalue(), "it")


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (Image.fromarray(np.linspace(0, 1, 600, dtype=np.float32).reshape(20, 30)), "floating-point"),
        (Image.new("L", (20, 30), 90).convert("I"), "32-bit"),
    ],
)
def test_numbers_that_may_mean_anything_are_refused(made: Image.Image, kind: str) -> None:
    file = io.BytesIO()
    made.save(file, "TIFF")
    for image in (made, Image.open(file)):
        with pytest.raises(FileFormatError, match=f"it has {kind} numbers.* Scale them to 0 to 255"):
            square(image)


def test_16_bits_are_known_by_their_format() -> None:
    grey = np.full((20, 30), 25_700, np.uint16)
    for form in ("TIFF", "PNG", "PPM"):
        file = io.BytesIO()
        Image.fromarray(grey).save(file, form)
        for image in (Image.open(file), decode(file.getvalue(), "it")):
            assert square(image)[3, 5].tolist() == [100, 100, 100]
