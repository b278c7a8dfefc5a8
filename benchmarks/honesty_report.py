"""The tables and the figure of `honesty.py`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

RULES = ("before", "now")
# Of the figure: two-way problems in which accuracies are far below 100 %.
HARD = ("look-alike classes", "look-alike birds", "look-alike textures", "letters of one script")
# The other images of a class are too few to say how often an interval holds the accuracy on many.
FEW_QUERIES = ("letters of one script", "bursts: frames of a sign", "letters, as pixels")
SIDE = 150  # of a panel
GAP = 34
COLOURS = {"before": "#b45309", "now": "#1d4ed8"}
LEAST_ANSWERS = 200  # in a point of the figure


def summarise(n_way: int, outcomes: Sequence[Any]) -> dict[str, Any]:
    """Return the means over support sets, in per cent where they are fractions."""
    accuracy = mean([outcome["accuracy"] for outcome in outcomes])
    summary: dict[str, Any] = {
        "accuracy": 100 * accuracy,
        "uniform_log_loss": math.log(n_way),
        "draws": len(outcomes),
    }
    for rule in RULES:
        answers = [outcome[rule] for outcome in outcomes]
        pairs = [
            (outcome[rule], outcome["accuracy"])
            for outcome in outcomes
            if not math.isnan(outcome[rule]["estimate"])
        ]
        confidence = mean([answer["confidence"] for answer in answers])
        row: dict[str, Any] = {
            "confidence": 100 * confidence,
            "overconfidence": 100 * (confidence - accuracy),
            "log_loss": mean([answer["log_loss"] for answer in answers]),
            "estimate_error": None,
            "coverage": None,
            "estimates": len(pairs),
            "bins": np.sum([answer["bins"] for answer in answers], axis=0).round(1).tolist(),
        }
        if 2 * len(pairs) > len(outcomes):
            row["estimate_error"] = 100 * mean([a["estimate"] - truth for a, truth in pairs])
            row["coverage"] = 100 * mean([answer["covered"] for answer, _ in pairs])
        summary[rule] = row
    return summary


def markdown(report: dict[str, Any]) -> str:
    """Return the table for the documentation."""
    lines = [
        f"Support sets are drawn from {', '.join(report['datasets'])}; `{report['backbone']}`, "
        "ridge. Confidence is the mean probability of the answer. Coverage is how often the 95 % "
        "interval holds the accuracy on the other images, where there are at least 40 of each "
        "class. Two numbers are before → now.",
        "",
        "| classes | ways | photos | draws | accuracy % | confidence − accuracy | log loss "
        "| uniform | estimate − accuracy | coverage % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in report["rows"]:
        cells = [row["kind"], str(row["n_way"]), str(row["n_shot"]), str(row["draws"])]
        cells.append(f"{row['accuracy']:.1f}")
        cells.append(both(row, "overconfidence", "{:+.1f}"))
        cells.append(both(row, "log_loss", "{:.2f}"))
        cells.append(f"{row['uniform_log_loss']:.2f}")
        cells.append(both(row, "estimate_error", "{:+.1f}"))
        has_few_queries = row["kind"].startswith(FEW_QUERIES)
        cells.append("–" if has_few_queries else both(row, "coverage", "{:.0f}"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def both(row: dict[str, Any], key: str, form: str) -> str:
    """Return a number of both rules."""
    texts = []
    for rule in RULES:
        number = row[rule][key]
        texts.append("–" if number is None else form.format(number).replace("-", "−"))
    return texts[0] if texts == ["–", "–"] else " → ".join(texts)


def calibration_plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return an SVG of accuracy by stated probability: hard problems, two ways, by photos."""
    shots = sorted({row["n_shot"] for row in rows})
    width = GAP + len(shots) * (SIDE + GAP)
    height = SIDE + 3 * GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, n_shot in enumerate(shots):
        left = GAP + number * (SIDE + GAP)
        title = "1 photo of each class" if n_shot == 1 else f"{n_shot} photos"
        parts += panel(left, GAP, title)
        for rule in RULES:
            bins = np.zeros((3, 10))
            for row in rows:
                if row["n_way"] == 2 and row["n_shot"] == n_shot and row["kind"] in HARD:
                    bins += np.array(row[rule]["bins"])
            parts += curve(left, GAP, bins, COLOURS[rule])
    for number, rule in enumerate(RULES):
        parts.append(
            f'<text x="{GAP + 70 * number}" y="{height - 6}" fill="{COLOURS[rule]}" '
            f'font-weight="bold">{rule}</text>'
        )
    parts.append(
        f'<text x="{width - GAP}" y="{height - 6}" text-anchor="end" fill="#444">'
        "across: stated probability; up: share of right answers</text>"
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(left: int, top: int, title: str) -> list[str]:
    """Return the frame of a panel from 50 to 100 %, with its diagonal."""
    bottom = top + SIDE
    right = left + SIDE
    parts = [
        f'<text x="{left}" y="{top - 8}" fill="#111">{title}</text>',
        f'<rect x="{left}" y="{top}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#bbb"/>',
        f'<line x1="{left}" y1="{bottom}" x2="{right}" y2="{top}" stroke="#999" '
        'stroke-dasharray="3 3"/>',
    ]
    for percent in (50, 75, 100):
        offset = SIDE * (percent - 50) // 50
        parts.append(
            f'<text x="{left + offset}" y="{bottom + 14}" text-anchor="middle" fill="#444">'
            f"{percent}</text>"
        )
        parts.append(
            f'<text x="{left - 4}" y="{bottom - offset + 4}" text-anchor="end" fill="#444">'
            f"{percent}</text>"
        )
    return parts


def curve(left: int, top: int, bins: Any, colour: str) -> list[str]:
    """Return the points of one rule; `bins` are counts, sums of probabilities, right answers."""
    counts, sums, n_right = bins
    has_enough = counts >= LEAST_ANSWERS
    across = left + SIDE * (2 * sums[has_enough] / counts[has_enough] - 1)
    up = top + SIDE * (2 - 2 * n_right[has_enough] / counts[has_enough])
    points = [f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True)]
    parts = [f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}"/>']
    largest = float(counts.max()) or 1.0
    for x, y, count in zip(across, up, counts[has_enough], strict=True):
        radius = 1.5 + 4 * math.sqrt(count / largest)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}"/>')
    return parts


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
