"""Train once without interruption, and once in processes that are killed and resumed.

python kill_and_resume.py DATA_DIR WHOLE_RUN_FOLDER KILLED_RUN_FOLDER N_KILLS SEED SIGNAL
"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import lightning_fabric  # noqa: F401 (once, instead of in each child)
import torch
import torch.utils.tensorboard
from tests.helpers.settings import TINY, change

from nearshot.training import Hardware, train

CONFIG = change(
    TINY, epochs=8, learn_temperature=True, ema_decay=0.9, cross_entropy_weight=0.5, seed=5
)


def start(data_dir: Path, folder: Path) -> int:
    process = os.fork()
    if process == 0:
        torch.set_num_threads(1)
        cpu = Hardware(accelerator="cpu")
        result = train(
            CONFIG,
            folder=folder,
            data_dir=data_dir,
            hardware=cpu,
            resume=True,
            checkpoint_seconds=0,
            progress=False,
        )
        os._exit(0 if result.finished else 3)
    return process


def exit_code(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    data_dir, whole, killed = (Path(argument) for argument in sys.argv[1:4])
    n_kills = int(sys.argv[4])
    seed = int(sys.argv[5])
    signal_number = getattr(signal, sys.argv[6])
    started = time.monotonic()
    if exit_code(start(data_dir, whole)):
        sys.exit("the uninterrupted run failed")
    rng, seconds, hit = random.Random(seed), time.monotonic() - started, 0  # noqa: S311
    while True:
        process = start(data_dir, killed)
        if hit < n_kills:
            # On average every attempt gets a little further, but any moment can be hit.
            time.sleep(rng.uniform(0.02, 1.0) * seconds * 2 / (n_kills**0.5 + 1))
            os.kill(process, signal_number)
        code = exit_code(process)
        if (
            code == 0 and hit < n_kills
        ):  # this machine has become faster: start again, and kill earlier
            shutil.rmtree(killed)
            seconds, hit = seconds / 1.5, 0
        elif code == 0:
            return
        elif code in (-signal_number, 3):
            hit += 1
        else:
            sys.exit(f"a process ended with {code}")


if __name__ == "__main__":
    main()
