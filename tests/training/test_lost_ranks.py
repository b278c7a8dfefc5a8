"""A rank that is killed or hangs: the other ends with one sentence, and the checkpoint stays good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearshot.training.checkpoint import read_checkpoint

OPTIONS = "--dataset tiny --backbone conv4-32 --batch-size 32 --validation-way 2 --validation-episodes 20 --epochs 1000"
OPTIONS += " --checkpoint-seconds 0 --accelerator cpu --devices 2 --timeout-minutes 0.35"
SECONDS_TO_START = 60


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the children of a process are found in /proc")
@pytest.mark.parametrize("stops", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_other_rank_ends_with_one_sentence(
    rank: int, stops: signal.Signals, data_dir: Path, tmp_path: Path
) -> None:
    folder, errors = tmp_path / "run", tmp_path / "errors.txt"
    command = [sys.executable, "-m", "nearshot", "train", *OPTIONS.split(), "--data-dir", str(data_dir)]
    with errors.open("w") as file:
        first = subprocess.Popen([*command, "--output", str(folder)], stdout=subprocess.DEVNULL, stderr=file)
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
    assert [line for line in lines if f"other than {1 - rank} of 2" in line and "--resume" in line]
    assert "Traceback" not in errors.read_text()
    assert read_checkpoint(folder / "checkpoint.pt")["progress"]["epoch"] > 1
