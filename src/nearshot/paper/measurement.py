"""Measure what recipes need of a finished run, on the epochs with the best validation accuracy.

A split is embedded once for each weights file and choice of layers, in one precision for
everything, so that plain, treated and adapted features can be compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from nearshot.data import Store
from nearshot.errors import look_up
from nearshot.evaluation import (
    Accuracy,
    Adam,
    EvaluationSpec,
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


@dataclass(frozen=True)
class Treatment:
    """How features are treated before they are classified (Section 3.1)."""

    centred: bool = True
    normalise: bool = True


@dataclass(frozen=True)
class FineTuning:
    """How a network is fine-tuned on a support set.

    With batch norm "frozen" the loss sees the embedding. With "support", batch norm is in its
    training mode, and the loss sees the projection, as in the published experiments.
    """

    optimiser: Adam
    batch_norm: BatchNormMode = "frozen"


# The values of `Measurement.how` name a treatment, a number of views of each image, whose
# embeddings are averaged, or an adaptation to each support set.
TREATMENTS = {
    "": Treatment(),
    "centred": Treatment(normalise=False),
    "normalised": Treatment(centred=False),
    "raw": Treatment(centred=False, normalise=False),
}
VIEWS = {"2 views": 2, "4 views": 4, "10 views": 10}
FINE_TUNED = {
    "fine-tuned": FineTuning(Adam()),
    "fine-tuned 2 steps": FineTuning(Adam(n_steps=2)),
    "fine-tuned 1 step": FineTuning(Adam(n_steps=1)),
    "fine-tuned 1 step support norm": FineTuning(Adam(n_steps=1), "support"),
    "fine-tuned 2 steps support norm": FineTuning(Adam(n_steps=2), "support"),
    "fine-tuned 5 steps support norm": FineTuning(Adam(n_steps=5), "support"),
}
# A Mahalanobis matrix: the setting that was chosen on validation, and the one of earlier results,
# which overfits.
MAHALANOBIS = {
    "mahalanobis 5 steps": Adam(n_steps=5, lr=1e-4, weight_decay=0.0),
    "mahalanobis": Adam(n_steps=20, lr=1e-3, weight_decay=0.0),
}


def measure(
    run: TrainedRun,
    measurements: Iterable[Measurement],
    *,
    adapted_episodes: int = PAPER.adapted_episodes,
) -> dict[Measurement, Evaluation]:
    """Measure a finished run, with as many ways and episodes as in its validation.

    If the network or the features are adapted to each episode, there are at most
    `adapted_episodes`. Measurements are kept in the run's folder, and not repeated.
    """
    evaluations: dict[Measurement, Evaluation] = {}
    # What takes longest comes last.
    for measurement in sorted(measurements, key=_is_adapted):
        n_episodes = run.config.validation_episodes
        if _is_adapted(measurement):
            n_episodes = min(n_episodes, adapted_episodes)
        treatment = TREATMENTS.get(measurement.how, Treatment())
        spec = EvaluationSpec(
            split=measurement.split,
            layers=measurement.layers,
            n_views=VIEWS.get(measurement.how, 1),
            n_way=run.config.validation_n_way,
            n_shot=measurement.n_shot,
            n_episodes=n_episodes,
            classifier=measurement.classifier,
            centred=treatment.centred,
            normalise=treatment.normalise,
        )
        if _is_adapted(measurement):
            evaluations[measurement] = _evaluate_adapted(run, measurement, spec)
        else:
            (evaluations[measurement],) = evaluate_run(run, spec)
    return evaluations


def _is_adapted(measurement: Measurement) -> bool:
    """Return whether the network or the features are adapted to each episode."""
    return measurement.how not in TREATMENTS and measurement.how not in VIEWS


def _evaluate_adapted(
    run: TrainedRun, measurement: Measurement, spec: EvaluationSpec
) -> Evaluation:
    weights = run.best_weights(measurement.n_shot, measurement.classifier)
    store = run.store(measurement.split)
    cached = CachedEvaluation(run, spec, weights, store, adapted=measurement.how)
    evaluation = cached.read()
    if evaluation is None:
        accuracy = _adapted_accuracy(run.network(weights), measurement, spec, store)
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
    tuning = look_up(FINE_TUNED, measurement.how, "adaptation")
    tuned = network.network(spec.layers, projected=tuning.batch_norm == "support")
    # The loss sees another output than the classifier.
    has_features = bool(spec.layers) or tuned.projection is not None
    return evaluate_fine_tuned(
        tuned,
        network.images(store),
        store.labels,
        loss=nca_loss,
        features=_features if has_features else None,
        features_name=_features_name(spec) if has_features else None,
        optimiser=tuning.optimiser,
        batch_norm=tuning.batch_norm,
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


def _features(network: nn.Module, images: Tensor) -> Tensor:
    """Return the features of a network's layers."""
    if not isinstance(network, InPrecision):
        raise TypeError(f"network must be an InPrecision (got {type(network).__name__}).")
    return network.features(images)


def _features_name(spec: EvaluationSpec) -> str:
    """Return what protocols call the features, such as "layers 2+3+4"."""
    if not spec.layers:
        return "the embedding"
    return f"layers {'+'.join(str(layer) for layer in spec.layers)}"
