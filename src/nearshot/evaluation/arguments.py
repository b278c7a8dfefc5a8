"""What is asked of which features: the arguments that the functions of this package share, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.classifiers import Classifier, FeatureClassifier, classifier_name, find_classifier
from nearshot.evaluation.episodes import Episodes, EpisodeSource, SmallClasses, check_classes
from nearshot.evaluation.features import FeatureSet, check_one_label_each

__all__ = ["as_feature_set", "functions_of", "source_of"]


def as_feature_set(
    features: Tensor | FeatureSet,
    labels: Tensor | None,
    centre: Tensor | None,
    split: str | None = None,
    fingerprint: str | None = None,
) -> FeatureSet:
    """Return one object of what was given in either of two ways."""
    if isinstance(features, FeatureSet):
        given = {"labels": labels, "centre": centre, "split": split, "fingerprint": fingerprint}
        twice = [name for name, value in given.items() if value is not None]
        if twice:
            raise InputError(f"A FeatureSet brings its own {twice[0]}; do not give it twice.")
        data = features
    elif not isinstance(features, Tensor) or not isinstance(labels, Tensor):
        raise InputError(
            f"features and labels must be tensors, not {type(features).__name__} and {type(labels).__name__}. "
            "Use torch.as_tensor(…)."
        )
    else:
        data = FeatureSet(features, labels, centre, split=split, fingerprint=fingerprint)
    check_one_label_each(data.labels, data.features)
    return data


def source_of(
    data: FeatureSet,
    n_way: int,
    n_shots: Sequence[int],
    n_query: int,
    n_episodes: int,
    seed: int,
    episodes: Episodes | None,
    small_classes: SmallClasses,
) -> EpisodeSource | Episodes:
    """Return what will be asked, checked for each number of shots."""
    for n_shot in n_shots:
        EpisodeShape(n_way, n_shot, n_query)  # checks the numbers
    if episodes is None:
        shape = EpisodeShape(n_way, max(n_shots), n_query)
        names = data.class_names or None
        return EpisodeSource(
            data.labels, shape, n_episodes=n_episodes, seed=seed, small_classes=small_classes, class_names=names
        )
    check_classes(episodes, data.labels)
    if max(n_shots) > episodes.shape.n_shot:
        raise InputError(f"The episodes have {episodes.shape.n_shot} shots; {max(n_shots)} were asked for.")
    return episodes


def functions_of(
    classifiers: Sequence[str] | Mapping[str, str | FeatureClassifier], inductive: bool | None
) -> dict[str, FeatureClassifier]:
    """Return classifiers by their names. For a function of features, `inductive` must be given."""
    if isinstance(classifiers, str):
        raise InputError(f"classifiers must be several names; for one, write [{classifiers!r}].")
    entries = classifiers if isinstance(classifiers, Mapping) else _named(classifiers)
    functions = {name: find_classifier(entry) for name, entry in entries.items()}
    for name, function in functions.items():
        if inductive is None and not isinstance(function, Classifier):
            raise InputError(
                f"Does {name!r} look at each query alone? It is given all queries of an episode, so say inductive=True "
                "or inductive=False; the result will carry it."
            )
    return functions


def _named(classifiers: Sequence[str | FeatureClassifier]) -> dict[str, str | FeatureClassifier]:
    """Return classifiers by their names; functions of features have none of their own."""
    own = [classifier_name(one) for one in classifiers if not isinstance(one, str | Classifier)]
    if own:
        raise InputError(f"A classifier of your own needs a name here: {{{own[0]!r}: …}} instead of […].")
    return {classifier_name(one): one for one in classifiers}
