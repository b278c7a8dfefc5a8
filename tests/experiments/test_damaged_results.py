"""One result that cannot be read: a sentence names it, it counts as not done, and all else goes on."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up import make_up

from nearshot.cli import main
from nearshot.experiments import RECIPES, Results
from nearshot.experiments.jobs import jobs_of, plan_of
from nearshot.experiments.results import LeftOutWarning
from nearshot.experiments.scales import QUICK


def changed(*path: str, **changes: Any) -> Callable[[str], str]:
    """Change entries of a result, or of what is at a path in it."""

    def change(text: str) -> str:
        content = json.loads(text)
        functools.reduce(operator.getitem, path, content).update(changes)
        return json.dumps(content)

    return change


ACCURACY = ("accuracies", "val 5-shot centroid")
DAMAGES: dict[str, Callable[[str], str]] = {
    "a list": lambda text: "[]",
    "empty": lambda text: "",
    "cut": lambda text: text[: len(text) // 2],
    "deep": lambda text: "[" * 100_000,
    "another format": changed(format="something else"),
    "an older format": changed(version=0),
    "no settings": changed(config=None),
    "an unknown setting": changed("config", colour="blue"),
    "an unknown method": changed("config", method="magic"),
    "a seed of another type": changed("config", seed="first"),
    "an unheard-of measurement": changed(accuracies={"as good as can be": {}}),
    "an accuracy without episodes": changed(*ACCURACY, n_correct="????"),
    "an accuracy without a mean": changed(*ACCURACY, mean=None),
    "an accuracy without an epoch": changed(*ACCURACY, epoch=[]),
    "a log of words": changed(history=["long"]),
    "time in words": changed(images_per_second="fast"),
    "classes in words": changed(by_class={"val 5-shot centroid": "all"}),
}


def damage(results: Results, how: Callable[[str], str]) -> Path:
    job = jobs_of([RECIPES["schedule"]], None, QUICK, [0])[1]
    path = results.path(job.config, QUICK.name)
    path.write_text(how(path.read_text()))
    return path


@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_result_is_named_once_and_counts_as_not_done(how: Callable[[str], str], tmp_path: Path) -> None:
    path = damage(make_up(tmp_path, ["schedule"], QUICK), how)
    results, jobs = Results(tmp_path), jobs_of([RECIPES["schedule"]], None, QUICK, [0])
    with pytest.warns(LeftOutWarning) as warned:
        plan = plan_of(jobs, results, tmp_path / "runs")
    assert len(list(results)) == len(list(results.of_scale("quick"))) == len(jobs) - 1  # without another word
    assert [job.id for job in plan.trained] == [path.stem]
    (said,) = [str(one.message) for one in warned]
    assert said.startswith(f"{path} is damaged or")


def test_all_commands_go_on_without_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(make_up(tmp_path, ["schedule"], QUICK), DAMAGES["a list"])
    where = ["--results", str(tmp_path)]
    commands = [["report"], ["reproduce", "schedule", "--quick", "--tables-only"], ["reproduce", "--list", "--quick"]]
    for command in commands:
        assert main([*command, *where]) == 0
        captured = capsys.readouterr()
        assert captured.err.count(str(path)) == 1
        assert captured.err.startswith(f"nearshot: warning: {path} is damaged or")
    assert "3 of 4 runs done" in captured.out
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "tables" / "quick" / "schedule-glyphs.md").is_file()


def test_a_newer_nearshots_result_is_not_lost(tmp_path: Path) -> None:
    whole = make_up(tmp_path, ["schedule"], QUICK)
    job = jobs_of([RECIPES["schedule"]], None, QUICK, [0])[1]
    good = whole.get(job.config, QUICK.name)
    path = damage(whole, changed(version=2))
    newer = path.read_bytes()
    results = Results(tmp_path)
    with pytest.warns(LeftOutWarning, match="format 2"):
        assert not job.is_done(results)
    assert good is not None
    results.put(good)  # it was trained again
    assert job.is_done(results)
    assert (path.parent / "earlier" / f"{path.stem}-1.json").read_bytes() == newer
