"""What to label next and which labels look wrong, against slow loops."""

import numpy as np
import pytest
from tests.helpers.clouds import clouds

from nearshot.estimator import FewShotClassifier
from nearshot.estimator.suggestions import (
    POOL,
    choose_next,
    held_out_probabilities,
    k_centres,
    suspicious_labels,
)


def slow_k_centres(points: np.ndarray, n: int) -> list[int]:
    chosen = [0]
    while len(chosen) < min(n, len(points)):
        farthest = -1
        largest_distance = -1.0
        for point in range(len(points)):
            if point in chosen:
                continue
            distance = min(float(((points[point] - points[other]) ** 2).sum()) for other in chosen)
            if distance > largest_distance:
                farthest = point
                largest_distance = distance
        chosen.append(farthest)
    return chosen


@pytest.mark.parametrize("n", [1, 4, 30])
def test_centres_against_a_loop(n: int) -> None:
    points = np.random.default_rng(n).normal(size=(20, 3)).round(1)
    assert k_centres(points, n).tolist() == slow_k_centres(points, n)


@pytest.mark.parametrize("n", [1, 4, 30])
def test_copies_of_a_point_are_chosen_last_and_once(n: int) -> None:
    points = np.array([[0.0], [0.0], [5.0], [5.0], [9.0]])
    assert k_centres(points, n).tolist() == slow_k_centres(points, n)


def test_the_most_doubtful_come_first_and_variety_decides_among_them() -> None:
    generator = np.random.default_rng(0)
    directions = generator.normal(size=(100, 5))
    doubt = generator.random(100)
    chosen = choose_next(directions, 6, doubt)
    assert chosen[0] == doubt.argmax()
    pool = sorted(range(100), key=lambda image: -doubt[image])[: POOL * 6]
    assert chosen.tolist() == [pool[row] for row in slow_k_centres(directions[pool], 6)]


def test_without_labels_every_cluster_is_visited() -> None:
    """Five tight clusters of ten images: the first five photos are of five clusters."""
    centres = 10 * np.eye(5)
    noise = np.random.default_rng(1).normal(size=(50, 5)) / 10
    directions = np.repeat(centres, 10, axis=0) + noise
    assert sorted(image // 10 for image in choose_next(directions, 5)) == [0, 1, 2, 3, 4]
    assert choose_next(directions[:0], 5).tolist() == []


def test_held_out_answers_are_those_of_classifiers_without_the_image() -> None:
    """With two images per class, each round keeps one image of every class."""
    drawn = clouds(4, n_shot=2, spread=0.9)
    model = FewShotClassifier().fit(drawn.support, drawn.labels)
    images, probabilities = held_out_probabilities(model)
    assert sorted(images) == list(range(10))
    np.testing.assert_allclose(probabilities.sum(1), 1)
    for image, row in zip(images, probabilities, strict=True):
        kept = np.arange(10) % 2 != image % 2
        others = FewShotClassifier().fit(drawn.support[kept], drawn.labels[kept])
        assert others.classes_[row.argmax()] == others.predict(drawn.support[[image]])[0]
    right = probabilities.argmax(1) == model.support_labels_[images]
    assert right.mean() == pytest.approx(model.estimate_accuracy().recognised)


@pytest.mark.parametrize("n_shot", [10, 300])
def test_wrong_labels_are_found_among_few_and_many_images(n_shot: int) -> None:
    drawn = clouds(6, n_shot=n_shot)
    labels = drawn.labels.copy()
    wrong = [3, 17, 41]
    labels[wrong] = [f"class {(int(label[-1]) + 1) % 5}" for label in drawn.labels[wrong]]
    model = FewShotClassifier().fit(drawn.support, labels)
    images, probabilities = held_out_probabilities(model)
    suspicious = suspicious_labels(probabilities, model.support_labels_[images])
    assert len(images) == len(labels)
    assert sorted(images[suspicious]) == wrong
    answers = model.classes_[probabilities[suspicious].argmax(1)]
    assert answers.tolist() == drawn.labels[images[suspicious]].tolist()


@pytest.mark.parametrize("has_doubt", [True, False])
def test_images_that_look_like_a_chosen_one_are_passed_over(has_doubt: bool) -> None:
    """Ten things with three photos each: one photo of each is chosen, even of 15."""
    generator = np.random.default_rng(0)
    things = np.arange(10).repeat(3)
    features = generator.normal(size=(10, 20))[things] + 0.05 * generator.normal(size=(30, 20))
    doubt = generator.random(30) if has_doubt else None
    chosen = choose_next(features, 15, doubt, look_alike_cosine=0.9)
    assert sorted(things[chosen].tolist()) == list(range(10))
    assert len(choose_next(features, 15, doubt)) == 15
