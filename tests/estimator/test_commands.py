"""`nearshot predict`, `export`, `suggest` and `app`, run as a user would."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from PIL import Image
from tests.helpers.clouds import conv4
from tests.helpers.layouts import write_folder
from tests.helpers.small_project import CLASSES, pattern

from nearshot.app.project import Project
from nearshot.cli import main
from nearshot.estimator import FewShotClassifier
from nearshot.models import save_backbone

WEIGHTS = "weights.safetensors"
NEW = ["ant0.png", "ant1.png", "bee0.png", "bee1.png", "cat0.png", "cat1.png"]
SOME_UNREADABLE = 3
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with three classes, two new images of each, and an untrained backbone."""
    members = {}
    for code, label in enumerate(CLASSES):
        for i in range(4):
            members[f"support/{label}/{i}.png"] = pattern(code, i)
        for i in range(2):
            members[f"new/{label}{i}.png"] = pattern(code, 50 + i)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "data"))
    save_backbone(conv4(), tmp_path / WEIGHTS)
    return write_folder(tmp_path, members)


def run(*arguments: str) -> int:
    """Run a command, and return its exit status."""
    try:
        return main(list(arguments))
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def predict(*arguments: str) -> int:
    return run("predict", "--support", "support", "--backbone", WEIGHTS, *arguments)


def suggest(*arguments: str) -> int:
    return run("suggest", "--support", "support", "--backbone", WEIGHTS, *arguments)


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_all_formats_give_the_answers_of_the_estimator(folder: Path, capsys: Captured) -> None:
    outputs = {}
    for form in ("table", "csv", "json"):
        assert predict("new", "--format", form, "--nearest", "2") == 0
        captured = capsys.readouterr()
        outputs[form] = captured.out
        assert captured.err == ""
    support = sorted((folder / "support").rglob("*.png"))
    classifier = FewShotClassifier(WEIGHTS).fit(support, [path.parent.name for path in support])
    paths = [f"new/{name}" for name in NEW]
    answers = classifier.predict(paths)
    expected = classifier.predict_proba(paths)
    lines = outputs["table"].splitlines()
    assert lines[0].split()[:3] == ["image", "label", "probability"]
    rows = read_csv(outputs["csv"])
    for number, entry in enumerate(json.loads(outputs["json"])):
        row = rows[number]
        words = lines[1 + number].split()
        assert entry["image"] == row["image"] == words[0] == paths[number]
        assert entry["label"] == row["label"] == words[1] == answers[number] == NEW[number][:3]
        probabilities = [entry["probabilities"][label] for label in classifier.classes_]
        np.testing.assert_allclose(probabilities, expected[number], atol=2e-5)
        assert float(row["probability"]) == pytest.approx(max(probabilities))
        assert float(words[2]) == pytest.approx(100 * max(probabilities), abs=0.1)
        names = [neighbour["name"] for neighbour in entry["nearest"]]
        assert len(names) == 2
        assert words[4] == row["nearest"] == names[0]
        assert Path(names[0]).is_file()
        assert entry["rejected"] is False


def test_images_of_no_class_get_the_reject_label(folder: Path, capsys: Captured) -> None:
    (folder / "new" / "zebra.png").write_bytes(pattern(77, 0))
    Image.new("CMYK", (30, 50), (0, 200, 0, 0)).save(folder / "new" / "zest.jpg")
    options = ["--reject-rate", "0.01"]
    assert predict("new", *options, "--reject-label", "none", "--format", "csv") == 0
    labels = [row["label"] for row in read_csv(capsys.readouterr().out)]
    assert labels == [*(name[:3] for name in NEW), "none", "none"]
    assert predict("new", *options) == 0
    assert "none of these  novelty" in capsys.readouterr().out


def test_embeddings_are_cached(folder: Path) -> None:
    for options, n_cached in ((["--no-cache"], 0), ([], 13), (["--cache-dir", "elsewhere"], 26)):
        assert predict("new/ant0.png", *options) == 0
        assert len(list(folder.rglob("*.f32"))) == n_cached


def test_skipped_and_repeated_files_of_the_support_are_named(
    folder: Path, capsys: Captured
) -> None:
    write_folder(folder, {"support/ant/phone.raw": b"x", "support/bee/oops.png": pattern(0, 0)})
    (folder / "support" / "bee" / "more").symlink_to(folder / "new")
    assert predict("new/ant0.png") == 0
    err = capsys.readouterr().err
    assert err.count("nearshot: warning: ") == 3
    assert "support/bee/more" in err
    assert "support/ant/phone.raw" in err
    assert "support/ant/0.png in 'ant' and support/bee/oops.png in 'bee'" in err


