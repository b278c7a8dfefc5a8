"""The result of a run, one small file: its settings, its log, and its accuracies with all episodes.

Version 2. `results/migrate.py` upgrades files of version 1.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Self

from nearshot.errors import FileFormatError
from nearshot.evaluation import Accuracy
from nearshot.paper.identity import run_id
from nearshot.runs import Evaluation
from nearshot.training import RunFolder, TrainConfig
from nearshot.training.run_folder import best_epoch

__all__ = ["Measurement", "RunResult", "result_of"]

FORMAT = "nearshot-result"
VERSION = 2
# The classifiers of validation during training.
VALIDATION_CLASSIFIERS = ("centroid", "soft")


@dataclass(frozen=True)
class Measurement:
    """An accuracy to measure of a run: split, shots, classifier and features.

    The weights are those of the epoch with the best validation accuracy for these shots and this
    classifier.

    Attributes:
        layers: the layers whose outputs are the features; none for the embedding.
        how: how features are treated or adapted to each episode, by its name in `measurement`;
            empty for the usual features, which are centred and normalised.
    """

    split: str
    n_shot: int
    classifier: str = "centroid"
    layers: tuple[int, ...] = ()
    how: str = ""

    def __str__(self) -> str:
        parts = [self.split, f"{self.n_shot}-shot", self.classifier]
        if self.layers:
            parts.append(f"layers {'+'.join(str(layer) for layer in self.layers)}")
        if self.how:
            parts.append(self.how)
        return " ".join(parts)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `dataclasses.asdict`, from JSON."""
        return cls(
            split=values["split"],
            n_shot=values["n_shot"],
            classifier=values["classifier"],
            layers=tuple(values["layers"]),
            how=values["how"],
        )


