"""Train in child processes that are killed at random moments, each going on where the last was; to its end.

    python kill_and_resume.py DATA_DIR RUN_FOLDER N_KILLS SEED SIGNAL

Writes the number of kills that hit a running training to RUN_FOLDER/kills.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from settings import TINY

from nearshot.training import Hardware, TrainConfig, train

CONFIG = replace(TINY, epochs=8, learn_temperature=True, backbone="conv4-32", seed=5)


def child(config: TrainConfig, data_dir: Path, folder: Path) -> int:
    process = os.fork()
    if process == 0:
        torch.set_num_threads(1)
        cpu = Hardware(accelerator="cpu")
        result = train(
            config, folder=folder, data_dir=data_dir, hardware=cpu, resume=True, checkpoint_seconds=0, show=False
        )
        os._exit(0 if result.finished else 3)
    return process


def main() -> None:
    data_dir, folder = Path(sys.argv[1]), Path(sys.argv[2])
    n_kills, seed, signal_number = int(sys.argv[3]), int(sys.argv[4]), getattr(signal, sys.argv[5])
    chance = random.Random(seed)  # noqa: S311
    started = time.monotonic()
    if n_kills == 0:
        _, status = os.waitpid(child(CONFIG, data_dir, folder), 0)
        (folder / "kills").write_text(f"0 {time.monotonic() - started}")
        sys.exit(os.waitstatus_to_exitcode(status))
    seconds = float(os.environ["WHOLE_RUN_SECONDS"])
    hit = 0
    while True:
        process = child(CONFIG, data_dir, folder)
        if hit < n_kills:
            # So that every attempt gets a little further on the average, but any moment can be hit.
            time.sleep(chance.uniform(0.02, 1.0) * seconds * 2 / (n_kills**0.5 + 1))
            os.kill(process, signal_number)
        _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and hit < n_kills:  # this machine has become faster; begin again, and kill earlier
            shutil.rmtree(folder)
            seconds, hit = seconds / 1.5, 0
            continue
        if code == 0:
            break
        if code not in (-signal_number, 3):
            sys.exit(f"a training ended with {code}")
        hit += 1
    (folder / "kills").write_text(f"{hit} {time.monotonic() - started}")


if __name__ == "__main__":
    main()