def test_a_single_class_is_warned_about(folder: Path, capsys: Captured) -> None:
    for label in ("ant", "bee"):
        (folder / "support" / label).rename(folder / label)
    assert predict("new/ant0.png") == 0
    assert re.search("warning: .*'cat'", capsys.readouterr().err)


def test_a_bundle_is_a_support(folder: Path, capsys: Captured) -> None:
    assert predict("new", "--format", "json") == 0
    # In the bundle, paths are relative to the support folder.
    expected = json.loads(capsys.readouterr().out.replace('"support/', '"'))
    assert run("export", "support", "zoo.safetensors", "--backbone", WEIGHTS) == 0
    out = capsys.readouterr().out
    assert re.search(r"zoo.safetensors \(\d\.\d MB\): 3 classes, 12 labelled images", out)
    assert run("predict", "--support", "zoo.safetensors", "new", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert run("predict", "--support", "zoo.safetensors", "new", "--reject-rate", "0.1") == 1
    assert re.search("reject_rate .*zoo.safetensors", capsys.readouterr().err)


def test_the_backbone_of_a_run(folder: Path, capsys: Captured) -> None:
    (folder / "run" / "weights").mkdir(parents=True)
    Path(WEIGHTS).rename(folder / "run" / "weights" / "epoch-0007.safetensors")
    result: dict[str, Any] = {"best": {"5-shot centroid": {"epoch": 7}}}
    (folder / "run" / "result.json").write_text(json.dumps(result))
    assert run("predict", "--support", "support", "new/ant0.png", "--backbone", "run") == 0
    assert " ant " in capsys.readouterr().out
    assert run("predict", "--support", "support", "new/ant0.png", "--backbone", "support") == 1
    assert "support is not a finished run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("predict --support nowhere new", "nowhere does not exist"),
        ("predict --support support *.gif", r"\*\.gif"),
        ("predict --support support new --backbone none.safetensors", "none.safetensors"),
        ("predict --support support new --reject-rate 2", "reject_rate .*2"),
        ("predict --support support new --n-neighbors 3", "n_neighbors .*'knn'.*'auto'"),
        ("predict --support support new --n-views 0", "n_views .*0"),
        ("predict --support support new --copy-to=", "copy_to .*''"),
        ("predict --support support new --copy-to=.", "copy_to .*got ."),
        ("predict --support support new --copy-to=support", "copy_to .*got support"),
        ("predict --support support new --copy-to=support/ant", "copy_to .*got support/ant"),
        ("predict --support torn new", "torn/ant/torn.png is incomplete"),
        ("predict --support hidden new", r"hidden/dog has no images"),
        ("export support zoo.pkl", "output .*onnx.*safetensors.*'zoo.pkl'"),
        ("export support nowhere/zoo.safetensors", "nowhere does not exist"),
        ("app nosuch --no-browser", "nosuch is not a folder of photos"),
    ],
)
def test_errors_are_one_line(arguments: str, message: str, folder: Path, capsys: Captured) -> None:
    write_folder(folder, {"torn/ant/torn.png": pattern(0, 9)[:-300], "hidden/dog/.hidden": b""})
    backbone = [] if "--backbone" in arguments else ["--backbone", WEIGHTS]
    assert run(*arguments.split(), *backbone) == 1
    assert re.search(f"^nearshot: .*{message}", " ".join(capsys.readouterr().err.splitlines()))
    assert not Path("nosuch-nearshot").exists()


def test_predict_does_not_import_training(folder: Path) -> None:
    """It would take seconds."""
    arguments = ["predict", "--support", "support", "new/ant0.png", "--backbone", WEIGHTS]
    program = f"""
import sys
from nearshot.cli import main
main({arguments})
slow = {{"nearshot.training", "lightning_fabric", "matplotlib", "onnx"}}
assert not slow & set(sys.modules)
"""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert " ant " in process.stdout


