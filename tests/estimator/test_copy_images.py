"""Copies: no file is overwritten, and no name leads out of the folder."""

import errno
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearshot.estimator.copy_images import (
    MAX_NAME_BYTES,
    MAX_NAME_LENGTH,
    class_folders,
    copy_into_classes,
    safe_name,
)
from nearshot.io import read_file, write_new_file

HOSTILE = [
    "../../evil",
    "..",
    ".",
    "",
    "/etc",
    "a/b",
    "a\\b",
    "C:x",
    "con",
    "nul.txt",
    "x" * 500,
    "<script>",
    "a\x00b\n",
    "😀" * 80,
    "a\ud800b",
    "caf\udce9",
    "x" * 99 + ". y",
]


@given(st.one_of(st.text(), st.sampled_from(HOSTILE)))
def test_a_safe_name_is_a_single_name(text: str) -> None:
    name = safe_name(text)
    assert 0 < len(name) <= MAX_NAME_LENGTH + 1
    assert len(os.fsencode(name)) <= MAX_NAME_BYTES + 1
    assert not set(name) & set('/\\<>:"|?*\x00\n')
    assert not name.startswith(".")
    assert Path("folder", name).parent == Path("folder")
    assert safe_name(name) == name or name.startswith("_")


@given(st.lists(st.text(max_size=6), max_size=8))
def test_every_class_has_a_folder_of_its_own(labels: list[str]) -> None:
    folders = class_folders(labels)
    assert set(folders) == set(labels)
    assert len({name.casefold() for name in folders.values()}) == len(folders)


def test_nothing_is_overwritten_and_nothing_copied_twice(tmp_path: Path) -> None:
    sources = []
    for number, content in enumerate([b"one", b"two", b"one"]):
        (tmp_path / str(number)).mkdir()
        sources.append(tmp_path / str(number) / "photo.jpg")
        sources[-1].write_bytes(content)
    target = tmp_path / "out"
    result = copy_into_classes([(path, "rose") for path in sources], target)
    assert (result.n_new, result.n_same, result.failures) == (2, 1, [])
    assert {path.name: path.read_bytes() for path in (target / "rose").iterdir()} == {
        "photo.jpg": b"one",
        "photo (2).jpg": b"two",
    }
    (target / "rose" / "photo.jpg").write_bytes(b"mine")
    result = copy_into_classes([(path, "rose") for path in sources], target)
    assert (result.n_new, result.n_same) == (1, 2)
    assert (target / "rose" / "photo.jpg").read_bytes() == b"mine"
    assert (target / "rose" / "photo (3).jpg").read_bytes() == b"one"
    assert [path.read_bytes() for path in sources] == [b"one", b"two", b"one"]


def test_earlier_copies_in_other_classes_are_named_and_kept(tmp_path: Path) -> None:
    first = tmp_path / "photo.jpg"
    second = tmp_path / "other.jpg"
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    target = tmp_path / "out"
    assert copy_into_classes([(first, "rose"), (second, "rose")], target).about_earlier == ""
    result = copy_into_classes([(first, "tulip"), (second, "rose")], target)
    assert result.n_new == 1
    assert result.earlier == [target / "rose" / "photo.jpg"]
    assert str(target / "rose" / "photo.jpg") in result.about_earlier
    assert result.earlier[0].read_bytes() == b"one"


def test_hostile_labels_stay_inside(tmp_path: Path) -> None:
    source = tmp_path / "photo.jpg"
    source.write_bytes(b"x")
    target = tmp_path / "deep" / "out"
    copy_into_classes([(source, label) for label in HOSTILE], target)
    copies = [path for path in tmp_path.rglob("*.jpg") if path != source]
    assert len(copies) == len(HOSTILE)
    assert all(path.parent.parent == target for path in copies)


def test_a_missing_image_and_a_broken_link_do_not_stop_the_others(tmp_path: Path) -> None:
    source = tmp_path / "photo.jpg"
    source.write_bytes(b"x")
    folder = tmp_path / "out" / "rose"
    folder.mkdir(parents=True)
    (folder / "photo.jpg").symlink_to(tmp_path / "elsewhere")
    images = [(tmp_path / "gone.jpg", "rose"), (source, "rose")]
    result = copy_into_classes(images, tmp_path / "out")
    assert result.n_new == 1
    assert len(result.failures) == 1
    assert "gone.jpg" in result.failures[0]
    assert not (tmp_path / "elsewhere").exists()
    assert (folder / "photo (2).jpg").read_bytes() == b"x"


