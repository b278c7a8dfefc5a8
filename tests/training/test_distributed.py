"""Two processes with half a batch each are one with the whole; a lost one ends the other."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.helpers.two_processes import CONFIGS, train_all

from nearshot.errors import NearshotError
from nearshot.models import build_backbone, save_backbone
from nearshot.training.checkpoint import read_checkpoint
from nearshot.training.distributed import stopping_lost_ranks

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "helpers" / "two_processes.py"
# The rounding of sums in another order, over a few dozen steps.
TOLERANCE = 2e-4


QUICK = ("nca", "in-parts", "mixed")


@pytest.fixture(scope="module")
def folders(
    request: pytest.FixtureRequest, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Folders of the same runs in one process and in two: the quick ones, or the others."""
    names = [name for name in CONFIGS if (name in QUICK) == request.param]
    parent = tmp_path_factory.mktemp("runs")
    single = parent / "single"
    pair = parent / "pair"
    weights = single.with_name("initial.safetensors")
    torch.manual_seed(0)
    save_backbone(build_backbone("conv4-32", input_size=16), weights)
    train_all(data_dir, weights, single, names)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [
        sys.executable,
        *launcher,
        str(SCRIPT),
        str(data_dir),
        str(weights),
        str(pair),
        *names,
    ]
    subprocess.run(command, check=True, env=environment, timeout=300)
    return single, pair


@pytest.mark.parametrize(
    ("folders", "name"),
    [
        pytest.param(name in QUICK, name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in CONFIGS
    ],
    indirect=["folders"],
    scope="module",
)
def test_two_processes_are_one(folders: tuple[Path, Path], name: str) -> None:
    histories = [
        [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for folder in folders
    ]
    tolerance = (
        1e-3 if name == "in-parts" else TOLERANCE
    )  # parts of 4 images: the same in one process and in two
    for single, pair in zip(*histories, strict=True):
        assert pair["loss"] == pytest.approx(single["loss"], rel=tolerance)
        assert pair.get("positive_pairs") == single.get("positive_pairs")
    first, second = (read_checkpoint(folder / name / "checkpoint.pt") for folder in folders)
    assert (first["average"] is not None) == bool(CONFIGS[name].ema_decay)
    first, second = (
        state | {"learner": state["learner"] | (state["average"] or {})}
        for state in (first, second)
    )
    for key, expected in first["learner"].items():
        scale = (
            float(expected.double().abs().max()) + 0.1
        )  # a bias before batch norm is nothing but rounding
        torch.testing.assert_close(
            second["learner"][key], expected, atol=tolerance * scale, rtol=tolerance, msg=key
        )
    assert first["loss_modules"].keys() == second["loss_modules"].keys()
    for key, expected in first["loss_modules"].items():
        torch.testing.assert_close(second["loss_modules"][key], expected, rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        "Application timeout caused pair closure",
    ],
)
def test_an_error_of_gloo_is_one_sentence(text: str, tmp_path: Path) -> None:
    fabric: Any = SimpleNamespace(
        strategy=SimpleNamespace(launcher=None), global_rank=1, world_size=2
    )
    with (
        pytest.raises(NearshotError, match="a rank other than 1 of 2"),
        stopping_lost_ranks(fabric, tmp_path),
    ):
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="of our own"), stopping_lost_ranks(fabric, tmp_path):
        raise RuntimeError("of our own")


OPTIONS = "--dataset tiny --backbone conv4-32 --batch-size 32 --epochs 1000"
OPTIONS += " --validation-n-way 2 --validation-episodes 20 --checkpoint-seconds 0"
OPTIONS += " --accelerator cpu --devices 2 --timeout-minutes 0.35"
SECONDS_TO_START = 60


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc").is_dir(), reason="the children of a process are found in /proc"
)
@pytest.mark.parametrize("stops", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_other_rank_ends_with_one_sentence(
    rank: int, stops: signal.Signals, data_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    errors = tmp_path / "errors.txt"
    command = [
        sys.executable,
        "-m",
        "nearshot",
        "train",
        *OPTIONS.split(),
        "--data-dir",
        str(data_dir),
    ]
    with errors.open("w") as file:
        first = subprocess.Popen(
            [*command, "--output", str(folder)], stdout=subprocess.DEVNULL, stderr=file
        )
    try:
        deadline = time.monotonic() + SECONDS_TO_START
        while not (folder / "checkpoint.pt").is_file():
            assert first.poll() is None, errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text()
        second = int(children.split()[0])
        os.kill((first.pid, second)[rank], stops)
        deadline = time.monotonic() + 2 * SECONDS_TO_START
        while "rank" not in errors.read_text():
            assert time.monotonic() < deadline, errors.read_text()
            time.sleep(0.1)
        if rank == 1:
            assert first.wait(SECONDS_TO_START) == 1
    finally:
        first.kill()
        first.wait()
    lines = [line for line in errors.read_text().splitlines() if not line.startswith("epoch ")]
    assert [line for line in lines if f"other than {1 - rank} of 2" in line and "Resume" in line]
    assert "Traceback" not in errors.read_text()
    assert read_checkpoint(folder / "checkpoint.pt")["progress"]["epoch"] > 1
