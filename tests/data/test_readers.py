"""Never trust an archive: what could do harm is refused, with the file's name."""

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pillow_heif
import pytest
from hypothesis import HealthCheck, given, settings
from PIL import Image
from tests.helpers.layouts import (
    encoded,
    picture,
    tar_bytes,
    write_folder,
    write_tar,
    write_zip,
)

from nearshot.data import readers
from nearshot.data.images import decode, fit_to_square
from nearshot.data.readers import open_files
from nearshot.errors import FileFormatError, InputError, MissingExtraError, NearshotError

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from attack import OUTCOMES, attacked, hostile_archives, read_archive

MEMBERS = {"b/3.txt": b"three", "a/1.txt": b"one", "a/2.txt": b"two"}  # in no order


@pytest.mark.parametrize("kind", ["folder", "f.zip", "f.tar", "f.tar.gz", "parts"])
def test_names_and_contents_are_the_same_however_they_come(tmp_path: Path, kind: str) -> None:
    noise = {".DS_Store": b"x", "a/._1.txt": b"x", "b/Thumbs.db": b"x", ".thumbnails/1.txt": b"x"}
    if kind == "parts":
        items = list(MEMBERS.items())
        files = open_files([write_zip(tmp_path / f"{i}.zip", dict(items[i::2])) for i in range(2)])
    elif kind == "folder":
        files = open_files(write_folder(tmp_path / kind, MEMBERS | noise))
    elif kind == "f.zip":
        files = open_files(write_zip(tmp_path / kind, MEMBERS | noise))
    else:
        files = open_files(write_tar(tmp_path / kind, MEMBERS | noise))
    assert files.names() == sorted(MEMBERS)
    assert {name: files.read(name) for name in files.names()} == MEMBERS


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../up.txt", "a/../../up.txt", "a\\..\\..\\up.txt", "C:/windows.txt", "."],
)
def test_names_that_reach_outside_are_refused(tmp_path: Path, name: str) -> None:
    for path in (
        write_zip(tmp_path / "evil.zip", {name: b""}),
        write_tar(tmp_path / "evil.tar", {name: b""}),
    ):
        with pytest.raises(
            FileFormatError, match=r"evil\.(zip|tar) has a member .* that would reach outside"
        ):
            open_files(path)


