r"""What training on one's own photos gains: unseen classes, before and after.

Prepare a folder of photos, train on it with the defaults, and give the run's folder:

    nearshot data prepare ./birds --side 160 \
        --train-classes train.txt --val-classes val.txt --test-classes test.txt
    nearshot train --dataset ./birds --side 160 --input-size 160 --epochs 4 --output runs/birds
    python benchmarks/own_photos.py runs/birds

The last command reads the test classes, and writes benchmarks/results/own-photos.json and .md.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from nearshot.devices import chosen_device
from nearshot.evaluation import Accuracy, EvaluationSpec, evaluate_features
from nearshot.models import load_backbone
from nearshot.runs import TrainedRun, evaluate_run, open_run
from nearshot.runs.network import TrainedNetwork
from nearshot.training.config import dataset_name
from nearshot.training.run_folder import weights_of_run

RESULTS = Path(__file__).parent / "results"
SHOTS = (1, 5)


def untrained(run: TrainedRun) -> dict[int, Accuracy]:
    """Measure the network that a run started from, on the test classes."""
    config = run.config
    network = TrainedNetwork(
        load_backbone(weights_of_run(str(config.init)), input_size=config.input_size),
        "initial",
        device=chosen_device(None),
    )
    centre = network.features(run.store("train")).mean(0)
    test = run.store("test")
    return {
        n_shot: evaluate_features(
            network.features(test), test.labels, n_shot=n_shot, centre=centre, split="test"
        )
        for n_shot in SHOTS
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a finished run with init")
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    options = parser.parse_args()
    run = open_run(options.run, data_dir=options.data_dir)
    result = run.run.read("result.json")
    config = run.config
    names = {n_shot: f"{n_shot}-shot centroid" for n_shot in SHOTS}
    specs = [EvaluationSpec(n_shot=n_shot) for n_shot in SHOTS]
    after = {evaluation.spec.n_shot: evaluation.accuracy for evaluation in evaluate_run(run, specs)}
    before = untrained(run)
    validation = {
        "before training": [f"{result['initial'][names[n_shot]]:.2f}" for n_shot in SHOTS],
        "after training": [f"{result['best'][names[n_shot]]['mean']:.2f}" for n_shot in SHOTS],
    }
    rows = {"before training": before, "after training": after}
    sizes = {
        split: f"{len(run.store(split).class_names)} classes" for split in ("train", "val", "test")
    }
    lines = [
        f"`{config.init}` at {config.input_size}×{config.input_size} on "
        f"{dataset_name(config.dataset)}: "
        f"{sizes['train']} and {len(run.store('train')):,} photos for {config.epochs} epochs of "
        "training, "
        f"{sizes['val']} for validation, {sizes['test']} for the test. 5-way accuracy on unseen "
        "classes in per cent, "
        "nearest centroid, 10,000 episodes.",
        "",
        "| | validation, 1 shot | 5 shots | test, 1 shot | 5 shots |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {name} | {' | '.join(validation[name])} | "
            f"{' | '.join(str(row[n_shot]) for n_shot in SHOTS)} |"
            for name, row in rows.items()
        ),
    ]
    report = {
        "config": replace(config, dataset=dataset_name(config.dataset)).as_dict(),
        "fingerprints": result["fingerprints"],
        "validation": validation,
        "test": {
            name: {n_shot: row[n_shot].mean for n_shot in SHOTS} for name, row in rows.items()
        },
        "protocol": str(after[SHOTS[0]].protocol),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "own-photos.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "own-photos.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
