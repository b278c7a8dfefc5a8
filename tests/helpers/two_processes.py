"""Train some configurations, in as many processes as torchrun started.

python two_processes.py DATA_DIR FOLDER NAME …
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.helpers.settings import TINY, change

from nearshot.training import Hardware, train

MIXED: dict[str, Any] = {"mixup": 1.0, "mix_stages": True, "cutmix": 1.0, "label_smoothing": 0.1}
BASE = change(TINY, epochs=2, sync_batch_norm=True, learning_rate=0.01)
CONFIGS = {
    "nca": change(BASE, learn_temperature=True),
    "prototypical": change(BASE, method="prototypical", projection=16),
    "simpleshot": change(BASE, method="simpleshot", nesterov=True, ema_decay=0.9),
    "in-parts": change(BASE, method="matching", sync_batch_norm=False, micro_batch=4),
    "mixed": change(BASE, epochs=1, cross_entropy_weight=0.5, rotation_weight=1.0, **MIXED),
    "subsampled": change(BASE, epochs=1, keep_positives=0.5, keep_negatives=0.2),
}


def train_all(data_dir: Path, folder: Path, names: Sequence[str]) -> None:
    hardware = Hardware(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", "1")))
    for name in names:
        train(CONFIGS[name], folder=folder / name, data_dir=data_dir, hardware=hardware, show=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_all(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    torch.distributed.destroy_process_group()