def test_growth_counts_from_a_size_and_a_member_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts of a tar is all that it promises, against the size of its file."""
    write_tar(tmp_path / "f.tar.gz", {"zeros.png": bytes(30 << 20)})
    with zipfile.ZipFile(tmp_path / "f.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.png", bytes(30 << 20))
    for name in ("f.tar.gz", "f.zip"):
        with pytest.raises(
            FileFormatError,
            match=f"'zeros.png' in .*{name} would grow .* 31,457,280 bytes: a decompr",
        ):
            open_files(tmp_path / name)
    monkeypatch.setattr(readers, "MOST_GROWTH", 10)
    monkeypatch.setattr(readers, "GROWTH_COUNTS_FROM", 40_000)
    # As much as that does no harm.
    open_files(write_tar(tmp_path / "f.tar.gz", {"a.png": bytes(40_000)}))
    bomb = write_tar(tmp_path / "f.tar.gz", {"a.png": bytes(30_000), "b.png": bytes(30_000)})
    with pytest.raises(FileFormatError, match="'b.png' in .* to 60,000 bytes: a decompression"):
        open_files(bomb)
    noise = os.urandom(60_000)
    open_files(write_tar(tmp_path / "f.tar.gz", {"a.png": noise}))
    monkeypatch.setattr(readers, "MOST_BYTES_OF_A_MEMBER", 50_000)
    for name, write in (("f.tar", write_tar), ("f.zip", write_zip)):
        # Of each, not together.
        open_files(write(tmp_path / name, {"a.png": noise[:40_000], "b.png": noise[:40_000]}))
        large = write(tmp_path / name, {"a.png": noise})
        with pytest.raises(FileFormatError, match="'a.png' in .* 60,000 bytes.*limit of 50,000"):
            open_files(large)


def test_encrypted_and_damaged_members_and_links(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "f.zip", {"good.bin": b"a" * 100, "bad.bin": b"b" * 100})
    content = bytearray(path.read_bytes())
    content[content.index(b"b" * 100) + 50] ^= 1
    path.write_bytes(content)
    assert open_files(path).read("good.bin") == b"a" * 100
    with pytest.raises(FileFormatError, match="'bad.bin' in .*f.zip cannot be read"):
        open_files(path).read("bad.bin")
    for header, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(header) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="f.zip is encrypted"):
        open_files(path)
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        link = tarfile.TarInfo("innocent.png")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        archive.addfile(link)
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as zipped:
        info = zipfile.ZipInfo("innocent.png")
        info.external_attr = 0o120777 << 16
        zipped.writestr(info, "/etc/passwd")
    for name in ("evil.tar", "evil.zip"):
        with pytest.raises(FileFormatError, match=f"{name} has a link"):
            open_files(tmp_path / name)


def test_folders_without_images_are_known(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "f", MEMBERS | {"full/of/1.png": b""})
    (folder / "empty").mkdir()
    both = open_files([folder, write_zip(tmp_path / "g.zip", {"c/d/1.txt": b""})])
    assert both.folders_without_images() == ["a", "b", "c", "c/d", "empty"]


def test_tar_archives_inside_are_folders(tmp_path: Path) -> None:
    inner = tar_bytes({"1.png": b"one", "deep/2.png": b"two"})
    files = open_files(write_tar(tmp_path / "outer.tar", {"n01/x.tar": inner, "y.tar": inner}))
    assert files.names() == ["n01/x/1.png", "n01/x/deep/2.png", "y/1.png", "y/deep/2.png"]
    assert files.read("y/deep/2.png") == b"two"


def test_truncated_archives_are_refused(tmp_path: Path) -> None:
    """Also a tar that ends between two members: what is left reads well."""
    members = {f"{i}.bin": os.urandom(2000) for i in range(5)}
    for name, write in (("f.zip", write_zip), ("f.tar", write_tar), ("f.tar.gz", write_tar)):
        path = write(tmp_path / name, members)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 3])
        with pytest.raises(FileFormatError, match=r"f\.(zip|tar)"):
            files = open_files(path)
            for member in files.names():
                files.read(member)
    content = tar_bytes(members)
    size = 512 + 2048  # of a member: its header, and its content in blocks
    for n_whole in (1, 5):
        (tmp_path / "f.tar").write_bytes(content[: n_whole * size])
        write_tar(tmp_path / "outer.tar", {"inner.tar": content[: n_whole * size]})
        for name in ("f.tar", "outer.tar"):
            with pytest.raises(FileFormatError, match=f"{name} is cut short: it has no end"):
                open_files(tmp_path / name)
    (tmp_path / "f.tar").write_bytes(content[: 5 * size + 512])
    files = open_files(tmp_path / "f.tar")
    assert len(files.names()) == 5
    # In the middle of a member, after the archive was opened.
    os.truncate(tmp_path / "f.tar", 4 * size + 1000)
    with pytest.raises(FileFormatError, match="4.bin"):
        files.read("4.bin")


def test_what_is_no_archive_or_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "f.zip").write_bytes(b"PK but not really")
    (tmp_path / "f.rar").touch()
    with pytest.raises(FileFormatError, match="not a zip archive"):
        open_files(tmp_path / "f.zip")
    for paths, message in (
        (tmp_path / "f.rar", "f.rar"),
        (tmp_path / "nowhere", "nowhere"),
        ([], "paths"),
    ):
        with pytest.raises(InputError, match=message):
            open_files(paths)
    folder = write_folder(tmp_path / "f", MEMBERS)
    (folder / "a" / "broken.png").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match="broken.png' in .* cannot be read"):
        open_files(folder).read("a/broken.png")


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("image", "kind", "expected"),
    [
        (Image.new("L", (4, 4), 100), "PNG", (100, 100, 100)),
        (Image.new("1", (4, 4), 1), "PNG", (255, 255, 255)),
        (Image.new("P", (4, 4), 0), "PNG", (0, 0, 0)),
        (Image.new("RGBA", (4, 4), (200, 0, 0, 0)), "PNG", (255, 255, 255)),
        (Image.new("LA", (4, 4), (10, 255)), "PNG", (10, 10, 10)),
        (Image.new("CMYK", (4, 4), (0, 0, 0, 0)), "TIFF", (255, 255, 255)),
        (Image.fromarray(np.full((4, 4), 40_000, np.uint16)), "PNG", (156, 156, 156)),
    ],
    ids=["grey", "one bit", "palette", "transparent", "grey and alpha", "CMYK", "16 bits"],
)
def test_every_kind_of_image_becomes_rgb(
    image: Image.Image, kind: str, expected: tuple[int, ...]
) -> None:
    decoded = decode(saved(image, kind), "it")
    assert decoded.mode == "RGB"
    assert decoded.getpixel((1, 1)) == expected


def test_the_first_frame_of_an_animation_and_a_turned_photograph() -> None:
    frames = [Image.new("RGB", (4, 2), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data, "it").getpixel((0, 0)) == (255, 0, 0)
    exif = frames[0].getexif()
    exif[0x0112] = 6  # turned by 90 degrees
    assert decode(saved(frames[0], "JPEG", exif=exif), "it").size == (2, 4)


def test_heic_photos_are_read_where_pillow_heif_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pixels = np.full((40, 60, 3), (200, 30, 60), np.uint8)
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file)
    decoded = np.asarray(decode(file.getvalue(), "phone.heic"), dtype=int)
    assert decoded.shape == pixels.shape
    assert np.abs(decoded - pixels).max() < 12
    with pytest.raises(FileFormatError, match="cut.heic.*HEIC"):
        decode(file.getvalue()[:-50], "cut.heic")
    monkeypatch.setattr("nearshot.data.images._can_read_heif", lambda: False)
    with pytest.raises(MissingExtraError, match=r"phone.heic .*\.\[photos\]"):
        decode(file.getvalue(), "phone.heic")


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size() -> None:
    data = saved(Image.fromarray(picture(0, 12, 20)).resize((2000, 1200)), "JPEG")
    assert decode(data, "it", shrink_to=300).size == (500, 300)
    assert decode(data, "it", shrink_to=301).size == (1000, 600)
    assert decode(data, "it", shrink_to=1201).size == decode(data, "it").size == (2000, 1200)


@pytest.mark.parametrize("size", [(1200, 2000), (2001, 1203), (2885, 2500)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_square_of_a_shrunk_jpeg_shows_the_same(size: tuple[int, int], orientation: int) -> None:
    """A shift by one pixel would show. The fraction does not divide all sides."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(picture(0, 30, 30)).resize(size, Image.Resampling.BICUBIC)
    data = saved(image, "JPEG", exif=exif, quality=95)
    whole = fit_to_square(decode(data, "it"), 112).astype(int)
    shrunk = fit_to_square(decode(data, "it", shrink_to=224), 112).astype(int)
    # A turned photo whose sides are not multiples of 8 is shifted by a fraction of a pixel.
    assert np.abs(whole - shrunk).mean() < (0.5 if orientation == 1 else 5)
    assert np.abs(whole - np.roll(whole, 1, 0)).mean() > 10