def test_an_unreadable_image_has_its_own_line_and_no_name_breaks_a_line(
    folder: Path, capsys: Captured
) -> None:
    with_control = "new/a\nb\x1b[31m.png"
    unreadable = "new/c\u2028d.png"
    shown = ["new/ant0.png", r"new/a\nb\x1b[31m.png", r"new/c\u2028d.png", "gone.png"]
    write_folder(
        folder,
        {with_control: pattern(0, 50), unreadable: b"x", "support/be\ne/0.png": pattern(9, 0)},
    )
    images = ["new/ant0.png", with_control, unreadable, "gone.png"]
    outputs = {}
    for form in ("table", "csv", "json"):
        assert predict(*images, "--format", form) == SOME_UNREADABLE
        captured = capsys.readouterr()
        outputs[form] = captured.out
        assert "2 of 4 images" in captured.err
    lines = outputs["table"].splitlines()[1:]
    assert [line.split("  ")[0] for line in lines] == shown
    assert f"{shown[2]} is not an image" in lines[2]
    rows = read_csv(outputs["csv"])
    assert [row["image"] for row in rows] == shown
    assert rows[0]["error"] == ""
    assert re.search("gone.png .*No such file", rows[3]["error"])
    entries = json.loads(outputs["json"])
    assert [entry["image"] for entry in entries] == images
    assert entries[0]["label"] == "ant"
    assert "not an image" in entries[2]["error"]
    write_folder(folder, {"support/be\ne/1.png": b"x"})
    assert predict("new/ant0.png") == 1
    assert r"support/be\ne/1.png is not an image" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "suggest"])
def test_photos_and_videos_of_other_formats_count_in_the_exit_status(
    command: str, folder: Path, capsys: Captured
) -> None:
    write_folder(folder, {"new/notes.txt": b"x"})
    arguments = ["new", "--support", "support", "--backbone", WEIGHTS]
    assert run(command, *arguments) == 0
    capsys.readouterr()
    write_folder(folder, {"new/a.CR2": b"x", "new/b.mov": b"x"})
    assert run(command, *arguments) == SOME_UNREADABLE
    assert re.search(r"3 files in new .*\.cr2, \.mov, \.txt.* PNG", capsys.readouterr().err)


def test_readable_images_are_copied_by_label(folder: Path, capsys: Captured) -> None:
    write_folder(
        folder,
        {"new/more/ant0.png": pattern(0, 70), "new/zebra.png": pattern(77, 0), "new/bad.png": b"x"},
    )
    options = ["--reject-rate", "0.01", "--reject-label", "none/of these", "--copy-to", "sorted"]
    assert predict("new", *options) == SOME_UNREADABLE
    assert "8 images copied to sorted" in capsys.readouterr().err
    copies = {
        path.relative_to("sorted").as_posix(): path.read_bytes()
        for path in Path("sorted").rglob("*.png")
    }
    ants = {copies.pop("ant/ant0.png"), copies.pop("ant/ant0 (2).png")}
    assert ants == {pattern(0, 50), pattern(0, 70)}
    assert copies.pop("none_of these/zebra.png") == pattern(77, 0)
    assert copies == {
        f"{name[:3]}/{name}": (folder / "new" / name).read_bytes() for name in NEW[1:]
    }


def test_copies_that_fail_are_named(folder: Path, capsys: Captured) -> None:
    images = [f"new/{name}" for name in NEW]
    assert predict(*images, "--copy-to", "sorted") == 0
    capsys.readouterr()
    shutil.rmtree("sorted/bee")
    Path("sorted/bee").write_text("a file in the way")
    assert predict(*images, "--copy-to", "sorted") == SOME_UNREADABLE
    err = capsys.readouterr().err
    assert err.count("Not copied: new/bee") == 2
    assert "0 images copied to sorted; 4 " in err


def test_the_score_compares_labels_with_the_names_of_folders(
    folder: Path, capsys: Captured
) -> None:
    for i in range(5):
        write_folder(folder, {f"test/ant/deep/{i}.png": pattern(0, 60 + i)})
        write_folder(folder, {f"test/bee/deep/{i}.png": pattern(1, 60 + i)})
    write_folder(folder, {"test/bee/odd.png": pattern(0, 99), "test/zebra/0.png": pattern(77, 0)})
    assert predict("test", "--score", "--reject-rate", "0.01") == 0
    out = capsys.readouterr().out
    low, high = scipy.stats.binomtest(10, 11).proportion_ci(0.95, method="exact")
    accuracy = next(line for line in out.splitlines() if line.startswith("Accuracy: "))
    assert re.findall(r"\d+\.\d|\d+", accuracy) == [
        "90.9",
        "95",
        f"{100 * low:.1f}",
        f"{100 * high:.1f}",
        "10",
        "11",
    ]
    assert re.search(r"ant +5 of 5 right\n", out)
    assert re.search(r"bee +5 of 6 right.* ant 1\n", out)
    assert "1 of 1 rejected" in out


@pytest.mark.parametrize(
    ("images", "score"), [("test/bee", "5 of 6 images"), ("test/bee/*.png", "0 of 1 image")]
)
def test_the_score_of_csv_goes_to_standard_error(
    images: str, score: str, folder: Path, capsys: Captured
) -> None:
    write_folder(folder, {f"test/bee/deep/{i}.png": pattern(1, 60 + i) for i in range(5)})
    write_folder(folder, {"test/bee/odd.png": pattern(0, 99)})
    assert predict(images, "--score", "--format", "csv") == 0
    captured = capsys.readouterr()
    assert "Accuracy" not in captured.out
    assert score in captured.err


