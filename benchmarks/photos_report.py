"""The tables of `photos.py`."""

from collections.abc import Sequence
from typing import Any

PHOTOS = "efficientnet-lite0"
SMALL = "resnet12-nca-cifar-fs"
NETWORKS = (
    ("HOG + logistic regression", "hog alone", "logistic, C = 30", "as they are"),
    ("HOG and colour histogram + logistic regression", "hog", "logistic, C = 30", "as they are"),
    ("`resnet12-nca-cifar-fs`, nearest centroid", SMALL, "centroid", "normalised"),
    ("`resnet12-nca-cifar-fs` + logistic regression", SMALL, "logistic, C = 30", "normalised"),
    ("`resnet12-nca-cifar-fs`, ridge", SMALL, "ridge", "normalised"),
    ("`efficientnet-lite0`, nearest centroid", PHOTOS, "centroid", "normalised"),
    ("`efficientnet-lite0` + logistic regression", PHOTOS, "logistic, C = 30", "normalised"),
    ("**`efficientnet-lite0`, ridge**", PHOTOS, "ridge", "normalised"),
)
KINDS = {
    "distance to the class mean": "distance to the nearest class mean",
    "distance to the nearest photo": "distance to the nearest photo",
    "highest probability": "1 − highest probability",
    "highest score": "minus the highest score of ridge",
    "energy": "energy of ridge's scores",
    "distance and score": "**distance and score: the default**",
}


def summary(report: dict[str, Any]) -> str:
    """Return the table of networks and classifiers."""
    datasets = report["datasets"]
    body = [
        [
            title,
            *(
                number(cell(dataset["networks"].get(network, []), 10, 5, head, treatment))
                for dataset in datasets.values()
            ),
        ]
        for title, network, head, treatment in NETWORKS
    ]
    head = (
        f"Accuracy in per cent, 10 classes, 5 photos of each, mean of {report['draws']} draws and "
        "its 95 % interval:"
    )
    return f"{head}\n\n{table(['', *datasets], body)}\n"


def markdown(report: dict[str, Any]) -> str:
    """Return all tables of a report."""
    datasets = report["datasets"]
    parts = [
        "**Networks.** " + summary(report).rstrip(),
        "**Classifiers.** Accuracy, mean of 1, 2, 5 and 10 photos of each of 10 classes (of "
        "signs: 1, 2 and 5), by "
        "what is done to the features first:",
        heads_overall(datasets),
        "The same by the number of photos of each of 10 classes, normalised:",
    ]
    for name, dataset in datasets.items():
        rows = dataset["accuracy"]
        shots = sorted({row["n_shot"] for row in rows if row["n_way"] == 10})
        heads = dict.fromkeys(row["head"] for row in rows)
        body = [
            [head, *(number(cell(rows, 10, shot, head, "normalised")) for shot in shots)]
            for head in heads
        ]
        parts.append(table([f"{name}, `{dataset['network']}`", *map(photos, shots)], body))
    parts.append("By the number of classes, 5 photos of each, normalised:")
    for name, dataset in datasets.items():
        rows = dataset["accuracy"]
        ways = sorted({row["n_way"] for row in rows})
        body = [
            [head, *(number(cell(rows, way, 5, head, "normalised")) for way in ways)]
            for head in ("centroid", "ridge", "logistic, C = 30")
        ]
        parts.append(table([name, *(f"{way} classes" for way in ways)], body))
    parts.append(
        "Classes of different sizes, of 1 to 20 photos each (of signs: 1 to 5), normalised:"
    )
    for name, dataset in datasets.items():
        rows = dataset["uneven"]
        cells = {(row["n_way"], row["head"]): number(row["accuracy_percent"]) for row in rows}
        ways = sorted({row["n_way"] for row in rows})
        heads = dict.fromkeys(row["head"] for row in rows)
        body = [[head, *(cells[way, head] for way in ways)] for head in heads]
        parts.append(table([name, *(f"{way} classes" for way in ways)], body))
    parts.append(
        "**None of these.** AUROC in per cent of telling unseen classes from as many known ones, "
        "by what is compared:"
    )
    for name, dataset in datasets.items():
        rows = dataset["unknown"]
        body = [
            [title, *(number(row["auroc_percent"][kind]) for row in rows)]
            for kind, title in KINDS.items()
        ]
        title = f"{name}, {rows[0]['n_way']} and {rows[0]['n_way']} classes"
        parts.append(table([title, *(photos(row["n_shot"]) for row in rows)], body))
    parts.append(
        f"Rejected of the known / of the unseen, in per cent, if {100 * report['rate']:.0f} % of "
        "the known may be:"
    )
    for name, dataset in datasets.items():
        rows = dataset["unknown"]
        body = [
            [
                title,
                *(
                    f"{row['rejected_percent'][f'{kind}, known']['mean']:.1f} / "
                    f"{row['rejected_percent'][f'{kind}, unseen']['mean']:.0f}"
                    for row in rows
                ),
            ]
            for kind, title in (
                ("centroid", "distance to the nearest class mean"),
                ("auto", "**the default**"),
            )
        ]
        parts.append(table([name, *(photos(row["n_shot"]) for row in rows)], body))
    if "views" in report:
        parts += views(report["views"])
    return "\n\n".join(parts) + "\n"


def views(rows: list[dict[str, Any]]) -> list[str]:
    """Return a heading and a table of more views."""
    kinds = dict.fromkeys(row["views"] for row in rows)
    shots = sorted({row["n_shot"] for row in rows})
    cells = {(row["views"], row["n_shot"]): number(row["accuracy_percent"]) for row in rows}
    head = (
        "**Views.** Ridge regression, 10 classes of flowers, if the labelled photos are embedded "
        "in more views:"
    )
    return [
        head,
        table(
            ["", *map(photos, shots)],
            [[kind, *(cells[kind, n_shot] for n_shot in shots)] for kind in kinds],
        ),
    ]


def heads_overall(datasets: dict[str, Any]) -> str:
    """Return a table of the mean over shots, by dataset, treatment and classifier."""
    body = []
    heads = list(
        dict.fromkeys(row["head"] for dataset in datasets.values() for row in dataset["accuracy"])
    )
    for name, dataset in datasets.items():
        rows = [row for row in dataset["accuracy"] if row["n_way"] == 10 and row["n_shot"] <= 10]
        for treatment in dict.fromkeys(row["features"] for row in rows):
            means = []
            for head in heads:
                values = [
                    r["accuracy_percent"]["mean"]
                    for r in rows
                    if (r["head"], r["features"]) == (head, treatment)
                ]
                means.append(f"{sum(values) / len(values):.1f}")
            body.append([f"{name}, {treatment}", *means])
    return table(["", *heads], body)


def cell(
    rows: list[dict[str, Any]], way: int, shot: int, head: str, treatment: str
) -> dict[str, float] | None:
    """Return the accuracy of one setting, if it was measured."""
    key = (way, shot, head, treatment)
    matching = (
        row for row in rows if (row["n_way"], row["n_shot"], row["head"], row["features"]) == key
    )
    return next((row["accuracy_percent"] for row in matching), None)


def number(value: dict[str, float] | None) -> str:
    return "" if value is None else f"{value['mean']:.1f} ± {value['interval95']:.1f}"


def photos(shot: int) -> str:
    return f"{shot} photo{'s' if shot > 1 else ''}"


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
