"""Runs as rows: the settings that differ, and accuracies pooled over seeds."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from nearshot.errors import InputError, did_you_mean
from nearshot.evaluation import Accuracy, EvaluationSpec, Protocol, pool_seeds
from nearshot.io import read_json
from nearshot.training.config import flat_settings
from nearshot.training.run_folder import RunFolder

__all__ = ["find_runs", "table"]

Setting = str | int | float | bool | None
COLUMNS = ("split", "n_shot", "classifier", "evaluation")
BEST_EPOCH = "best epoch"  # validation accuracies that chose the epoch: a little too high


@dataclass(frozen=True, eq=False)
class _Measured:
    """An accuracy of a run, with what identifies it beside the run."""

    split: str
    n_shot: int
    classifier: str
    evaluation: str
    accuracy: Accuracy

    @property
    def key(self) -> "_Key":
        """What is the same for accuracies that are pooled."""
        protocol = replace(self.accuracy.protocol, episodes="", seed=None)
        return _Key(self.split, self.n_shot, self.classifier, self.evaluation, protocol)


class _Key(NamedTuple):
    split: str
    n_shot: int
    classifier: str
    evaluation: str
    protocol: Protocol


def find_runs(folders: str | Path | Iterable[str | Path] = "runs") -> list[Path]:
    """Return the run folders among some folders and in all folders below them, sorted."""
    if isinstance(folders, str | Path):
        folders = [folders]
    runs = set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise InputError(f"There is no folder {str(folder)!r}.")
        for config in folder.rglob("config.json"):
            if (config.parent / "training_classes.json").is_file():
                runs.add(config.parent)
    if not runs:
        raise InputError(f"There is no run in {', '.join(map(str, folders))}.")
    return sorted(runs)


def table(
    folders: str | Path | Iterable[str | Path] = "runs", *, group: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each group of runs and each accuracy, as `pandas.DataFrame(rows)` takes it.

    A row has the settings that differ among the runs; `split`, `n_shot`, `classifier` and
    `evaluation` (other options that are not the default); `mean`, in per cent; `interval95`, over
    episodes; `between_runs95`, Student's interval over the group's runs, None for a single one;
    `n_runs`; `per_run`, the mean of each; `n_unfinished`; and `runs`, their folders.

    Accuracies are those that `nearshot evaluate` or `evaluate_run` stored, and, with the evaluation
    "best epoch", those of the validation that chose the epoch.

    Args:
        folders: run folders, or folders with run folders in them.
        group: the settings to group by; by default all that differ but the seed, so that the runs
            of a group differ in their seed alone.
    """
    runs = [RunFolder(path) for path in find_runs(folders)]
    settings = [flat_settings(run.read_config()) for run in runs]
    names = _group_names(settings, group)
    groups: dict[str, list[int]] = {}
    for number, of_run in enumerate(settings):
        key = json.dumps([of_run.get(name) for name in names])
        groups.setdefault(key, []).append(number)
    rows = []
    for numbers in groups.values():
        members = [runs[number] for number in numbers]
        shown = {name: _shown(settings[numbers[0]].get(name)) for name in names}
        rows += [shown | row for row in _rows_of_group(members)]
    return rows


def _group_names(settings: Sequence[dict[str, Any]], group: Sequence[str] | None) -> list[str]:
    """Return the settings to group by."""
    known = list(dict.fromkeys(name for of_run in settings for name in of_run))
    if group is not None:
        for name in group:
            if name not in known:
                raise InputError(
                    f"group must name settings of the runs (got {name!r})."
                    f"{did_you_mean(name, known)}"
                )
        return list(group)
    names = []
    for name in known:
        values = {json.dumps(of_run.get(name)) for of_run in settings}
        if name != "seed" and len(values) > 1:
            names.append(name)
    return names


def _rows_of_group(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return a row for each accuracy of a group's runs."""
    by_key: dict[_Key, dict[RunFolder, Accuracy]] = {}
    for run in runs:
        for measured in _accuracies(run):
            by_key.setdefault(measured.key, {})[run] = measured.accuracy
    rows = []
    for key in sorted(by_key, key=lambda key: key[: len(COLUMNS)]):
        of_runs = by_key[key]
        pooled = pool_seeds(list(of_runs.values()))
        between = pooled.between_seeds95
        row = dict(zip(COLUMNS, key[: len(COLUMNS)], strict=True)) | {
            "mean": pooled.mean,
            "interval95": None if math.isnan(pooled.interval95) else pooled.interval95,
            "between_runs95": None if math.isnan(between) else between,
            "n_runs": len(of_runs),
            "per_run": list(pooled.per_seed),
            "n_unfinished": sum(not run.is_finished for run in of_runs),
            "runs": [str(run.path) for run in of_runs],
        }
        rows.append(row)
    if not rows:  # nothing is measured yet
        rows.append(
            dict.fromkeys((*COLUMNS, "mean", "interval95", "between_runs95"))
            | {
                "n_runs": len(runs),
                "per_run": [],
                "n_unfinished": sum(not run.is_finished for run in runs),
                "runs": [str(run.path) for run in runs],
            }
        )
    return rows


def _accuracies(run: RunFolder) -> list[_Measured]:
    """Return the accuracies in a run's folder; of a finished run, none from before its end."""
    accuracies = []
    if run.is_finished:
        for name, values in run.read_best().items():
            n_shot, _, classifier = name.partition("-shot ")
            content = {key: value for key, value in values.items() if key != "epoch"}
            accuracy = Accuracy.from_dict(content)
            accuracies.append(_Measured("val", int(n_shot), classifier, BEST_EPOCH, accuracy))
    for file in sorted((run.path / "evaluations").glob("*.json")):
        content = read_json(file)
        evaluation = content["evaluation"]
        is_outdated = run.is_finished and evaluation["unfinished"] is not None
        if is_outdated or content["key"].get("adapted") is not None:
            continue
        spec = EvaluationSpec.from_dict(evaluation["spec"])
        plain = EvaluationSpec(split=spec.split, n_shot=spec.n_shot, classifier=spec.classifier)
        others = [
            f"{name}={value}"
            for name, value in spec.as_dict().items()
            if value != plain.as_dict()[name]
        ]
        accuracies.append(
            _Measured(
                spec.split,
                spec.n_shot,
                str(spec.classifier),
                ", ".join(others),
                Accuracy.from_dict(evaluation["accuracy"]),
            )
        )
    return accuracies


def _shown(value: Any) -> Setting:
    """Return a setting as a cell of a table."""
    return value if isinstance(value, str | int | float | None) else json.dumps(value)
