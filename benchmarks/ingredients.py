"""Which ingredients help a Conv-4 on CIFAR-FS at 32×32 in 25 epochs, on the validation split.

    python benchmarks/ingredients.py                         # 10 minutes a row on one CPU core
    python benchmarks/ingredients.py "rotations" "CutMix"    # some rows only

A first look that needs no GPU: a small network underfits, so it cannot show what a regulariser does
for a ResNet-12. That is what `nearshot reproduce strong` measures. Finished runs are not trained
again. The result, benchmarks/results/ingredients.json and .md, has all rows whose runs are
finished.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nearshot.evaluation import Accuracy, EvaluationSpec, compare
from nearshot.paper.identity import run_id
from nearshot.paper.recipes.strong import CANDIDATE, INGREDIENTS, config_with
from nearshot.runs import evaluate_run
from nearshot.training import RunFolder, TrainConfig, train
from nearshot.training.methods import NCA

RESULTS = Path(__file__).parent / "results"
PLAIN = "plain"
NCA_ALONE = "NCA instead of cross-entropy"
STUDENT = "student of the plain network"
VARIANTS: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    **{name: (name,) for name in INGREDIENTS if name != "the paper's network"},
    NCA_ALONE: ("NCA beside cross-entropy",),
    STUDENT: (),
    ", ".join(CANDIDATE): CANDIDATE,
}
VIEWS = {"1 view": 1, "2 views": 2}
SHOTS = (1, 5)
EPISODE_SEED = 1  # seed 0 chose the epochs


def config_of(variant: str, runs: Path) -> TrainConfig:
    """Return the settings of a variant."""
    config = replace(
        config_with("cifar-fs", VARIANTS[variant]),
        backbone="conv4",
        input_size=32,
        epochs=25,
        precision="bfloat16",
    )
    if variant == NCA_ALONE:
        return replace(config, method=NCA(temperature=16.0))
    if variant == STUDENT:
        return replace(config, teacher=str(folder_of(PLAIN, runs)))
    return config


def folder_of(variant: str, runs: Path) -> Path:
    """Return the folder of a variant's run."""
    if variant == STUDENT:
        return runs.resolve() / "student"
    return runs.resolve() / run_id(config_of(variant, runs))


def accuracies(variant: str, runs: Path, data_dir: Path | None) -> dict[str, Accuracy]:
    """Return the accuracies of a run by views and shots."""
    by_name = {}
    for name, n_views in VIEWS.items():
        for n_shot in SHOTS:
            spec = EvaluationSpec(split="val", n_views=n_views, n_shot=n_shot, seed=EPISODE_SEED)
            (evaluation,) = evaluate_run(folder_of(variant, runs), spec, data_dir=data_dir)
            by_name[f"{name}, {n_shot}-shot"] = evaluation.accuracy
    return by_name


def markdown(report: dict[str, Any]) -> str:
    """Return the table for the documentation."""
    columns = [f"{name}, {shot}-shot" for name in VIEWS for shot in SHOTS]
    lines = [
        "Conv-4, CIFAR-FS at 32×32, cross-entropy on batches of 256, 25 epochs, best epoch; "
        "validation split, 5-way, "
        "nearest centroid, 10,000 episodes, the same for all rows. In brackets, the paired "
        "difference from the plain "
        f"network; its interval over episodes, up to ±{report['widest']:.2f}, does not cover seed "
        "variance. One seed; "
        f"{report['device']}.",
        "",
        f"| added | {' | '.join(columns)} |",
        f"|---|{'---:|' * len(columns)}",
    ]
    for name, row in report["rows"].items():
        cells = [
            f"{row[column]['mean']:.2f}"
            + ("" if name == PLAIN else f" ({row[column]['difference']:+.2f})".replace("-", "−"))
            for column in columns
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "variants", nargs="*", metavar="VARIANT", help=f"of {', '.join(map(repr, VARIANTS))}"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/ingredients"), help="the folder of the runs"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the result")
    options = parser.parse_args()
    for variant in options.variants or VARIANTS:
        folder = folder_of(variant, options.runs)
        if not RunFolder(folder).is_finished:
            train(
                config_of(variant, options.runs),
                folder=folder,
                data_dir=options.data_dir,
                resume=True,
            )
    plain = accuracies(PLAIN, options.runs, options.data_dir)
    rows: dict[str, Any] = {}
    for variant in VARIANTS:
        run = RunFolder(folder_of(variant, options.runs))
        if run.is_finished:
            rows[variant] = {}
            for name, accuracy in accuracies(variant, options.runs, options.data_dir).items():
                comparison = compare(accuracy, plain[name])
                numbers = {"difference": comparison.difference, "interval95": comparison.interval95}
                rows[variant][name] = {"mean": accuracy.mean, **numbers}
    widest = max(row[name]["interval95"] for row in rows.values() for name in plain)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    report = {
        "torch": torch.__version__,
        "device": device,
        "seed": 0,
        "widest": widest,
        "rows": rows,
    }
    options.output.mkdir(exist_ok=True, parents=True)
    (options.output / "ingredients.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.output / "ingredients.md").write_text(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
