"""A project survives a restart, a move and hostile content."""

import json
from pathlib import Path

import pytest
from tests.helpers.layouts import write_folder
from tests.helpers.small_project import pattern

from nearshot.app.project import Project
from nearshot.errors import FileFormatError, InputError


def opened(folder: Path, *photo_folders: Path) -> Project:
    """Open a project and let others open it."""
    project = Project(folder, photo_folders)
    project.close()
    return project


def ids_of(project: Project, *names: str) -> list[str]:
    return [photo.id for photo in project.photos.values() if photo.name in names]


def test_everything_survives_a_restart(tmp_path: Path, photos: Path) -> None:
    project = opened(tmp_path / "p", photos)
    assert len(project.present) == 18
    for name in (" big  ant ", "bee"):
        project.add_class(name)
    project.set_label(ids_of(project, "ant0.png", "ant1.png"), "big ant")
    project.confirm(ids_of(project, "ant1.png"))
    project.set_removed(ids_of(project, "cat5.png"), removed=True)
    added = project.add_photo(pattern(3, 0), "new.png", "monday")
    project.set_label([added.id], "bee")
    again = opened(tmp_path / "p")
    assert again.classes == ["big ant", "bee"]
    assert [photo.key for photo in again.photos.values()] == [
        photo.key for photo in project.photos.values()
    ]
    assert again.labels == project.labels
    assert again.confirmed == project.confirmed
    assert again.removed == project.removed
    assert again.photos[added.id].path.read_bytes() == pattern(3, 0)
    assert again.photos[added.id].group == "monday"
    assert len(again.present) == 18
    assert len(list(photos.iterdir())) == 18  # the folder of photos is unchanged


def test_labels_survive_a_missing_disk_and_a_move_with_the_photos(
    tmp_path: Path, photos: Path
) -> None:
    project = opened(tmp_path / "p", photos)
    project.add_class("ant")
    project.set_label(ids_of(project, "ant0.png"), "ant")
    photos.rename(tmp_path / "away")
    assert opened(tmp_path / "p").present == []
    (tmp_path / "moved").mkdir()
    (tmp_path / "away").rename(tmp_path / "moved" / "photos")
    (tmp_path / "p").rename(tmp_path / "moved" / "p")
    moved = opened(tmp_path / "moved" / "p")
    assert [photo.name for photo in moved.present if moved.label_of(photo)] == ["ant0.png"]


def test_classes_can_be_renamed_joined_and_removed(tmp_path: Path, photos: Path) -> None:
    project = opened(tmp_path / "p", photos)
    for name in ("ant", "bee", "cat"):
        project.add_class(name)
        project.set_label(ids_of(project, f"{name}0.png"), name)
    project.rename_class("bee", "wasp")
    assert project.classes == ["ant", "wasp", "cat"]
    project.rename_class("wasp", "ant")
    assert project.classes == ["ant", "cat"]
    assert sorted(project.labels.values()) == ["ant", "ant", "cat"]
    project.remove_class("ant")
    assert list(project.labels.values()) == ["cat"]
    project.rename_class("cat", "cat")
    for name in ("", "  ", "none of these", "cat", "x" * 81, "a\x00b", "a\u202eb", "\ud800"):
        with pytest.raises(InputError):
            project.add_class(name)
    with pytest.raises(InputError, match="gone"):
        project.rename_class("gone", "x")
    with pytest.raises(InputError, match="gone"):
        project.set_label([], "gone")
    with pytest.raises(InputError):
        project.set_label(["../../etc/passwd"], "cat")
    assert project.classes == ["cat"]


def test_folders_can_be_labels(tmp_path: Path) -> None:
    members = {"top.png": pattern(5, 0), "none of these /x.png": pattern(6, 0)}
    for code, name in enumerate("ab"):
        for i in range(2):
            members[f"{name}/deep/{i}.png"] = pattern(code, i)
    folder = write_folder(tmp_path / "photos", members)
    project = opened(tmp_path / "p", folder)
    project.label_by_folders()
    assert project.classes == ["a", "b"]
    assert sorted(project.labels.values()) == ["a", "a", "b", "b"]
    project.label_by_folders()
    assert project.classes == ["a", "b"]
    for name in ("x" * 81, "y\u200b"):  # too long for a class, and a letter that cannot be seen
        project.add_photo(pattern(7, 0), "x.png", name)
    project.label_by_folders()
    assert project.classes == ["a", "b", "x" * 80, "y"]


@pytest.mark.parametrize(
    "name", ["../../evil.png", "/etc/evil.png", "..\\evil.png", "con.png", "a\nb.png"]
)
def test_an_uploaded_name_does_not_lead_out_of_the_project(name: str, tmp_path: Path) -> None:
    project = opened(tmp_path / "p")
    for group in ("", "..", "../..", "a/b"):
        photo = project.add_photo(pattern(0, len(group)), name, group)
        assert photo.path.is_relative_to(tmp_path / "p" / "photos")
        assert ".." not in photo.path.parts
    assert set(tmp_path.rglob("*.png")) == {photo.path for photo in project.photos.values()}
    assert len(opened(tmp_path / "p").photos) == 4


def test_the_same_photo_is_kept_once_and_comes_back_if_it_was_removed(tmp_path: Path) -> None:
    project = opened(tmp_path / "p")
    first = project.add_photo(pattern(0, 0), "a.png")
    other = project.add_photo(pattern(0, 1), "a.png")
    assert first.path.name == "a.png"
    assert other.path.name == "a (2).png"
    project.set_removed([first.id], removed=True)
    assert project.add_photo(pattern(0, 0), "a.png") == first
    assert project.present == [first, other]
    for name in ("page.html", ".png", "photo", "photo.png/"):
        with pytest.raises(InputError):
            project.add_photo(pattern(0, 0), name)


@pytest.mark.parametrize("change", [{"version": 2}, {"format": "x"}], ids=str)
def test_a_file_of_another_version_or_a_damaged_one_is_named(
    change: dict[str, object], tmp_path: Path
) -> None:
    opened(tmp_path / "p")
    path = tmp_path / "p" / "project.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | change))
    before = path.read_bytes()
    with pytest.raises(FileFormatError, match=r"project\.json"):
        Project(tmp_path / "p")
    assert path.read_bytes() == before


def test_two_apps_cannot_open_one_project(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    with pytest.raises(InputError, match="another"):
        Project(tmp_path / "p")
    project.close()
    opened(tmp_path / "p")


def test_folders_without_photos_are_refused(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "gone", tmp_path / "empty", photos / "ant0.png"):
        with pytest.raises(InputError):
            Project(tmp_path / f"p-{folder.name}", [folder])


@pytest.mark.filterwarnings("ignore:1 file in .* was skipped")  # project.json
def test_a_project_inside_of_the_photos_does_not_find_its_own_copies(photos: Path) -> None:
    project = opened(photos / "project", photos)
    copy = project.folder / "sorted" / "ant"
    copy.mkdir(parents=True)
    (copy / "ant0.png").write_bytes(pattern(0, 0))
    assert len(opened(photos / "project").present) == 18
