"""Input that is nearly right is accepted, or answered with a suggestion."""

import os
import re
import tempfile
from pathlib import Path

import pytest
import torch
from tests.helpers.layouts import class_folders, write_folder, write_zip
from tests.helpers.locks import locked

from nearshot.cli import main
from nearshot.data import Store
from nearshot.errors import NearshotError
from nearshot.io import atomic_write

WITHOUT_A_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder for the test, and another working folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "d"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_the_home_folder_is_meant_wherever_a_path_is_given(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(Path("photos"), class_folders(["ant", "bee"], 3))
    assert main(["data", "prepare", "./photos"]) == 0
    assert main(["data", "unpack", "photos", "--output=~/unpacked"]) == 0
    assert main(["reproduce", "pairs", "--results=~/res"]) == 0
    assert (home / "unpacked").is_dir()
    assert (home / "res" / "tables").is_dir()
    assert sorted(os.listdir()) == ["photos"]
    capsys.readouterr()
    assert main(["export", "~/unpacked", "~/an ant.safetensors", "--device", "cpu"]) == 0
    assert (
        f"nearshot predict --support '{home / 'an ant.safetensors'}' IMAGES…"
        in capsys.readouterr().out
    )


def test_a_folder_of_archives_is_as_if_they_were_unpacked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = class_folders([f"animal {i}" for i in range(8)], 4)
    write_folder(Path("plain"), members)
    names = sorted(members)
    Path("parts").mkdir()
    for number, some in enumerate((names[:12], names[10:])):  # the same image twice is no harm
        write_zip(Path("parts") / f"part {number}.zip", {name: members[name] for name in some})
    (Path("parts") / "README.txt").write_text("In two parts.")
    write_zip(
        Path("plain") / "more.zip", {"animal 9/0.png": members[names[0]]}
    )  # beside images it is none of them
    for name in ("plain", "parts"):
        assert main(["data", "prepare", "zoo " + name, "--from", name]) == 0
    assert (
        Store.open("zoo parts", "train").fingerprint == Store.open("zoo plain", "train").fingerprint
    )
    write_zip(Path("parts/part 2.zip"), {names[0]: members[names[1]]})  # two images of one name
    capsys.readouterr()
    assert main(["data", "prepare", "./parts"]) == 1
    assert repr(names[0]) in capsys.readouterr().err


TRAINING = "train --preset glyphs-nca"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("train --dataset glyhps", r"Did you mean 'glyphs'\?"),
        ("train --dataset photos", "./photos"),
        ("train --preset glyphs-nac", r"Did you mean 'glyphs-nca'\?"),
        ("train --method prototypcal --dry-run", r"Did you mean 'prototypical'\?"),
        ("evaluate resnet12-nca-cifarfs", r"Did you mean 'resnet12-nca-cifar-fs'\?"),
        ("evaluate runs/glyphs-nac", r"Did you mean 'runs/glyphs-nca'\?"),
        ("evaluate ~nobody-of-this-name/run", "'~nobody-of-this-name/run'"),
        pytest.param("train --accelerator gpu --dry-run", "gpu", marks=WITHOUT_A_GPU),
        (f"{TRAINING} --momentum 1", "momentum.* 1"),
        (f"{TRAINING} --n-way 3", "(n_query.*n_way)|(n_way.*n_query)"),
        (f"{TRAINING} --n-shot 9 --dry-run", " 9 .*n_shot"),
        ("train ./photos", "--dataset ./photos"),
        ("train --resume --output nowhere", "nowhere"),
        ("train --teacher nowhere --dry-run", "teacher.*nowhere"),
        ("evaluate runs/glyphs-nca --n-views 0", "n_views.* 0 "),
        ("evaluate runs/glyphs-nca --power 0", "power.* 0.0"),
        ("reproduce pairs --seeds 0", "seeds.* 0"),
        ("reproduce pairs --minutes -1", "minutes.* -1"),
        ("app --unknown-rate 5", "unknown_rate.* 5"),
        ("app --port 99999", "port.* 99999"),
        ("predict --support photos photos --nearest 0", "nearest.* 0"),
        ("suggest --support photos photos --count 0", "count.* 0"),
        (
            "train --preset glyphs-matching --keep-positives 0.5 --dry-run",
            "(keep_positives.*match)|(match.*keep_pos)",
        ),
    ],
)
def test_a_slip_is_answered_in_one_sentence(
    typed: str, answer: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("photos").mkdir()
    Path("runs/glyphs-nca").mkdir(parents=True)
    assert main(typed.split()) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("nearshot: ")
    assert re.search(answer, error)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("tarin", r"Did you mean 'train'\? .* nearshot --help"),
        ("", "nearshot --help"),
        ("train --epoch 3", "--epochs .* nearshot train --help"),
        ("data prepere", "prepare, .* nearshot data --help"),
        ("data prepare glyphs --sied 3", "--side .* nearshot data"),
    ],
)
def test_a_mistake_leads_to_the_right_help(
    typed: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2
    assert re.search(answer, " ".join(capsys.readouterr().err.split()))


def test_a_folder_that_cannot_be_written_to_is_named() -> None:
    """The requested file, not the temporary one."""
    with tempfile.TemporaryDirectory() as folder:  # into pytest's own nobody else may look
        file = Path(folder).resolve() / "x.txt"
        answer = re.escape(f"{file}: Permission denied")
        with (
            locked(file.parent, rights=0o555),
            pytest.raises(NearshotError, match=answer),
            atomic_write(file),
        ):
            pass