@dataclass(frozen=True)
class MeasuredAccuracy:
    """An accuracy of a run.

    Attributes:
        epoch: the epoch whose weights were measured.
        is_validation: whether it was measured during training, possibly in another precision than
            what is measured afterwards.
        accuracy: as `Accuracy.as_dict` returns it, since most are never looked at.
    """

    measurement: Measurement
    epoch: int
    is_validation: bool
    accuracy: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "measurement": asdict(self.measurement),
            "epoch": self.epoch,
            "is_validation": self.is_validation,
            "accuracy": self.accuracy,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`."""
        return cls(
            Measurement.from_dict(values["measurement"]),
            int(values["epoch"]),
            bool(values["is_validation"]),
            values["accuracy"],
        )


class RunResult:
    """The result of a run.

    A content that is damaged or of another version is an error.

    Attributes:
        content: the content of the file.
        size: the name of the size.
        config: the run's settings; those that the file lacks have their default.
        id: the run's identity, computed from its settings: the file's name does not count.
        seed: the training seed.
        history: the run's log, one entry per epoch.
        device: the device that it was trained on.
        seconds: the duration of training.
        n_sharing: how many runs shared the GPU.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        version = content.get("version")
        if content.get("format") != FORMAT or version != VERSION:
            advice = " Upgrade it with results/migrate.py." if version == 1 else ""
            raise FileFormatError(
                f"format must be {FORMAT} and version {VERSION} "
                f"(got {content.get('format')} and {version}).{advice}"
            )
        self.content = content
        self.size: str = content["size"]
        self.config = TrainConfig.from_dict(content["config"])
        self.id = run_id(self.config)
        self.seed = self.config.seed
        self.history: list[dict[str, Any]] = content["history"]
        self.device = str(content["environment"].get("device", "an unknown device"))
        self.seconds = float(content["seconds"])
        self.n_sharing = int(content["n_sharing"])
        measured = [MeasuredAccuracy.from_dict(values) for values in content["accuracies"]]
        self._measured = {accuracy.measurement: accuracy for accuracy in measured}

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Everything that was measured."""
        return tuple(self._measured)

    def has(self, measurement: Measurement) -> bool:
        """Return whether something was measured."""
        return measurement in self._measured

    def accuracy(self, measurement: Measurement) -> Accuracy:
        """Return a measured accuracy."""
        return Accuracy.from_dict(self._measured[measurement].accuracy)

    def epoch(self, measurement: Measurement) -> int:
        """Return the epoch whose weights were measured."""
        return self._measured[measurement].epoch

    def is_same_run(self, other: "RunResult") -> bool:
        """Return whether both are of one run: they have the same data and the same log."""
        same_data = self.content["fingerprints"] == other.content["fingerprints"]
        return same_data and self.history == other.history

    def merged_with(self, earlier: "RunResult") -> "RunResult":
        """Return the result with earlier measurements of the same run.

        Validation never replaces what was measured after training.
        """
        merged = dict(earlier._measured)
        for measurement, measured in self._measured.items():
            known = merged.get(measurement)
            if known is None or known.is_validation or not measured.is_validation:
                merged[measurement] = measured
        return RunResult(self.content | {"accuracies": _as_json(merged.values())})


def result_of(
    run: RunFolder,
    size: str,
    evaluations: Mapping[Measurement, Evaluation],
    *,
    n_sharing: int = 1,
    teacher: str | None = None,
) -> RunResult:
    """Return the result of a finished run: its best validation accuracies, and the evaluations.

    Args:
        run: the folder of the run.
        size: the name of the size.
        evaluations: what was measured after training.
        n_sharing: how many runs shared the GPU.
        teacher: what identifies the teacher, in place of its path.
    """
    content = run.read("result.json")
    config = replace(TrainConfig.from_dict(content["config"]), teacher=teacher)
    measured: dict[Measurement, MeasuredAccuracy] = {}
    for n_shot in config.validation_n_shot:
        for classifier in VALIDATION_CLASSIFIERS:
            best = dict(content["best"][f"{n_shot}-shot {classifier}"])
            measurement = Measurement("val", n_shot, classifier)
            measured[measurement] = MeasuredAccuracy(
                measurement, epoch=best.pop("epoch"), is_validation=True, accuracy=best
            )
    for measurement, evaluation in evaluations.items():
        epoch = best_epoch(content["best"], measurement.n_shot, measurement.classifier)
        measured[measurement] = MeasuredAccuracy(
            measurement,
            epoch=config.epochs if epoch is None else epoch,
            is_validation=False,
            accuracy=evaluation.accuracy.as_dict(),
        )
    return RunResult(
        {
            "format": FORMAT,
            "version": VERSION,
            "size": size,
            "config": config.as_dict(),
            "fingerprints": content["fingerprints"],
            "environment": content["environment"],
            "n_sharing": n_sharing,
            **_speed(run),
            "accuracies": _as_json(measured.values()),
            "history": [json.loads(line) for line in run.metrics.read_text().splitlines()],
        }
    )


def _as_json(accuracies: Iterable[MeasuredAccuracy]) -> list[dict[str, Any]]:
    return [accuracy.as_dict() for accuracy in accuracies]


def _speed(run: RunFolder) -> dict[str, float | None]:
    """Return the duration of training, and images per second."""
    lines = [json.loads(line) for line in run.timing.read_text().splitlines()]
    # If an epoch was rerun, keep its latest timing.
    epochs = list({line["epoch"]: line for line in lines}.values())
    # End to end includes validation and checkpoints, without the first epoch of each process.
    end_to_end_seconds = 0.0
    end_to_end_images = 0.0
    for earlier, epoch in pairwise(epochs):
        if not epoch.get("first"):
            end_to_end_seconds += epoch["time"] - earlier["time"]
            end_to_end_images += epoch["seconds"] * epoch["images_per_second"]
    end_to_end = end_to_end_images / end_to_end_seconds if end_to_end_seconds > 0 else None
    return {
        "seconds": sum(epoch["seconds"] for epoch in epochs),
        "images_per_second": statistics.median_high(epoch["images_per_second"] for epoch in epochs),
        "end_to_end_images_per_second": end_to_end,
        "first_epoch_seconds": epochs[0].get("since_start"),
    }
