"""What `estimator.py` has measured, as tables and figures for the documentation."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from estimator_measures import CLASSIFIERS, N_BINS, RATES, SHOTS

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
Report = dict[str, Any]


def draw(report: Report, folder: Path, stem: str) -> dict[str, str]:
    """Draw all figures into a folder; return their files' names by what they show."""
    drawn = {
        "rejection": draw_rejection,
        "calibration": draw_calibration,
        "estimate": draw_estimates,
    }
    figures = {kind: f"{stem}-{kind}.png" for kind in drawn}
    for kind, draw_one in drawn.items():
        draw_one(report, folder / figures[kind])
    return figures


def markdown(report: Report, figures: dict[str, str]) -> str:
    """Return the tables for the documentation, with the figures by their addresses."""
    lines = [
        f"{report['what']}. ± is the 95 % interval of the mean over support sets.",
        "",
        *rejection_lines(report["shots"]),
        f"![Rejection]({figures['rejection']})",
        "",
        *calibration_lines(report["shots"]),
        f"![Calibration]({figures['calibration']})",
        "",
        *estimate_lines(report["shots"]),
        f"![Estimates]({figures['estimate']})",
        "",
        *peers_lines(report["shots"]),
    ]
    return "\n".join(lines) + "\n"


def rejection_lines(shots: dict[str, Any]) -> list[str]:
    """Return AUROCs, and how many are rejected by how many were to be."""
    names = names_of(shots)
    lines = [
        "**None of these.** AUROC in per cent of telling unseen classes from known ones, by what "
        "is compared:",
        "",
    ]
    kinds = list(shots["1"]["rejection"]["auroc_percent"])
    rows = [
        [
            kind,
            *(
                plus_minus(measured["rejection"]["auroc_percent"][kind])
                for measured in shots.values()
            ),
        ]
        for kind in kinds
    ]
    lines += table(["", *names], rows)
    lines += [
        "Asked to reject so many of the known, `predict` rejects of the known / of the unseen, in "
        "per cent (in "
        "brackets: in four of five support sets, of the known):",
        "",
    ]
    rows = []
    for rate in map(str, RATES):
        cells = [measured["rejection"]["rejected_percent"][rate] for measured in shots.values()]
        rows.append(
            [
                f"{100 * float(rate):.0f} %",
                *(
                    f"{c['known']['mean']:.1f} ({c['known']['low']:.0f}–{c['known']['high']:.0f}) "
                    "/ "
                    f"{c['unseen']['mean']:.0f}"
                    for c in cells
                ),
            ]
        )
    lines += table(["asked for", *names], rows)
    return lines


def calibration_lines(shots: dict[str, Any]) -> list[str]:
    """Return how right probabilities are, by classifier."""
    lines = [
        "**Probabilities.** Accuracy, the mean probability that answers are given, and the "
        "expected calibration error "
        f"({N_BINS} bins), in per cent; log losses with the chosen temperature, the usual one "
        "(the prior alone), 1 "
        "(the softmax of squared distances as it is), and the best in hindsight for each support "
        "set:",
        "",
    ]
    rows = []
    for measured, name in zip(shots.values(), names_of(shots), strict=True):
        for classifier, calibration in measured["calibration"].items():
            loss = calibration["log_loss"]
            rows.append(
                [
                    f"{classifier}, {name}",
                    f"{calibration['accuracy_percent']:.1f}",
                    f"{calibration['stated_percent']['chosen']:.1f}",
                    f"{calibration['calibration_error_percent']['chosen']:.1f}",
                    *(
                        f"{loss[kind]['mean']:.3f}"
                        for kind in ("chosen", "usual", "1", "hindsight")
                    ),
                ]
            )
    headings = ["", "accuracy", "stated", "error", "log loss", "usual", "1", "hindsight"]
    lines += table(headings, rows)
    return lines


def estimate_lines(shots: dict[str, Any]) -> list[str]:
    """Return how far accuracies that are estimated from support sets alone can be believed."""
    lines = [
        "**How good will it be?** The accuracy that is estimated from the support set alone, "
        "against that on "
        "new images, in per cent:",
        "",
    ]
    rows = []
    for measured, name in zip(shots.values(), names_of(shots), strict=True):
        estimate = measured["estimate"]
        if estimate is not None:
            rows.append(
                [
                    name,
                    plus_minus(estimate["true_percent"]),
                    plus_minus(estimate["estimated_percent"]),
                    plus_minus(estimate["estimated_minus_true"]),
                    f"{estimate['root_mean_square']:.1f}",
                    f"{estimate['width']['mean']:.0f}",
                    f"{estimate['covered_percent']['mean']:.0f} %",
                    f"{estimate['interval_too_low_percent']:.1f} %",
                    f"{estimate['interval_too_high_percent']:.1f} %",
                ]
            )
    headings = [
        "",
        "true",
        "estimated",
        "bias",
        "typical error",
        "interval's width",
        "covers",
        "lies too low",
        "too high",
    ]
    lines += table(headings, rows)
    lines += [
        "An image is recognised by one image fewer of each class than there will be, so the "
        "estimate is for a little "
        "less than what there is; with two images a class, for half of it. The 95 % interval "
        "takes left-out images for "
        "independent, and covers less where they fail together.",
        "",
    ]
    return lines


