"""Train some configurations, in as many processes as torchrun started, from the network of a file.

python two_processes.py DATA_DIR WEIGHTS FOLDER NAME …
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
BASE = change(TINY, epochs=2, learning_rate=0.01)
CONFIGS = {
    "nca": change(BASE, learn_temperature=True),
    "prototypical": change(BASE, method="prototypical", projection=16),
    "simpleshot": change(BASE, method="simpleshot", nesterov=True, ema_decay=0.9),
    "in-parts": change(BASE, method="matching", micro_batch=4),
    "mixed": change(BASE, epochs=1, cross_entropy_weight=0.5, rotation_weight=1.0, **MIXED),
    "subsampled": change(BASE, epochs=1, keep_positives=0.5, keep_negatives=0.2),
}


def train_all(data_dir: Path, weights: Path, folder: Path, names: Sequence[str]) -> None:
    """Train from a network, whose batch norm keeps statistics that no batch changes."""
    hardware = Hardware(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", "1")))
    for name in names:
        config = change(CONFIGS[name], init=str(weights))
        train(config, folder=folder / name, data_dir=data_dir, hardware=hardware, progress=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_all(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    torch.distributed.destroy_process_group()
