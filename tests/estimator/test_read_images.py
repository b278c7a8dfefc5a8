"""Reading images of every kind as squares."""

import io
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.layouts import encoded, picture

from nearshot.data.images import Pixels, decode, fit_to_square, ignore_metadata_warnings
from nearshot.data.readers import is_image
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.estimator.find_images import find_images
from nearshot.estimator.read_images import image_list, read_each, read_image

SIDE = 16


def square(image: Any, name: str = "it") -> Pixels:
    return read_image(image, name).square(SIDE)


def test_a_file_an_image_and_an_array_give_the_same_square(tmp_path: Path) -> None:
    pixels = picture(0, 40, 30)
    path = tmp_path / "a.png"
    path.write_bytes(encoded(pixels))
    expected = fit_to_square(Image.fromarray(pixels), SIDE)
    for image in (
        path,
        str(path),
        Image.open(path),
        pixels,
        torch.from_numpy(pixels),
        pixels[::-1][::-1],
    ):
        assert np.array_equal(square(image), expected)


def test_avif_is_read(tmp_path: Path) -> None:
    smooth = np.linspace(0, 255, 64, dtype=np.uint8)[None, :, None].repeat(64, 0).repeat(3, 2)
    path = tmp_path / "a.avif"
    Image.fromarray(smooth).save(path)
    assert is_image(path.name)
    expected = fit_to_square(Image.fromarray(smooth), SIDE).astype(int)
    assert np.abs(square(path).astype(int) - expected).max() < 20


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("RGBA", (20, 30), (10, 20, 30, 0)), 255),
        (np.full((20, 30), 7, np.uint8), 7),
        (np.full((20, 30, 1), 7, np.uint8), 7),
        (np.full((20, 30, 4), 255, np.uint8), 255),
    ],
)
def test_images_and_arrays_of_other_modes(image: Any, expected: int) -> None:
    result = square(image)
    assert result.shape == (SIDE, SIDE, 3)
    assert result[3, 5].tolist() == [expected] * 3


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (["gone.png"], "it .*No such file"),
        ([np.zeros((3, 20, 30), np.uint8)], r"uint8 \(3, 20, 30\)"),
        (torch.zeros(12, 512), r"float32 \(512,\).*backbone=None"),
        (np.zeros((2, 30, 40, 3), np.float32), "float32"),
        ([np.zeros((0, 40, 3), np.uint8)], r"\(0, 40, 3\)"),
        ("a.jpg", r"\['a.jpg'\]"),
        (Image.new("RGB", (3, 3)), r"\[image\]"),
        (np.zeros((30, 40, 3), np.uint8), r"\[image\]"),  # or 30 grey ones
    ],
)
def test_other_values_than_lists_of_images_are_refused(images: Any, message: str) -> None:
    with pytest.raises(NearshotError, match=message):
        [square(image) for image in image_list(images)]


def test_a_long_thin_image_is_refused_before_it_is_enlarged(tmp_path: Path) -> None:
    Image.new("RGB", (300_000, 1)).save(tmp_path / "thin.png")
    Image.new("RGB", (3_000, 1), "red").save(tmp_path / "line.png")
    paths = [tmp_path / "thin.png", tmp_path / "line.png"]
    thin, line = read_each(paths, lambda content: content.square(84))
    assert isinstance(thin, FileFormatError)
    for value in ("thin.png", "300000×1", "25200000×84"):
        assert value in str(thin)
    assert isinstance(line, np.ndarray)
    assert np.array_equal(line, np.full((84, 84, 3), (255, 0, 0)))


def test_results_come_in_the_order_of_the_images() -> None:
    images = [np.full((4, 4), number, np.uint8) for number in range(30)]
    squares = read_each(images, lambda content: content.square(2))
    assert [int(square[0, 0, 0]) for square in squares if isinstance(square, np.ndarray)] == list(
        range(30)
    )


def test_odd_metadata_is_silent_unless_a_filter_raises_errors() -> None:
    """A JPEG file to be rotated, with a description of 1,000 letters that are missing."""
    tags = struct.pack("<HHHIIHHII", 2, 0x010E, 2, 1000, 38, 0x0112, 3, 1, 6)
    file = io.BytesIO()
    Image.new("RGB", (40, 20)).save(file, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0" + tags + bytes(4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        ignore_metadata_warnings()
        assert decode(file.getvalue(), "it").size == (20, 40)
        assert not caught
    # A filter of the user that makes errors of warnings.
    with pytest.raises(FileFormatError, match="^it "):
        decode(file.getvalue(), "it")


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (
            Image.fromarray(np.linspace(0, 1, 600, dtype=np.float32).reshape(20, 30)),
            "floating-point",
        ),
        (Image.new("L", (20, 30), 90).convert("I"), "32-bit"),
    ],
)
def test_numbers_of_unknown_range_are_refused(image: Image.Image, kind: str) -> None:
    file = io.BytesIO()
    image.save(file, "TIFF")
    for same_image in (image, Image.open(file)):
        with pytest.raises(FileFormatError, match=f"it .*{kind}.* 0 to 255"):
            square(same_image)


def test_16_bits_are_recognised_by_their_format() -> None:
    grey = np.full((20, 30), 25_700, np.uint16)
    for form in ("TIFF", "PNG", "PPM"):
        file = io.BytesIO()
        Image.fromarray(grey).save(file, form)
        for image in (Image.open(file), decode(file.getvalue(), "it")):
            assert square(image)[3, 5].tolist() == [100, 100, 100]


@pytest.mark.parametrize(
    "name", ["nul\0.jpg", "~nobody-of-this-name/a.jpg", "/dev/zero", "fifo.jpg", "large.jpg"]
)
def test_paths_that_are_no_files_are_errors_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jpg")
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(10 << 40)
    path = name if name[0] in "~/" else str(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        read_image(path, "it")
    assert find_images([path]).paths == [Path(path)]
    (result,) = read_each([path], lambda content: content.square(8))
    assert isinstance(result, InputError)
