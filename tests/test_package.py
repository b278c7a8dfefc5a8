"""The wheel works in an environment of its own, in a folder that has nothing of the repository."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from tests.helpers.layouts import class_folders, write_folder

from nearshot.models.weights import PUBLISHED

ROOT = Path(__file__).parents[1]
LARGEST_WHEEL = 40e6


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--wheel-dir", str(folder), str(ROOT)]
    environment = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    subprocess.run(command, check=True, env=environment)
    return next(folder.glob("nearshot-*.whl"))


@pytest.mark.slow
def test_the_wheel_has_the_published_weights_and_is_small(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in PUBLISHED:
        assert f"nearshot/models/published/{name}.safetensors" in names
    assert wheel.stat().st_size < LARGEST_WHEEL


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["auto", *PUBLISHED])
def test_an_installed_wheel_classifies_photos_anywhere(
    wheel: Path, tmp_path: Path, backbone: str
) -> None:
    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    install += ["--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    packages = next((environment / "lib").glob("python*/site-packages"))
    # The dependencies of this environment; links to editable packages in it are not followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    photos = tmp_path / "photos"
    write_folder(photos, class_folders("ab", 3, side=40))
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(environment / "bin" / "nearshot"), "predict", "--support", "photos", "photos"]
    command += ["--format", "json", "--backbone", backbone]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean | {"NEARSHOT_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(done.stdout)
    assert len(answers) == len(list(photos.rglob("*.png")))
    assert all(answer["label"] == Path(answer["image"]).parent.name for answer in answers)
    assert list((tmp_path / "data" / "embeddings").rglob("*.f16"))
    code = "import nearshot; print(nearshot.__file__)"
    location = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=clean, capture_output=True, text=True, check=True
    )
    assert Path(location.stdout.strip()).is_relative_to(environment)


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None  # as if it were not installed
import nearshot, nearshot.cli, nearshot.estimator, nearshot.runs, nearshot.training
from nearshot.errors import MissingExtraError
try:
    import nearshot.paper
except MissingExtraError as error:
    print(".[reproduce]" in str(error))
"""


def test_only_the_paper_needs_matplotlib() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MATPLOTLIB], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


WITHOUT_EXTRAS = """
import sys
for name in ("lightning_fabric", "matplotlib", "onnx", "starlette", "timm", "pillow_heif"):
    sys.modules[name] = None  # importing it is an error
import torch
import nearshot
from nearshot import FewShotClassifier
from nearshot.errors import MissingExtraError
from nearshot.evaluation import evaluate_features
from nearshot.losses import nca_loss
from nearshot.training import TrainConfig, train

features = torch.randn(60, 4)
labels = torch.arange(3).repeat_interleave(20)
nca_loss(features, labels)
evaluate_features(features, labels, n_way=3, n_shot=1, n_episodes=10)
FewShotClassifier(backbone=None).fit(features.numpy(), labels.numpy())
try:
    train(TrainConfig(dataset="nothing"), folder=sys.argv[1])
except MissingExtraError as error:
    print(error)
"""


def test_what_needs_no_extra_works_without(tmp_path: Path) -> None:
    """The rest says in a sentence which one it needs."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert ".[train]" in done.stdout


def test_importing_the_package_imports_no_library() -> None:
    """So it takes a tenth of a second."""
    code = "import sys, nearshot; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    imported = set(done.stdout.split())
    assert not imported & {"torch", "numpy", "sklearn", "scipy", "PIL", "tyro", "rich"}