def peers_lines(shots: dict[str, Any]) -> list[str]:
    """Return accuracies and times beside scikit-learn's."""
    lines = [
        "**Beside scikit-learn**, on the same support sets; milliseconds are medians for one of "
        "them:",
        "",
    ]
    rows = [
        [
            f"{n_shot}-shot, {row['classifier']}",
            row["features"],
            plus_minus(row["accuracy_percent"], 2),
            f"{row['fit_ms']:.1f}",
            f"{row['predict_ms']:.1f}",
        ]
        for n_shot in ("1", "5")
        for row in shots[n_shot]["peers"] or []
    ]
    lines += table(["", "features", "accuracy, %", "fit, ms", "predict, ms"], rows)
    lines += [
        "`FewShotClassifier` is given the features as they are and centres and normalises them "
        "itself; to fit is also "
        "to choose the temperature by leaving images out. KNeighborsClassifier gives ties to the "
        "lowest label.",
    ]
    return lines


def names_of(shots: dict[str, Any]) -> list[str]:
    return [f"{n_shot} image{'s' if n_shot != '1' else ''} a class" for n_shot in shots]


def plus_minus(value: dict[str, float], digits: int = 1) -> str:
    mean = round(value["mean"], digits) + 0.0  # no −0.0
    return f"{mean:.{digits}f} ± {value['interval95']:.{digits}f}".replace("-", "−")


def table(headings: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        "|---|" + "---:|" * (len(headings) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def draw_rejection(report: Report, path: Path) -> None:
    """Draw AUROCs by number of images, and the rates that are reached."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    shots = report["shots"]
    for number, kind in enumerate(shots["1"]["rejection"]["auroc_percent"]):
        aurocs = [measured["rejection"]["auroc_percent"][kind] for measured in shots.values()]
        means = [measured["mean"] for measured in aurocs]
        half = [measured["interval95"] for measured in aurocs]
        left.errorbar(
            SHOTS, means, half, marker="oDs^v"[number], color=COLOURS[number], label=kind, capsize=2
        )
    left.set(
        xscale="log", xticks=SHOTS, xticklabels=SHOTS, xlabel="images a class", ylabel="AUROC, %"
    )
    left.set_title("unseen classes against known ones", fontsize=9)
    left.minorticks_off()
    left.set_ylim(bottom=left.get_ylim()[0] - 8)  # room for the legend
    left.legend(fontsize=6, loc="lower right")
    for axes, kind in ((middle, "known"), (right, "unseen")):
        for number, (n_shot, measured) in enumerate(shots.items()):
            cells = [measured["rejection"]["rejected_percent"][str(rate)][kind] for rate in RATES]
            xs = [100 * rate * 1.04 ** (number - 1.5) for rate in RATES]
            means = [cell["mean"] for cell in cells]
            spans = [[m - c["low"] for m, c in zip(means, cells, strict=True)]]
            spans += [[c["high"] - m for m, c in zip(means, cells, strict=True)]]
            spans = np.maximum(spans, 0).tolist()
            axes.errorbar(
                xs,
                means,
                spans,
                marker="oDs^"[number],
                color=COLOURS[number],
                label=n_shot,
                capsize=2,
            )
        ticks = [100 * rate for rate in RATES]
        axes.set(
            xscale="log",
            xticks=ticks,
            xticklabels=[f"{tick:.0f}" for tick in ticks],
            xlabel="rate asked for, %",
        )
        axes.minorticks_off()
        axes.set_title(f"of {kind} classes (bars: four of five support sets)", fontsize=8)
        axes.set_ylabel("rejected, %")
        axes.legend(fontsize=7, title="images a class", title_fontsize=7)
    ticks = [100 * rate for rate in RATES]
    middle.plot(ticks, ticks, color="grey", linestyle=":", linewidth=1)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def draw_calibration(report: Report, path: Path) -> None:
    """Draw the share of right answers against the probability that was stated."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, classifier in zip(figure.subplots(1, 3), CLASSIFIERS, strict=True):
        axes.plot([0, 1], [0, 1], color="grey", linestyle=":", linewidth=1)
        for number, (n_shot, measured) in enumerate(report["shots"].items()):
            calibration = measured["calibration"][classifier]
            for kind, style in (("chosen", "-"), ("1", "--")):
                curve = [
                    point for point in calibration["reliability"][kind] if point["share"] > 0.003
                ]
                axes.plot(
                    [point["stated"] for point in curve],
                    [point["right"] for point in curve],
                    marker="oDs^"[number] if kind == "chosen" else "",
                    linestyle=style,
                    linewidth=1.2 if kind == "chosen" else 0.8,
                    markersize=4,
                    color=COLOURS[number],
                    label=n_shot if kind == "chosen" else None,
                )
        axes.set(
            xlabel="stated probability",
            ylabel="share of right answers",
            xlim=(0.15, 1.02),
            ylim=(0.15, 1.02),
        )
        axes.set_title(f"{classifier}; dashed: temperature 1", fontsize=9)
        axes.legend(fontsize=7, title="images a class", title_fontsize=7)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def draw_estimates(report: Report, path: Path) -> None:
    """Draw how far estimates are from the truth."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    shown = {
        n_shot: measured["estimate"]
        for n_shot, measured in report["shots"].items()
        if measured["estimate"] is not None
    }
    for number, (axes, (n_shot, estimate)) in enumerate(
        zip(figure.subplots(1, len(shown)), shown.items(), strict=True)
    ):
        errors = np.subtract(estimate["each"]["estimated"], estimate["each"]["true"])
        axes.hist(errors, bins=np.arange(-50, 22, 2), color=COLOURS[number], alpha=0.8)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.axvline(errors.mean(), color="black", linestyle="--", linewidth=1)
        axes.set(xlabel="estimated − true accuracy, points", yticks=[], xlim=(-50, 20))
        axes.set_title(
            f"{n_shot} images a class: mean {round(errors.mean(), 1) + 0.0:.1f}, "
            f"interval covers {estimate['covered_percent']['mean']:.0f} %",
            fontsize=8,
        )
    figure.savefig(path, dpi=150, metadata={"Software": None})
