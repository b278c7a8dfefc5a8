"""The paper's settings and numbers, with their table or section, and its errata.

No other module has such numbers.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from nearshot.episode_shape import EpisodeShape
from nearshot.training import PRESETS, Method, TrainConfig

BATCH_SIZES = (128, 256, 512)
SHOTS = (1, 5)
# The published arithmetic adds this to what is not a positive; see the recipe `floor`.
FLOOR = 1e-10
# Classes, and images of each.
TRAINING_CLASSES = {"cifar-fs": (64, 600), "mini-imagenet": (64, 600)}
TITLES = {"knn": "k-NN", "soft": "soft assignment", "centroid": "nearest centroid"}


def figure_config(
    dataset: str, method: Method, batch_size: int, *, images_per_class: int = 16
) -> TrainConfig:
    """Return the settings of Figures 2 to 4: 120 epochs, no projection, no temperature."""
    return replace(
        PRESETS[f"{dataset}-prototypical"],
        method=method,
        epochs=120,
        steps_per_epoch=None,
        batch_size=batch_size,
        images_per_class=images_per_class,
    )


@dataclass(frozen=True)
class Number:
    """An accuracy of the paper in per cent, perhaps with half its 95 % interval, as printed.

    >>> number = Number("72.0 ± 0.7")
    >>> number.mean, number.digits, number.interval95
    (72.0, 1, 0.7)
    """

    printed: str

    def __str__(self) -> str:
        return self.printed

    @property
    def mean(self) -> float:
        """The accuracy without its interval."""
        return float(self.printed.split(" ± ")[0])

    @property
    def interval95(self) -> float | None:
        """Half the 95 % interval, where one is printed."""
        return float(self.printed.split(" ± ")[1]) if "±" in self.printed else None

    @property
    def digits(self) -> int:
        """How many digits after the point it has."""
        return len(self.printed.split(" ± ")[0].partition(".")[2])


Shots = tuple[Number, Number]  # 1-shot, 5-shot


class BatchSizeRow(NamedTuple):
    """A row of Appendix E's table: CIFAR-FS, validation, nearest centroid; NCA has no setup."""

    batch_size: int
    setup: tuple[int, int] | None  # shots and images of a class
    accuracy: Shots
    positives: int
    negatives: int
    total: int

    @property
    def shape(self) -> EpisodeShape | None:
        """The shape of its episodes."""
        return None if self.setup is None else EpisodeShape.from_batch(self.batch_size, *self.setup)


# Appendix E, Table "Number of positives and negatives used in the experiments of Figure 2".
BATCH_SIZE_TABLE = (
    BatchSizeRow(512, None, (Number("62.84 ± 0.13"), Number("77.07 ± 0.10")), 1792, 129024, 130816),
    BatchSizeRow(
        512, (5, 16), (Number("60.53 ± 0.13"), Number("75.79 ± 0.11")), 1760, 54560, 56320
    ),
    BatchSizeRow(512, (5, 8), (Number("59.85 ± 0.13"), Number("74.99 ± 0.11")), 960, 60480, 61440),
    BatchSizeRow(
        512, (5, 32), (Number("59.82 ± 0.13"), Number("74.44 ± 0.11")), 2160, 32400, 34560
    ),
    BatchSizeRow(512, (1, 8), (Number("58.01 ± 0.14"), Number("71.80 ± 0.11")), 448, 28224, 28672),
    BatchSizeRow(512, (1, 16), (Number("51.75 ± 0.13"), Number("65.77 ± 0.12")), 465, 14415, 14880),
    BatchSizeRow(512, (1, 32), (Number("41.49 ± 0.12"), Number("52.90 ± 0.12")), 496, 7440, 7936),
    BatchSizeRow(256, None, (Number("62.07 ± 0.14"), Number("76.26 ± 0.10")), 384, 32256, 32640),
    BatchSizeRow(256, (5, 16), (Number("59.60 ± 0.13"), Number("74.64 ± 0.11")), 880, 13200, 14080),
    BatchSizeRow(256, (5, 8), (Number("58.80 ± 0.13"), Number("74.03 ± 0.11")), 480, 14880, 15360),
    BatchSizeRow(256, (5, 32), (Number("57.62 ± 0.13"), Number("72.53 ± 0.11")), 1080, 7560, 8640),
    BatchSizeRow(256, (1, 8), (Number("57.61 ± 0.14"), Number("71.49 ± 0.11")), 224, 6944, 7168),
    BatchSizeRow(256, (1, 16), (Number("48.46 ± 0.13"), Number("61.64 ± 0.12")), 240, 3600, 3840),
    BatchSizeRow(256, (1, 32), (Number("37.96 ± 0.11"), Number("48.38 ± 0.11")), 248, 1736, 1984),
    BatchSizeRow(128, None, (Number("58.36 ± 0.14"), Number("72.69 ± 0.11")), 64, 8064, 8128),
    BatchSizeRow(128, (5, 16), (Number("57.02 ± 0.13"), Number("72.05 ± 0.11")), 440, 3280, 3520),
    BatchSizeRow(128, (5, 8), (Number("56.45 ± 0.13"), Number("71.42 ± 0.11")), 240, 3600, 3840),
    BatchSizeRow(128, (5, 32), (Number("49.88 ± 0.13"), Number("64.50 ± 0.11")), 540, 1620, 2160),
    BatchSizeRow(128, (1, 8), (Number("51.75 ± 0.13"), Number("65.77 ± 0.12")), 112, 1680, 1792),
    BatchSizeRow(128, (1, 16), (Number("40.46 ± 0.12"), Number("52.27 ± 0.11")), 120, 840, 960),
    BatchSizeRow(128, (1, 32), (Number("28.54 ± 0.09"), Number("33.50 ± 0.09")), 124, 372, 496),
)
# Appendix E's text: pairs of the ablations' rows, batches of 256, 5-shot, m+n = 8.
ABLATION_PAIRS = {3: (896, 31744), 6: (480, 14880), 7: (576, 20170)}


