"""The structure of the code: the direction of imports, and the public names."""

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import nearshot

SOURCE = Path(nearshot.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Which part may import which, beside itself. A part is a module or a package directly under
# nearshot.
BASIC = {"_version", "checks", "devices", "episode_shape", "errors", "io", "styles", "text"}
FOUR = {"data", "models", "losses", "evaluation"}  # which never import each other
MAY_IMPORT: dict[str, set[str]] = {
    "_version": set(),
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
    "training": BASIC | FOUR,
    "runs": BASIC | FOUR | {"training"},
    "paper": BASIC | FOUR | {"training", "runs"},
    "estimator": BASIC | {"distances", "data", "models", "evaluation"},
    "app": BASIC | {"data", "models", "estimator"},
    "cli": BASIC | FOUR | {"training", "runs", "paper", "estimator", "app"},
    "__main__": {"cli"},
    "__init__": BASIC | {"models", "estimator"},
}

NOUNS = {"embedding", "logging"}


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
        "def f():\n    from nearshot.training import loop\nimport nearshot.losses.nca\nfrom nearshot import data\n"
    )
    assert imported_parts(probe) == {"training", "losses", "data"}


def test_the_kernels_have_one_entry() -> None:
    inside = "nearshot.models.kernels."
    used = {
        name
        for path in FILES
        if part_of(path) != "models"
        for name in imports(path)
        if name.startswith(inside)
    }
    assert used <= {f"{inside}fuse", f"{inside}can_fuse"}
    folder = SOURCE / "models"
    assert not [
        path
        for path in folder.glob("*.py")
        for name in imports(path)
        if name.startswith(inside[:-1])
    ]


def repeated(names: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names that occur in more than one place; given are pairs of a name and its place."""
    counts = Counter(name for name, _ in set(names))
    return {name for name, count in counts.items() if count > 1}


def is_named_after_a_command(path: Path) -> bool:
    return part_of(path) == "cli" or path.parent.name == "recipes"


def test_modules_have_nouns_of_their_own_for_names() -> None:
    files = [
        path
        for path in FILES
        if not is_named_after_a_command(path) and not path.stem.startswith("__")
    ]
    wrong = repeated((path.stem, str(path)) for path in files)
    wrong |= {path.stem for path in files if path.stem.endswith("ing") and path.stem not in NOUNS}
    assert not wrong


def test_no_two_public_functions_or_classes_have_one_name() -> None:
    found = (
        (node.name, str(path))
        for path in FILES
        if not is_named_after_a_command(path)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and node.name != "main"
    )
    assert not repeated(found)


# A name here is a promise: removing or adding one is a decision for the CHANGELOG.
PUBLIC_NAMES: dict[str, set[str]] = {
    module: set(names.split())
    for module, names in {
        "nearshot": "FewShotClassifier __version__ load_backbone",
        "nearshot.distances": """
            DISTANCES Distance DistanceName cosine full_precision squared_euclidean unit_length
        """,
        "nearshot.episode_shape": "EpisodeShape ImagesByClass",
        "nearshot.errors": "FileFormatError InputError LeakError MissingExtraError NearshotError look_up",
        "nearshot.losses": """
            ExpectedPairs PairCounts count_pairs cross_entropy_loss distillation_loss episode_loss expected_pairs
            matching_loss mixed_loss nca_loss neighbour_distillation_loss neighbour_loss prototypical_loss
            supervised_contrastive_loss
        """,
        "nearshot.evaluation": """
            Accuracy Adam CLASSIFIERS ClassAccuracy Classifier Comparison Episodes EvaluationSpec FeatureSet
            Measured PooledAccuracy Protocol Treatment check_distinct_content check_unseen_classes compare embed
            evaluate_classes evaluate_features evaluate_fine_tuned evaluate_mahalanobis evaluate_many knn
            load_features pool_seeds power_transform prepare_features read_episodes sample_episodes save_features
            score_predictions select_best write_episodes
        """,
        "nearshot.data": """
            EpisodeBatches EpisodeShape ImageFeed IndependentBatches Residence SOURCES ShuffledBatches Store
            choose_residence open_files open_or_prepare plan_folder plan_omniglot prepare prepare_folder
            prepare_plan
        """,
        "nearshot.estimator": """
            AccuracyEstimate Embedder Explanation FewShotClassifier Neighbour SupportFolder export_onnx
            read_support
        """,
        "nearshot.training": "Hardware METHODS OwnLoss PRESETS RunFolder TrainConfig TrainResult train",
        "nearshot.paper": "RECIPES Reproduction Results reproduce",
        "nearshot.models": """
            BACKBONES Backbone BackboneSpec IMAGENET LinearHead Normalisation ProjectionHead build_backbone
            load_backbone read_notes save_backbone
        """,
    }.items()
}


@pytest.mark.parametrize("module_name", PUBLIC_NAMES)
def test_public_names(module_name: str) -> None:
    module = importlib.import_module(module_name)
    assert set(module.__all__) == PUBLIC_NAMES[module_name]
    for name in module.__all__:
        assert hasattr(module, name)


def api_pages() -> dict[str, set[str] | None]:
    """Return the modules on the API pages, and the names that are chosen of each; None for all."""
    pages = (Path(__file__).parent.parent / "docs" / "api").glob("*.md")
    text = "\n".join(page.read_text() for page in pages)
    found = re.findall(r"^::: (\S+)(?:\n +options: .*?members: \[(.*?)\])?", text, re.MULTILINE)
    return {module: set(chosen.split(", ")) if chosen else None for module, chosen in found}


def is_documented(module_name: str, name: str) -> bool:
    """Whether a name has a docstring, in the module or where it is imported from: without one, the page omits it."""
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
    shown = {
        id(getattr(importlib.import_module(module), name))
        for module, chosen in api_pages().items()
        for name in importlib.import_module(module).__all__
        if (chosen is None or name in chosen) and is_documented(module, name)
    }
    missing = [
        name
        for name in PUBLIC_NAMES[module_name] - {"__version__"}
        if id(getattr(public, name)) not in shown
    ]
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
    said = done.stderr.splitlines()[
        -1
    ]  # and what was meant, which Python finds among the names that there are
    assert said.startswith(
        "AttributeError: module 'nearshot' has no attribute 'FewShotClassifiers'"
    )
