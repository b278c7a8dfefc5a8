"""The documentation shows what the programs printed."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nearshot.cli import main
from nearshot.evaluation import FeatureSet, save_features
from nearshot.paper.numbers import ERRATA

ROOT = Path(__file__).parent.parent
BENCHMARK_RESULTS = ROOT / "benchmarks" / "results"


def test_the_tutorial_shows_the_output_of_the_demo() -> None:
    output = (ROOT / "results" / "demo" / "compare_losses.txt").read_text()
    assert output.strip("\n") in (ROOT / "docs" / "first-run.md").read_text()


def test_the_pages_show_the_tables_and_figures_that_were_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    from fill import figures, filled, pages

    with_tables = [page for page in pages() if "<!-- from " in page.read_text()]
    assert len(with_tables) > 3
    for page in with_tables:
        assert filled(page.read_text()) == page.read_text(), (
            f"{page.name} is out of date: make fill"
        )
    shown = {kept: source for page in pages() for kept, source in figures(page.read_text()).items()}
    assert len(shown) > 1
    for kept, source in shown.items():
        assert kept.read_bytes() == source.read_bytes(), f"{kept.name} is out of date: make fill"


def test_the_summary_is_that_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    from summary import summary

    assert (ROOT / "results" / "tables" / "summary.md").read_text() == summary()


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ("paper", ["--seeds", "3"]),
        pytest.param("32px", ["--seeds", "1", "--input-size", "32"], marks=pytest.mark.slow),
    ],
)
def test_the_tables_are_those_of_the_results(
    size: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "results" / size, tmp_path / size)
    options = ["--tables-only", "--results", str(tmp_path), *options]
    assert main(["reproduce", "--all", "--dataset", "cifar-fs", *options]) == 0, capsys.readouterr()
    if size == "paper":  # the committed tables have two of miniImageNet
        command = ["reproduce", "comparison", "claims", "--dataset", "mini-imagenet", *options]
        assert main(command) == 0, capsys.readouterr()
    committed = sorted((ROOT / "results" / "tables" / size).glob("*.md"))
    assert len(committed) > 6
    for file in committed:
        assert (tmp_path / "tables" / size / file.name).read_text() == file.read_text(), file.name


def test_the_errata_are_those_that_the_tables_know() -> None:
    page = (ROOT / "docs" / "errata.md").read_text().splitlines()
    rows = [
        f"| {erratum.where} | {erratum.printed} | {erratum.follows} | {erratum.reason} |"
        for erratum in ERRATA
    ]
    assert set(rows) < set(page)


ESTIMATOR_FIGURES = ("rejection", "calibration", "estimate")


def read_report(name: str) -> Any:
    return json.loads((BENCHMARK_RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("dataset", ["cifar-fs", "glyphs"])
def test_the_estimators_tables_come_from_their_numbers(
    dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import estimator_report

    name = f"estimator-{dataset}"
    figures = {kind: f"figures/{name}-{kind}.png" for kind in ESTIMATOR_FIGURES}
    table = estimator_report.markdown(read_report(name), figures)
    assert table == (BENCHMARK_RESULTS / f"{name}.md").read_text()
    for figure in figures.values():
        assert (ROOT / "docs" / figure).is_file()


@pytest.mark.parametrize(
    ("module", "function", "report", "page"),
    [
        ("photos_report", "markdown", "photos", "photos.md"),
        ("photos_report", "summary", "photos", "photos-summary.md"),
        ("signs", "markdown", "signs", "signs.md"),
        ("honesty_report", "markdown", "honesty", "honesty.md"),
        ("mixture", "markdown", "mixture", "mixture.md"),
        ("mixture", "summary", "mixture", "mixture-summary.md"),
        ("transductive", "markdown", "transductive", "transductive.md"),
    ],
)
def test_the_tables_of_photos_come_from_their_numbers(
    module: str, function: str, report: str, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    table = getattr(importlib.import_module(module), function)(read_report(report))
    assert table == (BENCHMARK_RESULTS / page).read_text()


@pytest.mark.slow
def test_the_benchmark_of_the_classifier_runs(tmp_path: Path) -> None:
    """In a small form: it uses private attributes of a classifier, which no other test does."""
    torch.manual_seed(0)
    labels = torch.arange(12).repeat_interleave(16)
    features = torch.randn(12, 8)[labels] + torch.randn(len(labels), 8)
    save_features(FeatureSet(features, labels), tmp_path / "features.safetensors")
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "estimator.py"),
        "--features",
        "features.safetensors",
    ]
    command += ["--name", "clouds", "--tasks", "3", "--output", ".", "--figures", "figures"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "estimator-clouds.json").read_text())
    assert list(report["shots"]) == ["1", "2", "5", "10"]
    assert (tmp_path / "estimator-clouds.md").read_text() in done.stdout
    assert len(list((tmp_path / "figures").glob("estimator-clouds-*.png"))) == 3
