"""Defaults that fit the data: a practitioner's first training needs no options, and what was asked for stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from settings import TINY

from nearshot.cli import main
from nearshot.episodes import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.episodes import EpisodeSource
from nearshot.training import train
from nearshot.training.fitting import EVALUATION, TRAINING, episodes_that_fit

QUICK = ["--backbone", "conv4-32", "--input-size", "16", "--epochs", "1", "--validation-episodes", "10"]
CHANGES = [
    "A batch of 512 different images needs that many; the training split has 72: batches of 72.",
    "5-way episodes need 5 classes; the validation split has 2: 2-way.",
    "5 shots and 15 queries need 20 images of a class; the validation split has classes of 12: 7 queries.",
]
Photos = Callable[..., list[str]]


@pytest.fixture
def photos(tmp_path: Path) -> Photos:
    """Make a folder of the user's own pictures, ten classes of twelve; gives the options that train on it."""

    def make(n_classes: int = 10, n_images: int = 12, *options: str) -> list[str]:
        chance = np.random.default_rng(0)
        folder = tmp_path / f"photos-{n_classes}"
        for number in range(n_classes):
            (folder / f"kind {number}").mkdir(parents=True)
            for image in range(n_images):
                pixels = chance.integers(256, size=(16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"kind {number}" / f"{image}.png")
        where = ["--data-dir", str(tmp_path / "data")]
        assert main(["data", "prepare", str(folder), *where, "--side", "16", *options]) == 0
        return ["--dataset", str(folder), *where]

    return make


def settings_of(out: str) -> dict[str, object]:
    settings: dict[str, object] = json.loads(out[: out.index("\n}") + 2])
    return settings


def test_a_first_training_and_evaluation_need_no_options(
    photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", *photos(), *QUICK, "--output", str(tmp_path / "run")]
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert main(command) == 0
    said = capsys.readouterr().err.splitlines()
    for change in CHANGES:
        assert change in dry.splitlines()
        assert change in said
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (written["batch_size"], written["validation_way"], written["validation_queries"]) == (72, 2, 7)
    for name in TRAINING:
        assert settings_of(dry)[name] == written[name]
    assert main([*command, "--resume"]) == 0  # the same training, by the settings that it resolves to
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), *command[3:5], "--episodes", "10", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "5-way episodes need 5 classes; the test split has 2: 2-way." in err
    protocol = json.loads(out)[0]["accuracy"]["protocol"]
    assert (protocol["n_way"], protocol["n_query"]) == (2, 7)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--batch-size", "512"], "different images needs that many; there are 72. Lower --batch-size."),
        (["--batch_size=512"], "A batch of 512 different images needs that many"),
        (["--validation-way", "5"], "lower --validation-way"),
        (["--preset", "cifar-fs-nca"], "lower --validation-way"),
        (["--method", "prototypical", "--images-per-class", "16"], "has 12 images"),
    ],
)
def test_what_is_asked_for_is_obeyed_or_refused(
    options: list[str], sentence: str, photos: Photos, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *photos(), *QUICK, "--dry-run", *options]) == 1
    assert sentence in capsys.readouterr().err


def test_what_fits_is_left_as_it_is(photos: Photos, capsys: pytest.CaptureFixture[str]) -> None:
    data = photos()
    capsys.readouterr()
    given = ["--batch-size", "24", "--validation-way", "2", "--validation-queries", "3"]
    assert main(["train", *data, *QUICK, "--dry-run", *given]) == 0
    out = capsys.readouterr().out
    assert (settings_of(out)["batch_size"], settings_of(out)["validation_queries"]) == (24, 3)
    assert "need" not in out


def test_episodes_of_a_training_fit_too(photos: Photos, capsys: pytest.CaptureFixture[str]) -> None:
    data = photos()
    capsys.readouterr()
    assert main(["train", *data, *QUICK, "--dry-run", "--method", "prototypical"]) == 0
    out = capsys.readouterr().out
    assert "has 6 classes of 12 images or more: episodes of 6 × 12, 5-shot." in out
    assert settings_of(out)["batch_size"] == 72


def test_where_nothing_fits_one_message_says_all(
    photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = photos(2, 12, "--fractions", "0.5", "0.5", "0")
    capsys.readouterr()
    assert main(["train", *data, *QUICK]) == 1
    said = capsys.readouterr().err
    for part in ("training split has 1 class", "validation split has 1 class", "--fractions", "--train-classes"):
        assert part in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_from_python_nothing_gives_way_unasked(data_dir: Path, tmp_path: Path) -> None:
    too_much = replace(TINY, epochs=1, batch_size=4096)
    with pytest.raises(InputError, match="A batch of 4096"):
        train(too_much, folder=tmp_path / "run", data_dir=data_dir, show=False)
    result = train(too_much, folder=tmp_path / "run", data_dir=data_dir, show=False, fit=("batch_size",))
    assert result.finished
    assert json.loads((result.folder / "config.json").read_text())["batch_size"] == 200  # all that there are


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=8).filter(lambda s: sum(one >= 2 for one in s) >= 2),
    n_way=st.integers(2, 8),
    shots=st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
    n_query=st.integers(1, 20),
    leave_out=st.booleans(),
)
def test_what_fits_can_be_drawn(sizes: list[int], n_way: int, shots: list[int], n_query: int, leave_out: bool) -> None:
    if not leave_out:
        sizes = [max(size, 2) for size in sizes]
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    small = episodes_that_fit(
        labels, "test", n_way=n_way, shots=shots, n_query=n_query, free=EVALUATION, leave_out=leave_out
    )
    assert 2 <= small.n_way <= n_way
    assert 1 <= small.n_query <= n_query
    assert max(small.shots) <= max(shots)
    for n_shot in small.shots:
        shape = EpisodeShape(small.n_way, n_shot, small.n_query)
        EpisodeSource(labels, shape, n_episodes=1, seed=0, small_classes="leave out" if leave_out else "raise")
    changed = (small.n_way, small.shots, small.n_query) != (n_way, tuple(shots), n_query)
    assert bool(small.said) == changed
