"""Accuracy over episodes: sampling, classifiers, statistics, and guards against leaks."""

from nearshot.evaluation.adaptation import Adam, evaluate_fine_tuned, evaluate_mahalanobis
from nearshot.evaluation.classifiers import CLASSIFIERS, Classifier, knn
from nearshot.evaluation.episodes import (
    Episodes,
    EvaluationSpec,
    check_distinct_content,
    read_episodes,
    sample_episodes,
    write_episodes,
)
from nearshot.evaluation.features import (
    FeatureSet,
    check_unseen_classes,
    embed,
    load_features,
    power_transform,
    prepare_features,
    save_features,
)
from nearshot.evaluation.measure import (
    ClassAccuracy,
    Measured,
    Treatment,
    evaluate_classes,
    evaluate_features,
    evaluate_many,
    score_predictions,
)
from nearshot.evaluation.statistics import (
    Accuracy,
    Comparison,
    PooledAccuracy,
    Protocol,
    compare,
    pool_seeds,
    select_best,
)

__all__ = [
    "CLASSIFIERS",
    "Accuracy",
    "Adam",
    "ClassAccuracy",
    "Classifier",
    "Comparison",
    "Episodes",
    "EvaluationSpec",
    "FeatureSet",
    "Measured",
    "PooledAccuracy",
    "Protocol",
    "Treatment",
    "check_distinct_content",
    "check_unseen_classes",
    "compare",
    "embed",
    "evaluate_classes",
    "evaluate_features",
    "evaluate_fine_tuned",
    "evaluate_mahalanobis",
    "evaluate_many",
    "knn",
    "load_features",
    "pool_seeds",
    "power_transform",
    "prepare_features",
    "read_episodes",
    "sample_episodes",
    "save_features",
    "score_predictions",
    "select_best",
    "write_episodes",
]
