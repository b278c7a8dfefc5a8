"""Measure what recipes need of a finished run, on the epochs with the best validation accuracy.

A split is embedded once for each weights file and choice of layers, in one precision for
everything, so that plain, treated and adapted features can be compared.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from nearshot.data import Store
from nearshot.errors import InputError, look_up
from nearshot.evaluation import (
    Accuracy,
    Adam,
    EvaluationSpec,
    Treatment,
    evaluate_classes,
    evaluate_features,
    evaluate_fine_tuned,
    evaluate_mahalanobis,
)
from nearshot.evaluation.adaptation import BatchNormMode
from nearshot.losses import nca_loss
from nearshot.paper.results import Measurement
from nearshot.paper.sizes import PAPER
from nearshot.runs.evaluate import Evaluation, Request, evaluate_run, file_name
from nearshot.runs.network import InPrecision, TrainedNetwork, TrainedRun

# How features are treated before they are classified (Section 3.1), by `Measurement.how`.
TREATMENTS = {
    "": Treatment(centred=True, normalised=True),
    "centred": Treatment(centred=True, normalised=False),
    "normalised": Treatment(centred=False, normalised=True),
    "raw": Treatment(centred=False, normalised=False),
}
VIEWS = {"2 views": 2, "4 views": 4, "10 views": 10}  # of each image, whose embeddings are averaged

# How a network is fine-tuned on a support set: with frozen batch norm, or in batch norm's training
# mode. With the latter the loss sees the projection, as in the published experiments; with the
# former, the embedding.
FINE_TUNED: dict[str, tuple[Adam, BatchNormMode]] = {
    "fine-tuned": (Adam(), "frozen"),
    "fine-tuned 2 steps": (Adam(n_steps=2), "frozen"),
    "fine-tuned 1 step": (Adam(n_steps=1), "frozen"),
    "fine-tuned 1 step support norm": (Adam(n_steps=1), "support"),
    "fine-tuned 2 steps support norm": (Adam(n_steps=2), "support"),
    "fine-tuned 5 steps support norm": (Adam(n_steps=5), "support"),
}
# A Mahalanobis matrix: the setting that was chosen on validation, and the one of earlier results,
# which overfits.
MAHALANOBIS = {
    "mahalanobis 5 steps": Adam(n_steps=5, lr=1e-4, weight_decay=0.0),
    "mahalanobis": Adam(n_steps=20, lr=1e-3, weight_decay=0.0),
}


def measure(
    run: TrainedRun,
    wanted: Iterable[Measurement],
    *,
    adapted_episodes: int = PAPER.adapted_episodes,
) -> dict[Measurement, Evaluation]:
    """Measure a finished run, with as many ways and episodes as in its validation.

    If the network or the features are adapted to each episode, there are at most
    `adapted_episodes`. Measurements are kept in the run's folder, and not repeated.
    """
    n_episodes = run.config.validation_episodes
    found: dict[Measurement, Evaluation] = {}
    plain = TREATMENTS.keys() | VIEWS
    for one in sorted(
        wanted, key=lambda one: one.how not in plain
    ):  # what takes longest comes last
        request = Request(
            split=one.split,
            shots=(one.n_shot,),
            classifiers=(one.classifier,),
            layers=one.layers,
            n_way=run.config.validation_way,
            n_episodes=n_episodes if one.how in plain else min(n_episodes, adapted_episodes),
            n_views=VIEWS.get(one.how, 1),
        )
        has_features = one.how in ("", *VIEWS)
        found[one] = evaluate_run(run, request)[0] if has_features else _measured(run, one, request)
    return found


def measure_classes(run: TrainedRun, splits: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return a finished run's accuracy by class for some splits, {"val 5-shot centroid": {class: per cent}}.

    The classifier is nearest centroid with the most shots that were validated, on the epoch that
    was best for them.
    """
    config, n_shot = run.config, max(run.config.validation_shots)
    spec = EvaluationSpec(config.validation_way, n_shot, n_episodes=config.validation_episodes)
    network = run.network(run.best_weights(n_shot, "centroid"))
    found = {}
    for split in splits:
        features = network.feature_set(run.store(split), split)
        accuracies = evaluate_classes(features, spec=spec)
        found[f"{split} {n_shot}-shot centroid"] = {
            name: round(one.mean, 2) for name, one in accuracies.items()
        }
    return found


def _measured(run: TrainedRun, one: Measurement, request: Request) -> Evaluation:
    weights, store = run.best_weights(one.n_shot, one.classifier), run.store(one.split)
    name = file_name(run, request, weights, store, also=(one.how,))
    if not (run.run.path / "evaluations" / name).is_file():
        network = run.network(weights)
        if (
            one.how.endswith("support norm")
            and run.config.projection is not None
            and network.projection is None
        ):
            raise InputError(
                f"{weights} was written by an earlier version, without its projection. Train the run again."
            )
        accuracy = _accuracy(network, one, request, store)
        evaluation = Evaluation(
            one.n_shot, one.classifier, accuracy, weights.name, run.config.dataset, one.layers
        )
        (run.run.path / "evaluations").mkdir(exist_ok=True)
        run.run.write(f"evaluations/{name}", evaluation.as_dict())
    return Evaluation.from_dict(run.run.read(f"evaluations/{name}"))


def _accuracy(
    network: TrainedNetwork, one: Measurement, request: Request, store: Store
) -> Accuracy:
    treatment = TREATMENTS.get(one.how, TREATMENTS[""])
    spec = replace(
        request.spec(one.n_shot), classifier=one.classifier, normalise=treatment.normalised
    )
    centre = network.centre(one.layers) if treatment.centred else None
    asked: dict[str, Any] = {"centre": centre, "split": one.split, "fingerprint": store.fingerprint}
    if one.how in TREATMENTS:
        return evaluate_features(
            network.features(store, one.layers), store.labels, spec=spec, **asked
        )
    if one.how in MAHALANOBIS:
        features, optimiser = network.features(store, one.layers), MAHALANOBIS[one.how]
        return evaluate_mahalanobis(
            features, store.labels, loss=nca_loss, optimiser=optimiser, spec=spec, **asked
        )
    optimiser, batch_norm = look_up(FINE_TUNED, one.how, "adaptation")
    tuned = network.network(one.layers, projected=batch_norm == "support")
    return evaluate_fine_tuned(
        tuned,
        network.images(store),
        store.labels,
        loss=nca_loss,
        features=layers_of if one.layers or tuned.projection else None,  # type: ignore[arg-type]  # the network is one
        optimiser=optimiser,
        batch_norm=batch_norm,
        spec=replace(spec, inductive=True),
        **asked,
    )


def layers_of(network: InPrecision, images: Tensor) -> Tensor:
    """Return the features of a network's layers. The name of this function is part of stored protocols: keep it."""
    return network.features(images)
