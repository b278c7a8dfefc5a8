"""Folders of pictures by class, and pictures by patterns."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from layouts import class_folders, write_folder

from nearshot.errors import InputError
from nearshot.estimator.folders import find_pictures, read_support
from nearshot.estimator.pictures import read_each


@pytest.fixture
def support(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "support", class_folders(["cat", "dog"], 3))


def test_a_folder_for_each_class(support: Path) -> None:
    for more in ("dog/more/deep/x.JPG", ".git/a.png", "cat/.thumbnails/0.png", "cat/._0.png", "cat/Thumbs.db"):
        write_folder(support, {more: b"x"})
    write_folder(support, {"loose.png": b"x", "cat/notes.txt": b"x", "cat/phone.heic": b"x"})
    found = read_support(support)
    assert found.class_names == ("cat", "dog")
    assert [path.relative_to(support).as_posix() for path in found.paths] == [
        *(f"cat/{i}.png" for i in range(3)),
        *(f"dog/{i}.png" for i in range(3)),
        "dog/more/deep/x.JPG",
    ]
    assert found.labels == ("cat",) * 3 + ("dog",) * 4
    assert {path.name for path in found.ignored} == {"loose.png", "notes.txt", "phone.heic"}


def test_what_is_no_support_folder(support: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere does not exist\. Give a folder with a folder of pictures"):
        read_support(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is a file, not a folder"):
        read_support(support / "cat" / "0.png")
    with pytest.raises(InputError, match="has no folders; put the pictures of each class into a folder"):
        read_support(support / "cat")
    write_folder(tmp_path / "split", {"train/cat/0.png": b"x", "test/dog/0.png": b"x"})
    with pytest.raises(InputError, match="has splits, not classes: give .*test"):
        read_support(tmp_path / "split")
    (support / "otter").mkdir()
    with pytest.raises(InputError, match=r"otter has no pictures \(it is empty\)\. Put some into it, or remove it"):
        read_support(support)
    (support / "otter" / "IMG_1.HEIC").write_bytes(b"x")
    with pytest.raises(
        InputError, match=r"otter has no pictures \(it has files of \.heic, and PNG, JPEG, .*can be read"
    ):
        read_support(support)


def test_files_folders_and_patterns(support: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(support)
    write_folder(support, {"cat/a[1].png": b"x", "cat/notes.txt": b"x"})
    assert find_pictures(["cat/0.png", "gone.jpg", "cat/notes.txt"]) == [
        Path("cat/0.png"),
        Path("gone.jpg"),  # whoever reads it will say so
        Path("cat/notes.txt"),
    ]
    assert find_pictures(["cat/a[1].png"]) == [Path("cat/a[1].png")]  # a name before a pattern
    assert find_pictures(["dog"]) == [Path("dog") / f"{i}.png" for i in range(3)]
    assert find_pictures(["*/1.png", "dog/1.png"]) == [Path("cat/1.png"), Path("dog/1.png")]  # each once
    assert len(find_pictures(["**/*.png"])) == 7
    write_folder(support, {"dog/b.HEIC": b"x", "dog/c": b"x", "dog/.hidden": b"x"})
    (support / "dog" / "lost.png").symlink_to("nowhere")
    with pytest.warns(UserWarning, match=r"2 files in dog left out \(it has files of \.heic, no suffix, and PNG, "):
        assert find_pictures(["dog"])[3:] == [Path("dog/lost.png")]  # whoever reads it will say so
    assert find_pictures(["dog/l*.png"]) == [Path("dog/lost.png")]
    with pytest.raises(InputError, match=r"No file matches \*\.jpg"):
        find_pictures(["*.jpg"])
    (support / "empty").mkdir()
    with pytest.raises(InputError, match=r"folder empty has no pictures \(it is empty\)"):
        find_pictures(["empty"])


@contextmanager
def locked(folder: Path, rights: int = 0) -> Iterator[None]:
    """Take the right to read a folder from this process, for which root has to be somebody else for a while."""
    root = os.geteuid() == 0
    folder.chmod(rights)
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
def test_a_locked_folder_is_named_and_not_left_out() -> None:
    with tempfile.TemporaryDirectory() as made:  # pytest's own is closed to others
        Path(made).chmod(0o755)
        support = write_folder(Path(made) / "support", class_folders(["cat", "dog"], 2))
        write_folder(support, {"cat/more/2.png": b"x", "cat/.hidden/3.png": b"x"})
        refused = "cannot be read: Permission denied. Allow it, or leave it out"
        for folder, rights in ((support, 0), (support, 0o444), (support / "dog", 0), (support / "cat" / "more", 0o444)):
            with locked(folder, rights):
                for find in (read_support, lambda support: find_pictures([support])):
                    with pytest.raises(InputError, match=f"{folder}.* {refused}"):
                        find(support)
        with locked(support / "cat" / ".hidden"):  # of no concern
            assert len(read_support(support).paths) == 5
        picture, message = support / "dog" / "0.png", "dog/0.png cannot be read: Permission denied"
        with locked(support / "dog"):  # of one picture, whoever reads it says so
            assert find_pictures([picture]) == [picture]
            (error,) = read_each([picture], lambda content: content.name)
        assert message in str(error)
