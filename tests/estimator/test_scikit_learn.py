"""The contract with scikit-learn: its own checks, and the tools that estimators are used in."""

from unittest import SkipTest

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator
from tests.helpers.clouds import Brightness, clouds
from tests.helpers.layouts import picture

from nearshot import FewShotClassifier

ESTIMATORS = [
    FewShotClassifier(),
    FewShotClassifier(classifier="soft"),
    FewShotClassifier(classifier="knn"),
    FewShotClassifier(classifier="knn", n_neighbors=3, normalise=False),
    FewShotClassifier(classifier="soft", normalise=False, centre=None, temperature=0.5),
]


@pytest.mark.filterwarnings("ignore:.*is not installed:sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_scikit_learns_own_checks(estimator: FewShotClassifier) -> None:
    n_passed = 0
    for copy, check in estimator_checks_generator(estimator, legacy=True, mark=None):
        try:
            check(copy)
            n_passed += 1
        except SkipTest:  # of what is not installed
            pass
        except Exception as error:
            # An image of this check has a feature of zeros, which cannot be normalised.
            assert getattr(check, "func", check).__name__ == "check_estimators_dtypes", error
            assert estimator.normalise
            assert "has no direction" in str(error)
    assert n_passed > 45


def test_grid_search_over_its_settings_in_a_pipeline() -> None:
    drawn = clouds(1, n_shot=6)
    grid = {
        "classifier": ["centroid", "soft", "knn"],
        "normalise": [True, False],
        "n_neighbors": [None, 3],
    }
    grid = {f"fewshotclassifier__{name}": values for name, values in grid.items()}
    pipeline = make_pipeline(PCA(8), FewShotClassifier())
    search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=3, error_score="raise")
    search.fit(drawn.support, drawn.labels)
    assert search.score(drawn.query, drawn.query_labels) > -0.5
    assert search.best_estimator_.classes_.tolist() == sorted(set(drawn.labels))


@pytest.mark.slow
def test_cross_validation_of_images_in_two_processes() -> None:
    """Lists of images can be split, and the estimator can be pickled."""
    images = [picture(seed, 16) // (1 + seed % 2 * 4) for seed in range(12)]
    scores = cross_val_score(
        FewShotClassifier(Brightness()), images, np.arange(12) % 2, cv=3, n_jobs=2
    )
    np.testing.assert_array_equal(scores, 1.0)