PROCESS = """
import sys
from pathlib import Path
from nearshot.estimator.copy_images import copy_into_classes
images = [(path, "rose") for path in sorted(Path(sys.argv[1]).glob("*/photo.jpg"))]
sys.stdin.readline()  # begin together
assert copy_into_classes(images, Path(sys.argv[2])).failures == []
"""


def photos_of_one_name(folder: Path, n_photos: int) -> list[Path]:
    paths = []
    for number in range(n_photos):
        (folder / f"{number:03}").mkdir(parents=True)
        paths.append(folder / f"{number:03}" / "photo.jpg")
        paths[-1].write_bytes(b"%03d" % number)
    return paths


def assert_every_photo_is_there_once(folder: Path, n_photos: int) -> None:
    contents = Counter(path.read_bytes() for path in folder.iterdir())
    assert contents == Counter(b"%03d" % number for number in range(n_photos))


@pytest.mark.parametrize("n_rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_copies_in_parallel_lose_nothing(tmp_path: Path, n_rounds: int) -> None:
    """Six threads copy into one folder at once, each the photos in another order."""
    paths = photos_of_one_name(tmp_path / "photos", 60)
    for number in range(n_rounds):
        target = tmp_path / f"out {number}"
        orders = [paths[10 * start :] + paths[: 10 * start] for start in range(6)]

        def copy(order: list[Path], target: Path = target) -> list[str]:
            return copy_into_classes([(path, "rose") for path in order], target).failures

        with ThreadPoolExecutor(6) as threads:
            assert list(threads.map(copy, orders)) == [[]] * 6
        assert_every_photo_is_there_once(target / "rose", 60)


@pytest.mark.parametrize("n_rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_two_processes_that_copy_lose_nothing(tmp_path: Path, n_rounds: int) -> None:
    photos_of_one_name(tmp_path / "photos", 60)
    for number in range(n_rounds):
        target = tmp_path / f"out {number}"
        command = [sys.executable, "-c", PROCESS, str(tmp_path / "photos"), str(target)]
        processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait() for process in processes] == [0, 0]
        assert_every_photo_is_there_once(target / "rose", 60)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_name_that_is_taken_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """Also without the lock of the folder, and where the file system has no links."""

    def no_link(*arguments: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", no_link)
    path = tmp_path / "photo.jpg"
    assert write_new_file(path, b"one")
    assert not write_new_file(path, b"two")
    assert path.read_bytes() == b"one"
    (tmp_path / "link.jpg").symlink_to(tmp_path / "nowhere")
    assert not write_new_file(tmp_path / "link.jpg", b"two")
    paths = [tmp_path / f"{number % 10}.jpg" for number in range(100)]
    with ThreadPoolExecutor(6) as threads:
        written = list(threads.map(write_new_file, paths, [b"%d" % n for n in range(100)]))
    assert sum(written) == 10
    first = [number for number in range(100) if written[number]]
    for number in first:
        assert paths[number].read_bytes() == b"%d" % number
    assert len(list(tmp_path.iterdir())) == 12  # and no other file is left


def test_a_file_that_is_not_regular_is_an_error(tmp_path: Path) -> None:
    """Reading a FIFO would wait forever, and so would opening it."""
    os.mkfifo(tmp_path / "fifo.jpg")
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(10 << 40)
    for path in ("fifo.jpg", "large.jpg", "nul\0.jpg", ".", "missing.jpg", "/dev/zero"):
        with pytest.raises(OSError, match=r".") as caught:
            read_file(tmp_path / path)
        assert caught.value.strerror
    result = copy_into_classes(
        [(tmp_path / "fifo.jpg", "rose"), (tmp_path / "large.jpg", "rose")], tmp_path / "out"
    )
    assert len(result.failures) == 2


def test_long_names_of_many_bytes_are_copied(tmp_path: Path) -> None:
    source = tmp_path / f"{'😀' * 60}.jpg"
    source.write_bytes(b"x")
    result = copy_into_classes([(source, "😀" * 80)], tmp_path / "out")
    assert (result.n_new, result.failures) == (1, [])