def test_json_lines_and_the_score_as_json(folder: Path, capsys: Captured) -> None:
    members = {}
    for code, name in enumerate(CLASSES):
        for i in range(2):
            members[f"test/{name}/{i}.png"] = pattern(code, 30 + i)
    write_folder(folder, members)
    (folder / "test" / "bee" / "bad.png").write_bytes(b"x")
    assert predict("test", "--score", "--format", "json") == SOME_UNREADABLE
    both = json.loads(capsys.readouterr().out)
    assert predict("test", "--score", "--format", "jsonl") == SOME_UNREADABLE
    *entries, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert entries == both["images"]
    assert last == {"score": both["score"]}
    assert ["error" in entry for entry in entries].count(True) == 1
    score = both["score"]
    assert (score["images"], score["right"], score["accuracy"]) == (6, 6, 1.0)
    assert score["interval95"] == pytest.approx([0.5407, 1], abs=1e-4)
    assert score["classes"]["bee"] == {"images": 2, "right": 2, "answers": {"bee": 2}}


@pytest.mark.parametrize("separator", ["\n", "\0"])
def test_files_are_listed_on_standard_input(
    separator: str, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = separator.join(["new/ant0.png", "new/bee0.png", ""]).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(listed)))
    assert predict("-", "new/cat0.png", "--format", "jsonl") == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["image"] for entry in entries] == ["new/ant0.png", "new/bee0.png", "new/cat0.png"]


def test_a_support_one_level_too_high_is_an_error(folder: Path, capsys: Captured) -> None:
    (folder / "flowers").mkdir()
    shutil.copytree(folder / "support", folder / "flowers" / "train")
    shutil.copytree(folder / "support", folder / "flowers" / "held")
    assert run("predict", "new", "--support", "flowers", "--backbone", WEIGHTS) == 1
    err = capsys.readouterr().err
    assert "flowers/held or flowers/train" in err
    assert "ant, bee, cat" in err
    # Folders within a class are no classes.
    for number in range(2):
        image = folder / "support" / "ant" / f"{number}.png"
        (folder / "support" / "ant" / f"day {number}").mkdir()
        image.rename(folder / "support" / "ant" / f"day {number}" / image.name)
    assert run("predict", "new", "--support", "support", "--backbone", WEIGHTS) == 0


def test_an_option_that_does_not_exist_is_corrected(capsys: Captured) -> None:
    assert run("predict", "new", "--suport", "support") == 2
    assert "'--support'" in capsys.readouterr().err


def test_a_score_without_folders_of_classes_is_an_error(folder: Path, capsys: Captured) -> None:
    assert predict("new", "--score", "--copy-to", "sorted") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert not Path("sorted").exists()
    assert re.search("'ant', 'bee', 'cat' .got 'new'", captured.err)


@pytest.fixture
def folder_with_a_wrong_label(folder: Path) -> Path:
    """The folder with an image of no class, an unreadable one, and an ant among the bees."""
    write_folder(folder, {"new/zebra.png": pattern(77, 0), "new/bad.png": b"x"})
    return write_folder(folder, {"support/bee/wrong.png": pattern(0, 42)})


def test_suggestions_in_tables(folder_with_a_wrong_label: Path, capsys: Captured) -> None:
    assert suggest("new", "--count", "4") == SOME_UNREADABLE
    captured = capsys.readouterr()
    assert "Skipped: new/bad.png is not an image" in captured.err
    lines = captured.out.splitlines()
    assert "7 images" in lines[0]
    assert lines[2].split()[:4] == ["new/zebra.png", "unlike", "all", "classes"]
    assert "13 labelled images" in lines[7]
    assert lines[9].split()[:3] == ["support/bee/wrong.png", "bee", "ant"]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_suggestions_for_programs(
    form: str, folder_with_a_wrong_label: Path, capsys: Captured
) -> None:
    assert suggest("new", "--count", "4", "--format", form) == SOME_UNREADABLE
    out = capsys.readouterr().out
    rows: list[dict[str, Any]] = json.loads(out) if form == "json" else list(read_csv(out))
    assert [row["kind"] for row in rows] == ["label next"] * 4 + ["check label"]
    assert len({row["image"] for row in rows}) == 5
    assert rows[0]["image"] == "new/zebra.png"
    to_check = rows[-1]
    assert to_check["image"] == "support/bee/wrong.png"
    assert (to_check["label"], to_check["looks_like"]) == ("bee", "ant")
    assert 0.7 <= float(to_check["probability"]) <= 1


