"""A project survives a restart, a move, a kill and hostile content; every action can be undone."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.layouts import write_folder
from tests.helpers.small_project import pattern

from nearshot.app.project import Project
from nearshot.errors import FileFormatError, InputError
from nearshot.estimator.novelty import NONE_OF_THESE


@contextmanager
def opened(folder: Path, *photo_folders: Path) -> Iterator[Project]:
    """Open a project, and close it at the end."""
    project = Project(folder, photo_folders)
    try:
        yield project
    finally:
        project.close()


@pytest.fixture
def project(tmp_path: Path, photos: Path) -> Iterator[Project]:
    """A project of six photos of each of three classes, without labels."""
    with opened(tmp_path / "p", photos) as project:
        yield project


def ids_of(project: Project, *names: str) -> list[str]:
    return [photo.id for photo in project.photos.values() if photo.name in names]


def values_of(project: Project) -> dict[str, Any]:
    """Return everything that a user did."""
    return {
        "slots": project.slots,
        "labels": dict(project.labels),
        "confirmed": dict(project.confirmed),
        "accepted": dict(project.accepted),
        "things": dict(project.things),
        "removed": dict(project.removed),
        "uploads": dict(project.uploads),
        "present": {photo.key for photo in project.present},
    }


def test_everything_survives_a_restart(tmp_path: Path, photos: Path) -> None:
    with opened(tmp_path / "p", photos) as project:
        assert len(project.present) == 18
        for name in (" big  ant ", "bee"):
            project.add_class(name)
        project.set_label(ids_of(project, "ant0.png", "ant1.png"), "big ant")
        project.confirm(ids_of(project, "ant1.png"))
        project.set_removed(ids_of(project, "cat5.png"), removed=True)
        added = project.add_photo(pattern(3, 0), "new.png", "monday/noon")
        project.set_label([added.id], "bee")
        project.set_label(ids_of(project, "ant2.png"), NONE_OF_THESE)
        project.accept(dict.fromkeys(ids_of(project, "bee0.png", "bee1.png"), "bee"))
        project.set_same_thing(ids_of(project, "cat0.png", "cat1.png"), same=True)
        expected = values_of(project)
    with opened(tmp_path / "p") as again:
        assert again.classes == ["big ant", "bee"]
        assert [photo.key for photo in again.photos.values()] == [
            photo.key for photo in project.photos.values()
        ]
        assert values_of(again) == expected
        assert again.photos[added.id].path.read_bytes() == pattern(3, 0)
        assert again.photos[added.id].group == "monday/noon"
        assert len(again.present) == 18
    assert len(list(photos.iterdir())) == 18  # the folder of photos is unchanged


def test_labels_survive_a_missing_disk_and_a_move_with_the_photos(
    tmp_path: Path, photos: Path
) -> None:
    with opened(tmp_path / "p", photos) as project:
        project.add_class("ant", ids_of(project, "ant0.png"))
    photos.rename(tmp_path / "away")
    with opened(tmp_path / "p") as project:
        assert project.present == []
    (tmp_path / "moved").mkdir()
    (tmp_path / "away").rename(tmp_path / "moved" / "photos")
    (tmp_path / "p").rename(tmp_path / "moved" / "p")
    with opened(tmp_path / "moved" / "p") as moved:
        assert [photo.name for photo in moved.present if moved.label_of(photo)] == ["ant0.png"]


def test_classes_can_be_renamed_merged_and_removed(project: Project) -> None:
    for name in ("ant", "bee", "cat"):
        project.add_class(name, ids_of(project, f"{name}0.png"))
    project.rename_class("bee", "wasp")
    assert project.slots == {"ant": 0, "wasp": 1, "cat": 2}
    before = values_of(project)
    with pytest.raises(InputError, match="Merge"):
        project.rename_class("wasp", "ant")
    assert values_of(project) == before
    project.rename_class("wasp", "ant", merge=True)
    # A class keeps its slot, and so its key and colour.
    assert project.slots == {"ant": 0, "cat": 2}
    assert sorted(project.labels.values()) == ["ant", "ant", "cat"]
    project.undo()
    assert values_of(project) == before
    project.redo()
    project.remove_class("ant")
    assert list(project.labels.values()) == ["cat"]
    project.rename_class("cat", "cat")
    for name in ("", "  ", "None of these", "cat", "x" * 81, "a\x00b", "a\u202eb", "\ud800"):
        with pytest.raises(InputError):
            project.add_class(name)
    with pytest.raises(InputError, match="gone"):
        project.rename_class("gone", "x")
    with pytest.raises(InputError, match="gone"):
        project.set_label(ids_of(project, "ant0.png"), "gone")
    with pytest.raises(InputError):
        project.set_label(["../../etc/passwd"], "cat")
    assert project.slots == {"cat": 2}
    project.add_class("dog")
    assert project.slots == {"cat": 2, "dog": 0}


def test_folders_can_be_labels(tmp_path: Path) -> None:
    members = {"top.png": pattern(5, 0), "None of these/x.png": pattern(6, 0)}
    for code, name in enumerate(["10 b", "9 a"]):
        for i in range(2):
            members[f"{name}/deep {code}/{i}.png"] = pattern(code, i)
    folder = write_folder(tmp_path / "photos", members)
    with opened(tmp_path / "p", folder) as project:
        project.label_by_folders()
        assert project.classes == ["9 a", "10 b"]
        assert sorted(project.labels.values()) == ["10 b", "10 b", "9 a", "9 a"]
        title = project.history.undo[-1].title
        project.label_by_folders()  # there is nothing to label, so there is nothing to undo
        assert project.history.undo[-1].title == title
        for name in ("x" * 81, "y\u200b"):  # too long for a class, and an invisible letter
            project.add_photo(pattern(7, 0), "x.png", name)
        project.label_by_folders()
        assert project.classes == ["9 a", "10 b", "x" * 80, "y"]
        project.undo()
        assert project.classes == ["9 a", "10 b"]
        project.set_label(list(project.photos), None)
        project.label_by_folders(1)
        assert project.classes == ["9 a", "10 b", "deep 0", "deep 1"]
        assert sorted(project.labels.values()) == ["deep 0", "deep 0", "deep 1", "deep 1"]


@pytest.mark.parametrize(
    "name", ["../../evil.png", "/etc/evil.png", "..\\evil.png", "con.png", "a\nb.png"]
)
def test_an_uploaded_name_does_not_lead_out_of_the_project(name: str, tmp_path: Path) -> None:
    with opened(tmp_path / "p") as project:
        for group in ("", "..", "../..", "a/b", "/" + "a/" * 50):
            photo = project.add_photo(pattern(0, len(group)), name, group)
            assert photo.path.is_relative_to(tmp_path / "p" / "photos")
            assert ".." not in photo.path.parts
            assert len(photo.folders) <= 8
        assert set(tmp_path.rglob("*.png")) == {photo.path for photo in project.photos.values()}
    with opened(tmp_path / "p") as project:
        assert len(project.photos) == 5


def test_the_same_photo_is_kept_once_and_comes_back_if_it_was_removed(tmp_path: Path) -> None:
    with opened(tmp_path / "p") as project:
        first = project.add_photo(pattern(0, 0), "a.png")
        other = project.add_photo(pattern(0, 1), "a.png")
        assert first.path.name == "a.png"
        assert other.path.name == "a (2).png"
        project.set_removed([first.id], removed=True)
        assert project.removed_photos == [first]
        assert project.add_photo(pattern(0, 0), "a.png") == first
        assert project.present == [first, other]
        for name in ("page.html", ".png", "photo", "photo.png/"):
            with pytest.raises(InputError):
                project.add_photo(pattern(0, 0), name)


def test_accepting_leaves_labels_alone_and_remembers_who_looked(project: Project) -> None:
    for name in ("ant", "bee"):
        project.add_class(name)
    by_hand, accepted, looked_at = ids_of(project, "ant0.png", "ant1.png", "ant2.png")
    project.set_label([by_hand], "bee")
    n_steps = len(project.history.undo)
    project.accept({by_hand: "ant"})
    assert len(project.history.undo) == n_steps
    project.accept({by_hand: "ant", accepted: "ant"})
    project.accept({looked_at: "bee"}, is_seen=True)
    labels = [project.label_of(photo) for photo in project.find([by_hand, accepted, looked_at])]
    assert labels == ["bee", "ant", "bee"]
    assert list(project.accepted) == [project.photos[accepted].key]
    project.confirm([accepted])
    assert not project.accepted
    project.undo()
    project.set_label([accepted], "ant")  # the same label, by a person
    assert not project.accepted


def test_photos_that_show_the_same_thing_are_joined_and_told_apart(project: Project) -> None:
    a, b, c, d = ids_of(project, "ant0.png", "ant1.png", "ant2.png", "ant3.png")
    project.set_same_thing([a, b], same=True)
    project.set_same_thing([c, d], same=True)
    assert len(set(project.things.values())) == 2
    project.set_same_thing([b, c], same=True)
    assert len(project.things) == 4
    assert len(set(project.things.values())) == 1
    project.set_same_thing([a], same=False)
    assert {photo.key for photo in project.find([b, c, d])} == set(project.things)
    for _ in range(4):
        project.undo()
    assert not project.things


class TestUndo:
    def test_every_action_is_undone_and_redone_also_after_a_restart(
        self, tmp_path: Path, photos: Path
    ) -> None:
        states = []
        with opened(tmp_path / "p", photos) as project:
            ant = ids_of(project, "ant0.png", "ant1.png")
            actions: list[Callable[[Project], object]] = [
                lambda project: project.add_class("ant"),
                lambda project: project.set_label(ant, "ant"),
                lambda project: project.add_class("bee", ids_of(project, "bee0.png")),
                lambda project: project.confirm(ant[:1]),
                lambda project: project.set_labels({ant[0]: "bee", ant[1]: NONE_OF_THESE}),
                lambda project: project.set_removed(ant, removed=True),
                lambda project: project.set_removed(ant, removed=False),
                lambda project: project.accept({ids_of(project, "cat0.png")[0]: "ant"}),
                lambda project: project.set_same_thing(ant, same=True),
                lambda project: project.rename_class("ant", "wasp"),
                lambda project: project.rename_class("wasp", "bee", merge=True),
                lambda project: project.add_photo(pattern(9, 9), "new.png"),
                lambda project: project.remove_class("bee"),
            ]
            states.append(values_of(project))
            for act in actions:
                act(project)
                states.append(values_of(project))
                assert states[-1] != states[-2]
        for step in range(len(actions) - 1, -1, -1):
            with opened(tmp_path / "p") as project:
                project.undo()
                assert values_of(project) == states[step]
        with opened(tmp_path / "p") as project, pytest.raises(InputError, match="nothing to undo"):
            project.undo()
        for step in range(len(actions)):
            with opened(tmp_path / "p") as project:
                project.redo()
                assert values_of(project) == states[step + 1]
        with opened(tmp_path / "p") as project, pytest.raises(InputError, match="nothing to redo"):
            project.redo()

    def test_what_follows_an_undo_cannot_be_redone(self, project: Project) -> None:
        project.add_class("ant")
        project.undo()
        project.add_class("bee")
        with pytest.raises(InputError, match="nothing to redo"):
            project.redo()
        assert project.classes == ["bee"]

    def test_uploads_of_one_batch_are_undone_together(self, tmp_path: Path) -> None:
        with opened(tmp_path / "p") as project:
            project.add_photo(pattern(0, 9), "earlier.png")
            for i in range(3):
                project.add_photo(pattern(0, i), f"{i}.png", batch="monday")
        with opened(tmp_path / "p") as project:
            project.undo()
            assert [photo.name for photo in project.present] == ["earlier.png"]
            assert project.removed_photos == []
            project.redo()
            assert len(project.present) == 4

    def test_the_photos_of_a_step_are_returned(self, project: Project) -> None:
        ids = ids_of(project, "ant0.png", "bee0.png")
        project.set_label(ids, NONE_OF_THESE)
        step, photos = project.undo()
        assert step.title == "label 2 photos"
        assert [photo.id for photo in photos] == ids


class TestJournal:
    def test_a_torn_line_is_ignored_and_overwritten(self, tmp_path: Path) -> None:
        with opened(tmp_path / "p") as project:
            project.add_class("ant")
        journal = tmp_path / "p" / "journal.jsonl"
        before = journal.read_bytes()
        # The snapshot, which a killed process does not write, would have the entry.
        snapshot = (tmp_path / "p" / "project.json").read_bytes()
        with opened(tmp_path / "p") as project:
            project.add_class("bee")
        line = journal.read_bytes()[len(before) :]
        for n_bytes in [*range(0, len(line), 20), len(line) - 1]:
            journal.write_bytes(before + line[:n_bytes])
            (tmp_path / "p" / "project.json").write_bytes(snapshot)
            with opened(tmp_path / "p") as project:
                assert project.classes == ["ant"]
                project.add_class("cat")
            with opened(tmp_path / "p") as project:
                assert project.classes == ["ant", "cat"]

    @pytest.mark.parametrize("damage", ["flip", "drop"])
    def test_damage_before_good_lines_is_an_error(self, damage: str, tmp_path: Path) -> None:
        with opened(tmp_path / "p") as project:
            for name in "abcd":
                project.add_class(name)
        path = tmp_path / "p" / "journal.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        lines[1] = lines[1].replace(b'"b"', b'"x"') if damage == "flip" else b""
        content = b"".join(lines)
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"journal\.jsonl"):
            Project(tmp_path / "p")
        assert path.read_bytes() == content

    def test_an_old_snapshot_without_the_entries_after_it_is_an_error(self, tmp_path: Path) -> None:
        with opened(tmp_path / "p"):
            snapshot = (tmp_path / "p" / "project.json").read_bytes()
        with opened(tmp_path / "p") as project:
            project.add_class("a")
            project.add_class("b")
        path = tmp_path / "p" / "journal.jsonl"
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[1])
        (tmp_path / "p" / "project.json").write_bytes(snapshot)
        with pytest.raises(FileFormatError, match="older"):
            Project(tmp_path / "p")

    def test_a_lost_journal_loses_no_label(self, tmp_path: Path) -> None:
        with opened(tmp_path / "p") as project:
            project.add_class("a")
            project.add_class("b")
        path = tmp_path / "p" / "journal.jsonl"
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])  # as after a power cut
        with opened(tmp_path / "p") as project:
            assert project.classes == ["a", "b"]
            project.add_class("c")
        with opened(tmp_path / "p") as project:
            assert project.classes == ["a", "b", "c"]
            project.undo()
            with pytest.raises(InputError):
                project.undo()
            assert project.classes == ["a", "b"]

    def test_it_is_compacted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nearshot.app.project.KEPT_ENTRIES", 5)
        with opened(tmp_path / "p") as project:
            for number in range(13):
                project.add_class(str(number))
        path = tmp_path / "p" / "journal.jsonl"
        assert len(path.read_bytes().splitlines()) == 8
        with opened(tmp_path / "p") as project:
            assert project.classes == [str(number) for number in range(13)]
            for _ in range(8):
                project.undo()
            with pytest.raises(InputError, match="nothing to undo"):
                project.undo()
            assert project.classes == [str(number) for number in range(5)]

    def test_what_cannot_be_written_is_not_done(
        self, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project.add_class("ant")
        before = (tmp_path / "p" / "journal.jsonl").read_bytes()
        raw = project._journal._file

        class FullDisk:
            def write(self, data: bytes) -> int:
                raw.write(data[:7])
                raise OSError(28, "No space left on device")

            def truncate(self, size: int) -> None:
                raw.truncate(size)

        monkeypatch.setattr(project._journal, "_file", FullDisk())
        with pytest.raises(Exception, match="disk is full"):
            project.add_class("bee")
        assert project.classes == ["ant"]
        assert (tmp_path / "p" / "journal.jsonl").read_bytes() == before
        monkeypatch.undo()
        project.add_class("bee")
        assert project.classes == ["ant", "bee"]

    @settings(max_examples=20)  # each writes durable files
    @given(names=st.lists(st.text(min_size=1, max_size=5), max_size=4))
    def test_any_text_comes_back(
        self, names: list[str], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("p")
        with opened(folder) as project:
            for number, name in enumerate(names):
                project._record(name, [("things", name, f"{number}{name}")])
            expected = dict(project.things)
        (folder / "project.json").unlink()
        with opened(folder) as again:
            assert again.things == expected


KILLED = """
import random, sys
from pathlib import Path
from nearshot.app.project import Project
project = Project(Path(sys.argv[1]))
rng = random.Random(int(sys.argv[2]))
ids = list(project.photos)
while True:
    label = rng.choice(["a", "b", "c", None])
    project.set_labels({photo: label for photo in rng.sample(ids, 3)})
    print(sorted(project.labels.items()), flush=True)
