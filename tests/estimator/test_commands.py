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

from nearshot.cli import main
from nearshot.estimator import FewShotClassifier
from nearshot.models import save_backbone

WEIGHTS = "weights.safetensors"
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: three classes in support/, two new pictures of each, an untrained backbone, its own cache."""
    labels = list(enumerate(CLASSES))
    members = {
        f"support/{label}/{i}.png": pattern(code, i) for code, label in labels for i in range(4)
    }
    members |= {
        f"new/{label}{i}.png": pattern(code, 50 + i) for code, label in labels for i in range(2)
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "data"))
    save_backbone(conv4(), tmp_path / WEIGHTS)
    return write_folder(tmp_path, members)


def run(*arguments: str) -> int:
    """Run a command; its status, however it ends."""
    try:
        return main(list(arguments))
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def predict(*arguments: str) -> int:
    return run("predict", "--support", "support", "--backbone", WEIGHTS, *arguments)


def suggest(*arguments: str) -> int:
    return run("suggest", "--support", "support", "--backbone", WEIGHTS, *arguments)


NEW = [f"{label}{i}.png" for label in CLASSES for i in range(2)]


def test_all_formats_say_the_same_as_the_estimator(folder: Path, capsys: Captured) -> None:
    outputs = {}
    for form in ("table", "csv", "json"):
        assert predict("new", "--format", form, "--nearest", "2") == 0
        outputs[form], err = capsys.readouterr()
        assert err == ""
    lines, rows = outputs["table"].splitlines(), list(csv.DictReader(io.StringIO(outputs["csv"])))
    support = sorted((folder / "support").rglob("*.png"))
    classifier = FewShotClassifier(WEIGHTS).fit(support, [path.parent.name for path in support])
    paths = [f"new/{name}" for name in NEW]
    answers, expected = classifier.predict(paths), classifier.predict_proba(paths)
    assert lines[0].split()[:3] == ["image", "label", "probability"]
    for number, entry in enumerate(json.loads(outputs["json"])):
        row, words = rows[number], lines[1 + number].split()
        assert entry["image"] == row["image"] == words[0] == paths[number]
        assert entry["label"] == row["label"] == words[1] == answers[number] == NEW[number][:3]
        found = [entry["probabilities"][label] for label in classifier.classes_]
        np.testing.assert_allclose(found, expected[number], atol=2e-5)
        assert float(row["probability"]) == pytest.approx(max(found))
        assert float(words[2]) == pytest.approx(100 * max(found), abs=0.1)
        assert [one["name"].startswith("support/") for one in entry["nearest"]] == [True, True]
        assert words[4] == row["nearest"] == entry["nearest"][0]["name"]
        assert entry["unknown"] is False


def test_the_unknown_is_rejected(folder: Path, capsys: Captured) -> None:
    (folder / "new" / "zebra.png").write_bytes(pattern(77, 0))
    Image.new("CMYK", (30, 50), (0, 200, 0, 0)).save(folder / "new" / "zest.jpg")
    assert (
        predict("new", "--unknown-rate", "0.01", "--unknown-label", "none", "--format", "csv") == 0
    )
    labels = [row["label"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert labels == [*(name[:3] for name in NEW), "none", "none"]
    assert predict("new", "--unknown-rate", "0.01") == 0
    assert "unknown  novelty" in capsys.readouterr().out


def test_embeddings_are_cached(folder: Path) -> None:
    for options, n_cached in ((["--no-cache"], 0), ([], 13), (["--cache-dir", "elsewhere"], 26)):
        assert predict("new/ant0.png", *options) == 0
        assert len(list(folder.rglob("*.f32"))) == n_cached


def test_odd_support_is_told(folder: Path, capsys: Captured) -> None:
    write_folder(folder, {"support/ant/phone.raw": b"x", "support/bee/oops.png": pattern(0, 0)})
    (folder / "support" / "bee" / "more").symlink_to(folder / "new")
    assert predict("new/ant0.png") == 0
    err = capsys.readouterr().err
    assert "warning: The linked folder support/bee/more is skipped" in err
    assert "not images in a class folder: support/ant/phone.raw." in err
    assert "support/ant/0.png in 'ant' and support/bee/oops.png in 'bee'" in err
    for label in ("ant", "bee"):
        (folder / "support" / label).rename(folder / label)
    for options, is_told in (
        ((), True),
        (("--unknown-rate", "0.05"), False),
    ):  # some may then be of none
        assert predict("new/ant0.png", *options) == 0
        assert ("There is one class only, 'cat'" in capsys.readouterr().err) == is_told


def test_a_bundle_is_a_support(folder: Path, capsys: Captured) -> None:
    assert predict("new", "--format", "json") == 0
    expected = capsys.readouterr().out
    assert run("export", "support", "zoo.safetensors", "--backbone", WEIGHTS) == 0
    assert re.search(
        r"zoo.safetensors \(0..*\): 3 classes, 12 labelled images\.", capsys.readouterr().out
    )
    assert run("predict", "--support", "zoo.safetensors", "new", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(expected)
    assert run("predict", "--support", "zoo.safetensors", "new", "--unknown-rate", "0.1") == 1
    assert "unknown_rate is saved in the bundle zoo.safetensors" in capsys.readouterr().err


def test_the_backbone_of_a_run(folder: Path, capsys: Captured) -> None:
    (folder / "run" / "weights").mkdir(parents=True)
    Path(WEIGHTS).rename(folder / "run" / "weights" / "epoch-0007.safetensors")
    best: dict[str, Any] = {"best": {"5-shot centroid": {"epoch": 7}}}
    (folder / "run" / "result.json").write_text(json.dumps(best))
    assert run("predict", "--support", "support", "new/ant0.png", "--backbone", "run") == 0
    assert " ant " in capsys.readouterr().out
    assert run("predict", "--support", "support", "new/ant0.png", "--backbone", "support") == 1
    assert "support is not a finished run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("predict --support nowhere new", "nowhere does not exist"),
        ("predict --support support *.gif", r"No file matches \*\.gif\."),
        ("predict --support support new --backbone none.safetensors", "weights file"),
        ("predict --support support new --unknown-rate 2", "unknown_rate"),
        ("predict --support support new --n-neighbors 3", "n_neighbors .*'knn'.*'auto'"),
        ("predict --support support new --unknown-label ?", "unknown_label .*unknown_rate"),
        *(
            (f"predict --support support new --copy-to={to}", "copy_to must be")
            for to in ("", ".", "support", "support/ant")
        ),
        ("predict --support torn new", "torn/ant/torn.png is incomplete"),
        ("predict --support hidden new", r"hidden/dog has no images \(it is empty\)"),
        ("export support zoo.pkl", "output must end in .onnx or .safetensors .got 'zoo.pkl'"),
        ("export support nowhere/zoo.safetensors", "nowhere does not exist"),
        ("app nosuch --no-browser", "nosuch is not a folder of photos"),
    ],
)
def test_errors_are_one_sentence(
    arguments: str, message: str, folder: Path, capsys: Captured
) -> None:
    write_folder(folder, {"torn/ant/torn.png": pattern(0, 9)[:-300], "hidden/dog/.hidden": b""})
    given = [] if "--backbone" in arguments else ["--backbone", WEIGHTS]
    assert run(*arguments.split(), *given) == 1
    assert re.search(f"^nearshot: .*{message}", " ".join(capsys.readouterr().err.splitlines()))
    assert not Path("nosuch-nearshot").exists()


def test_a_command_brings_in_no_training(folder: Path) -> None:
    """It would take seconds to import."""
    arguments = ["predict", "--support", "support", "new/ant0.png", "--backbone", WEIGHTS]
    slow = "{'nearshot.training', 'lightning_fabric', 'matplotlib', 'onnx'}"
    program = f"import sys; from nearshot.cli import main; main({arguments}); assert not {slow} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert " ant " in done.stdout


def test_a_bad_picture_has_its_own_line_and_a_name_breaks_none(
    folder: Path, capsys: Captured
) -> None:
    odd, torn, shown = (
        "new/a\nb\x1b[31m.png",
        "new/c\u2028d.png",
        [r"new/a\nb\x1b[31m.png", r"new/c\u2028d.png"],
    )
    write_folder(folder, {odd: pattern(0, 50), torn: b"x", "support/be\ne/0.png": pattern(9, 0)})
    outputs = {}
    for form in ("table", "csv", "json"):
        assert predict("new/ant0.png", odd, torn, "gone.png", "--format", form) == 3
        outputs[form], err = capsys.readouterr()
    assert "nearshot: 2 of 4 images could not be read." in err
    lines = outputs["table"].splitlines()[1:]
    assert [line.split("  ")[0] for line in lines] == ["new/ant0.png", *shown, "gone.png"]
    assert f"cannot be read: {shown[1]} is not an image" in lines[2]
    rows = list(csv.DictReader(io.StringIO(outputs["csv"])))
    assert [row["image"] for row in rows] == ["new/ant0.png", *shown, "gone.png"]
    assert rows[3]["error"] == "gone.png cannot be read: No such file or directory."
    entries = json.loads(outputs["json"])
    assert [entry["image"] for entry in entries] == ["new/ant0.png", odd, torn, "gone.png"]
    assert (entries[0]["label"], "not an image" in entries[2]["error"]) == ("ant", True)
    write_folder(folder, {"support/be\ne/1.png": b"x"})
    assert predict("new/ant0.png") == 1
    assert r"support/be\ne/1.png is not an image" in capsys.readouterr().err


def test_photos_and_videos_of_other_formats_count_in_the_status(
    folder: Path, capsys: Captured
) -> None:
    write_folder(folder, {"new/notes.txt": b"x"})
    assert predict("new") == 0
    write_folder(folder, {"new/a.AVIF": b"x", "new/b.mov": b"x"})
    for command in (
        "predict new --support support",
        "suggest new --support support",
    ):
        assert run(*command.split(), "--backbone", WEIGHTS) == 3
        assert (
            "3 files in new were skipped (.avif, .mov, .txt). Readable: PNG"
            in capsys.readouterr().err
        )


def test_readable_images_are_copied_by_label(folder: Path, capsys: Captured) -> None:
    write_folder(
        folder,
        {"new/more/ant0.png": pattern(0, 70), "new/zebra.png": pattern(77, 0), "new/bad.png": b"x"},
    )
    command = [
        "new",
        "--unknown-rate",
        "0.01",
        "--unknown-label",
        "none/of these",
        "--copy-to",
        "sorted",
    ]
    assert predict(*command) == 3
    assert "8 images copied to sorted." in capsys.readouterr().err
    copies = {
        path.relative_to("sorted").as_posix(): path.read_bytes()
        for path in Path("sorted").rglob("*.png")
    }
    assert {copies.pop("ant/ant0.png"), copies.pop("ant/ant0 (2).png")} == {
        pattern(0, 50),
        pattern(0, 70),
    }
    assert copies.pop("none_of these/zebra.png") == pattern(77, 0)
    assert copies == {
        f"{name[:3]}/{name}": (folder / "new" / name).read_bytes() for name in NEW[1:]
    }
    shutil.rmtree("sorted/bee")
    Path("sorted/bee").write_text("a file in the way")
    assert predict(*(f"new/{name}" for name in NEW), "--copy-to", "sorted") == 3
    err = capsys.readouterr().err
    assert err.count("nearshot: Not copied: new/bee") == 2
    assert "0 images copied to sorted; 4 were there already." in err


def test_the_score_counts_folders_like_the_classes(folder: Path, capsys: Captured) -> None:
    write_folder(folder, {f"test/ant/deep/{i}.png": pattern(0, 60 + i) for i in range(5)})
    write_folder(folder, {f"test/bee/deep/{i}.png": pattern(1, 60 + i) for i in range(5)})
    write_folder(folder, {"test/bee/odd.png": pattern(0, 99), "test/zebra/0.png": pattern(77, 0)})
    assert predict("test", "--score", "--unknown-rate", "0.01") == 0
    out = capsys.readouterr().out
    low, high = scipy.stats.binomtest(10, 11).proportion_ci(0.95, method="exact")
    assert (
        f"Accuracy: 90.9 % (95 % interval {100 * low:.1f} to {100 * high:.1f} %; 10 of 11 images)"
        in out
    )
    assert re.search(r"ant +5 of 5 right\n", out)
    assert re.search(r"bee +5 of 6 right; taken for ant 1\n", out)
    assert "Images of other folders: 1 of 1 rejected." in out
    for given, score in (("test/bee", "5 of 6 images"), ("test/bee/*.png", "0 of 1 image")):
        assert predict(given, "--score", "--format", "csv") == 0
        out, err = capsys.readouterr()
        assert ("Accuracy" in out, score in err) == (False, True)
    assert predict("new", "--score", "--copy-to", "sorted") == 1
    out, err = capsys.readouterr()
    assert (out, Path("sorted").exists()) == ("", False)
    assert re.search("'ant', 'bee', 'cat' .got 'new'", err)


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_suggestions_for_labels(form: str, folder: Path, capsys: Captured) -> None:
    write_folder(folder, {"new/zebra.png": pattern(77, 0), "new/bad.png": b"x"})
    write_folder(folder, {"support/bee/wrong.png": pattern(0, 42)})
    assert suggest("new", "--count", "4", "--format", form) == 3
    out, err = capsys.readouterr()
    assert "Skipped: new/bad.png is not an image" in err
    if form == "table":
        lines = out.splitlines()
        assert lines[0] == "Label next, of 7 images:"
        assert lines[2].split()[:4] == ["new/zebra.png", "unlike", "all", "classes"]
        assert lines[7] == "Check these labels, of 13 labelled images:"
        assert lines[9].split()[:3] == ["support/bee/wrong.png", "bee", "ant"]
        return
    rows = json.loads(out) if form == "json" else list(csv.DictReader(io.StringIO(out)))
    assert [row["kind"] for row in rows] == ["label next"] * 4 + ["check label"]
    assert len({row["image"] for row in rows}) == 5
    assert rows[0]["image"] == "new/zebra.png"
    assert (rows[-1]["image"], rows[-1]["label"], rows[-1]["looks_like"]) == (
        "support/bee/wrong.png",
        "bee",
        "ant",
    )
    assert 0.7 <= float(rows[-1]["probability"]) <= 1


def test_suggest_checks_labels_alone_and_reads_bundles(folder: Path, capsys: Captured) -> None:
    write_folder(folder, {"new/again.png": pattern(0, 0)})  # the content of a labelled image
    assert suggest("support", "new/again.png") == 0
    out, err = capsys.readouterr()
    assert out == "No label of 12 labelled images looks wrong.\n"
    assert err == "nearshot: Skipped: 13 images labelled already.\n"
    write_folder(folder, {"support/dog/0.png": pattern(9, 0)})  # nothing to compare it with
    assert suggest() == 0
    assert capsys.readouterr().out == "No label of 13 labelled images (12 checked) looks wrong.\n"
    assert run("export", "support", "zoo.safetensors", "--backbone", WEIGHTS) == 0
    assert run("suggest", "--support", "zoo.safetensors", "new", "--count", "2") == 0
    assert capsys.readouterr().out.count("new/") == 2


def test_a_class_may_be_named_unknown_where_nothing_is_rejected(
    folder: Path, capsys: Captured
) -> None:
    (folder / "support" / "cat").rename(folder / "support" / "unknown")
    assert predict("new") == suggest("new") == 0
    capsys.readouterr()
    assert predict("new", "--unknown-rate", "0.05") == 1
    assert re.search("unknown_label .*'unknown'", capsys.readouterr().err)
    assert predict("new", "--unknown-rate", "0.05", "--unknown-label", "other") == 0


def test_the_app_makes_no_project_of_a_folder_without_photos_or_without_its_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert run("app", "nosuch", "--no-browser") == 1
    assert "nosuch is not a folder of photos" in capsys.readouterr().err
    Path("empty").mkdir()
    assert run("app", "empty", "--no-browser") == 1
    assert "it is empty" in capsys.readouterr().err
    for name in [name for name in sys.modules if name.startswith("nearshot.app.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run("app", "new", "--no-browser") == 1
    assert "pip install 'nearshot[app]'" in capsys.readouterr().err
    assert not list(folder.glob("*-nearshot"))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_the_app_starts_stops_and_starts_again(folder: Path) -> None:
    pytest.importorskip("uvicorn")
    command = [
        sys.executable,
        "-m",
        "nearshot",
        "app",
        "new",
        "--no-browser",
        "--backbone",
        WEIGHTS,
    ]
    for known in ("6 photos, 0 labelled", "6 photos, 1 labelled"):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert known in process.stdout.readline()
        address = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(address) as answer:  # noqa: S310
            assert answer.headers["set-cookie"].startswith("nearshot-")
            assert b"<title>nearshot</title>" in answer.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert "opens the project again" in out
        path = folder / "new-nearshot" / "project.json"
        saved = json.loads(path.read_text()) | {
            "classes": ["ant"],
            "labels": {"../new/ant0.png": "ant"},
        }
        path.write_text(json.dumps(saved))
