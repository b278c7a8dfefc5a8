"""Accuracy over episodes: sampling, classifiers, statistics, and guards against leaks."""

from nearshot.evaluation.adaptation import Adam, evaluate_fine_tuned, evaluate_mahalanobis
from nearshot.evaluation.classifiers import CLASSIFIERS, Classifier, knn
from nearshot.evaluation.episodes import (
    Episodes,
    read_episodes,
    sample_episodes,
    write_episodes,
)
from nearshot.evaluation.features import (
    FeatureSet,
    embed,
    load_features,
    power_transform,
    prepare_features,
    save_features,
)
from nearshot.evaluation.leaks import (
    TrainingClasses,
    check_distinct_content,
    check_unseen_classes,
)
from nearshot.evaluation.measure import (
    ClassAccuracy,
    evaluate_classes,
    evaluate_episodes,
    evaluate_features,
    evaluate_many,
    score_predictions,
)
from nearshot.evaluation.spec import EvaluationSpec
from nearshot.evaluation.statistics import (
    Accuracy,
    Comparison,
    Difference,
    PooledAccuracy,
    Protocol,
    compare,
    paired,
    pool_seeds,
    select_best,
    welch,
)
from nearshot.evaluation.transductive import (
    TRANSDUCTIVE,
    bd_cspn,
    laplacian_shot,
    optimal_transport,
)

__all__ = [
    "CLASSIFIERS",
    "TRANSDUCTIVE",
    "Accuracy",
    "Adam",
    "ClassAccuracy",
    "Classifier",
    "Comparison",
    "Difference",
    "Episodes",
    "EvaluationSpec",
    "FeatureSet",
    "PooledAccuracy",
    "Protocol",
    "TrainingClasses",
    "bd_cspn",
    "check_distinct_content",
    "check_unseen_classes",
    "compare",
    "embed",
    "evaluate_classes",
    "evaluate_episodes",
    "evaluate_features",
    "evaluate_fine_tuned",
    "evaluate_mahalanobis",
    "evaluate_many",
    "knn",
    "laplacian_shot",
    "load_features",
    "optimal_transport",
    "paired",
    "pool_seeds",
    "power_transform",
    "prepare_features",
    "read_episodes",
    "sample_episodes",
    "save_features",
    "score_predictions",
    "select_best",
    "welch",
    "write_episodes",
]