class Erratum(NamedTuple):
    """A number that contradicts the paper's own formulas or another of its numbers.

    `row` is a row of Appendix E's table: the batch size, shots and images of a class.
    """

    where: str
    printed: str
    follows: str
    reason: str
    about: Literal["pairs", "accuracies"] = "pairs"
    row: tuple[int, tuple[int, int]] | None = None

    def __str__(self) -> str:
        numbers = f"printed {self.printed}, follows {self.follows}"
        return f"Erratum: {self.where}: {numbers} ({self.reason})."


ERRATA = (
    Erratum(
        "Appendix E's table, NCA with batches of 512 / 256 / 128, positives",
        "1,792 / 384 / 64",
        "2,041 / 509 / 127 on average",
        "the printed numbers are those of batches with equally many images of each class; NCA "
        "trains on shuffled ones (Section 2.2), which have C(b, 2) · 599/38,399",
    ),
    Erratum(
        "Appendix E's table, batch 128, 5-shot m+n=16, negatives",
        "3,280",
        "3,080",
        "w(w−1)mn with w=8, m=11, n=5; the printed total, 3,520, is right",
        row=(128, (5, 16)),
    ),
    Erratum(
        "Appendix E's table, batch 512, 1-shot m+n=16",
        "465 / 14,415 / 14,880",
        "480 / 14,880 / 15,360",
        "wmn and w(w−1)mn with w=32, m=15, n=1; those printed are the pairs of 31·15 queries with "
        "32 support images",
        row=(512, (1, 16)),
    ),
    Erratum(
        "Appendix E's table, batch 512, 1-shot m+n=16, accuracies",
        "51.75 / 65.77",
        "unknown",
        "the same two numbers stand at batch 128, 1-shot m+n=8: possibly a copy",
        about="accuracies",
        row=(512, (1, 16)),
    ),
    Erratum(
        "Appendix E's text, row 7 of the ablations, negatives",
        "20,170",
        "19,840",
        "a prototype counts for its images against a query, and a distance between two prototypes "
        "counts once; the positives, 576, do follow",
    ),
)

DATASETS = ("mini-imagenet", "cifar-fs", "tiered-imagenet")


def _by_dataset(text: str) -> dict[str, dict[str, Any]]:
    """Return the numbers of a table by row and dataset: 1-shot and 5-shot, None for a dash.

    There are two spaces or more between columns.

    >>> one_shot, five_shots = _by_dataset("PN  –  78.3±0.14")["PN"]["mini-imagenet"]
    >>> one_shot, str(five_shots)
    (None, '78.3 ± 0.14')
    """
    table = {}
    for line in text.strip().splitlines():
        label, *cells = re.split(" {2,}", line.strip())
        numbers = [None if cell == "–" else Number(cell.replace("±", " ± ")) for cell in cells]
        both_shots = zip(numbers[::2], numbers[1::2], strict=True)
        by_dataset = dict(zip(DATASETS, both_shots, strict=False))
        table[label] = {dataset: both for dataset, both in by_dataset.items() if both[1]}
    return table


