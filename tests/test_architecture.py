"""The direction of imports, and the public names."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nearshot

SOURCE = Path(nearshot.__file__).parent

# Who may import whom, beside itself. A part is a module or a package directly under nearshot.
FOUNDATION = {
    "devices",
    "errors",
    "io",
    "html",
    "checks",
    "progress",
    "randomness",
    "episode_shape",
    "styles",
    "text",
    "_version",
}
MAY_IMPORT: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "devices": {"errors"},
    "io": {"errors"},
    "html": set(),
    "styles": set(),
    "progress": {"errors"},
    "text": {"io"},
    "checks": set(),
    "randomness": {"errors", "checks"},
    "episode_shape": {"errors", "checks"},
    "distances": FOUNDATION,
    "data": FOUNDATION,
    "models": FOUNDATION,
    "losses": FOUNDATION | {"distances"},
    "evaluation": FOUNDATION | {"distances"},
    "training": FOUNDATION | {"data", "models", "losses", "evaluation"},
    "runs": FOUNDATION | {"data", "models", "losses", "evaluation", "training"},
    "experiments": FOUNDATION | {"data", "models", "losses", "evaluation", "training", "runs"},
    "estimator": FOUNDATION | {"distances", "data", "models", "evaluation"},
    "__main__": {"cli"},
    "cli": FOUNDATION | {"data", "models", "losses", "evaluation", "training", "runs", "experiments", "estimator"},
    "__init__": FOUNDATION | {"models", "estimator"},
}
FILES = sorted(SOURCE.rglob("*.py"))


def imported_parts(path: Path) -> set[str]:
    """The parts of nearshot that a file imports, anywhere in it."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, which this test does not follow"
            names = [
                f"{node.module}.{alias.name}" if node.module == "nearshot" else str(node.module) for alias in node.names
            ]
        else:
            continue
        parts |= {name.split(".")[1] for name in names if name.startswith("nearshot.")}
    return parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    forbidden = imported_parts(path) - MAY_IMPORT[part] - {part}
    assert not forbidden, f"{part} must not import {forbidden}"


def test_the_import_test_sees_imports(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "def f():\n    from nearshot.training import loop\nimport nearshot.losses.nca\nfrom nearshot import data\n"
    )
    assert imported_parts(probe) == {"training", "losses", "data"}


# A name here is a promise: leaving one out, or adding one, is a decision to be written down here and in the CHANGELOG.
PUBLIC_NAMES = {
    "nearshot": {"FewShotClassifier", "__version__", "load_backbone"},
    "nearshot.distances": {
        "DISTANCES",
        "Distance",
        "DistanceName",
        "cosine",
        "full_precision",
        "squared_euclidean",
        "unit_length",
    },
    "nearshot.episode_shape": {"EpisodeShape", "ImagesByClass"},
    "nearshot.errors": {"FileFormatError", "InputError", "LeakError", "MissingExtraError", "NearshotError", "look_up"},
    "nearshot.losses": {
        "ExpectedPairs",
        "PairCounts",
        "count_pairs",
        "cross_entropy_loss",
        "episode_loss",
        "expected_pairs",
        "matching_loss",
        "mixed_loss",
        "nca_loss",
        "neighbour_loss",
        "prototypical_loss",
        "supervised_contrastive_loss",
    },
    "nearshot.evaluation": {
        "CLASSIFIERS",
        "Accuracy",
        "Adam",
        "ClassAccuracy",
        "Comparison",
        "Episodes",
        "FeatureSet",
        "Measured",
        "PooledAccuracy",
        "Protocol",
        "Treatment",
        "check_distinct_content",
        "check_unseen_classes",
        "compare",
        "embed",
        "evaluate_classes",
        "evaluate_features",
        "evaluate_fine_tuned",
        "evaluate_mahalanobis",
        "evaluate_many",
        "load_features",
        "pool_seeds",
        "prepare_features",
        "read_episodes",
        "sample_episodes",
        "save_features",
        "score_predictions",
        "select_best",
        "write_episodes",
    },
    "nearshot.data": {
        "SOURCES",
        "EpisodeBatches",
        "EpisodeShape",
        "ImageFeed",
        "IndependentBatches",
        "Residence",
        "ShuffledBatches",
        "Store",
        "choose_residence",
        "open_files",
        "open_or_prepare",
        "plan_folder",
        "plan_omniglot",
        "prepare",
        "prepare_folder",
        "prepare_plan",
    },
    "nearshot.estimator": {
        "AccuracyEstimate",
        "Embedder",
        "Explanation",
        "FewShotClassifier",
        "Neighbour",
        "SupportFolder",
        "export_onnx",
        "read_support",
    },
    "nearshot.training": {
        "METHODS",
        "PRESETS",
        "Hardware",
        "RunFolder",
        "TrainConfig",
        "TrainResult",
        "train",
    },
    "nearshot.experiments": {"RECIPES", "Reproduction", "Results", "reproduce"},
    "nearshot.models": {
        "BACKBONES",
        "IMAGENET",
        "Backbone",
        "BackboneSpec",
        "LinearHead",
        "Normalisation",
        "ProjectionHead",
        "build_backbone",
        "load_backbone",
        "read_notes",
        "save_backbone",
    },
}


