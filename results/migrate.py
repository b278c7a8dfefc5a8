"""Upgrade result files from version 1 to version 2.

    python results/migrate.py FOLDER results

Upgrade every result file FOLDER/SIZE/DATASET/ID.json into the folder of results, where it is merged
with earlier measurements of the same run. FOLDER may be that folder itself: then files of version 1
are replaced.

Version 2 has the settings of a method inside `config["method"]`, the name `n_shot` everywhere, and
a list of accuracies, each with its measurement, in place of names that have to be parsed.
"""

import base64
import copy
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

FORMAT = "nearshot-result"
Content = dict[str, Any]

# The settings of version 1, with their defaults. Files that are older than a setting lack it.
AUGMENTATION: Content = {
    "crop": "random",
    "scale": [0.08, 1.0],
    "ratio": [3 / 4, 4 / 3],
    "padding": 8,
    "flip": 0.5,
    "brightness": 0.0,
    "contrast": 0.0,
    "saturation": 0.0,
    "hue": 0.0,
    "n_operations": 0,
    "magnitude": 0.3,
}
CONFIG: Content = {
    "dataset": "glyphs",
    "method": "nca",
    "backbone": "resnet12",
    "init": None,
    "freeze": 0,
    "input_size": None,
    "side": None,
    "epochs": 120,
    "steps_per_epoch": None,
    "seed": 0,
    "batches": None,
    "batch_size": 512,
    "n_shot": 5,
    "images_per_class": 16,
    "n_way": None,
    "n_query": None,
    "least_images": 1,
    "background": 0.0,
    "temperature": 1.0,
    "learn_temperature": False,
    "distance": "euclidean",
    "keep_positives": 1.0,
    "keep_negatives": 1.0,
    "cross_entropy_weight": 0.0,
    "supcon_variant": "khosla",
    "label_smoothing": 0.0,
    "projection": None,
    "rotation_weight": 0.0,
    "teacher": None,
    "distillation_weight": 1.0,
    "distillation_temperature": 4.0,
    "mixup": 0.0,
    "mix_stages": False,
    "cutmix": 0.0,
    "mix_probability": 1.0,
    "optimiser": "sgd",
    "learning_rate": 0.1,
    "momentum": 0.9,
    "nesterov": False,
    "weight_decay": 5e-4,
    "schedule": "steps",
    "milestones": [0.7],
    "decay": 0.1,
    "warm_up": None,
    "ema_decay": 0.0,
    "augmentation": AUGMENTATION,
    "validate_every": 10,
    "validation_episodes": 10_000,
    "validation_shots": [1, 5],
    "validation_way": 5,
    "validation_queries": 15,
    "precision": "auto",
    "micro_batch": None,
    "sync_batch_norm": False,
}

# The settings that each method of version 2 owns.
NEIGHBOURS = ("temperature", "learn_temperature", "distance", "background", "projection")
EPISODIC = ("n_shot", *NEIGHBOURS)
PAIRS = ("keep_positives", "keep_negatives")
METHODS = {
    "nca": (*NEIGHBOURS, *PAIRS, "cross_entropy_weight", "label_smoothing"),
    "prototypical": EPISODIC,
    "matching": EPISODIC,
    "nca-prototypes": EPISODIC,
    "simpleshot": ("label_smoothing",),
    "supcon": ("temperature", "learn_temperature", "projection", "supcon_variant"),
}
METHOD_SETTINGS = {*EPISODIC, *METHODS["nca"], *METHODS["supcon"]}
NEW_NAMES = {
    "supcon_variant": "variant",
    "validation_shots": "validation_n_shot",
    "validation_way": "validation_n_way",
    "validation_queries": "validation_n_query",
}
MEASUREMENT = re.compile(
    r"(?P<split>\S+) (?P<n_shot>\d+)-shot (?P<classifier>\S+)"
    r"(?: layers (?P<layers>[\d+]+))?(?: (?P<how>.+))?"
)


def upgrade(content: Content) -> Content:
    """Return the content of a result file as version 2 has it."""
    if content.get("format") != FORMAT:
        raise ValueError(f"format must be {FORMAT!r} (got {content.get('format')!r}).")
    if content.get("version") == 2:
        return copy.deepcopy(content)
    if content.get("version") != 1:
        raise ValueError(f"version must be 1 or 2 (got {content.get('version')!r}).")
    return {
        "format": FORMAT,
        "version": 2,
        "size": content["scale"],
        "config": upgrade_config(content["config"]),
        "fingerprints": content["fingerprints"],
        "environment": content["environment"],
        "n_sharing": _n_sharing(content),
        "seconds": content["seconds"],
        "images_per_second": content["images_per_second"],
        "end_to_end_images_per_second": content.get("end_to_end_images_per_second"),
        "first_epoch_seconds": content.get("first_epoch_seconds"),
        "accuracies": [_accuracy(*item) for item in content["accuracies"].items()],
        "history": content["history"],
    }


