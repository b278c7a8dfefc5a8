"""A release: one version, a source distribution to build from, and a wheel that works anywhere by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from layouts import class_folders, write_folder

from nearshot import __version__
from nearshot.models.weights import PUBLISHED

ROOT = Path(__file__).parents[1]
LARGEST_WHEEL = 40e6
CONSTRAINED = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}


def test_the_citation_has_the_version_of_the_package() -> None:
    found = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == __version__


def build(origin: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(origin)]
    subprocess.run(command, check=True, env=os.environ | CONSTRAINED)
    return next(folder.glob("nearshot-*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_a_wheel_can_be_built_from_the_source_distribution(wheel: Path, tmp_path: Path) -> None:
    """It has the same files as one built from the repository."""
    environment = os.environ | CONSTRAINED | {"PYTHONPATH": str(tmp_path / "tools")}
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--target", str(tmp_path / "tools"), "hatchling"]
    hatch = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    for command in (pip, hatch):
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    again = build(tmp_path / f"nearshot-{__version__}.tar.gz", tmp_path / "again")
    built, expected = ({one.filename: one.CRC for one in zipfile.ZipFile(path).infolist()} for path in (again, wheel))
    assert built == expected
    assert len(built) > 100


@pytest.mark.slow
def test_the_wheel_has_the_published_weights_and_is_small(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in PUBLISHED:
        assert f"nearshot/models/published/{name}.safetensors" in names
    assert wheel.stat().st_size < LARGEST_WHEEL


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["auto", *PUBLISHED])
def test_an_installed_wheel_classifies_photos_anywhere(wheel: Path, tmp_path: Path, backbone: str) -> None:
    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*install, str(wheel)], check=True)
    packages = next((environment / "lib").glob("python*/site-packages"))
    # The dependencies of this environment; links to editable packages in it are not followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    photos = tmp_path / "photos"
    write_folder(photos, class_folders("ab", 3, side=40))
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(environment / "bin" / "nearshot"), "predict", "--support", "photos", "photos", "--format", "json"]
    done = subprocess.run(
        [*command, "--backbone", backbone],
        cwd=tmp_path,
        env=clean | {"NEARSHOT_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(done.stdout)
    assert len(answers) == len(list(photos.rglob("*.png")))
    assert all(answer["label"] == Path(answer["image"]).parent.name for answer in answers)
    assert list((tmp_path / "data" / "embeddings").rglob("*.f32"))
    where = subprocess.run([python, "-c", "import nearshot; print(nearshot.__file__)"], cwd=tmp_path, env=clean,
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(environment)