def test_suggest_skips_images_that_are_labelled_already(folder: Path, capsys: Captured) -> None:
    write_folder(folder, {"new/again.png": pattern(0, 0)})  # the content of a labelled image
    assert suggest("support", "new/again.png") == 0
    captured = capsys.readouterr()
    assert re.search("^No label of 12 labelled images .*wrong.$", captured.out)
    assert "13 images" in captured.err


def test_suggest_counts_the_labels_that_it_can_check(folder: Path, capsys: Captured) -> None:
    write_folder(folder, {"support/dog/0.png": pattern(9, 0)})  # nothing to compare it with
    assert suggest() == 0
    assert "13 labelled images (12 checked)" in capsys.readouterr().out


def test_suggest_reads_bundles(folder: Path, capsys: Captured) -> None:
    assert run("export", "support", "zoo.safetensors", "--backbone", WEIGHTS) == 0
    capsys.readouterr()
    assert run("suggest", "--support", "zoo.safetensors", "new", "--count", "2") == 0
    assert capsys.readouterr().out.count("new/") == 2


@pytest.mark.parametrize("is_inside", [True, False])
def test_strays_teach_what_to_reject(is_inside: bool, folder: Path, capsys: Captured) -> None:
    """They are in a folder of the support, or in one of their own."""
    options = [] if is_inside else ["--none", "others"]
    strays = folder / "support" / "none of these" if is_inside else folder / "others"
    (folder / "support" / "cat").rename(strays)
    assert predict("new", *options, "--format", "csv") == 0
    captured = capsys.readouterr()
    assert "strays like these" in captured.err
    labels = {row["image"]: row["label"] for row in read_csv(captured.out)}
    assert labels["new/ant0.png"] == "ant"
    assert labels["new/bee0.png"] == "bee"
    assert {label for image, label in labels.items() if "cat" in image} == {"none of these"}
    weights = ["--backbone", WEIGHTS]
    assert run("export", "support", "zoo.safetensors", *options, *weights) == 0
    capsys.readouterr()
    assert run("predict", "--support", "zoo.safetensors", "new", "--format", "csv") == 0
    rows = read_csv(capsys.readouterr().out)
    assert {row["image"]: row["label"] for row in rows} == labels


def test_the_app_refuses_a_folder_without_photos(folder: Path, capsys: Captured) -> None:
    Path("empty").mkdir()
    assert run("app", "empty", "--no-browser") == 1
    assert "empty has no images" in capsys.readouterr().err
    assert not list(folder.glob("*-nearshot"))


def test_the_app_names_its_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    for name in [name for name in sys.modules if name.startswith("nearshot.app.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run("app", "new", "--no-browser") == 1
    assert "pip install '.[app]'" in capsys.readouterr().err
    assert not list(folder.glob("*-nearshot"))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_the_app_starts_stops_and_starts_again(folder: Path) -> None:
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "nearshot", "app", "new", "--no-browser"]
    command += ["--backbone", WEIGHTS]
    for n_labelled in (0, 1):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert f"6 photos, {n_labelled} labelled" in process.stdout.readline()
        address = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(address) as answer:  # noqa: S310
            assert answer.headers["set-cookie"] is None  # the address is the secret
            assert b"<title>nearshot</title>" in answer.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert "opens the project again" in out
        project = Project(folder / "new-nearshot")
        project.add_class(f"class {n_labelled}", [project.present[n_labelled].id])
        project.close()


def test_groups_by_a_pattern_of_file_names(folder: Path, capsys: Captured) -> None:
    """Two groups of two images a class; one class of one group."""
    for label in CLASSES:
        for i in range(4):
            group = 0 if label == CLASSES[0] else i // 2
            image = folder / "support" / label / f"{i}.png"
            image.rename(image.with_name(f"{label}{group}_{i}.png"))
    pattern_of_groups = "([a-z]+[0-9])_"
    assert predict("new", "--groups", pattern_of_groups) == 0
    notes = capsys.readouterr().err
    assert "7 of 12 photos" in notes
    assert repr(CLASSES[0]) in notes
    assert suggest("--groups", pattern_of_groups) == 0
    assert "7 of 12 photos" in capsys.readouterr().err
    options = ("--backbone", WEIGHTS, "--groups", pattern_of_groups)
    assert run("export", "support", "groups.safetensors", *options) == 0
    estimate = FewShotClassifier.load("groups.safetensors").estimate_accuracy()
    assert (estimate.n, estimate.n_images) == (4, 12)
    assert predict("new", "--groups", "[") != 0
