"""A dataset's splits are replaced all or none, wherever that is stopped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from killing import KilledError, killed_before
from layouts import class_folders, write_folder

from nearshot.cli import main
from nearshot.data import Store, open_or_prepare, prepare_folder
from nearshot.data.commit import finish_placing
from nearshot.data.store import PLACING, check_together
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.training import TrainConfig, train
from nearshot.training.assembly import open_splits

A, B, C, D, E, F = CLASSES = list("abcdef")
NEW = {"train": [A, C], "val": [B, D], "test": [E, F]}
# What there is before NEW is prepared: other splits, the same validation split, one split fewer, or nothing.
BEFORE: dict[str, dict[str, list[str]] | None] = {
    "other": {"train": [D, E], "val": [F, A], "test": [B, C]},
    "a split stays": {"train": [E, F], "val": [B, D], "test": [A, C]},
    "a split comes": {"train": [A, D], "test": [E, F]},
    "nothing": None,
}
FILES = ["hashes.bin", "images.u8", "labels.npy", "manifest.json", "names.txt"]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed leaves what the system has, on the disk or on its way there."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("source") / "photos", class_folders(CLASSES, 2, side=8))


def prepare_as(photos: Path, data: Path, classes: dict[str, list[str]], **keywords: Any) -> dict[str, str]:
    stores = prepare_folder(photos, classes=classes, data_dir=data, side=8, **keywords)
    return {split: store.fingerprint for split, store in stores.items()}


def forget_marks(data: Path) -> None:
    """Leave the manifests as an older version wrote them."""
    for file in data.glob("photos/8/*/manifest.json"):
        manifest = json.loads(file.read_text())
        del manifest["preparation"]
        file.write_text(json.dumps(manifest))


def opened(open_one: Callable[[str], Store]) -> dict[str, str] | None:
    """The fingerprints of the splits that open; None if one is refused, and not just missing."""
    found = {}
    for split in NEW:
        try:
            found[split] = open_one(split).fingerprint
        except InputError as error:
            assert "not prepared" in str(error) or "has no split" in str(error)
        except FileFormatError as error:
            assert "are of two preparations" in str(error)
            return None
    return found


def assert_whole(data: Path, fingerprints: dict[str, str]) -> None:
    """These splits open, and nothing else lies there."""
    assert {split: Store.open("photos", split, data).fingerprint for split in fingerprints} == fingerprints
    assert os.listdir(data / "photos") == ["8"]
    assert sorted(os.listdir(data / "photos" / "8")) == sorted(fingerprints)
    for split in fingerprints:
        assert sorted(os.listdir(data / "photos" / "8" / split)) == FILES
        Store(data / "photos" / "8" / split).verify()


@pytest.mark.parametrize("before", [*BEFORE, "a split stays, of an older version"])
def test_a_preparation_that_is_killed_anywhere(photos: Path, tmp_path: Path, before: str) -> None:
    before, _, is_old = before.partition(", ")
    first, data, copy = BEFORE[before], tmp_path / "d", tmp_path / "copy"
    there = {} if first is None else prepare_as(photos, tmp_path / "before", first)
    new = prepare_as(photos, tmp_path / "new", NEW)
    (tmp_path / "before").mkdir(exist_ok=True)
    if is_old:
        forget_marks(tmp_path / "before")
    seen, n_allowed, goes_on = set(), 0, True
    while goes_on:
        for folder in (data, copy):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "before", data)
        with killed_before(n_allowed, data) as was_killed:
            prepare_as(photos, data, NEW)
        n_allowed, goes_on = n_allowed + 1, bool(was_killed)
        # Whoever opens it as it is has one or the other, or is refused.
        found = opened(lambda split: Store.open("photos", split, data))
        assert found in (None, there, new), found
        # Whoever may, finishes what was begun as soon as all is packed.
        if found is None or (data / "photos" / "8" / PLACING).exists():
            shutil.copytree(data, copy)
            assert opened(lambda split: open_or_prepare("photos", split, copy)) == new
            assert_whole(copy, new)
        seen.add("refused" if found is None else "old" if found == there else "new")
        prepare_as(photos, data, NEW)
        assert_whole(data, new)
    assert n_allowed > 40  # such as three splits of a dozen files
    assert seen == {"refused", "old", "new"}


CHOICES: list[dict[str, list[str]] | None] = [None, NEW, BEFORE["other"], BEFORE["a split stays"]]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.tuples(st.sampled_from(CHOICES), st.integers(0, 120)), min_size=1, max_size=4))
@example(kills=[(NEW, ".train.old"), (BEFORE["other"], 75)])
def test_killed_again_and_again(
    photos: Path, tmp_path: Path, kills: list[tuple[dict[str, list[str]] | None, int | str]]
) -> None:
    """Whether it is opened or prepared, in whichever way, and wherever that is killed: it is one dataset or another."""
    shutil.rmtree(tmp_path)
    data, copy = tmp_path / "d", tmp_path / "copy"
    whole = [prepare_as(photos, data, classes) for classes in CHOICES if classes is not None]
    for classes, n_allowed in kills:
        with killed_before(n_allowed, data):
            if classes is None:
                open_or_prepare("photos", "train", data)
            else:
                prepare_as(photos, data, classes)
        assert opened(lambda split: Store.open("photos", split, data)) in (None, *whole)
        shutil.copytree(data, copy)
        assert opened(lambda split: open_or_prepare("photos", split, copy)) in whole
        shutil.rmtree(copy)
    prepare_as(photos, data, NEW)
    assert_whole(data, whole[0])


def test_what_is_packed_anew_does_not_look_complete(photos: Path, tmp_path: Path) -> None:
    partial = tmp_path / "d" / "photos" / "8" / ".val.partial"
    with killed_before(PLACING, tmp_path / "d"):
        prepare_as(photos, tmp_path / "d", NEW)
    assert (partial / "manifest.json").is_file()
    with killed_before("names.txt", tmp_path / "d"):
        prepare_as(photos, tmp_path / "d", {"train": [A, C], "val": [D, E], "test": [B, F]})
    assert (partial / "hashes.bin").stat().st_size
    assert not (partial / "manifest.json").exists()


def test_what_fails_leaves_all_as_it_was(photos: Path, tmp_path: Path) -> None:
    """A training picture that cannot be read, when the other splits are packed; then left out, and then mended."""
    mine = Path(shutil.copytree(photos, tmp_path / "mine" / "photos"))
    there = prepare_as(mine, tmp_path / "d", BEFORE["other"] or {})
    whole = (mine / A / "1.png").read_bytes()
    (mine / A / "1.png").write_bytes(b"no picture")
    with pytest.raises(FileFormatError, match=r"a/1.png .* --broken skip"):
        prepare_as(mine, tmp_path / "d", NEW)
    assert opened(lambda split: Store.open("photos", split, tmp_path / "d")) == there
    with killed_before(PLACING, tmp_path / "d") as was_killed:
        prepare_as(mine, tmp_path / "d", NEW, broken="skip")
    assert was_killed
    assert opened(lambda split: Store.open("photos", split, tmp_path / "d")) == there
    (mine / A / "1.png").write_bytes(whole)
    # What has been left out is read again by a preparation that leaves nothing out.
    assert prepare_as(mine, tmp_path / "d", NEW) == prepare_as(photos, tmp_path / "alone", NEW)


def test_skipped_pictures_are_of_the_preparation_too(photos: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(photos, tmp_path / "mine" / "photos"))
    (mine / B / "0.png").write_bytes(b"no picture")
    prepare_as(mine, tmp_path / "d", BEFORE["a split stays"] or {}, broken="skip")
    kept = Store.open("photos", "val", tmp_path / "d")
    new = prepare_as(mine, tmp_path / "d", NEW)  # the validation split is left as it is
    assert new["val"] == kept.fingerprint
    assert len(Store.open("photos", "val", tmp_path / "d").manifest["broken"]) == 1
    assert_whole(tmp_path / "d", new)


def test_splits_of_two_preparations_are_refused_with_the_command(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an older version could leave them: nothing beside them tells what was to become of them."""
    data = tmp_path / "d"
    prepare_as(photos, data, BEFORE["other"] or {})
    prepare_as(photos, tmp_path / "new", NEW)
    shutil.rmtree(data / "photos" / "8" / "val")
    shutil.copytree(tmp_path / "new" / "photos" / "8" / "val", data / "photos" / "8" / "val")
    folder = data / "photos" / "8"
    said = f"The splits in {folder} are of two preparations, of which the last is not finished."
    for split in NEW:
        for dataset, how in ((photos, str(photos)), ("photos", f"photos --from {photos}")):
            with pytest.raises(FileFormatError) as caught:
                open_or_prepare(dataset, split, data)
            assert str(caught.value).startswith(said)
            assert str(caught.value).endswith(f"Run: nearshot data prepare {how} --data-dir {data} --side 8")
    with pytest.raises(FileFormatError, match="two preparations"):
        open_splits(TrainConfig(dataset="photos"), data)
    assert main(["data", "verify", "photos", "--data-dir", str(data)]) == 1
    assert said in capsys.readouterr().err
    forget_marks(data)
    check_together(folder)  # splits of older versions do not tell
    assert_whole(data, prepare_as(photos, data, NEW))