def test_images_that_are_too_large_or_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        # Pillow's own limit, which it refuses twofold.
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        with pytest.raises(FileFormatError, match="huge.png has far too many pixels"):
            decode(encoded(picture(0, 30)), "huge.png")
    monkeypatch.setattr("nearshot.data.images.MOST_PIXELS", 1000)
    for data, message in (
        (encoded(picture(0, 30, 40)), "it has 40×30 pixels, over the limit of 1,000"),
        (b"dear diary", "it is not an image of a known format"),
        (encoded(picture(0, 20))[:-300], "it is incomplete"),
    ):
        with pytest.raises(FileFormatError, match=message):
            decode(data, "it")


def test_cropping_and_stretching() -> None:
    image = Image.fromarray(picture(0, 40, 80))
    cropped = fit_to_square(image, 20)
    assert cropped.shape == (20, 20, 3)
    half = np.asarray(image.resize((40, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(cropped, half[:, 10:30])
    stretched = np.asarray(image.resize((20, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(fit_to_square(image, 20, "stretch"), stretched)
    same = picture(1, 20)
    assert np.array_equal(fit_to_square(Image.fromarray(same), 20), same)
    assert fit_to_square(Image.fromarray(picture(0, 3, 500)), 84).shape == (84, 84, 3)
    with pytest.raises(InputError, match="'crop' or 'stretch', not 'pad'"):
        fit_to_square(image, 20, "pad")  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300), st.integers(0, 400))
def test_damaged_images_give_one_kind_of_error(noise: bytes, start: int) -> None:
    good = encoded(picture(0, 8))
    try:
        decode(good[:start] + noise + good[start + len(noise) :], "it")
    except NearshotError as error:
        assert str(error).startswith("it ")


@pytest.mark.parametrize("n_attacks", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_archives_end_in_files_or_a_sentence(n_attacks: int) -> None:
    outcomes = attacked("archives", n_attacks)
    assert outcomes["mutated archives"].total() == n_attacks
    for counts in outcomes.values():
        assert counts.keys() == set(OUTCOMES)


def test_hostile_archives_are_refused(tmp_path: Path) -> None:
    attacks = hostile_archives()
    del attacks["global headers.tar.gz"]  # harmless
    del attacks["digits.tar"]
    for name, data in attacks.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FileFormatError, match=r"\.(tar|zip)") as caught:
            read_archive(tmp_path / name)
        assert "\n" not in str(caught.value)
