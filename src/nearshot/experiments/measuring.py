"""Measuring what a recipe wants of a finished run, with the epoch that was best for it on the validation split."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from nearshot.data import open_or_prepare
from nearshot.data.augment import centre_crop, normalise_images
from nearshot.data.loading import ImageFeed
from nearshot.errors import InputError
from nearshot.evaluation import Accuracy, Treatment, evaluate_features, evaluate_fine_tuned, evaluate_mahalanobis
from nearshot.experiments.results import Measurement
from nearshot.losses import nca_loss
from nearshot.models import Backbone, load_backbone
from nearshot.training import RunFolder
from nearshot.training.embedding import embed_images
from nearshot.training.testing import Evaluation, Request, evaluate_run

__all__ = ["TREATMENTS", "measure"]

# What may be done to features before they are classified (Section 3.1).
TREATMENTS = {
    "centred and normalised": Treatment(centred=True, normalised=True),
    "centred": Treatment(centred=True, normalised=False),
    "normalised": Treatment(centred=False, normalised=True),
    "raw": Treatment(centred=False, normalised=False),
}
ADAPTED_EPISODES = 600  # adapting takes as long as hundreds of plain episodes


def measure(
    run: RunFolder,
    wanted: Iterable[Measurement],
    *,
    data_dir: str | Path | None = None,
    device: str | None = None,
    n_episodes: int = 10_000,
    n_way: int = 5,
) -> dict[Measurement, Evaluation]:
    """Measure a finished run; what was measured before is not measured again."""
    found = {}
    for one in wanted:
        plain = one.adapted is None and one.treatment == "centred and normalised"
        if plain:
            request = Request(
                split=one.split,
                shots=(one.n_shot,),
                classifiers=(one.classifier,),  # type: ignore[arg-type]
                layers=one.layers,
                n_way=n_way,
                n_episodes=n_episodes,
                side=run.read_config().side,
            )
            found[one] = evaluate_run(run.path, request, data_dir=data_dir, device=device)[0]
        else:
            found[one] = _remembered(run, one, data_dir, device, n_episodes, n_way)
    return found


def _remembered(
    run: RunFolder, one: Measurement, data_dir: str | Path | None, device: str | None, n_episodes: int, n_way: int
) -> Evaluation:
    file = f"evaluations/{one.name}, {n_episodes} episodes.json"
    if (run.path / file).is_file():
        return Evaluation.from_dict(run.read(file))
    evaluation = _measure_features(run, one, data_dir, device, n_episodes, n_way)
    (run.path / "evaluations").mkdir(exist_ok=True)
    run.write(file, evaluation.as_dict())
    return evaluation


def _measure_features(
    run: RunFolder, one: Measurement, data_dir: str | Path | None, device: str | None, n_episodes: int, n_way: int
) -> Evaluation:
    config = run.read_config()
    weights = run.best_weights(one.n_shot, one.classifier)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    backbone = load_backbone(weights).to(where)
    store = open_or_prepare(config.dataset, one.split, data_dir, side=config.side)
    network = _multi_layer(backbone, one.layers) if one.layers else None
    centre = backbone.spec.training_mean
    if one.layers:
        training = open_or_prepare(config.dataset, "train", data_dir, side=config.side)
        feed = ImageFeed(training.images, where)
        centre = embed_images(backbone, feed, device=where, network=network).mean(0)
    treatment = TREATMENTS[one.treatment]
    common = {
        "n_way": n_way,
        "n_shot": one.n_shot,
        "classifier": one.classifier,
        "centre": centre if treatment.centred else None,
        "normalise": treatment.normalised,
        "split": one.split,
        "fingerprint": store.fingerprint,
    }
    accuracy: Accuracy
    if one.adapted is None or one.adapted == "mahalanobis":
        features = embed_images(backbone, ImageFeed(store.images, where), device=where, network=network)
        if one.adapted is None:
            accuracy = evaluate_features(features, store.labels, n_episodes=n_episodes, **common)  # type: ignore[arg-type]
        else:
            few = min(n_episodes, ADAPTED_EPISODES)
            accuracy = evaluate_mahalanobis(features, store.labels, loss=nca_loss, n_episodes=few, **common)  # type: ignore[arg-type]
    elif one.adapted == "fine-tuned":
        images = normalise_images(
            centre_crop(torch.from_numpy(store.images.copy()), backbone.spec.input_size), *backbone.spec.normalisation
        )
        accuracy = evaluate_fine_tuned(
            backbone,
            images,
            store.labels,
            loss=nca_loss,
            n_episodes=min(n_episodes, ADAPTED_EPISODES),
            features=_layers_of(one.layers) if one.layers else None,
            inductive=True,
            **common,  # type: ignore[arg-type]
        )
    else:
        raise InputError(f"There is no adaptation {one.adapted!r}; there are 'fine-tuned' and 'mahalanobis'.")
    return Evaluation(one.n_shot, one.classifier, accuracy, weights.name, config.dataset, one.layers)


def _multi_layer(backbone: Backbone, layers: tuple[int, ...]):  # type: ignore[no-untyped-def]
    def features(images: Tensor) -> Tensor:
        return backbone.multi_layer(images, layers)

    return features


def _layers_of(layers: tuple[int, ...]):  # type: ignore[no-untyped-def]
    def features(network: nn.Module, images: Tensor) -> Tensor:
        if not isinstance(network, Backbone):
            raise InputError("Features of several layers need a backbone.")
        return network.multi_layer(images, layers)

    return features
