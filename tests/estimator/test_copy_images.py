"""Copies: no file is overwritten, and no name leads out of the folder."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nearshot.estimator.copy_images import (
    MAX_NAME_LENGTH,
    class_folders,
    copy_into_classes,
    safe_name,
)

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
]


@given(st.one_of(st.text(), st.sampled_from(HOSTILE)))
def test_a_safe_name_is_a_single_name(text: str) -> None:
    name = safe_name(text)
    assert 0 < len(name) <= MAX_NAME_LENGTH + 1
    assert not set(name) & set('/\\<>:"|?*\x00\n')
    assert not name.startswith(".")
    assert Path("folder", name).parent == Path("folder")
    assert safe_name(name) == name or len(name) > MAX_NAME_LENGTH


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