# Section 3.5, the big table, test splits.
COMPARISON: dict[str, dict[str, Shots]] = _by_dataset("""
    MN (Snell's episodes)  58.91±0.12  72.48±0.10  69.28±0.13  80.79±0.10  65.75±0.13  78.40±0.10
    PN (Snell's episodes)  59.78±0.12  75.42±0.09  69.94±0.12  84.01±0.09  65.80±0.13  81.26±0.10
    MN (our episodes)      60.77±0.12  73.82±0.09  71.86±0.13  82.41±0.10  66.53±0.13  79.08±0.10
    PN (our episodes)      61.32±0.12  77.77±0.09  70.41±0.12  84.61±0.10  66.89±0.14  82.20±0.09
    SimpleShot             62.16±0.12  78.33±0.09  69.98±0.12  84.40±0.09  66.67±0.14  81.57±0.10
    NCA soft assignment    62.55±0.12  76.93±0.11  72.49±0.12  83.38±0.09  68.35±0.13  81.04±0.09
    NCA nearest centroid   62.55±0.12  78.27±0.09  72.49±0.12  85.15±0.09  68.35±0.13  83.20±0.10
""")
# The other methods' rows, which the paper quotes from their publications, with their digits.
QUOTED: dict[str, dict[str, Shots]] = _by_dataset("""
    adaResNet                 56.88±0.62  71.94±0.57  –           –           –           –
    TADAM                     58.50±0.30  76.70±0.30  –           –           –           –
    Shot-Free                 60.71       77.64       69.2        84.7        63.52       82.59
    TEAM                      60.07       75.90       –           –           –           –
    MTL                       61.20±1.80  75.50±0.80  –           –           –           –
    TapNet                    61.65±0.15  76.36±0.10  –           –           63.08±0.15  80.26±0.12
    MetaOptNet-SVM            62.64±0.61  78.63±0.46  72.0±0.7    84.2±0.5    65.99±0.72  81.56±0.53
    Variational FSL           61.23±0.26  77.69±0.17  –           –           –           –
    Transductive fine-tuning  62.35±0.66  74.53±0.54  70.76±0.74  81.56±0.53  –           –
    RFIC-simple               62.02±0.63  79.64±0.44  71.5±0.8    86.0±0.5    69.74±0.72  84.41±0.55
    Meta-Baseline             63.17±0.23  79.26±0.17  –           –           68.62±0.27  83.29±0.18
""")
# Appendix D: 5-shot, validation and test.
CLASSIFIERS_TABLE: dict[str, dict[str, tuple[Number, Number]]] = _by_dataset("""
    knn       75.82±0.11  73.52±0.10  73.46±0.12  80.94±0.10
    soft      79.11±0.12  77.16±0.10  76.12±0.12  83.31±0.10
    centroid  80.61±0.12  78.30±0.10  77.80±0.12  85.13±0.10
""")
# Appendix F: validation splits, batches of 256, nearest centroid.
SCHEDULE: dict[str, dict[str, Shots]] = _by_dataset("""
    PN (SimpleShot's schedule)   57.99±0.21  74.33±0.16  53.76±0.22  68.54±0.19
    PN (the paper's)             62.79±0.12  78.82±0.09  59.60±0.13  74.64±0.11
    NCA (SimpleShot's schedule)  61.21±0.22  76.39±0.16  59.41±0.24  73.29±0.19
    NCA (the paper's)            64.94±0.13  80.12±0.09  62.07±0.14  76.26±0.10
""")
# Appendix G: test splits, nearest centroid; no 1-shot with adaptation.
ADAPTATION: dict[str, dict[str, tuple[Number | None, Number]]] = _by_dataset("""
    NCA                            62.52±0.24  78.3±0.14   72.48±0.40  85.13±0.29
    NCA multi-layer                63.21±0.08  79.27±0.08  72.44±0.36  85.42±0.29
    NCA multi-layer + support set  –           79.79±0.08  –           85.66±0.32
""")
# Appendix C: miniImageNet, test split.
SUPCON: dict[str, Shots] = {"mini-imagenet": (Number("51.05"), Number("63.36"))}
# Appendix I: miniImageNet, test split, by implementation and architecture.
PN_IMPLEMENTATIONS: dict[tuple[str, str], Shots] = {
    ("Chen et al.", "ResNet10"): (Number("51.98 ± 0.84"), Number("72.64 ± 0.64")),
    ("Chen et al.", "ResNet18"): (Number("54.16 ± 0.82"), Number("73.68 ± 0.65")),
    ("Chen et al.", "ResNet34"): (Number("53.90 ± 0.83"), Number("74.65 ± 0.64")),
    ("Gidaris et al.", "WideResNet-28-10"): (Number("55.85 ± 0.48"), Number("68.72 ± 0.36")),
    ("Lee et al.", "ResNet12"): (Number("59.25 ± 0.64"), Number("75.60 ± 0.84")),
    ("the paper, Snell's episodes", "ResNet12"): (Number("59.78 ± 0.12"), Number("75.42 ± 0.09")),
    ("the paper, best episodes", "ResNet12"): (Number("61.32 ± 0.12"), Number("77.77 ± 0.09")),
}
