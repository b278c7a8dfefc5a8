"""Pickles of datasets: plain data is read, and anything else is refused and not run."""

import os
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.helpers.layouts import Call, python2_pickle

from nearshot.data.pickles import integers, load_pickle, pixels, texts
from nearshot.errors import FileFormatError, NearshotError

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from attack import OUTCOMES, attacked, hostile_pickles


@pytest.mark.parametrize("protocol", range(6))
def test_what_datasets_are_made_of_is_read(protocol: int) -> None:
    value: dict[Any, Any] = {
        "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "labels": [1, 2, 3],
        b"bytes": (b"x", "y", 1.5, None, True),
        "scalar": np.int64(7),
        "ordered": OrderedDict(a=1),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big-endian": np.arange(3, dtype=">i4"),
        "empty": np.zeros((0, 3), np.uint8),
        "strided": np.arange(9, dtype=np.int16)[::2],
        "no bytes": b"",
    }
    loaded = load_pickle(pickle.dumps(value, protocol), "it")
    assert loaded.keys() == value.keys()
    for key, expected in value.items():
        if isinstance(expected, np.ndarray):
            assert loaded[key].dtype == expected.dtype
            assert np.array_equal(loaded[key], expected)
        else:
            assert loaded[key] == expected


@pytest.mark.parametrize(
    "call",
    [
        (os.system, "true"),
        (eval, "1 + 1"),
        (getattr, "x", "upper"),
        (np.load, "somewhere"),
        (bytearray, 1 << 60),
    ],
    ids=lambda call: call[0].__name__,
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_calls_anything_else_is_refused(call: Any, protocol: int) -> None:
    evil = Call(*call)
    for value in (evil, {"data": [evil]}, {"a": (evil, 1)}):
        with pytest.raises(
            FileFormatError, match=r"evil.pkl asks for .*, which no dataset needs. It was not run"
        ):
            load_pickle(pickle.dumps(value, protocol), "evil.pkl")


def test_a_pickle_of_raw_opcodes_is_refused() -> None:
    with pytest.raises(FileFormatError, match=r"asks for os.system|asks for posix.system"):
        load_pickle(b"cos\nsystem\n(S'true'\ntR.", "raw")
    with pytest.raises(FileFormatError, match="raw is damaged"):
        load_pickle(b"Pelsewhere\n.", "raw")


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=60)
    | st.integers(0, 200).map(lambda n: python2_pickle({"a": [1, "b"] * 9})[:n])
)
def test_damaged_pickles_give_one_kind_of_error(data: bytes) -> None:
    try:
        load_pickle(data, "it")
    except NearshotError as error:
        assert str(error).startswith("it ")


@pytest.mark.parametrize("n_attacks", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_pickles_end_in_data_or_a_sentence(n_attacks: int) -> None:
    """In a process of its own: a signal would end it, and its memory is limited."""
    outcomes = attacked("pickles", n_attacks)
    assert outcomes["mutated pickles"].total() == n_attacks
    assert outcomes["hostile pickles"].total() == len(hostile_pickles())
    for counts in outcomes.values():
        assert counts.keys() == set(OUTCOMES)


@pytest.mark.parametrize(
    "name",
    sorted(
        hostile_pickles().keys()
        - {
            "nested a million deep",  # as plain data
            "a memo index of 100 million",
            "a frame that is not there",
            "lists that double sixty times",
        }
    ),
)
def test_a_hostile_pickle_is_refused(name: str) -> None:
    with pytest.raises(FileFormatError, match="evil") as caught:
        load_pickle(hostile_pickles()[name], "evil")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_values_are_checked_before_they_are_used() -> None:
    shared: list[Any] = [1]
    for _ in range(60):
        shared = [shared, shared]
    for labels in (shared, [1, "2"], [0, 5], [-1], [1 << 70], np.eye(2), {1: 2}, "12", [True]):
        with pytest.raises(FileFormatError, match="labels"):
            integers(labels, "labels", below=5)
    assert integers(np.array([4, 0], dtype=">u8"), "labels", below=5).tolist() == [4, 0]
    for names in ("ab", [b"a"], [shared]):
        with pytest.raises(FileFormatError, match="names"):
            texts(names, "names")
    assert texts(["a\nb", "\ud800"], "names") == ["a\\nb", "\\ud800"]
    for array in (np.zeros((2, 3)), np.zeros((2, 4), np.uint8), np.zeros((3,), np.uint8), [0]):
        with pytest.raises(FileFormatError, match="data"):
            pixels(array, (-1, 3), "data")
    assert pixels(np.ones((2, 3), np.uint8), (-1, 3), "data").shape == (2, 3)
