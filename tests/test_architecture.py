"""The structure of the code: the direction of imports, and the public names."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nearshot

SOURCE = Path(nearshot.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Which part may import which, beside itself. A part is a module or a package directly under
# nearshot.
BASIC = {
    "_version",
    "allocator",
    "checks",
    "devices",
    "episode_shape",
    "errors",
    "io",
    "styles",
    "text",
}
FOUR = {"data", "models", "losses", "evaluation"}  # which never import each other
MAY_IMPORT: dict[str, set[str]] = {
    "_version": set(),
    "allocator": set(),
    "errors": set(),
    "checks": {"errors"},
    "styles": set(),
    "devices": {"errors"},
    "io": {"errors"},
    "text": {"io"},
    "episode_shape": {"errors", "checks", "text"},
    "distances": BASIC,
    "data": BASIC,
    "models": BASIC,
    "losses": BASIC | {"distances"},
    "evaluation": BASIC | {"distances"},
    "training": BASIC | FOUR | {"distances"},
    "runs": BASIC | FOUR | {"training"},
    "paper": BASIC | FOUR | {"training", "runs"},
    "estimator": BASIC | {"distances", "data", "models", "evaluation"},
    "app": BASIC | {"data", "models", "estimator"},
    "cli": BASIC | FOUR | {"training", "runs", "paper", "estimator", "app"},
    "__main__": {"cli"},
    "__init__": BASIC | {"models", "estimator"},
}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of everything of nearshot that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("nearshot."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, which this test does not follow"
            if node.module and node.module.split(".")[0] == "nearshot":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_parts(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    forbidden = imported_parts(path) - MAY_IMPORT[part] - {part} - set(nearshot.__all__)
    assert not forbidden, f"{part} must not import {forbidden}"


def test_the_import_test_sees_imports(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "def f():\n    from nearshot.training import loop\n"
        "import nearshot.losses.nca\n"
        "from nearshot import data\n"
    )
    assert imported_parts(probe) == {"training", "losses", "data"}


def test_the_kernels_have_one_entry() -> None:
    """Other packages use `can_fuse` and `fuse`; the modules of `models` need no kernels."""
    kernels = "nearshot.models.kernels"
    for path in FILES:
        names = {name for name in imports(path) if name.startswith(kernels)}
        if part_of(path) != "models":
            assert names <= {f"{kernels}.can_fuse", f"{kernels}.fuse"}, path
        elif path.parent == SOURCE / "models":
            assert not names, path


# A name here is a promise: removing or adding one is a decision for the CHANGELOG.
PUBLIC_NAMES: dict[str, list[str]] = {
    "nearshot": [
        "__version__",
        "FewShotClassifier",
        "load_backbone",
        "prepare_images",
    ],
    "nearshot.distances": [
        "cosine",
        "Distance",
        "DistanceName",
        "DISTANCES",
        "full_precision",
        "squared_euclidean",
        "unit_length",
    ],
    "nearshot.episode_shape": [
        "EpisodeShape",
        "ImagesByClass",
    ],
    "nearshot.errors": [
        "FileFormatError",
        "InputError",
        "LeakError",
        "look_up",
        "MissingExtraError",
        "NearshotError",
    ],
    "nearshot.losses": [
        "count_pairs",
        "cross_entropy_loss",
        "distillation_loss",
        "episode_loss",
        "expected_pairs",
        "ExpectedPairs",
        "matching_loss",
        "mixed_loss",
        "nca_loss",
        "neighbour_distillation_loss",
        "neighbour_loss",
        "PairCounts",
        "prototypical_loss",
        "supervised_contrastive_loss",
    ],
    "nearshot.evaluation": [
        "Accuracy",
        "Adam",
        "check_distinct_content",
        "check_unseen_classes",
        "ClassAccuracy",
        "Classifier",
        "CLASSIFIERS",
        "TRANSDUCTIVE",
        "bd_cspn",
        "laplacian_shot",
        "optimal_transport",
        "compare",
        "Comparison",
        "Difference",
        "embed",
        "Episodes",
        "evaluate_classes",
        "evaluate_episodes",
        "evaluate_features",
        "evaluate_fine_tuned",
        "evaluate_mahalanobis",
        "evaluate_many",
        "EvaluationSpec",
        "FeatureSet",
        "knn",
        "load_features",
        "paired",
        "pool_seeds",
        "PooledAccuracy",
        "power_transform",
        "prepare_features",
        "Protocol",
        "read_episodes",
        "sample_episodes",
        "save_features",
        "score_predictions",
        "select_best",
        "TrainingClasses",
        "welch",
        "write_episodes",
    ],
    "nearshot.data": [
        "choose_residence",
        "EpisodeBatches",
        "EpisodeShape",
        "ImageFeed",
        "IndependentBatches",
        "open_files",
        "open_or_prepare",
        "plan_folder",
        "plan_omniglot",
        "prepare",
        "prepare_folder",
        "prepare_plan",
        "Residence",
        "ShuffledBatches",
        "SOURCES",
        "Store",
    ],
    "nearshot.estimator": [
        "AccuracyEstimate",
        "Embedder",
        "Explanation",
        "export_onnx",
        "FewShotClassifier",
        "Neighbour",
        "prepare_images",
        "read_support",
        "SupportFolder",
    ],
    "nearshot.runs": [
        "table",
        "evaluate_network",
        "evaluate_run",
        "evaluate_weights",
        "Evaluation",
        "open_run",
        "open_weights",
        "TrainedRun",
        "TrainedWeights",
        "Unfinished",
    ],
    "nearshot.training": [
        "Batch",
        "Hardware",
        "METHODS",
        "Method",
        "PRESETS",
        "RunFolder",
        "train",
        "TrainConfig",
        "TrainResult",
    ],
    "nearshot.paper": [
        "RECIPES",
        "reproduce",
        "Reproduction",
        "Results",
    ],
    "nearshot.models": [
        "Backbone",
        "BACKBONES",
        "BackboneSpec",
        "build_backbone",
        "IMAGENET",
        "LinearHead",
        "load_backbone",
        "Normalisation",
        "ProjectionHead",
        "read_notes",
        "save_backbone",
    ],
}


@pytest.mark.parametrize("module_name", PUBLIC_NAMES)
def test_public_names(module_name: str) -> None:
    module = importlib.import_module(module_name)
    assert sorted(module.__all__) == sorted(PUBLIC_NAMES[module_name])
    for name in module.__all__:
        assert hasattr(module, name)


def api_pages() -> dict[str, set[str] | None]:
    """Return the names that the API pages show, by module; None stands for all its names."""
    pages = (Path(__file__).parent.parent / "docs" / "api").glob("*.md")
    text = "\n".join(page.read_text() for page in pages)
    matches = re.findall(r"^::: (\S+)(?:\n +options: .*?members: \[(.*?)\])?", text, re.MULTILINE)
    return {module: set(names.split(", ")) if names else None for module, names in matches}


def is_documented(module_name: str, name: str) -> bool:
    """Return whether a name has a docstring where it is defined: the page omits names without."""
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
def test_every_public_name_is_on_the_pages_about_the_api(module_name: str) -> None:
    public = importlib.import_module(module_name)
    shown = set()
    for shown_module, chosen in api_pages().items():
        module = importlib.import_module(shown_module)
        for name in module.__all__:
            if (chosen is None or name in chosen) and is_documented(shown_module, name):
                shown.add(id(getattr(module, name)))
    names = set(PUBLIC_NAMES[module_name]) - {"__version__"}
    missing = [name for name in names if id(getattr(public, name)) not in shown]
    assert not missing


def test_importing_nearshot_brings_in_no_extra() -> None:
    text = "\n".join(path.read_text() for path in FILES)
    for extra in ("torchvision", "pytorch_metric_learning"):
        assert f"import {extra}" not in text
        assert f"from {extra}" not in text


def test_scikit_learn_is_imported_with_the_classifier_only() -> None:
    code = (
        "import sys, nearshot, nearshot.training\n"
        "assert 'sklearn' not in sys.modules\n"
        "nearshot.FewShotClassifier\n"
        "assert 'sklearn' in sys.modules\n"
        "nearshot.FewShotClassifiers\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    message = done.stderr.splitlines()[-1]  # Python adds "Did you mean …?"
    assert message.startswith(
        "AttributeError: module 'nearshot' has no attribute 'FewShotClassifiers'"
    )
