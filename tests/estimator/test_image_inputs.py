"""Pictures as people have them, in folders and files and from patterns."""

import io
import os
import struct
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.layouts import class_folders, encoded, picture, write_folder
from tests.helpers.locks import locked

from nearshot.data.images import Pixels, decode, fit_to_square, ignore_metadata_warnings
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.estimator.image_inputs import (
    find_images,
    image_list,
    read_each,
    read_image,
    read_support,
)

SIDE = 16


def square(of: Any, name: str = "it") -> Pixels:
    return read_image(of, name).square(SIDE)


def test_a_file_an_image_and_an_array_of_the_same_picture_are_the_same(tmp_path: Path) -> None:
    pixels = picture(0, 40, 30)
    path = tmp_path / "a.png"
    path.write_bytes(encoded(pixels))
    expected = fit_to_square(Image.fromarray(pixels), SIDE)
    for same in (
        path,
        str(path),
        Image.open(path),
        pixels,
        torch.from_numpy(pixels),
        pixels[::-1][::-1],
    ):
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
        (["gone.png"], "it cannot be read: No such file"),
        ([np.zeros((3, 20, 30), np.uint8)], r"uint8 \(3, 20, 30\)"),
        (torch.zeros(12, 512), r"float32 \(512,\)\)\. .*backbone=None"),
        (np.zeros((2, 30, 40, 3), np.float32), "got float32"),
        ("a.jpg", r"\['a.jpg'\]"),
        (Image.new("RGB", (3, 3)), r"\[image\]"),
        (np.zeros((30, 40, 3), np.uint8), r"\[image\]"),  # or 30 grey ones
    ],
)
def test_what_is_no_list_of_pictures(bad: Any, message: str) -> None:
    with pytest.raises(NearshotError, match=message):
        [square(one) for one in image_list(bad)]


def test_a_long_thin_picture_is_refused_before_it_is_enlarged(tmp_path: Path) -> None:
    Image.new("RGB", (300_000, 1)).save(tmp_path / "thin.png")
    Image.new("RGB", (3_000, 1), "red").save(tmp_path / "line.png")
    thin, line = read_each(
        [tmp_path / "thin.png", tmp_path / "line.png"], lambda content: content.square(84)
    )
    assert isinstance(thin, FileFormatError)
    assert "thin.png is too long and thin: its 300000×1 pixels would be 25200000×84" in str(thin)
    assert isinstance(line, np.ndarray)
    assert np.array_equal(line, np.full((84, 84, 3), (255, 0, 0)))


def test_each_comes_in_its_place() -> None:
    made = read_each(
        [np.full((4, 4), number, np.uint8) for number in range(30)],
        lambda content: content.square(2),
    )
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
    with pytest.raises(
        FileFormatError, match="^it "
    ):  # a user's own filter, which makes errors of warnings
        decode(file.getvalue(), "it")


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (
            Image.fromarray(np.linspace(0, 1, 600, dtype=np.float32).reshape(20, 30)),
            "floating-point",
        ),
        (Image.new("L", (20, 30), 90).convert("I"), "32-bit"),
    ],
)
def test_numbers_that_may_mean_anything_are_refused(made: Image.Image, kind: str) -> None:
    file = io.BytesIO()
    made.save(file, "TIFF")
    for image in (made, Image.open(file)):
        with pytest.raises(
            FileFormatError, match=f"it has {kind} numbers.* Scale them to 0 to 255"
        ):
            square(image)


def test_16_bits_are_known_by_their_format() -> None:
    grey = np.full((20, 30), 25_700, np.uint16)
    for form in ("TIFF", "PNG", "PPM"):
        file = io.BytesIO()
        Image.fromarray(grey).save(file, form)
        for image in (Image.open(file), decode(file.getvalue(), "it")):
            assert square(image)[3, 5].tolist() == [100, 100, 100]


@pytest.fixture
def support(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "support", class_folders(["cat", "dog"], 3))


def test_a_folder_for_each_class(support: Path) -> None:
    for more in (
        "dog/more/deep/x.JPG",
        ".git/a.png",
        "cat/.thumbnails/0.png",
        "cat/._0.png",
        "cat/Thumbs.db",
    ):
        write_folder(support, {more: b"x"})
    write_folder(support, {"loose.png": b"x", "cat/notes.txt": b"x", "cat/phone.raw": b"x"})
    found = read_support(support)
    assert found.class_names == ("cat", "dog")
    assert [path.relative_to(support).as_posix() for path in found.paths] == [
        *(f"cat/{i}.png" for i in range(3)),
        *(f"dog/{i}.png" for i in range(3)),
        "dog/more/deep/x.JPG",
    ]
    assert found.labels == ("cat",) * 3 + ("dog",) * 4
    assert {path.name for path in found.ignored} == {"loose.png", "notes.txt", "phone.raw"}


