"""Defaults that fit the data: a practitioner's first training needs no options, and what was asked for stays."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from settings import TINY, labels_of

from nearshot.cli import main
from nearshot.cli.train import fitted_settings
from nearshot.data import Store
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.models import build_backbone, save_backbone
from nearshot.training import PRESETS, TrainConfig, fitting, train
from nearshot.training.autoconfig import TRAINING, fitted
from nearshot.training.batches import make_batches
from nearshot.training.methods import resolve_method

QUICK = ["--backbone", "conv4-32", "--input-size", "16", "--epochs", "1", "--validation-episodes", "10"]
CHANGES = [
    "A batch of 512 different images needs that many; the training split has 72: batches of 72.",
    "5-way episodes need 5 classes; the validation split has 2: 2-way.",
    "5 shots and 15 queries need 20 images of a class; the validation split has classes of 12: 7 queries.",
]
EPISODIC = TrainConfig(method="prototypical")
Photos = Callable[..., list[str]]


@pytest.fixture
def photos(tmp_path: Path) -> Photos:
    """Make a folder of the user's own pictures, ten classes of twelve; gives the options that train on it."""

    def make(
        n_classes: int = 10, n_images: int = 12, *options: str, tiny: int | None = None, n_tiny: int = 2
    ) -> list[str]:
        chance = np.random.default_rng(0)
        folder = tmp_path / f"photos-{n_classes}"
        for number in range(n_classes):
            (folder / f"kind {number}").mkdir(parents=True)
            for image in range(n_tiny if number == tiny else n_images):
                pixels = chance.integers(256, size=(16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"kind {number}" / f"{image}.png")
        where = ["--data-dir", str(tmp_path / "data")]
        assert main(["data", "prepare", str(folder), *where, "--side", "16", *options]) == 0
        return ["--dataset", str(folder), *where]

    return make


def settings_of(out: str) -> dict[str, object]:
    settings: dict[str, object] = json.loads(out[: out.index("\n}") + 2])
    return settings


def test_a_first_training_and_evaluation_need_no_options(
    photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", *photos(), *QUICK, "--output", str(tmp_path / "run")]
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert main(command) == 0
    said = capsys.readouterr().err.splitlines()
    for change in CHANGES:
        assert change in dry.splitlines()
        assert change in said
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (written["batch_size"], written["validation_way"], written["validation_queries"]) == (72, 2, 7)
    for name in TRAINING:
        assert settings_of(dry)[name] == written[name]
    assert main([*command, "--resume"]) == 0  # the same training, by the settings that it resolves to
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), *command[3:5], "--episodes", "10", "--way", "3"]) == 1
    assert "There are 2 classes; episodes need 3. Ask for fewer ways." in capsys.readouterr().err
    assert not (tmp_path / "run" / "evaluations").exists()  # nothing was begun
    assert main(["evaluate", str(tmp_path / "run"), *command[3:5], "--episodes", "10", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "5-way episodes need 5 classes; the test split has 2: 2-way." in err
    protocol = json.loads(out)[0]["accuracy"]["protocol"]
    assert (protocol["n_way"], protocol["n_query"]) == (2, 7)


def test_a_resumed_run_keeps_what_was_fitted_when_it_began(
    photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it would be fitted otherwise today, as on another number of devices or by another rule."""
    command = ["train", *photos(), *QUICK, "--output", str(tmp_path / "run")]
    assert main(command) == 0
    begun = (tmp_path / "run" / "config.json").read_text()
    monkeypatch.setattr(fitting, "LEAST_BATCH", 20)
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    assert settings_of(capsys.readouterr().out)["batch_size"] != json.loads(begun)["batch_size"]
    assert main([*command, "--resume"]) == 0
    assert (tmp_path / "run" / "config.json").read_text() == begun


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--batch-size", "512"], "different images needs that many; there are 72. Lower --batch-size."),
        (["--batch_size=512"], "A batch of 512 different images needs that many"),
        (["--validation-way", "5"], "lower --validation-way"),
        (["--preset", "cifar-fs-nca"], "lower --validation-way"),
        (["--method", "prototypical", "--images-per-class", "16"], "has 12 images"),
    ],
)
def test_what_is_asked_for_is_obeyed_or_refused(
    options: list[str], sentence: str, photos: Photos, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *photos(), *QUICK, "--dry-run", *options]) == 1
    assert sentence in capsys.readouterr().err


def test_what_fits_is_left_as_it_is(photos: Photos, capsys: pytest.CaptureFixture[str]) -> None:
    data = photos()
    capsys.readouterr()
    given = ["--batch-size", "24", "--validation-way", "2", "--validation-queries", "3"]
    assert main(["train", *data, *QUICK, "--dry-run", *given]) == 0
    out = capsys.readouterr().out
    assert (settings_of(out)["batch_size"], settings_of(out)["validation_queries"]) == (24, 3)
    assert "need" not in out


def test_episodes_of_a_training_fit_too(photos: Photos, capsys: pytest.CaptureFixture[str]) -> None:
    data = photos()
    capsys.readouterr()
    assert main(["train", *data, *QUICK, "--dry-run", "--method", "prototypical"]) == 0
    out = capsys.readouterr().out
    assert "has 6 classes of 12 images or more: episodes of 6 × 12 = 72 images, 5-shot." in out
    assert settings_of(out)["batch_size"] == 72
    assert main(["train", *data, *QUICK, "--dry-run", "--method", "prototypical", "--batch-size", "64"]) == 1
    said = capsys.readouterr().err
    assert "No training episodes have --batch-size 64: the training split has 6 classes, and the smallest" in said
    assert "has 12 images. 5 × 12 = 60 images, 5-shot, would fit." in said


def test_a_batch_that_nobody_gave_goes_with_the_images_per_class_that_somebody_did(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--dataset", "tiny", "--data-dir", str(data_dir), "--method", "prototypical", "--dry-run"]
    given = ["--images-per-class", "12", "--n-shot", "2"]
    assert main([*command, *given]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^A batch of \d+ does not divide into classes of 12 images, and \d+ images are to make several batches: "
        r"episodes of .* images, 2-shot\.$",
        out,
        re.M,
    )
    assert settings_of(out)["images_per_class"] == 12
    assert int(str(settings_of(out)["batch_size"])) % 12 == 0
    assert main([*command, *given, "--batch-size", "64"]) == 1
    assert "A batch of 64 does not divide into classes of 12 images. Use" in capsys.readouterr().err
    assert main([*command, "--images-per-class", "5", "--n-shot", "5"]) == 1
    assert "5 images per class leave no query beside 5 shots." in capsys.readouterr().err


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_never_gives_way_and_its_dataset_needs_not(preset: str) -> None:
    assert fitted_settings(["train", "--preset", preset, "--images-per-class", "12"]) == ()
    assert "batch_size" in fitted_settings(["train", "--dataset", PRESETS[preset].dataset, "--images-per-class", "12"])
    assert fitted_to([600] * 64, {}, config=PRESETS[preset]) == (PRESETS[preset], [])


def test_where_nothing_fits_one_message_says_all(
    photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = photos(2, 12, "--fractions", "0.5", "0.5", "0")
    capsys.readouterr()
    assert main(["train", *data, *QUICK]) == 1
    said = capsys.readouterr().err
    for part in ("training split has 1 class", "validation split has 1 class", "--fractions", "--train-classes"):
        assert part in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_from_python_nothing_gives_way_unasked(data_dir: Path, tmp_path: Path) -> None:
    too_much = replace(TINY, epochs=1, batch_size=4096)
    with pytest.raises(InputError, match="A batch of 4096"):
        train(too_much, folder=tmp_path / "run", data_dir=data_dir, show=False)
    for slip, message in (
        (("batchsize",), "no setting that can be fitted 'batchsize'.* Did you mean 'batch_size'"),
        ("batch_size", r"fit must be several names; for one, write \['batch_size'\]"),
    ):
        with pytest.raises(InputError, match=message):
            train(too_much, folder=tmp_path / "run", data_dir=data_dir, show=False, fit=slip)
    result = train(too_much, folder=tmp_path / "run", data_dir=data_dir, show=False, fit=("batch_size",))
    assert result.finished
    assert json.loads((result.folder / "config.json").read_text())["batch_size"] == 64  # of 200


def test_a_class_of_a_single_image_that_nobody_lets_be_left_out_is_named(
    photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    all_classes = tmp_path / "all"
    all_classes.write_text("".join(f"kind {number}\n" for number in range(4)))
    data = photos(4, 6, "--test-classes", str(all_classes), tiny=3, n_tiny=1)
    save_backbone(build_backbone("conv4-32", input_size=16), tmp_path / "weights.safetensors")
    measure = ["evaluate", str(tmp_path / "weights.safetensors"), *data, "--episodes", "10"]
    assert main([*measure, "--least-images", "1"]) == 1
    said = capsys.readouterr().err
    assert (
        "Class 'kind 3' has 1 image; 1-shot with 1 query needs 2. Add images, or leave small classes out: --lea" in said
    )
    assert main(measure) == 0


def test_classes_are_left_out_of_episodes_alone() -> None:
    with pytest.raises(InputError, match="least_images leaves classes out of episodes, and shuffled batches have all"):
        resolve_method(TrainConfig(least_images=10))
    resolve_method(TrainConfig(least_images=10, batches="episodes"))


class Labelled:
    """What fitting looks at in a store."""

    def __init__(self, *sizes: int) -> None:
        self.labels, self.class_names = labels_of(*sizes), tuple(f"kind {number}" for number in range(len(sizes)))

    def __len__(self) -> int:
        return len(self.labels)


def fitted_to(
    sizes: Sequence[int], given: Mapping[str, int], *, n_ranks: int = 1, config: TrainConfig = EPISODIC
) -> tuple[TrainConfig, list[str]]:
    free = set(TRAINING) - given.keys()
    config = replace(config, **given)  # type: ignore[arg-type]
    return fitted(config, {"train": cast(Store, Labelled(*sizes))}, free, n_ranks=n_ranks)


@pytest.mark.parametrize(
    ("given", "sizes", "shape"),
    [
        ({"images_per_class": 12}, [12] * 10, EpisodeShape(10, 5, 7)),
        ({"images_per_class": 12}, [600] * 64, EpisodeShape(42, 5, 7)),  # as of CIFAR-FS
        ({"images_per_class": 4}, [40] * 200, EpisodeShape(128, 2, 2)),
        ({"batch_size": 64}, [12] * 10, EpisodeShape(8, 5, 3)),
        ({"batch_size": 64}, [40] * 3, EpisodeShape(2, 5, 27)),
        ({"batch_size": 68}, [40] * 20, EpisodeShape(4, 5, 12)),
        ({"n_shot": 7}, [10] * 6, EpisodeShape(6, 7, 3)),
        ({"n_shot": 10}, [600] * 64, EpisodeShape(32, 10, 6)),  # these go together as they are
        ({"n_shot": 20}, [600] * 64, EpisodeShape(12, 20, 20)),
        ({"n_way": 5, "n_query": 4}, [7] * 6, EpisodeShape(5, 3, 4)),
        ({}, [200] * 19 + [12], EpisodeShape(20, 5, 7)),
        ({}, [200] * 19 + [2], EpisodeShape(19, 5, 11)),
        ({}, [9, 1, 9], EpisodeShape(2, 5, 4)),
    ],
)
def test_what_is_free_goes_with_what_is_given(given: dict[str, int], sizes: list[int], shape: EpisodeShape) -> None:
    config, said = fitted_to(sizes, given)
    assert config.shape == shape
    make_batches(config, labels_of(*sizes), [])
    assert bool(said) == (config != replace(EPISODIC, **given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "sizes", "least_images"),
    [
        ({"batch_size": 160, "images_per_class": 8}, [40] * 19 + [3], 1),  # all of the twenty classes are needed
        ({"batch_size": 160, "images_per_class": 8}, [40] * 20 + [3], 4),
        ({"batch_size": 160}, [40] * 4 + [3], 4),
        ({"images_per_class": 16}, [40] * 4 + [3], 4),
        ({"n_way": 5, "n_query": 11}, [40] * 4 + [3], 1),
        ({"n_way": 4, "n_query": 11}, [40] * 4 + [3], 4),
    ],
)
def test_a_tiny_class_is_left_out_where_enough_are_left(
    given: dict[str, int], sizes: list[int], least_images: int
) -> None:
    assert fitted_to(sizes, given)[0].least_images == least_images


def test_episodes_that_would_leave_an_epoch_few_steps_say_so() -> None:
    config, said = fitted_to([20] * 40, {})
    assert config.shape == EpisodeShape(12, 5, 11)
    why = "The training split has 800 images, which are too few steps in batches of 512"
    assert said == [f"{why}: episodes of 12 × 16 = 192 images, 5-shot."]


@given(
    sizes=st.lists(st.integers(2, 40), min_size=2, max_size=30),
    batch_size=st.none() | st.integers(1, 300),
    per_class=st.none() | st.integers(2, 20),
    n_shot=st.none() | st.integers(1, 20),
    n_ranks=st.integers(1, 4),
)
def test_episodes_fit_or_one_sentence_says_why(
    sizes: list[int], batch_size: int | None, per_class: int | None, n_shot: int | None, n_ranks: int
) -> None:
    values = {"batch_size": batch_size, "images_per_class": per_class, "n_shot": n_shot}
    given = {name: value for name, value in values.items() if value is not None}
    try:
        config, said = fitted_to(sizes, given, n_ranks=n_ranks)
    except InputError as error:
        assert all(f"{name} {value}" in str(error) for name, value in given.items())
        return
    assert all(getattr(config, name) == value for name, value in given.items())
    left = [size for size in sizes if size >= config.least_images]
    assert len(sizes) - len(left) <= len(sizes) // 5
    for number in range(len(sizes)):
        assert sizes[number] in left or len(sizes) - len(left) > 5 or f"'kind {number}'" in said[0]
    if len(given) < 3 and (per_class or 0) <= min(left):
        make_batches(config, labels_of(*sizes), [], n_ranks=n_ranks)


@given(sizes=st.lists(st.integers(2, 40), min_size=2, max_size=8), batch_size=st.integers(4, 40))
def test_episodes_are_no_larger_than_the_settings(sizes: list[int], batch_size: int) -> None:
    config, _ = fitted_to(sizes, {}, config=replace(EPISODIC, batch_size=batch_size))
    assert config.shape.batch_size <= batch_size


@pytest.mark.parametrize(
    ("given", "sizes", "n_ranks", "said"),
    [
        (
            {"batch_size": 61},
            [12] * 10,
            1,
            r"have batch_size 61: .* 10 classes.* 5 × 12 = 60 images, 5-shot, would fit",
        ),
        ({"n_shot": 12}, [40, 12, 40], 1, r"have n_shot 12: .* smallest, 'kind 1', has 12 .* 3 × 12 = 36 images, 6-sh"),
        (
            {"least_images": 1},
            [9, 1, 9],
            1,
            r"Class 'kind 1' has 1 image; .* Add images, or leave small classes out: least_images 2\.",
        ),
        ({"least_images": 20}, [9, 9, 30], 1, r"There is 1 class of 20 images or more; episodes need 2\. .* leave out"),
        ({}, [1, 9, 1], 1, r"There is 1 class of 2 images or more; episodes need 2"),
        ({}, [2, 2], 8, r"that 8 devices share have .* Use fewer devices\."),
    ],
)
def test_what_cannot_fit_is_refused_in_one_sentence(
    given: dict[str, int], sizes: list[int], n_ranks: int, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        fitted_to(sizes, given, n_ranks=n_ranks)


def test_where_nothing_may_change_nothing_is_looked_at() -> None:
    """As of a run that is resumed: what does not fit is refused where it is needed."""
    stores = {"train": cast(Store, Labelled(9)), "val": cast(Store, Labelled(1, 1))}
    assert fitted(EPISODIC, stores, ()) == (EPISODIC, [])


def test_where_validation_alone_may_change_training_episodes_are_left_to_be_refused() -> None:
    stores = {"train": cast(Store, Labelled(*[9] * 4)), "val": cast(Store, Labelled(30, 30))}
    config, said = fitted(EPISODIC, stores, ("validation_way",))
    assert config == replace(EPISODIC, validation_way=2)
    assert said == ["5-way episodes need 5 classes; the validation split has 2: 2-way."]


def test_batches_divide_among_devices() -> None:
    config, said = fitted_to([3000, 3000], {}, n_ranks=3, config=TrainConfig())
    assert (config.batch_size, said) == (510, ["A batch of 512 does not divide among 3 devices: batches of 510."])


@pytest.mark.parametrize(
    ("sizes", "batch_size"),
    [
        ([26] * 20, 130),  # a quarter
        ([50] * 4, 64),  # not less than 64
        ([50] * 2, 100),  # of which there would be one, with images left over
        ([100] * 30, 512),  # which is a sixth
        ([8] * 100, 400),  # four of a class, or many an anchor has no positive
        ([5] * 100, 500),
    ],
)
def test_few_images_make_several_steps_an_epoch(sizes: list[int], batch_size: int) -> None:
    config, said = fitted_to(sizes, {}, config=TrainConfig())
    assert config.batch_size == batch_size
    assert bool(said) == (batch_size != 512)
    assert fitted_to(sizes, {"batch_size": 90}, config=TrainConfig())[0].batch_size == 90  # what is given stays
    if sizes == [26] * 20:
        assert said == ["The training split has 520 images, which are too few steps in batches of 512: batches of 130."]
        config, said = fitted_to(sizes, {})
        assert (config.shape, said) == (
            EpisodeShape(8, 5, 11),
            [
                "Episodes of 32 classes × 16 images are too large; the training split has 20 classes of 26 images or "
                "more, and 520 images are to make several batches: episodes of 8 × 16 = 128 images, 5-shot."
            ],
        )
    config, said = fitted_to([40] * 64, {}, n_ranks=3)
    assert (config.shape, said) == (
        EpisodeShape(30, 5, 11),
        ["A batch of 512 does not divide among 3 devices: episodes of 30 × 16 = 480 images, 5-shot."],
    )
    with pytest.raises(InputError, match="The training split has 3 images, too few for 8 devices"):
        fitted_to([2, 1], {}, n_ranks=8, config=TrainConfig())


@pytest.mark.parametrize(
    ("given", "sizes", "n_ranks", "shape"),
    [
        ({"n_shot": 40}, [100] * 3, 1, EpisodeShape(3, 40, 40)),
        ({"images_per_class": 9}, [20] * 10, 8, EpisodeShape(8, 5, 4)),
    ],
)
def test_few_steps_are_better_than_refusing_what_is_given(
    given: dict[str, int], sizes: list[int], n_ranks: int, shape: EpisodeShape
) -> None:
    assert fitted_to(sizes, given, n_ranks=n_ranks)[0].shape == shape


def test_a_tiny_class_is_left_out_by_name(photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    all_classes = tmp_path / "all"
    all_classes.write_text("".join(f"kind {number}\n" for number in range(6)))
    data = photos(6, 21, "--test-classes", str(all_classes), tiny=3)
    save_backbone(build_backbone("conv4-32", input_size=16), tmp_path / "weights.safetensors")
    measure = ["evaluate", str(tmp_path / "weights.safetensors"), *data, "--episodes", "10"]
    capsys.readouterr()
    assert main([*measure, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "Far smaller than the other classes of the test split, and so left out of episodes: 'kind 3' (2 im" in err
    for found in json.loads(out):
        protocol = found["accuracy"]["protocol"]
        assert (protocol["n_way"], protocol["n_query"], protocol["classes_left_out"]) == (5, 15, 1)
    assert [found["n_shot"] for found in json.loads(out)] == [1, 5]
    assert main(measure) == 0
    assert "1 small class left out" in " ".join(capsys.readouterr().out.split())
    assert main([*measure, "--least-images", "2", "--shots", "1", "5", "--queries", "15"]) == 1  # nothing is left out
    said = capsys.readouterr().err
    assert "'kind 3' has 2 images" in said
    assert "or leave small classes out: --least-images 20." in said
    assert main([*measure, "--least-images", "1000"]) == 1
    assert "There are 0 classes of 1000 images or more; episodes need 2." in capsys.readouterr().err
    for option, least in (("--least-images", 1), ("--way", 2), ("--shots", 1), ("--queries", 1)):
        assert main([*measure, option, "0"]) == 1
        assert capsys.readouterr().err == f"nearshot: {option} must be at least {least}, not 0.\n"  # and nothing before


def test_a_training_on_episodes_leaves_a_tiny_class_out_by_name(
    photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    all_classes = tmp_path / "all"
    all_classes.write_text("".join(f"kind {number}\n" for number in range(6)))
    data = photos(6, 21, "--train-classes", str(all_classes), tiny=3)
    run = ["train", *data, *QUICK, "--method", "prototypical", "--output", str(tmp_path / "run")]
    assert main(run) == 0
    said = capsys.readouterr().err
    assert "Far smaller than the other classes of the training split, and so left out of episodes: 'kind 3' (2" in said
    assert "has 5 classes of 21 images or more: episodes of 5 × 16 = 80 images, 5-shot." in said
    config = TrainConfig.from_dict(json.loads((tmp_path / "run" / "config.json").read_text()))
    assert (config.least_images, config.shape) == (3, EpisodeShape(5, 5, 11))
    assert main([*run, "--resume"]) == 0
    assert main([*run, "--overwrite", "--least-images", "1", "--images-per-class", "16"]) == 1
    assert "'kind 3' has 2 images" in capsys.readouterr().err