def test_splits_that_change_between_being_opened(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process replaces them when the training split is open already."""
    prepare_as(photos, tmp_path / "d", BEFORE["other"] or {})

    def opening(dataset: str, split: str, data_dir: Path, *, side: int | None) -> Store:
        store = open_or_prepare(dataset, split, data_dir, side=side)
        if split == "train":
            prepare_as(photos, data_dir, {"train": [A, C], "val": [B, F], "test": [D, E]})
        return store

    monkeypatch.setattr("nearshot.training.assembly.open_or_prepare", opening)
    with pytest.raises(InputError, match="photos was prepared anew while it was opened; start the training again"):
        open_splits(TrainConfig(dataset="photos"), tmp_path / "d")


def test_splits_that_change_between_being_opened_by_every_process(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process has opened them, and tells all where they are; what is there then may be something else."""
    prepare_as(photos, tmp_path / "d", BEFORE["other"] or {})

    def opening(folder: str) -> Store:
        store = Store(folder)
        if store.split == "train":
            prepare_as(photos, tmp_path / "d", {"train": [A, C], "val": [B, F], "test": [D, E]})
        return store

    monkeypatch.setattr("nearshot.training.assembly.Store", opening)
    with pytest.raises(InputError, match="photos was prepared anew while it was opened; start the training again"):
        train(TrainConfig(dataset="photos"), folder=tmp_path / "run", data_dir=tmp_path / "d", show=False)
    assert not (tmp_path / "run").exists()


def test_a_split_that_only_the_stopped_preparation_has_is_refused_before_anything_is_replaced(
    photos: Path, tmp_path: Path
) -> None:
    """The stopped one is finished first, and has a split then that the new one does not have."""
    new = prepare_as(photos, tmp_path / "new", NEW)
    with killed_before("val", tmp_path / "d") as was_killed:  # all is packed, and nothing is in its place
        prepare_as(photos, tmp_path / "d", NEW)
    assert was_killed
    for _ in range(2):
        with pytest.raises(InputError, match="was prepared before with a split 'val', which it does not have now"):
            prepare_as(photos, tmp_path / "d", BEFORE["a split comes"] or {})
        assert_whole(tmp_path / "d", new)


def kill_between_two_places(photos: Path, data: Path) -> Path:
    """Replace a dataset up to where only its training split is not in its place; return the splits' folder."""
    prepare_as(photos, data, BEFORE["other"] or {})
    with killed_before(".train.old", data) as was_killed:
        prepare_as(photos, data, NEW)
    assert was_killed
    assert Store(data / "photos" / "8" / "val").class_names == (B, D)
    assert Store(data / "photos" / "8" / "train").class_names == (D, E)
    return data / "photos" / "8"


def test_what_cannot_be_finished_is_refused_and_prepared_again(photos: Path, tmp_path: Path) -> None:
    folder = kill_between_two_places(photos, tmp_path / "d")
    assert json.loads((folder / PLACING).read_text()).keys() == NEW.keys()
    shutil.rmtree(folder / ".train.partial")
    assert not finish_placing(folder)
    with pytest.raises(FileFormatError, match="are of two preparations, .* Run: nearshot data prepare"):
        open_or_prepare(photos, "train", tmp_path / "d")
    (folder / PLACING).write_text("half a no")
    with pytest.raises(FileFormatError, match="are of two preparations, .* Run: nearshot data prepare"):
        open_or_prepare(photos, "train", tmp_path / "d")
    assert_whole(tmp_path / "d", prepare_as(photos, tmp_path / "d", NEW))


def test_where_splits_cannot_take_their_places_the_reason_is_said(photos: Path, tmp_path: Path) -> None:
    folder = kill_between_two_places(photos, tmp_path / "d")
    (folder / ".train.old").write_text("in the way")  # as where nothing may be renamed, also for a superuser
    for attempt in (
        lambda: prepare_as(photos, tmp_path / "d", NEW),
        lambda: open_or_prepare("photos", "train", tmp_path / "d"),
    ):
        with pytest.raises(NearshotError, match=f"The splits in {folder} could not be put in their places: .*train"):
            attempt()
    (folder / ".train.old").unlink()
    assert open_or_prepare("photos", "train", tmp_path / "d").class_names == (A, C)


def test_what_was_begun_with_options_is_not_made_without(photos: Path, tmp_path: Path) -> None:
    with killed_before(15, tmp_path / "d") as was_killed:
        prepare_as(photos, tmp_path / "d", NEW)
    assert was_killed
    with pytest.raises(InputError) as caught:
        open_or_prepare(photos, "train", tmp_path / "d", side=8)
    command = f"nearshot data prepare {photos} --data-dir {tmp_path / 'd'} --side 8"
    assert str(caught.value) == (
        "Preparing 'photos' with other options, or of other pictures, was begun and not finished. Go on with the same "
        f"command; or without options: {command}"
    )
    usual = prepare_folder(photos, data_dir=tmp_path / "d", side=8)
    assert open_or_prepare(photos, "train", tmp_path / "d").fingerprint == usual["train"].fingerprint
    assert_whole(tmp_path / "d", {split: store.fingerprint for split, store in usual.items()})


def test_a_killed_process_changes_nothing(tmp_path: Path) -> None:
    """The tool of these tests."""
    with killed_before(1, tmp_path) as was_killed:
        (tmp_path / "a").write_text("one")
        try:
            (tmp_path / "b").write_text("two")
        finally:
            with pytest.raises(KilledError):
                (tmp_path / "a").unlink()
    assert was_killed
    assert os.listdir(tmp_path) == ["a"]
