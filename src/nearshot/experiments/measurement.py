"""Measuring what recipes want of a finished run, with the epochs that were best for it on the validation split.

A split is embedded once for each weights file and choice of layers, whatever is asked of it, and all of it in one
precision: plain, treated and adapted features may be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from nearshot.data import Store
from nearshot.errors import InputError
from nearshot.evaluation import Accuracy, Adam, Treatment, evaluate_features, evaluate_fine_tuned, evaluate_mahalanobis
from nearshot.experiments.results import Measurement
from nearshot.experiments.scales import ADAPTED_EPISODES
from nearshot.losses import nca_loss
from nearshot.runs.evaluate import Evaluation, Request, evaluate_run, file_name
from nearshot.runs.network import InPrecision, TrainedNetwork, TrainedRun

__all__ = ["FINE_TUNED", "TREATMENTS", "measure"]

# What may be done to features before they are classified (Section 3.1).
TREATMENTS = {
    "centred and normalised": Treatment(centred=True, normalised=True),
    "centred": Treatment(centred=True, normalised=False),
    "normalised": Treatment(centred=False, normalised=True),
    "raw": Treatment(centred=False, normalised=False),
}
# How a network may be adapted to a support set: as the paper says, and less.
FINE_TUNED = {
    "fine-tuned": Adam(),
    "fine-tuned 2 steps": Adam(n_steps=2),
    "fine-tuned 1 step": Adam(n_steps=1),
}


def measure(
    run: TrainedRun,
    wanted: Iterable[Measurement],
    *,
    n_episodes: int = 10_000,
    n_way: int = 5,
    adapted_episodes: int = ADAPTED_EPISODES,
) -> dict[Measurement, Evaluation]:
    """Measure a finished run; what was measured before is not measured again.

    Args:
        run: the run, opened.
        wanted: what to measure.
        n_episodes: on how many episodes.
        n_way: classes in an episode.
        adapted_episodes: on how many at most where the network or the features are adapted to each.
    """
    if run.unfinished is not None:
        raise InputError(f"{run.run.path} is not a finished run ({run.unfinished}), and recipes measure no others.")
    found: dict[Measurement, Evaluation] = {}
    plain: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    others = []
    for one in wanted:
        if one.adapted is None and one.treatment == "centred and normalised":
            plain.setdefault((one.split, one.layers, one.classifier), []).append(one.n_shot)
        else:
            others.append(one)
    for (split, layers, classifier), shots in plain.items():
        for evaluation in evaluate_run(run, _request(split, layers, classifier, shots, n_episodes, n_way)):
            found[Measurement(split, evaluation.n_shot, classifier, layers)] = evaluation
    # What takes longest comes last: if it is stopped or fails, the run's folder has all else.
    for one in sorted(others, key=lambda one: one.adapted is not None):
        few = n_episodes if one.adapted is None else min(n_episodes, adapted_episodes)
        found[one] = _remembered(run, one, _request(one.split, one.layers, one.classifier, [one.n_shot], few, n_way))
    return found


def _request(
    split: str, layers: tuple[int, ...], classifier: str, shots: list[int], n_episodes: int, n_way: int
) -> Request:
    return Request(
        split=split,
        shots=tuple(shots),
        classifiers=(classifier,),
        layers=layers,
        n_way=n_way,
        n_episodes=n_episodes,
    )


def _remembered(run: TrainedRun, one: Measurement, request: Request) -> Evaluation:
    """Return what was measured of treated or adapted features before, or measure it now."""
    weights, store = run.best_weights(one.n_shot, one.classifier), run.store(one.split)
    name = file_name(run, request, weights, store, also=(one.adapted or one.treatment,))
    if not (run.run.path / "evaluations" / name).is_file():
        accuracy = _accuracy(run.network(weights), one, request, store)
        evaluation = Evaluation(one.n_shot, one.classifier, accuracy, weights.name, run.config.dataset, one.layers)
        (run.run.path / "evaluations").mkdir(exist_ok=True)
        run.run.write(f"evaluations/{name}", evaluation.as_dict())
    return Evaluation.from_dict(run.run.read(f"evaluations/{name}"))


def _accuracy(network: TrainedNetwork, one: Measurement, request: Request, store: Store) -> Accuracy:
    treatment = TREATMENTS[one.treatment]
    asked: dict[str, Any] = {
        "n_way": request.n_way,
        "n_shot": one.n_shot,
        "n_query": request.n_query,
        "n_episodes": request.n_episodes,
        "classifier": one.classifier,
        "centre": network.centre(one.layers) if treatment.centred else None,
        "normalise": treatment.normalised,
        "seed": request.seed,
        "split": one.split,
        "fingerprint": store.fingerprint,
    }
    if one.adapted is None:
        return evaluate_features(network.features(store, one.layers), store.labels, **asked)
    if one.adapted == "mahalanobis":
        return evaluate_mahalanobis(network.features(store, one.layers), store.labels, loss=nca_loss, **asked)
    if one.adapted in FINE_TUNED:
        return evaluate_fine_tuned(
            network.network(one.layers),
            network.images(store),
            store.labels,
            loss=nca_loss,
            features=layers_of if one.layers else None,
            optimiser=FINE_TUNED[one.adapted],
            inductive=True,
            # torch has no batch norm of bfloat16 for several episodes at once.
            episodes_at_once=1 if network.bfloat16 else None,
            **asked,
        )
    raise InputError(f"There is no adaptation {one.adapted!r}; there are {', '.join((*FINE_TUNED, 'mahalanobis'))}.")


def layers_of(network: nn.Module, images: Tensor) -> Tensor:
    """Return the features of a network's layers; fine-tuning goes through its embedding alone, as in the paper.

    Its name is in what results say of how they were measured: with another they would not be alike.
    """
    if not isinstance(network, InPrecision):
        raise InputError("Features of several layers need a backbone.")
    return network.features(images)
