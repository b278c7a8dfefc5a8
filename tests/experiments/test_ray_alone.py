"""What of running on Ray needs no cluster: a node's part, and what is said where Ray or a cluster is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tiny import prepare_tiny
from tiny_jobs import CPU, tiny_job

from nearshot.errors import InputError, MissingExtraError, NearshotError
from nearshot.experiments import Results
from nearshot.experiments.executors.ray import RayCluster, do_on_node

COMMAND = ("nearshot", "reproduce", "--on", "ray")


def test_a_job_on_a_node_brings_back_its_result_and_the_end_of_its_log(tmp_path: Path) -> None:
    prepare_tiny(tmp_path)
    report = do_on_node(tiny_job().as_dict(), str(tmp_path / "run"), str(tmp_path), CPU, COMMAND)
    assert report.problem == ""
    assert report.content is not None
    assert report.content["environment"]["command"] == list(COMMAND)
    assert json.loads(json.dumps(report.content)) == report.content
    assert report.log.splitlines()[0].startswith(f"on {report.node}, process ")
    assert "epoch 2/2: loss" in report.log.splitlines()[-1]
    assert report.log == (tmp_path / "run" / "log.txt").read_text().rstrip("\n")


def test_a_job_that_fails_on_a_node_brings_back_the_sentence(tmp_path: Path) -> None:
    report = do_on_node(tiny_job().as_dict(), str(tmp_path / "run"), str(tmp_path / "empty"), CPU, COMMAND)
    assert report.content is None
    assert "tiny" in report.problem
    assert report.log.splitlines()[-1] == f"nearshot: {report.problem}"


def test_an_error_that_nobody_foresaw_leaves_its_traceback_in_the_log(tmp_path: Path) -> None:
    broken = tiny_job().as_dict()
    del broken["config"]
    report = do_on_node(broken, str(tmp_path / "run"), None, CPU, COMMAND)
    assert report.problem == "KeyError: 'config'"
    assert "Traceback" in report.log


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"nearshot\[ray\]"):
        RayCluster(Results(tmp_path), tmp_path)


@pytest.mark.parametrize("much", [-0.5, 1.5, 0.001])
def test_a_training_takes_at_most_a_gpu(tmp_path: Path, much: float) -> None:
    with pytest.raises(InputError, match=f"gpus_per_run.*{much:g}"):
        RayCluster(Results(tmp_path), tmp_path, gpus_per_run=much)


@pytest.mark.parametrize(("address", "reason"), [("127.0.0.1:1", "nothing answers"), ("local", "start a new one")])
def test_where_no_cluster_is_none_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(NearshotError, match=f"no Ray cluster.*{reason}"):
        RayCluster(Results(tmp_path), tmp_path)
    assert not ray.is_initialized()
