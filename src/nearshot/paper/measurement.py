"""Measure what recipes need of a finished run, on the epochs with the best validation accuracy.

A split is embedded once for each weights file and choice of layers, in one precision for
everything, so that plain, treated and adapted features can be compared.
"""

from collections.abc import Iterable

from torch import Tensor

from nearshot.data import Store
from nearshot.errors import InputError, look_up
from nearshot.evaluation import (
    Accuracy,
    Adam,
    EvaluationSpec,
    evaluate_classes,
    evaluate_fine_tuned,
    evaluate_mahalanobis,
)
from nearshot.evaluation.adaptation import BatchNormMode
from nearshot.losses import nca_loss
from nearshot.paper.results import Measurement
from nearshot.paper.sizes import PAPER
from nearshot.runs import Evaluation, TrainedRun, evaluate_run
from nearshot.runs.evaluate import CachedEvaluation
from nearshot.runs.network import InPrecision, TrainedNetwork

# How features are treated before they are classified (Section 3.1), by `Measurement.how`: centred
# and normalised, each or not.
TREATMENTS = {
    "": (True, True),
    "centred": (True, False),
    "normalised": (False, True),
    "raw": (False, False),
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
    evaluations: dict[Measurement, Evaluation] = {}
    plain = TREATMENTS.keys() | VIEWS
    # What takes longest comes last.
    for measurement in sorted(wanted, key=lambda measurement: measurement.how not in plain):
        n_episodes = run.config.validation_episodes
        if measurement.how not in plain:
            n_episodes = min(n_episodes, adapted_episodes)
        centred, normalise = TREATMENTS.get(measurement.how, (True, True))
        spec = EvaluationSpec(
            split=measurement.split,
            layers=measurement.layers,
            n_views=VIEWS.get(measurement.how, 1),
            n_way=run.config.validation_way,
            n_shot=measurement.n_shot,
            n_episodes=n_episodes,
            classifier=measurement.classifier,
            centred=centred,
            normalise=normalise,
        )
        if measurement.how in plain:
            (evaluation,) = evaluate_run(run, spec)
        else:
            evaluation = _adapted(run, measurement, spec)
        evaluations[measurement] = evaluation
    return evaluations


def measure_classes(run: TrainedRun, splits: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return a finished run's accuracy by class for some splits, {"val 5-shot centroid": {class: per cent}}.

    The classifier is nearest centroid with the most shots that were validated, on the epoch that
    was best for them.
    """
    n_shot = max(run.config.validation_shots)
    network = run.network(run.best_weights(n_shot, "centroid"))
    by_split = {}
    for split in splits:
        store = run.store(split)
        features = network.feature_set(store, EvaluationSpec(split=split))
        accuracies = evaluate_classes(
            features,
            n_way=run.config.validation_way,
            n_shot=n_shot,
            n_episodes=run.config.validation_episodes,
        )
        by_split[f"{split} {n_shot}-shot centroid"] = {
            name: round(accuracy.mean, 2) for name, accuracy in accuracies.items()
        }
    return by_split


def _adapted(run: TrainedRun, measurement: Measurement, spec: EvaluationSpec) -> Evaluation:
    weights = run.best_weights(measurement.n_shot, measurement.classifier)
    store = run.store(measurement.split)
    cached = CachedEvaluation(run, spec, weights, store, adapted=measurement.how)
    evaluation = cached.read()
    if evaluation is not None:
        return evaluation
    network = run.network(weights)
    has_lost_projection = run.config.projection is not None and network.projection is None
    if measurement.how.endswith("support norm") and has_lost_projection:
        raise InputError(
            f"{weights} was written by an earlier version, without its projection. Train the run again."
        )
    accuracy = _adapted_accuracy(network, measurement, spec, store)
    evaluation = Evaluation(spec, accuracy, weights.name, run.config.dataset)
    cached.write(evaluation)
    return evaluation


def _adapted_accuracy(
    network: TrainedNetwork, measurement: Measurement, spec: EvaluationSpec, store: Store
) -> Accuracy:
    if measurement.how in MAHALANOBIS:
        return evaluate_mahalanobis(
            network.features(store, spec.layers),
            store.labels,
            loss=nca_loss,
            optimiser=MAHALANOBIS[measurement.how],
            n_way=spec.n_way,
            n_shot=spec.n_shot,
            n_query=spec.n_query,
            n_episodes=spec.n_episodes,
            classifier=spec.classifier,
            centre=network.centre(spec.layers),
            centred=spec.centred,
            split=spec.split,
            fingerprint=store.fingerprint,
        )
    optimiser, batch_norm = look_up(FINE_TUNED, measurement.how, "adaptation")
    tuned = network.network(spec.layers, projected=batch_norm == "support")
    return evaluate_fine_tuned(
        tuned,
        network.images(store),
        store.labels,
        loss=nca_loss,
        features=layers_of if spec.layers or tuned.projection else None,  # type: ignore[arg-type]  # the network is one
        optimiser=optimiser,
        batch_norm=batch_norm,
        n_way=spec.n_way,
        n_shot=spec.n_shot,
        n_query=spec.n_query,
        n_episodes=spec.n_episodes,
        classifier=spec.classifier,
        centre=network.centre(spec.layers),
        centred=spec.centred,
        inductive=True,
        split=spec.split,
        fingerprint=store.fingerprint,
    )


def layers_of(network: InPrecision, images: Tensor) -> Tensor:
    """Return the features of a network's layers. The name of this function is part of stored protocols: keep it."""
    return network.features(images)
