"""Settings that adapt to the data: a first run needs no options; given settings never change."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.settings import TINY, change, labels_of
from tests.helpers.tiny import prepare_tiny

from nearshot.cli import main
from nearshot.cli.train import parse
from nearshot.data import Store
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.fit import check_split
from nearshot.training import PRESETS, TrainConfig, autoconfig, train
from nearshot.training.autoconfig import TRAIN_SETTINGS, autoconfigure
from nearshot.training.methods import PrototypicalNetworks
from nearshot.training.plan import make_batches

QUICK = [
    "--backbone",
    "conv4-32",
    "--input-size",
    "16",
    "--epochs",
    "1",
    "--validation-episodes",
    "10",
]
EPISODIC = TrainConfig(method=PrototypicalNetworks())


def test_a_first_run_and_its_evaluation_need_no_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_tiny(tmp_path, n_classes=10, n_images=12)
    run = tmp_path / "run"
    where = ["--data-dir", str(tmp_path)]
    command = ["train", "--dataset", "tiny", *where, *QUICK, "--output", str(run)]

    def dry(*options: str) -> tuple[dict[str, object], str]:
        capsys.readouterr()
        assert main([*command, "--dry-run", *options]) == 0
        out = capsys.readouterr().out
        return json.loads(out[: out.index("\n}") + 2]), out

    settings, shown = dry()
    assert main(command) == 0
    log = capsys.readouterr().err.splitlines()
    changes = [line for line in shown.splitlines() if "instead of" in line]
    assert [
        ("batch_size 48" in message, "validation_n_way 2" in message) for message in changes
    ] == [
        (True, False),
        (False, True),
    ]
    assert set(changes) <= set(log)
    begun = (run / "config.json").read_text()
    written = json.loads(begun)
    assert (written["batch_size"], written["validation_n_way"], written["validation_n_query"]) == (
        48,
        2,
        7,
    )
    for name in TRAIN_SETTINGS:
        assert settings.get(name) == written.get(name)

    assert (
        main([*command, "--dry-run", "--batch-size=512"]) == 1
    )  # a given setting is obeyed or refused
    assert "Use batch_size 48" in capsys.readouterr().err
    monkeypatch.setattr(
        autoconfig, "LEAST_BATCH", 20
    )  # a resumed run keeps its settings, whatever the rule is now
    assert dry()[0]["batch_size"] != written["batch_size"]
    assert dry("--resume")[0]["batch_size"] == written["batch_size"]
    assert main([*command, "--resume"]) == 0
    assert (run / "config.json").read_text() == begun

    capsys.readouterr()
    assert main(["evaluate", str(run), *where, "--n-episodes", "10", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "n_way 2 instead of 5" in err
    protocol = json.loads(out)[0]["accuracy"]["protocol"]
    assert (protocol["n_way"], protocol["n_query"]) == (2, 7)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_never_changes_and_fits_its_dataset(preset: str) -> None:
    assert parse(["--preset", preset, "--images-per-class", "12"]).auto == ()
    assert (
        "batch_size"
        in parse(["--dataset", PRESETS[preset].dataset, "--images-per-class", "12"]).auto
    )
    assert adapted([600] * 64, {}, config=PRESETS[preset]) == (PRESETS[preset], [])


def test_in_python_nothing_is_automatic_by_default(data_dir: Path, tmp_path: Path) -> None:
    too_much = change(TINY, epochs=1, batch_size=4096)
    where = {"folder": tmp_path / "run", "data_dir": data_dir}
    for auto, message in (
        ((), "4096"),
        (("batchsize",), "'batchsize'.* Did you mean 'batch_size'"),
    ):
        with pytest.raises(InputError, match=message):
            train(too_much, auto=auto, progress=False, **where)  # type: ignore[arg-type]
    result = train(too_much, auto=("batch_size",), progress=False, **where)  # type: ignore[arg-type]
    assert json.loads((result.folder / "config.json").read_text())["batch_size"] == 64  # of 200


class Labelled:
    """The part of a store that autoconfiguration uses."""

    def __init__(self, *sizes: int) -> None:
        self.labels = labels_of(*sizes)
        self.class_names = tuple(f"kind {number}" for number in range(len(sizes)))

    def __len__(self) -> int:
        return len(self.labels)


def adapted(
    sizes: Sequence[int],
    given: Mapping[str, int],
    *,
    n_ranks: int = 1,
    config: TrainConfig = EPISODIC,
) -> tuple[TrainConfig, list[str]]:
    auto = set(TRAIN_SETTINGS) - given.keys()
    config = change(config, **given)
    return autoconfigure(config, {"train": cast(Store, Labelled(*sizes))}, auto, n_ranks=n_ranks)


@pytest.mark.parametrize(
    ("given", "sizes", "n_ranks", "shape"),
    [
        ({"images_per_class": 12}, [12] * 10, 1, EpisodeShape(10, 5, 7)),
        ({"images_per_class": 4}, [40] * 200, 1, EpisodeShape(128, 2, 2)),
        ({"batch_size": 64}, [12] * 10, 1, EpisodeShape(8, 5, 3)),
        ({"n_shot": 7}, [10] * 6, 1, EpisodeShape(6, 7, 3)),
        ({"n_shot": 10}, [600] * 64, 1, EpisodeShape(32, 10, 6)),  # these need no change
        ({"n_way": 5, "n_query": 4}, [7] * 6, 1, EpisodeShape(5, 3, 4)),
        ({}, [200] * 19 + [2], 1, EpisodeShape(19, 5, 11)),
        ({"batch_size": 160, "images_per_class": 8}, [40] * 20 + [3], 1, EpisodeShape(20, 5, 3)),
        (
            {},
            [20] * 40,
            1,
            EpisodeShape(12, 5, 11),
        ),  # a quarter of the images, so that an epoch has several steps
        ({}, [40] * 64, 3, EpisodeShape(30, 5, 11)),
        (
            {"n_shot": 40},
            [100] * 3,
            1,
            EpisodeShape(3, 40, 40),
        ),  # few steps are better than an error
        ({"images_per_class": 9}, [20] * 10, 8, EpisodeShape(8, 5, 4)),
    ],
)
def test_automatic_settings_fit_given_ones(
    given: dict[str, int], sizes: list[int], n_ranks: int, shape: EpisodeShape
) -> None:
    config, messages = adapted(sizes, given, n_ranks=n_ranks)
    assert config.shape == shape
    make_batches(config, labels_of(*sizes), [], n_ranks=n_ranks)
    assert bool(messages) == (config != change(EPISODIC, **given))


@given(
    sizes=st.lists(st.integers(2, 40), min_size=2, max_size=30),
    batch_size=st.none() | st.integers(1, 300),
    per_class=st.none() | st.integers(2, 20),
    n_shot=st.none() | st.integers(1, 20),
    n_ranks=st.integers(1, 4),
)
def test_episodes_fit_or_the_error_names_the_given_settings(
    sizes: list[int],
    batch_size: int | None,
    per_class: int | None,
    n_shot: int | None,
    n_ranks: int,
) -> None:
    values = {"batch_size": batch_size, "images_per_class": per_class, "n_shot": n_shot}
    given = {name: value for name, value in values.items() if value is not None}
    try:
        config, messages = adapted(sizes, given, n_ranks=n_ranks)
    except InputError as error:
        assert all(f"{name} {value}" in str(error) for name, value in given.items())
        return
    chosen = {
        "batch_size": config.batch_size,
        "images_per_class": config.images_per_class,
        "n_shot": config.method.n_shot,
    }
    assert chosen.items() >= given.items()
    left = [size for size in sizes if size >= config.least_images]
    assert len(sizes) - len(left) <= len(sizes) // 5
    for number in range(len(sizes)):
        assert (
            sizes[number] in left or len(sizes) - len(left) > 5 or f"'kind {number}'" in messages[0]
        )
    if len(given) < 3 and (per_class or 0) <= min(left):
        make_batches(config, labels_of(*sizes), [], n_ranks=n_ranks)


@pytest.mark.parametrize(
    ("given", "sizes", "n_ranks", "message"),
    [
        (
            {"batch_size": 61},
            [12] * 10,
            1,
            r"10 classes.* batch_size 61\. Use batch_size 60, images_per_class 12",
        ),
        ({"least_images": 1}, [9, 1, 9], 1, r"'kind 1' has 1 image; .* least_images 2"),
        ({}, [1, 9, 1], 1, r"1 class of 2 images or more; episodes need 2"),
        ({}, [2, 2], 8, r"8 devices.* Use fewer devices"),
    ],
)
def test_impossible_episodes_are_refused(
    given: dict[str, int], sizes: list[int], n_ranks: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        adapted(sizes, given, n_ranks=n_ranks)


@pytest.mark.parametrize(
    ("sizes", "batch_size", "n_ranks"),
    [
        ([26] * 20, 130, 1),  # a quarter
        ([50] * 4, 64, 1),  # not less than 64
        ([100] * 30, 512, 1),  # which is a sixth
        ([8] * 100, 400, 1),  # four of a class, or many an anchor has no positive
        ([3000, 3000], 510, 3),
    ],
)
def test_an_epoch_of_few_images_has_several_steps(
    sizes: list[int], batch_size: int, n_ranks: int
) -> None:
    config, messages = adapted(sizes, {}, config=TrainConfig(), n_ranks=n_ranks)
    assert config.batch_size == batch_size
    assert [f"batch_size {batch_size} instead of 512" in message for message in messages] == [
        True
    ] * (batch_size != 512)
    assert (
        adapted(sizes, {"batch_size": 90}, config=TrainConfig())[0].batch_size == 90
    )  # a given size stays


def test_splits_that_are_too_small_are_refused() -> None:
    for split, sizes in {"training": (1, 1), "validation": (2, 2), "test": (2, 1, 2)}.items():
        check_split(split, labels_of(*sizes))
    with pytest.raises(InputError, match=r"validation split .* has 1\..* last epoch"):
        check_split("validation", labels_of(3, 1))


def test_too_few_images_are_refused_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = prepare_tiny(tmp_path, n_classes=12, n_images=6)["train"]
    assert len(store) < 50
    command = ["train", "--dataset", "tiny", "--data-dir", str(tmp_path), *QUICK, "--dry-run"]
    assert main(command) == 1
    err = capsys.readouterr().err
    assert f"{len(store.class_names)} and {len(store)}" in err
    assert "nearshot predict" in err
    assert main([*command, "--allow-few-images"]) == 0
