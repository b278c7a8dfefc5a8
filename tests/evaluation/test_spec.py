"""The description of an evaluation: its identity, its JSON and its checks."""

import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nearshot import evaluation
from nearshot.errors import InputError
from nearshot.evaluation import CLASSIFIERS, EvaluationSpec, knn

# For each field, a value that is not its default.
FIXED_IDENTITY = "348d4748b7c2dbce"  # of n_shot=1, classifier="soft", seed=3
OTHERS: dict[str, Any] = {
    "dataset": "glyphs",
    "split": "val",
    "side": 32,
    "layers": (2, 3),
    "n_views": 2,
    "power": 0.5,
    "input_size": 84,
    "max_images": 100,
    "n_way": 20,
    "n_shot": 1,
    "n_query": 10,
    "n_episodes": 600,
    "seed": 1,
    "least_images": 20,
    "classifier": "ridge",
    "centred": True,
    "normalise": False,
}


def test_every_field_is_part_of_the_identity() -> None:
    assert OTHERS.keys() == {field.name for field in dataclasses.fields(EvaluationSpec)}
    specs = [EvaluationSpec(), *(EvaluationSpec(**{name: OTHERS[name]}) for name in OTHERS)]
    assert len({spec.identity for spec in specs}) == len(specs)


def test_the_identity_does_not_depend_on_the_order_of_the_fields() -> None:
    """A class with the same fields in another order, and one more with a default."""
    names = [field.name for field in dataclasses.fields(EvaluationSpec)]
    defaults = EvaluationSpec()
    values = [("new", 1), *((name, getattr(defaults, name)) for name in reversed(names))]
    fields = [(name, Any, dataclasses.field(default=value)) for name, value in values]
    reordered = dataclasses.make_dataclass(
        "Reordered", fields, bases=(EvaluationSpec,), frozen=True, kw_only=True
    )
    assert reordered(**OTHERS).identity == EvaluationSpec(**OTHERS).identity


def test_the_identity_is_the_same_for_ever() -> None:
    """Results of runs are stored by it."""
    assert EvaluationSpec().identity == EvaluationSpec(n_way=np.int64(5)).identity  # type: ignore[arg-type]
    assert EvaluationSpec(n_shot=1, classifier="soft", seed=3).identity == FIXED_IDENTITY
    assert EvaluationSpec(power=2).identity == EvaluationSpec(power=2.0).identity


def test_a_spec_comes_back_from_json() -> None:
    for spec in (EvaluationSpec(), EvaluationSpec(**OTHERS)):
        assert EvaluationSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


def test_a_classifier_is_identified_by_its_name() -> None:
    named = EvaluationSpec(classifier="soft")
    assert EvaluationSpec(classifier=CLASSIFIERS["soft"]).identity == named.identity
    assert EvaluationSpec(classifier=knn(k=3)).as_dict()["classifier"] == "knn(k=3)"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_way", 1),
        ("n_shot", 0),
        ("n_query", 2.5),
        ("n_episodes", 2**31),
        ("seed", -1),
        ("least_images", 0),
        ("n_views", 0),
        ("power", 0.0),
        ("layers", [2, 3]),
        ("classifier", "svm"),
    ],
)
def test_values_that_mean_nothing_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name) as error:
        EvaluationSpec(**{name: value})
    assert str(value) in str(error.value)


@pytest.mark.parametrize(
    "function",
    [
        evaluation.evaluate_features,
        evaluation.evaluate_classes,
        evaluation.evaluate_fine_tuned,
        evaluation.evaluate_mahalanobis,
        evaluation.sample_episodes,
    ],
)
def test_functions_have_the_defaults_of_the_spec(function: Callable[..., object]) -> None:
    parameters = inspect.signature(function).parameters
    n_shared = 0
    for field in dataclasses.fields(EvaluationSpec):
        is_own = function is evaluation.evaluate_fine_tuned and field.name == "n_episodes"
        if field.name in parameters and field.name != "split" and not is_own:
            assert parameters[field.name].default == field.default, field.name
            n_shared += 1
    assert n_shared >= 5
    assert all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values())
