"""Finding images by files, folders and patterns."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.layouts import class_folders, write_folder
from tests.helpers.locks import locked

from nearshot.errors import InputError
from nearshot.estimator.find_images import find_images, groups_of_paths, read_support


@pytest.fixture
def support(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "support", class_folders(["cat", "dog"], 3))


def test_one_folder_per_class(support: Path) -> None:
    for name in (
        "dog/more/deep/x.JPG",
        ".git/a.png",
        "cat/.thumbnails/0.png",
        "cat/._0.png",
        "cat/Thumbs.db",
    ):
        write_folder(support, {name: b"x"})
    write_folder(support, {"loose.png": b"x", "cat/notes.txt": b"x", "cat/phone.raw": b"x"})
    labelled = read_support(support)
    assert labelled.class_names == ("cat", "dog")
    assert [path.relative_to(support).as_posix() for path in labelled.paths] == [
        *(f"cat/{i}.png" for i in range(3)),
        *(f"dog/{i}.png" for i in range(3)),
        "dog/more/deep/x.JPG",
    ]
    assert labelled.labels == ("cat",) * 3 + ("dog",) * 4
    assert {path.name for path in labelled.ignored} == {"loose.png", "notes.txt", "phone.raw"}


def test_support_folders_without_classes_are_refused(support: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "split", {"train/cat/0.png": b"x", "test/dog/0.png": b"x"})
    for folder, message in (
        (tmp_path / "nowhere", "nowhere does not exist"),
        (support / "cat" / "0.png", "0.png is a file"),
        (support / "cat", "cat has no folders"),
        (tmp_path / "split", "split has splits.*test"),
    ):
        with pytest.raises(InputError, match=message):
            read_support(folder)
    write_folder(support, {"otter/IMG_1.RAW": b"x"})
    with pytest.raises(InputError, match=r"otter .*\.raw.*PNG, JPEG"):
        read_support(support)


def test_files_folders_and_patterns(support: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(support)
    write_folder(support, {"cat/a[1].png": b"x", "cat/notes.txt": b"x"})
    assert paths("cat/0.png", "gone.jpg", "cat/notes.txt") == [
        Path("cat/0.png"),
        Path("gone.jpg"),  # reading it gives the error
        Path("cat/notes.txt"),
    ]
    assert paths("cat/a[1].png") == [Path("cat/a[1].png")]  # a file rather than a pattern
    assert paths("dog") == [Path("dog") / f"{i}.png" for i in range(3)]
    assert paths("*/1.png", "dog/1.png") == [Path("cat/1.png"), Path("dog/1.png")]  # each once
    assert len(paths("**/*.png")) == 7
    write_folder(support, {"dog/b.RAW": b"x", "dog/c": b"x", "dog/.hidden": b"x"})
    (support / "dog" / "lost.png").symlink_to("nowhere")
    with pytest.warns(UserWarning, match=r"^2 files in dog .*\.raw, no suffix.* PNG.*HEIC"):
        assert paths("dog")[3:] == [Path("dog/lost.png")]  # reading it gives the error
    assert paths("dog/l*.png") == [Path("dog/lost.png")]
    with pytest.raises(InputError, match=r"\*\.jpg"):
        find_images(["*.jpg"])
    (support / "empty").mkdir()
    with pytest.raises(InputError, match="empty has no images"):
        find_images(["empty"])


def test_photos_and_videos_of_other_formats_are_unread(support: Path) -> None:
    write_folder(support, {"dog/a.CR2": b"x", "dog/b.mov": b"x", "dog/notes.txt": b"x"})
    with pytest.warns(UserWarning, match="3 files"):
        images = find_images([support / "dog"])
    assert images.paths == [support / "dog" / f"{i}.png" for i in range(3)]
    assert images.unread == [support / "dog" / "a.CR2", support / "dog" / "b.mov"]


def paths(*given: str | Path) -> list[Path]:
    """Return what is found where everything can be read."""
    images = find_images(given)
    assert images.unread == []
    return images.paths


def test_linked_folders_are_skipped_with_a_warning(
    support: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where links form cycles: two links upwards would make endlessly many paths."""
    monkeypatch.chdir(support)
    elsewhere = write_folder(support.parent / "elsewhere", {"0.png": b"x", "deep/1.png": b"x"})
    (support / "dog" / "more").symlink_to(elsewhere)
    images = [Path("dog") / f"{i}.png" for i in range(3)]
    with pytest.warns(UserWarning, match="dog/more"):
        assert paths("dog") == images
    assert paths("dog", "dog/more")[3:] == [Path("dog/more/0.png"), Path("dog/more/deep/1.png")]
    for name in ("round", "and-round"):
        (support / "dog" / name).symlink_to(support)
    with pytest.warns(UserWarning, match="^3 linked folders .*dog/and-round"):
        assert paths("dog")[-3:] == images
    assert [path.name for path in read_support(support).linked] == ["and-round", "more", "round"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that anybody can read, unlike pytest's own: two classes, and a folder inside one."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        support = write_folder(Path(folder) / "support", class_folders(["cat", "dog"], 2))
        yield write_folder(support, {"cat/more/2.png": b"x", "cat/.hidden/3.png": b"x"})


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_a_locked_folder_of_a_class_is_an_error_and_one_of_new_images_is_skipped(
    open_folder: Path,
) -> None:
    cat = open_folder / "cat"
    dog = open_folder / "dog"
    for folder, rights in ((dog, 0), (cat / "more", 0o444)):
        with (
            locked(folder, rights=rights),
            pytest.raises(InputError, match=f"{folder}.* Permission denied"),
        ):
            read_support(open_folder)
    with (
        locked(open_folder),
        pytest.raises(InputError, match=f"{open_folder}.* Permission denied"),
    ):
        find_images([open_folder])
    with (
        locked(cat / "more"),
        pytest.warns(UserWarning, match=f"{cat / 'more'} .*Permission denied"),
    ):
        images = find_images([cat])
    assert images.paths == [cat / "0.png", cat / "1.png"]
    assert images.unread == [cat / "more"]


def test_groups_are_named_by_a_pattern(tmp_path: Path) -> None:
    names = ["tern/bird1_a.jpg", "tern/bird1_b.jpg", "tern/x.jpg", "gull/bird2/a.jpg"]
    paths = [tmp_path / name for name in names]
    assert groups_of_paths(paths, tmp_path, r"(bird\d)") == ["bird1", "bird1", None, "bird2"]
    assert groups_of_paths(paths, tmp_path, "^(.*)/") == ["tern"] * 3 + ["gull/bird2"]


@pytest.mark.parametrize("pattern", ["(", "bird", "(bird)([0-9])", "(cat)"])
def test_a_pattern_of_groups_has_one_group_and_matches(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="groups"):
        groups_of_paths([tmp_path / "tern/bird1.jpg"], tmp_path, pattern)
