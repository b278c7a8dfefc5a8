"""The description of feature sets: columns of one flat vector."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearshot.errors import InputError
from nearshot.estimator.feature_sets import FeatureSet, FeatureSets, pair_sets


def example() -> FeatureSets:
    return FeatureSets(
        sets=(
            FeatureSet("head", 0, 4),
            FeatureSet("root", 0, 4, is_rooted=True),
            FeatureSet("block", 4, 6),
        ),
        candidates=(("head",), ("root", "block")),
    )


def test_columns_and_plain_sets() -> None:
    sets = example()
    assert sets.dim == 6
    assert sets.columns("head") == sets.columns("root") == slice(0, 4)
    assert sets["root"].is_rooted
    assert sets.plain == (FeatureSet("head", 0, 4),)


@st.composite
def descriptions(draw: st.DrawFn) -> FeatureSets:
    names = draw(st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True))
    sets = []
    start = 0
    for name in names:
        stop = start + draw(st.integers(1, 2000))
        sets.append(FeatureSet(name, start, stop, is_rooted=draw(st.booleans())))
        start = stop
    subsets = st.lists(st.sampled_from(names), min_size=1, unique=True).map(tuple)
    candidates = draw(st.lists(subsets, min_size=1, max_size=4, unique=True))
    return FeatureSets(tuple(sets), tuple(candidates))


@given(descriptions())
def test_a_description_is_read_as_it_was_written(sets: FeatureSets) -> None:
    assert FeatureSets.from_dict(json.loads(json.dumps(sets.as_dict()))) == sets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sets", []),
        ("sets", None),
        ("sets", [{"name": "head", "start": 0, "stop": 0, "is_rooted": False}]),
        ("sets", [{"name": "head", "start": 0, "stop": 4.0, "is_rooted": False}]),
        ("sets", [{"name": "head", "start": 0, "stop": 4, "is_rooted": 1}]),
        ("sets", [{"name": "head", "start": 0, "stop": 4}]),
        ("sets", [{"name": "head", "start": 1, "stop": 4, "is_rooted": False}]),
        ("sets", [{"name": "head", "start": 0, "stop": 4, "is_rooted": False}] * 2),
        ("candidates", []),
        ("candidates", [[]]),
        ("candidates", [["tail"]]),
        ("candidates", [["head", "head"]]),
        ("candidates", [["head"], ["head"]]),
        ("candidates", [[["head"]]]),
    ],
)
def test_a_damaged_description_is_an_error(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="."):
        FeatureSets.from_dict(example().as_dict() | {name: value})


def test_a_gap_between_sets_is_an_error() -> None:
    with pytest.raises(InputError, match="column 4"):
        FeatureSets((FeatureSet("a", 0, 4), FeatureSet("b", 5, 6)), (("a",),))


def test_the_sets_of_a_pair_are_side_by_side() -> None:
    second = FeatureSets(
        sets=(FeatureSet("embedding", 0, 3), FeatureSet("late", 3, 5)),
        candidates=(("embedding",), ("late",)),
    )
    pair = pair_sets(example(), second)
    assert pair.dim == 11
    assert pair.columns("1/block") == slice(4, 6)
    assert pair["2/embedding"] == FeatureSet("2/embedding", 6, 9)
    assert [plain.name for plain in pair.plain] == ["1/head", "2/embedding"]
    assert pair.candidates[1:] == (("1/root", "1/block"), ("2/late",))


def test_a_candidate_of_both_networks_is_one() -> None:
    pair = pair_sets(example(), example())
    assert pair.dim == 12
    assert pair["2/root"] == FeatureSet("2/root", 6, 10, is_rooted=True)
    assert pair.candidates == (
        ("1/head", "2/head"),
        ("1/root", "1/block", "2/root", "2/block"),
    )
