"""The documentation shows what the programs printed."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nearshot.cli import main
from nearshot.evaluation import FeatureSet, save_features
from nearshot.paper import Results
from nearshot.paper.claims import claims_as_table
from nearshot.paper.numbers import ERRATA
from nearshot.paper.recipe import Found
from nearshot.paper.scales import QUICK

ROOT = Path(__file__).parent.parent


def test_the_readme_shows_the_demos_own_output() -> None:
    output = (ROOT / "results" / "demo" / "compare_losses.txt").read_text()
    assert output.strip("\n") in (ROOT / "README.md").read_text()


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
    ("scale", "options"),
    [
        ("paper", ["--seeds", "3"]),
        pytest.param("32px", ["--seeds", "1", "--input-size", "32"], marks=pytest.mark.slow),
    ],
)
def test_the_tables_are_those_of_the_results(
    scale: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "results" / scale, tmp_path / scale)
    asked = [
        "reproduce",
        "--all",
        "--dataset",
        "cifar-fs",
        "--tables-only",
        "--results",
        str(tmp_path),
        *options,
    ]
    assert main(asked) == 0, capsys.readouterr().err
    if scale == "paper":  # of miniImageNet, one table
        asked = ["reproduce", "comparison", "--dataset", "mini-imagenet", *asked[4:]]
        assert main(asked) == 0, capsys.readouterr().err
    written = sorted((ROOT / "results" / "tables" / scale).glob("*.md"))
    assert len(written) > 6
    for file in written:
        assert (tmp_path / "tables" / scale / file.name).read_text() == file.read_text(), file.name


def test_the_quick_form_was_run_with_the_statements_that_there_are(tmp_path: Path) -> None:
    """Its results are not in the repository, but its table of claims is."""

    def statements(table: str) -> list[list[str]]:
        return sorted(line.split(" | ")[:2] for line in table.splitlines() if line.startswith("| "))

    written = (ROOT / "results" / "tables" / "quick" / "claims-glyphs.md").read_text()
    now = claims_as_table(Found(Results(tmp_path), QUICK, (0,)), "cifar-fs").as_markdown()
    assert len(statements(now)) > 20
    assert statements(written) == statements(now), "out of date: nearshot reproduce --all --quick"


def test_the_time_of_the_quick_form_is_the_one_that_it_wrote_down() -> None:
    note = json.loads((ROOT / "results" / "quick" / "last-run.json").read_text())
    page = (ROOT / "docs" / "reproduce.md").read_text().splitlines()
    (said,) = [line for line in page if "reproduce --all --quick" in line and "minutes" in line]
    assert f" {note['seconds'] / 60:.0f} minutes" in said
    assert f" {note['done']} runs" in said
    assert note["failed"] == note["done_before"] == 0
    assert note["environment"]["command"][1:4] == [
        "reproduce",
        "--all",
        "--quick",
    ]  # and where to put things


def test_the_errata_are_those_that_the_tables_know() -> None:
    page = (ROOT / "docs" / "errata.md").read_text().splitlines()
    rows = [f"| {one.where} | {one.printed} | {one.follows} | {one.reason} |" for one in ERRATA]
    assert set(rows) < set(page)


def pictures(name: str) -> dict[str, str]:
    return {
        kind: f"figures/estimator-{name}-{kind}.png"
        for kind in ("rejection", "calibration", "estimate")
    }


@pytest.mark.parametrize(
    ("module", "function", "report", "page", "images"),
    [
        (
            "estimator_report",
            "markdown",
            "estimator-cifar-fs.json",
            "estimator-cifar-fs.md",
            [pictures("cifar-fs")],
        ),
        (
            "estimator_report",
            "markdown",
            "estimator-glyphs.json",
            "estimator-glyphs.md",
            [pictures("glyphs")],
        ),
        ("photos_report", "markdown", "photos.json", "photos.md", []),
        ("photos_report", "summary", "photos.json", "photos-summary.md", []),
        ("photos_report", "short_summary", "photos.json", "photos-readme.md", []),
        ("signs", "markdown", "signs.json", "signs.md", []),
    ],
)
def test_the_tables_of_benchmarks_are_of_the_numbers_beside_them(
    module: str,
    function: str,
    report: str,
    page: str,
    images: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    results = ROOT / "benchmarks" / "results"
    written = getattr(importlib.import_module(module), function)(
        json.loads((results / report).read_text()), *images
    )
    assert written == (results / page).read_text()
    assert all((ROOT / "docs" / file).is_file() for one in images for file in one.values())


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