@pytest.mark.parametrize("module_name", PUBLIC_NAMES)
def test_public_names(module_name: str) -> None:
    module = importlib.import_module(module_name)
    assert set(module.__all__) == PUBLIC_NAMES[module_name]
    for name in module.__all__:
        assert hasattr(module, name)


def api_page() -> dict[str, set[str] | None]:
    """The modules on the page about the API, and the names that are chosen of each; None for all."""
    text = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
    found = re.findall(r"^::: (\S+)(?:\n +options: .*?members: \[(.*?)\])?", text, re.MULTILINE)
    return {module: set(chosen.split(", ")) if chosen else None for module, chosen in found}


def is_documented(module_name: str, name: str) -> bool:
    """Whether a name has words of its own, in the module or where that has it from: without, the page leaves it out."""
    path = Path(str(importlib.import_module(module_name).__file__))
    if path.name == "__init__.py" and (path.parent / f"{name}.py").exists():
        return False  # the page would take the module of that name for it
    body = ast.parse(path.read_text()).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return ast.get_docstring(node) is not None
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return is_documented(str(node.module), name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if name in [target.id for target in targets if isinstance(target, ast.Name)]:
            return isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    return False


@pytest.mark.parametrize("module_name", PUBLIC_NAMES)
def test_every_public_name_is_on_the_page_about_the_api(module_name: str) -> None:
    public = importlib.import_module(module_name)
    shown = {
        id(getattr(importlib.import_module(module), name))
        for module, chosen in api_page().items()
        for name in importlib.import_module(module).__all__
        if (chosen is None or name in chosen) and is_documented(module, name)
    }
    missing = [name for name in PUBLIC_NAMES[module_name] - {"__version__"} if id(getattr(public, name)) not in shown]
    assert not missing


def test_importing_nearshot_brings_in_no_extra() -> None:
    text = "\n".join(path.read_text() for path in FILES)
    for extra in ("torchvision", "pytorch_metric_learning"):
        assert f"import {extra}" not in text
        assert f"from {extra}" not in text


def test_scikit_learn_is_imported_when_the_classifier_is_asked_for() -> None:
    code = (
        "import sys, nearshot, nearshot.training\n"
        "assert 'sklearn' not in sys.modules\n"
        "nearshot.FewShotClassifier\n"
        "assert 'sklearn' in sys.modules\n"
        "nearshot.FewShotClassifiers\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]  # and what was meant, which Python finds among the names that there are
    assert said.startswith("AttributeError: module 'nearshot' has no attribute 'FewShotClassifiers'")
