"""Nearly right input is accepted, or the error says what to change."""

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

WITHOUT_A_GPU = pytest.mark.skipif(
    torch.cuda.is_available(), reason="needs a machine without a GPU"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home folder for the test; the working folder is another one."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "d"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_a_tilde_is_the_home_folder_in_every_path(
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


def test_a_folder_of_archives_equals_the_unpacked_images(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = class_folders([f"animal {i}" for i in range(8)], 4)
    write_folder(Path("plain"), members)
    names = sorted(members)
    Path("parts").mkdir()
    for number, part in enumerate((names[:12], names[10:])):  # two images are in both
        write_zip(Path("parts") / f"part {number}.zip", {name: members[name] for name in part})
    (Path("parts") / "README.txt").write_text("In two parts.")
    # Beside images, an archive is not read.
    write_zip(Path("plain") / "more.zip", {"animal 9/0.png": members[names[0]]})
    for name in ("plain", "parts"):
        assert main(["data", "prepare", "zoo " + name, "--from", name]) == 0
    parts = Store.open("zoo parts", "train")
    plain = Store.open("zoo plain", "train")
    assert parts.fingerprint == plain.fingerprint
    write_zip(Path("parts/part 2.zip"), {names[0]: members[names[1]]})  # another image of this name
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
        (f"{TRAINING} --n-way 3", "(n_query.*n_way)|(n_way.*n_query)"),
        (f"{TRAINING} --n-shot 9 --dry-run", "n_shot .*nca.* 9"),
        ("train ./photos", "--dataset ./photos"),
        ("train --resume --output nowhere", "nowhere"),
        ("train --teacher nowhere --dry-run", "teacher.*nowhere"),
        ("reproduce pairs --seeds 0", "seeds.* 0"),
        ("reproduce pairs --minutes -1", "minutes.* -1"),
        ("app --reject-rate 5", "reject_rate.* 5"),
        ("app --port 99999", "port.* 99999"),
        ("predict --support photos photos --nearest 0", "nearest.* 0"),
        ("suggest --support photos photos --count 0", "count.* 0"),
        ("predict --support= photos", "support.* empty"),
    ],
)
def test_errors_name_the_parameter_and_its_value(
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
        (f"{TRAINING} --momentum 1", r"momentum .*got 1\.0"),
        ("train --preset glyphs-matching --keep-positives 0.5", "--keep-positives"),
        ("evaluate runs/glyphs-nca --n-views 0", "n_views .*got 0"),
        ("evaluate runs/glyphs-nca --power 0", r"power .*got 0\.0"),
        ("tarin", r"Did you mean 'train'\? .* nearshot --help"),
        ("", "nearshot --help"),
        ("train --epoch 3", "--epochs .* nearshot train --help"),
        ("data prepere", "prepare, .* nearshot data --help"),
        ("data prepare glyphs --sied 3", "--side .* nearshot data"),
    ],
)
def test_invalid_options_and_commands_are_explained_with_the_right_help(
    typed: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2
    assert re.search(answer, " ".join(capsys.readouterr().err.split()))


def test_a_folder_that_cannot_be_written_to_is_named() -> None:
    """Rather than the temporary file."""
    with tempfile.TemporaryDirectory() as folder:  # others cannot read pytest's own
        file = Path(folder).resolve() / "x.txt"
        answer = re.escape(f"{file}: Permission denied")
        with (
            locked(file.parent, rights=0o555),
            pytest.raises(NearshotError, match=answer),
            atomic_write(file),
        ):
            pass


def test_an_empty_argument_is_not_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["predict", "--support", "", "x"], ["predict", "--support", "x", ""]):
        assert main(arguments) == 1
        assert "must not be empty" in capsys.readouterr().err
