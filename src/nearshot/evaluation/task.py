"""An evaluation made ready: features, settings and episodes, checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from nearshot.errors import InputError
from nearshot.evaluation.episodes import Episodes, EpisodeSource, check_classes
from nearshot.evaluation.features import FeatureSet, FeatureSettings
from nearshot.evaluation.guards import check_unseen_classes
from nearshot.evaluation.spec import EvaluationSettings, EvaluationSpec
from nearshot.evaluation.statistics import Protocol

__all__ = ["Task", "TaskSettings"]


class TaskSettings(EvaluationSettings, FeatureSettings, total=False):
    """The keyword arguments that all evaluations share.

    `spec` gives all fields of `EvaluationSpec` at once; a field given beside it wins. With `episodes`, these are used
    instead of drawing them. `progress` is whether to show a bar; by default on a terminal.
    """

    spec: EvaluationSpec
    episodes: Episodes | None
    progress: bool | None


@dataclass(frozen=True, eq=False)
class Task:
    """An evaluation made ready.

    Attributes:
        data: the features, with labels and metadata.
        spec: the settings, with those of the episodes where they were given.
        source: the episodes.
        progress: whether to show a bar.
    """

    data: FeatureSet
    spec: EvaluationSpec
    source: EpisodeSource | Episodes
    progress: bool | None = None

    @classmethod
    def of(cls, features: Tensor | FeatureSet, labels: Tensor | None, settings: Mapping[str, Any]) -> Task:
        """Check the arguments of an evaluation.

        Args:
            features: (image, dim), or a `FeatureSet` that has its own labels.
            labels: (image,).
            settings: the keyword arguments of `TaskSettings`.
        """
        own = {name: value for name, value in settings.items() if name not in TaskSettings.__annotations__}
        if own:
            raise TypeError(f"There is no setting {next(iter(own))!r}.")
        metadata = {name: settings[name] for name in FeatureSettings.__annotations__ if name in settings}
        data = FeatureSet.of(features, labels, **metadata)
        fields = {name: settings[name] for name in EvaluationSettings.__annotations__ if name in settings}
        episodes: Episodes | None = settings.get("episodes")
        if episodes is not None and "spec" not in settings:
            fields.setdefault("n_shot", episodes.shape.n_shot)
        spec = replace(settings.get("spec") or EvaluationSpec(), **fields)
        centred = data.centre is not None if spec.centred is None else spec.centred
        if centred and data.centre is None:
            raise InputError("To centre features, give their centre, the mean feature of the training set.")
        if data.training_classes is not None:
            if not data.class_names:
                raise InputError("training_classes needs a FeatureSet with class_names, to compare them with.")
            check_unseen_classes(data.training_classes, data.class_names)
        spec = replace(spec, centred=centred)
        if episodes is None:
            return cls(data, spec, EpisodeSource(data.labels, spec, data.class_names), settings.get("progress"))
        check_classes(episodes, data.labels)
        if spec.n_shot > episodes.shape.n_shot:
            raise InputError(f"n_shot must be at most {episodes.shape.n_shot}, as in episodes (got {spec.n_shot}).")
        spec = replace(spec, n_way=episodes.shape.n_way, n_query=episodes.n_query, n_episodes=len(episodes))
        return cls(data, spec, episodes, settings.get("progress"))

    def protocol(self, classifier: str, digest: str, *, inductive: bool, adapted: str | None = None) -> Protocol:
        """Return how the accuracy of the task is measured, with `digest` for the episodes."""
        return Protocol(
            n_way=self.spec.n_way,
            n_shot=self.spec.n_shot,
            n_query=self.spec.n_query,
            n_episodes=len(self.source),
            seed=self.source.seed,
            episodes=digest,
            classifier=classifier,
            centred=self.spec.centred,
            normalised=self.spec.normalise,
            adapted=adapted,
            inductive=inductive,
            split=self.data.split,
            fingerprint=self.data.fingerprint,
            classes_left_out=self.source.n_classes_left_out,
        )
