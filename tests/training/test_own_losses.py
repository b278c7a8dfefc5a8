"""A loss of one's own is told from others by its code and by what it was made with, in this process and the next."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nearshot.errors import InputError
from nearshot.training import PRESETS, TrainConfig, train
from nearshot.training.own_losses import name_of_own


class Margin(nn.Module):
    def __init__(self, margin: float | Tensor) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        same = labels[:, None] == labels
        distances = torch.cdist(embeddings, embeddings)
        return torch.where(same, distances, (self.margin - distances).relu()).mean()


@dataclass
class Weighed:
    weights: dict[str, float]

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return sum(self.weights.values()) * embeddings.square().mean()


class Slotted:
    __slots__ = ("__power",)

    def __init__(self, power: int) -> None:
        self.__power = power

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return embeddings.pow(self.__power).mean()


def closing_over(margin: object) -> Callable[..., Tensor]:
    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        scaled: Tensor = embeddings.mean() * float(margin)  # type: ignore[arg-type]
        return scaled

    return loss


def with_default(margin: float) -> Callable[..., Tensor]:
    def loss(embeddings: Tensor, labels: Tensor, margin: float = margin) -> Tensor:
        return embeddings.mean() * margin

    return loss


def of(margin: object, embeddings: Tensor, labels: Tensor) -> Tensor:
    return embeddings.mean()


def class_within(margin: int) -> Callable[..., Tensor]:
    class Within(nn.Module):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return embeddings.mean() * margin

    return Within()


def class_attribute(number: int) -> Callable[..., Tensor]:
    class With(nn.Module):
        margin = number

        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return embeddings.mean() * self.margin

    return With()


def wrapped(number: int) -> Callable[..., Tensor]:
    """A decorator each, around the same."""

    def thrice(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return wraps(loss)(lambda *given: 3 * loss(*given))

    def twice(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return wraps(loss)(lambda *given: 2 * loss(*given))

    def inverse(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return wraps(loss)(lambda *given: -loss(*given))

    return (thrice, twice, inverse)[number](partial(of, 1))


MAKERS: dict[str, Callable[[int], Callable[..., Tensor]]] = {
    "module": lambda number: Margin(float(number)),
    "buffer": lambda number: Margin(torch.tensor([1.0, number])),
    "partial of a method": lambda number: partial(Margin(float(number)).forward),
    "partial of an object": lambda number: partial(of, Margin(float(number))),
    "partial of an array": lambda number: partial(of, np.array([number])),
    "dataclass": lambda number: Weighed({"a": 1.0, "b": float(number)}),
    "slots": Slotted,
    "closure": closing_over,
    "closure over a closure": lambda number: closing_over(closing_over(number)),
    "class within": class_within,
    "class attribute": class_attribute,
    "decorator": wrapped,
    "compiled": lambda number: torch.compile(Margin(float(number))),
    "sparse": lambda number: partial(of, torch.tensor([number, 1.0]).to_sparse()),
    "default": lambda number: with_default(float(number)),
    "one line": lambda number: [lambda e, y: e.mean(), lambda e, y: e.abs().mean(), lambda e, y: 2 * e.mean()][number],
}


# What torch.compile imports is deprecated by torch itself.
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@compiles
@pytest.mark.parametrize("kind", MAKERS)
def test_another_margin_is_another_loss_and_the_same_is_the_same(kind: str) -> None:
    make = MAKERS[kind]
    assert len({name_of_own(make(number)) for number in range(3)}) == 3
    assert name_of_own(make(1)) == name_of_own(make(1))


def test_a_number_or_function_beside_the_loss_counts() -> None:
    def made(number: int, helper: str) -> Callable[..., Tensor]:
        there: dict[str, object] = {"__name__": "mine", "NUMBER": number}
        exec(f"def helper(e): return {helper}\ndef loss(e, y): return NUMBER * helper(e)", there)  # noqa: S102
        return there["loss"]  # type: ignore[return-value]

    names = {name_of_own(made(*given)) for given in ((1, "e"), (2, "e"), (1, "-e"))}
    assert len(names) == 3
    assert name_of_own(made(1, "e")) in names


def test_what_is_met_again_and_again_takes_no_time() -> None:
    """A value in many places, and functions that call each other."""
    held: object = 1.0
    for _ in range(60):
        held = [held, held]
    assert name_of_own(partial(of, held)) != name_of_own(partial(of, [held, 1]))
    there: dict[str, object] = {"__name__": "mine"}
    calls = " + ".join(f"f{number}(e)" for number in range(12))
    exec("\n".join(f"def f{number}(e): return {calls}" for number in range(12)), there)  # noqa: S102
    assert name_of_own(there["f3"]).startswith("own-f3-")  # type: ignore[arg-type]


def test_a_log_or_a_lock_is_nothing_of_a_loss() -> None:
    def made() -> Callable[..., Tensor]:
        loss = Margin(1.0)
        loss.log, loss.lock = logging.getLogger("a"), threading.Lock()  # type: ignore[assignment]
        return loss

    before = name_of_own(made())
    logging.getLogger("another").addHandler(logging.NullHandler())
    assert name_of_own(made()) == before


@compiles
def test_compiling_a_loss_does_not_make_it_another() -> None:
    loss = Margin(1.0)
    before = name_of_own(loss)
    assert name_of_own(torch.compile(loss)) == name_of_own(loss) == before


def test_what_is_too_deep_is_said() -> None:
    held: object = 1.0
    for _ in range(10_000):
        held = [held]
    with pytest.raises(InputError, match="The loss of holds things too deep"):
        name_of_own(partial(of, held))


def test_what_is_within_itself_has_a_name() -> None:
    around = Margin(1.0)
    around.self = [around]  # type: ignore[assignment]
    assert name_of_own(around).startswith("own-Margin-")


@compiles
def test_another_process_gives_the_same_names() -> None:
    """Whatever the seed of its hashes and the places in memory."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_own_losses as t\n"
    code += "print([t.name_of_own(make(1)) for make in t.MAKERS.values()])"
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": "7"})
    assert done.stdout.strip() == repr([name_of_own(make(1)) for make in MAKERS.values()])


