"""TensorBoard itself reads what is written without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearshot.training.tensorboard import append_scalars, start_events

loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")

RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.floats(0, 2e9),
        st.dictionaries(st.text(min_size=1, max_size=20), st.floats(width=32, allow_nan=False), max_size=4),
    ),
    max_size=4,
)


@given(start=RECORDS, added=RECORDS)
def test_scalars_come_back(tmp_path_factory: pytest.TempPathFactory, start: list, added: list) -> None:  # type: ignore[type-arg]
    path = tmp_path_factory.mktemp("events") / "events.out.tfevents.test"
    start_events(path, start)
    for step, time, scalars in added:
        append_scalars(path, step, time, scalars)
    version, *events = read(path)
    assert version.file_version == "brain.Event:2"
    found = [(event.step, event.wall_time, _scalars(event)) for event in events]
    assert found == start + added


def read(path: Path) -> list:  # type: ignore[type-arg]
    return list(loader.LegacyEventFileLoader(str(path)).Load())


def _scalars(event) -> dict[str, float]:  # type: ignore[no-untyped-def]
    return {value.tag: value.simple_value for value in event.summary.value}
