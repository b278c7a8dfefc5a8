"""The tutorial and every example run."""

import importlib.util
import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.tutorial import TUTORIAL, printed, steps

from nearshot.data import prepare_plan
from nearshot.data.datasets.glyphs import GLYPHS_SIDE, IMAGES_PER_CLASS, plan_glyphs

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = TUTORIAL.parent / "notebooks"
# Options that make an example quick, and text that it must print.
QUICK = {
    "classify_my_photos.py": ([], "shin/5.png: shin"),
    "compare_losses.py": (["--steps", "2", "--seeds", "2"], "2 seeds"),
    "own_loss.py": (["--steps", "2"], "relation_network, 5-shot"),
}
SLOW = ("compare_losses.py", "own_loss.py")


@pytest.mark.parametrize(
    ("page", "with_onnx"),
    [
        ("tutorial", False),
        pytest.param("tutorial", True, marks=pytest.mark.slow),
        pytest.param("first-run", False, marks=pytest.mark.slow),
    ],
)
def test_every_line_of_a_page(
    page: str, with_onnx: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers may differ between machines in their last digits; labels, files and words may not."""
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "data"))
    (tmp_path / "docs").symlink_to(TUTORIAL.parent)
    lines = list(steps((TUTORIAL.parent / f"{page}.md").read_text(encoding="utf-8")))
    assert len(lines) >= 5
    for step in lines:
        if "onnx" in step.code and not (with_onnx and importlib.util.find_spec("onnxruntime")):
            continue
        assert _without_numbers(printed(step, tmp_path)) == _without_numbers(step.expected), (
            step.code
        )


@pytest.mark.parametrize("n_steps", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_the_loop_of_ones_own(
    n_steps: int, glyphs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARSHOT_DATA", str(glyphs_dir))
    (step,) = steps((TUTORIAL.parent / "own-loop.md").read_text(encoding="utf-8"))
    code, n_replaced = re.subn("^N_STEPS = 100$", f"N_STEPS = {n_steps}", step.code, flags=re.M)
    assert n_replaced == 1
    output = printed(step._replace(code=code), tmp_path)
    assert _without_numbers(output) == _without_numbers(step.expected)
    if n_steps == 100:
        accuracy, expected = (float(text.split()[0]) for text in (output, step.expected))
        assert accuracy == pytest.approx(expected, abs=3)


def prepare_few_glyphs(data_dir: Path, *, n_letters: int, n_images: int) -> None:
    """Prepare the dataset "glyphs" with fewer letters and images."""
    plan = plan_glyphs()
    splits = {}
    for split, images in plan.splits.items():
        letters = images[: n_letters * IMAGES_PER_CLASS]
        splits[split] = [
            image for number, image in enumerate(letters) if number % IMAGES_PER_CLASS < n_images
        ]
    prepare_plan("glyphs", plan._replace(splits=splits), data_dir=data_dir, side=GLYPHS_SIDE)


@pytest.mark.parametrize("name", ["five-photos", "nca-and-prototypes"])
def test_code_of_notebook(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code runs as a script, and prints the stored output; numbers may differ."""
    if name == "nca-and-prototypes":
        prepare_few_glyphs(tmp_path / "data", n_letters=32, n_images=IMAGES_PER_CLASS)
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(NOTEBOOKS / "photos")
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    code = re.sub("^%.*", "", code, flags=re.MULTILINE)
    code = re.sub(r"\b(10|2)_000\b", "100", code)  # episodes
    code = re.sub(r"^(N_STEPS|EVERY) = .*", r"\1 = 1", code, flags=re.MULTILINE)
    code, trains = re.subn("^SEEDS = .*", "SEEDS = range(2)", code, flags=re.MULTILINE)
    assert trains == (name == "nca-and-prototypes")
    exec(compile(code, name, "exec"), {"__name__": "__main__"})  # noqa: S102
    stored = "".join(
        "".join(output.get("text", "")) for cell in cells for output in cell.get("outputs", [])
    )
    output = _without_signed_numbers(capsys.readouterr().out)
    expected = _without_signed_numbers(stored)
    if trains:  # fewer seeds have fewer numbers
        per_seed = re.compile(r"# ± #(, # ± #)*")
        output = per_seed.sub("# ± #", output)
        expected = per_seed.sub("# ± #", expected)
    assert output == expected


@pytest.mark.slow
@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("nbclient", "ipykernel")),
    reason="needs the extra docs",
)
@pytest.mark.filterwarnings("default")  # of Jupyter's own
@pytest.mark.parametrize("name", [path.stem for path in sorted(NOTEBOOKS.glob("*.ipynb"))])
def test_notebook(
    name: str, tmp_path: Path, glyphs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, and prints the stored output; numbers may differ."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("NEARSHOT_DATA", str(glyphs_dir))
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    expected = [_text_of(cell) for cell in notebook.cells]
    NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path / "notebooks")}}
    ).execute()
    assert [_text_of(cell) for cell in notebook.cells] == expected
    assert any(expected)


def _text_of(cell: Any) -> str:
    return _without_signed_numbers(
        "".join(output.get("text", "") for output in cell.get("outputs", []))
    )


def _without_signed_numbers(text: str) -> str:
    """Replace numbers with their signs: that of a difference near zero may differ."""
    return re.sub(r"[+-]#", "#", _without_numbers(text))


def _without_numbers(text: str) -> str:
    return " ".join(re.sub(r"[0-9][0-9.]*", "#", re.sub("fingerprint .*", "", text)).split())


@pytest.mark.parametrize(
    "example",
    ["classify_my_photos.py", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_example(
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == QUICK.keys()
    arguments, expected = QUICK[example]
    if example not in SLOW:
        prepare_few_glyphs(tmp_path / "data", n_letters=500, n_images=7)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example, *arguments, "--data-dir", str(tmp_path / "data")])
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    assert expected in capsys.readouterr().out