"""


def test_a_killed_process_leaves_a_prefix_with_everything_acknowledged(
    tmp_path: Path, photos: Path
) -> None:
    with opened(tmp_path / "p", photos) as project:
        for name in "abc":
            project.add_class(name)
        before = str(sorted(project.labels.items()))
    for seed in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "p"), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(5 + seed)]
        process.kill()
        rest = process.stdout.read().splitlines()
        process.stdout.close()
        process.wait()
        states = [before, *acknowledged, *rest]
        with opened(tmp_path / "p") as project:
            after = str(sorted(project.labels.items()))
            # The last line may be torn, and the last entry may lack its line.
            if after not in states[-2:]:
                project.undo()
                assert str(sorted(project.labels.items())) in states[-2:]
                project.redo()
        before = after


VERSION_1 = {
    "format": "nearshot-project",
    "version": 1,
    "folders": ["../photos"],
    "classes": ["ant", "bee"],
    "labels": {"../photos/ant0.png": "ant", "photos/new.png": "bee"},
    "confirmed": ["../photos/ant0.png"],
    "removed": ["../photos/cat0.png"],
}


def test_a_project_of_version_1_is_converted_once(tmp_path: Path, photos: Path) -> None:
    folder = write_folder(tmp_path / "p" / "photos", {"new.png": pattern(5, 5)}).parent
    (folder / "project.json").write_text(json.dumps(VERSION_1))
    for _ in range(2):
        with opened(folder) as project:
            assert project.slots == {"ant": 0, "bee": 1}
            assert project.labels == VERSION_1["labels"]
            assert list(project.confirmed) == VERSION_1["confirmed"]
            assert [photo.name for photo in project.removed_photos] == ["cat0.png"]
            assert list(project.uploads) == ["photos/new.png"]
            assert len(project.present) == 18
            with pytest.raises(InputError, match="nothing to undo"):
                project.undo()
    assert json.loads((folder / "project.json").read_text())["version"] == 2


@pytest.mark.parametrize("change", [{"version": 3}, {"format": "x"}, {"labels": []}], ids=str)
def test_a_file_of_another_version_or_a_damaged_one_is_named(
    change: dict[str, object], tmp_path: Path
) -> None:
    with opened(tmp_path / "p"):
        pass
    path = tmp_path / "p" / "project.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | change))
    before = path.read_bytes()
    with pytest.raises(FileFormatError, match=r"project\.json"):
        Project(tmp_path / "p")
    assert path.read_bytes() == before


def test_two_apps_cannot_open_one_project(tmp_path: Path) -> None:
    with opened(tmp_path / "p"), pytest.raises(InputError, match="another"):
        Project(tmp_path / "p")
    with opened(tmp_path / "p"):
        pass


def test_folders_without_photos_are_refused(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "gone", tmp_path / "empty", photos / "ant0.png"):
        with pytest.raises(InputError):
            Project(tmp_path / f"p-{folder.name}", [folder])


@pytest.mark.filterwarnings("ignore:2 files in .* were skipped")  # project.json, journal.jsonl
@pytest.mark.filterwarnings("ignore:1 file in .* was skipped")
def test_a_project_inside_of_the_photos_does_not_find_its_own_copies(photos: Path) -> None:
    with opened(photos / "project", photos) as project:
        copy = project.folder / "sorted" / "ant"
        copy.mkdir(parents=True)
        (copy / "ant0.png").write_bytes(pattern(0, 0))
    with opened(photos / "project") as project:
        assert len(project.present) == 18


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence": "1"},
        {"labels": []},
        {"labels": {"a.png": 1}},
        {"labels": {"a.png": "gone"}},
        {"labels": {"a.png": "\ud800"}},
        {"settings": {"folders": "photos"}},
        {"settings": {"folders": [1]}},
        {"settings": {"classes": ["ant"]}},
        {"settings": {"classes": [["ant", "0"]]}},
        {"settings": {"classes": [["\ud800", 0]]}},
        {"settings": {"classes": [["None of these", 0]]}},
        {"settings": {"classes": {}}},
        {"things": {"a.png": []}},
    ],
    ids=str,
)
def test_a_project_with_wrong_values_is_an_error(changes: dict[str, Any], tmp_path: Path) -> None:
    with opened(tmp_path / "p"):
        pass
    path = tmp_path / "p" / "project.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(FileFormatError, match=r"project\.json is damaged"):
        Project(tmp_path / "p")
    path.write_text(json.dumps({"format": "nearshot-project", "version": 1, "classes": [1]}))
    with pytest.raises(FileFormatError, match=r"project\.json is damaged"):
        Project(tmp_path / "p")


def test_deleting_files_lets_no_second_app_in(tmp_path: Path) -> None:
    with opened(tmp_path / "p"):
        for path in (tmp_path / "p").glob(".*"):
            path.unlink()
        with pytest.raises(InputError, match="open in another"):
            Project(tmp_path / "p")
    with opened(tmp_path / "p"):
        pass