def test_a_loss_that_counts_keeps_its_name_while_it_is_trained() -> None:
    loss = Weighed({"a": 1.0})
    config = TrainConfig(method=loss)
    first = config.method_name
    loss.weights["n_calls"] = 3.0
    assert config.method_name == config.as_dict()["method"] == first
    assert replace(config).method_name != first


def test_a_sweep_over_a_margin_is_trained_for_each(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = replace(
        PRESETS["glyphs-nca"], dataset="tiny", epochs=1, batch_size=16, validation_way=2, validation_episodes=20
    )
    losses = [
        train(replace(base, method=Margin(margin)), data_dir=data_dir, resume=True, show=False).history[-1]["loss"]
        for margin in (0.1, 50.0)
    ]
    assert losses[1] > losses[0] + 10
    folder = next(Path("runs").iterdir())
    with pytest.raises(InputError, match="method"):
        train(replace(base, method=Margin(7.0)), folder=folder, data_dir=data_dir, resume=True, show=False)


def test_a_loss_that_counts_goes_on_in_the_same_process(data_dir: Path, tmp_path: Path) -> None:
    class Counting:
        n_calls = 0

        def __call__(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            self.n_calls += 1
            return embeddings.square().mean()

    loss = Counting()
    config = replace(
        PRESETS["glyphs-nca"], dataset="tiny", method=loss, epochs=1, batch_size=16, validation_episodes=20
    )
    for _ in range(2):
        train(
            config,
            folder=tmp_path / "run",
            data_dir=data_dir,
            fit=("validation_way", "validation_queries"),
            resume=True,
            show=False,
        )
    assert loss.n_calls > 0