def test_what_is_no_support_folder(support: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "split", {"train/cat/0.png": b"x", "test/dog/0.png": b"x"})
    for folder, message in (
        (tmp_path / "nowhere", "nowhere does not exist"),
        (support / "cat" / "0.png", "is a file, not a folder"),
        (support / "cat", "cat has no folders"),
        (tmp_path / "split", "has splits, not classes: give .*test"),
    ):
        with pytest.raises(InputError, match=message):
            read_support(folder)
    write_folder(support, {"otter/IMG_1.RAW": b"x"})
    with pytest.raises(
        InputError, match=r"otter has no images \(only \.raw\)\. Readable: PNG, JPEG"
    ):
        read_support(support)


def test_files_folders_and_patterns(support: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(support)
    write_folder(support, {"cat/a[1].png": b"x", "cat/notes.txt": b"x"})
    assert paths("cat/0.png", "gone.jpg", "cat/notes.txt") == [
        Path("cat/0.png"),
        Path("gone.jpg"),  # whoever reads it will say so
        Path("cat/notes.txt"),
    ]
    assert paths("cat/a[1].png") == [Path("cat/a[1].png")]  # a name before a pattern
    assert paths("dog") == [Path("dog") / f"{i}.png" for i in range(3)]
    assert paths("*/1.png", "dog/1.png") == [Path("cat/1.png"), Path("dog/1.png")]  # each once
    assert len(paths("**/*.png")) == 7
    write_folder(support, {"dog/b.RAW": b"x", "dog/c": b"x", "dog/.hidden": b"x"})
    (support / "dog" / "lost.png").symlink_to("nowhere")
    with pytest.warns(
        UserWarning, match=r"2 files in dog were skipped \(\.raw, no suffix\)\. Readable: PNG.*HEIC"
    ):
        assert paths("dog")[3:] == [Path("dog/lost.png")]  # whoever reads it will say so
    assert paths("dog/l*.png") == [Path("dog/lost.png")]
    with pytest.raises(InputError, match=r"No file matches \*\.jpg\.$"):
        find_images(["*.jpg"])
    (support / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty has no images \(it is empty\)"):
        find_images(["empty"])


def paths(*given: str | Path) -> list[Path]:
    """What is found where nothing is locked."""
    found, locked_folders = find_images(given)
    assert locked_folders == []
    return found


def test_linked_folders_are_left_out_and_said(
    support: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the way leads round; two links to above are more paths than could ever be walked."""
    monkeypatch.chdir(support)
    elsewhere = write_folder(support.parent / "elsewhere", {"0.png": b"x", "deep/1.png": b"x"})
    (support / "dog" / "more").symlink_to(elsewhere)
    many = [Path("dog") / f"{i}.png" for i in range(3)]
    why = r": a link is followed only where it is given itself\.$"
    with pytest.warns(UserWarning, match=rf"^The linked folder dog/more is skipped{why}"):
        assert paths("dog") == many
    assert paths("dog", "dog/more")[3:] == [Path("dog/more/0.png"), Path("dog/more/deep/1.png")]
    for name in ("round", "and-round"):
        (support / "dog" / name).symlink_to(support)
    with pytest.warns(
        UserWarning, match=rf"^3 linked folders are skipped, such as dog/and-round{why}"
    ):
        assert paths("dog")[-3:] == many
    assert [path.name for path in read_support(support).linked] == ["and-round", "more", "round"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that anybody can read, which pytest's own is not: two classes and a folder that is more deeply in."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        support = write_folder(Path(made) / "support", class_folders(["cat", "dog"], 2))
        yield write_folder(support, {"cat/more/2.png": b"x", "cat/.hidden/3.png": b"x"})


REFUSED = "cannot be read: Permission denied"


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
def test_a_locked_folder_of_a_class_is_refused_and_one_of_new_images_skipped(
    open_folder: Path,
) -> None:
    cat, dog = open_folder / "cat", open_folder / "dog"
    for folder, rights in ((dog, 0), (cat / "more", 0o444)):
        with (
            locked(folder, rights=rights),
            pytest.raises(InputError, match=f"{folder}.* {REFUSED}"),
        ):
            read_support(open_folder)
    with locked(open_folder), pytest.raises(InputError, match=f"{open_folder}.* {REFUSED}"):
        find_images([open_folder])
    with (
        locked(cat / "more"),
        pytest.warns(UserWarning, match=f"The folder {cat / 'more'} is skipped: Permission denied"),
    ):
        assert find_images([cat]) == ([cat / "0.png", cat / "1.png"], [cat / "more"])
