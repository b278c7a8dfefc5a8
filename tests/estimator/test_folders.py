"""Folders of pictures by class, and pictures by patterns."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from layouts import class_folders, write_folder
from locks import locked

from nearshot.errors import InputError
from nearshot.estimator.folders import find_images, read_support


@pytest.fixture
def support(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "support", class_folders(["cat", "dog"], 3))


def test_a_folder_for_each_class(support: Path) -> None:
    for more in ("dog/more/deep/x.JPG", ".git/a.png", "cat/.thumbnails/0.png", "cat/._0.png", "cat/Thumbs.db"):
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
    with pytest.raises(InputError, match=r"otter has no images \(it has files of \.raw, and PNG, JPEG"):
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
    with pytest.warns(UserWarning, match=r"2 files in dog skipped \(it has files of \.raw, no suffix, "):
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


def test_linked_folders_are_left_out_and_said(support: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.warns(UserWarning, match=rf"^3 linked folders are skipped, such as dog/and-round{why}"):
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
POSIX = pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")


@POSIX
def test_a_locked_folder_of_a_class_is_refused(open_folder: Path) -> None:
    cat, dog = open_folder / "cat", open_folder / "dog"
    for folder, rights in ((dog, 0), (cat / "more", 0o444)):
        with locked(folder, rights=rights), pytest.raises(InputError, match=f"{folder}.* {REFUSED}"):
            read_support(open_folder)
    with locked(open_folder), pytest.raises(InputError, match=f"{open_folder}.* {REFUSED}"):
        find_images([open_folder])
