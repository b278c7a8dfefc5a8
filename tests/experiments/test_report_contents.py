"""Runs from elsewhere among the results: also of losses of one's own, and whatever lies beside them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from settings import TINY
from tiny import prepare_tiny
from torch import Tensor

from nearshot.cli import main
from nearshot.errors import InputError
from nearshot.experiments import RECIPES, Results
from nearshot.experiments.costs import images_of
from nearshot.experiments.identity import has_own_loss, run_id
from nearshot.experiments.recipe import Found
from nearshot.experiments.report import write_report
from nearshot.experiments.reproduce import collect
from nearshot.experiments.results import LeftOutWarning
from nearshot.experiments.scales import PAPER, Scale
from nearshot.training import OwnLoss, TrainConfig, train

SHORT = replace(TINY, epochs=1, steps_per_epoch=2, input_size=16, validate_every=1, validation_episodes=10)
SCALE = Scale(
    "own-scale",
    "two steps",
    lambda config: replace(config, input_size=16, validate_every=1, validation_episodes=10, validation_way=2),
    dataset="tiny",
)


def spread(embeddings: Tensor, labels: Tensor, strength: float = 1.0) -> Tensor:
    return strength * torch.cdist(embeddings, embeddings)[labels[:, None] == labels].mean()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a loss of one's own, by its name before and after others that are good or not."""
    folder = tmp_path_factory.mktemp("runs")
    prepare_tiny(folder / "data", n_classes=40)
    configs = {
        "a-damaged": replace(SHORT, seed=7),
        "b-own": replace(SHORT, method=OwnLoss("spread-1", spread)),
        "c-built-in": SHORT,
        "d-other-scale": replace(SHORT, validation_episodes=11),
        "e-own-partly": replace(SHORT, method=OwnLoss("spread-2", partial(spread, strength=2.0))),
    }
    for name, config in configs.items():
        train(config, folder=folder / name, data_dir=folder / "data", show=False)
    (folder / "a-damaged" / "timing.jsonl").write_text("")
    return folder


def test_what_is_good_is_taken_and_the_rest_is_named(runs: Path, tmp_path: Path) -> None:
    with pytest.warns(LeftOutWarning) as warned:
        found = collect(runs, tmp_path / "results", SCALE)
    said = [str(one.message) for one in warned]
    assert said[0].startswith(f"{runs / 'a-damaged'} is skipped: ")
    assert len(said) == 1
    assert [(has_own_loss(result.config), result.scale) for result in found] == [
        (True, "own-scale"),
        (False, "own-scale"),
        (False, "own"),
        (True, "own-scale"),
    ]
    results = Results(tmp_path / "results")
    assert sorted((result.scale, result.id) for result in results) == sorted(
        (result.scale, result.id) for result in found
    )
    assert len({result.id for result in found if result.scale == "own-scale"}) == 3
    table, _ = RECIPES["runs"].tables(Found(results, SCALE, (0,)), "cifar-fs")
    names = [str(row[0]) for row in table.rows]
    assert sum("method=own-spread-" in name for name in names) == 2
    assert len(names) == 3
    assert any("a loss of one's own" in note for note in table.notes)
    page = write_report(results, tmp_path / "report.html", scales=[SCALE]).read_text()
    assert found[0].config.method_name in page
    assert "runs of your own, each with its own settings; not a reproduction" in page
    with pytest.raises(InputError, match="There is no finished run under"):
        collect(tmp_path / "results", tmp_path / "other", SCALE)
    with pytest.raises(InputError, match="There is no folder"):
        collect(tmp_path / "nowhere", tmp_path / "other", SCALE)


def test_the_command_names_what_it_took(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitting = replace(
        SHORT, method=OwnLoss("spread-1", spread), validation_way=5, validation_episodes=20, validation_queries=15
    )
    train(replace(fitting, input_size=28), folder=tmp_path / "runs" / "own", data_dir=runs / "data", show=False)
    where = ["--collect", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main(["reproduce", *where, "--quick", "--steps", "2"]) == 0
    out = capsys.readouterr().out
    assert "method=own-spread-" in out
    assert str(tmp_path / "results" / "quick-2-steps") in out


def test_a_run_of_any_settings_is_among_ones_own(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as the example's, of a preset, and one on a folder of pictures, into which nothing is written."""
    where = ["--collect", str(runs / "b-own"), "--results", str(tmp_path / "results")]
    assert main(["reproduce", *where]) == 0
    out = capsys.readouterr().out
    assert "1-shot centroid" in out
    assert str(tmp_path / "results" / "own") in out
    assert "(the paper's setting)" in out
    (result,) = Results(tmp_path / "results")
    of_folder = replace(result.config, dataset=str(tmp_path / "photos"))
    path = Results(tmp_path / "results").path(of_folder, "own")
    assert path.parent == tmp_path / "results" / "own" / "photos"


def test_runs_that_differ_only_in_validation_are_both_kept(runs: Path, tmp_path: Path) -> None:
    """And collecting again changes nothing."""
    both = tmp_path / "both"
    for name in ("c-built-in", "d-other-scale"):
        shutil.copytree(runs / name, both / name)
    for _ in range(3):
        found = collect(both, tmp_path / "results", PAPER)
        assert len({result.id for result in found}) == 1
        assert len(list((tmp_path / "results").rglob("*.json"))) == len(list(Results(tmp_path / "results"))) == 2


def test_a_loss_of_ones_own_is_told_by_its_code_and_what_it_sees() -> None:
    own = replace(SHORT, method=OwnLoss("spread-1", spread))
    read = TrainConfig.from_dict(own.as_dict())  # its code is not in the files, its mark is
    assert run_id(read) == run_id(own)
    assert images_of(read) == images_of(own) == images_of(SHORT)
    assert run_id(replace(read, temperature=2.0, background=0.0, n_shot=1)) == run_id(own)  # it sees none of these

    def changed(change: Callable[[TrainConfig], TrainConfig]) -> bool:
        return run_id(change(read)) != run_id(own)

    assert changed(lambda config: replace(config, seed=1))
    assert changed(lambda config: replace(config, batches="episodes"))
    assert changed(lambda config: replace(config, method=OwnLoss("spread-2", partial(spread, strength=2.0))))
    assert changed(lambda config: replace(config, method="own-spread-00000000"))
    for name in ("own", "owner-spread"):
        with pytest.raises(InputError, match="There is no method"):
            run_id(replace(SHORT, method=name))