def upgrade_config(settings: Content) -> Content:
    """Return the settings of a run as version 2 has them."""
    old = CONFIG | settings
    name = old["method"]
    owned = METHODS.get(name, ())
    method = {"name": name}
    for setting in owned:
        method[NEW_NAMES.get(setting, setting)] = old[setting]
    config: Content = {"method": method}
    for setting, value in old.items():
        if setting != "method" and setting not in METHOD_SETTINGS:
            config[NEW_NAMES.get(setting, setting)] = value
    config["augmentation"] = AUGMENTATION | old["augmentation"]
    if old["teacher"] is not None:
        # It compared images by the distance of the student's method.
        config["distillation_distance"] = old["distance"]
    if old["n_way"] is not None and "n_shot" not in owned:
        # The images of a class, which version 1 split into support and query for any method.
        config["images_per_class"] = old["n_shot"] + old["n_query"]
        config["batch_size"] = old["n_way"] * config["images_per_class"]
        config["n_way"] = None
        config["n_query"] = None
    return config


def _accuracy(name: str, values: Content) -> Content:
    """Return an accuracy with its measurement, whose parts version 1 had in its name."""
    parts = MEASUREMENT.fullmatch(name)
    if parts is None:
        raise ValueError(f"{name!r} is not a measurement.")
    layers = parts["layers"].split("+") if parts["layers"] else []
    accuracy = dict(values)
    epoch = accuracy.pop("epoch")
    is_validation = not accuracy.pop("measured", False)
    accuracy["protocol"] = _protocol(accuracy["protocol"], parts["layers"])
    accuracy["n_correct"] = _one_byte_each(accuracy["n_correct"], accuracy["protocol"])
    return {
        "measurement": {
            "split": parts["split"],
            "n_shot": int(parts["n_shot"]),
            "classifier": parts["classifier"],
            "layers": [int(number) for number in layers],
            "how": parts["how"] or "",
        },
        "epoch": epoch,
        "is_validation": is_validation,
        "accuracy": accuracy,
    }


def _protocol(protocol: Content, layers: str | None) -> Content:
    """Return a protocol with the new names; features are not named by a function any more."""
    new = dict(protocol)
    new["n_skipped_classes"] = new.pop("classes_left_out")
    if protocol["adapted"] is not None:
        features = f"layers {layers}" if layers else "the embedding"
        new["adapted"] = protocol["adapted"].replace("layers_of", features)
    return new


def _one_byte_each(encoded: str, protocol: Content) -> str:
    """Return counts of correct answers with one byte each, where the oldest files have four."""
    counts = zlib.decompress(base64.b64decode(encoded))
    has_four = len(counts) == 4 * protocol["n_episodes"]
    if not has_four or protocol["n_way"] * protocol["n_query"] > 255:
        return encoded
    return base64.b64encode(zlib.compress(counts[::4], 9)).decode()


def _n_sharing(content: Content) -> int:
    """Return how many runs shared a GPU; the oldest files have only the command that says so."""
    if content.get("n_sharing"):
        return int(content["n_sharing"])
    words = [str(word) for word in content["environment"].get("command") or ()]
    share = re.search(r"--gpus-per-run[ =]([\d.]+)", " ".join(words))
    return int(1 / float(share[1]) + 1e-6) if share and float(share[1]) else 1


def main(folder: Path, results: Path) -> None:
    """Upgrade the result files under a folder into the folder of results."""
    from nearshot.paper.results import Results, RunResult  # noqa: PLC0415 (`upgrade` needs none)

    n_files = 0
    store = Results(results)
    for path in sorted(folder.glob("*/*/*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("format") != FORMAT or content.get("version") != 1:
            continue
        content.pop("crc32", None)
        result = RunResult(upgrade(content))
        if folder.resolve() == results.resolve():
            path.unlink()
        store.put(result)
        n_files += 1
    print(f"{n_files} result files of version 1 were upgraded into {results}.")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER RESULTS")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
