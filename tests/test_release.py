"""What a release needs: one version, and a source distribution that can be built from."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nearshot import __version__

ROOT = Path(__file__).parent.parent


def test_the_citation_has_the_version_of_the_package() -> None:
    match = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert match is not None
    assert match[1] == __version__


@pytest.mark.slow
def test_a_wheel_can_be_built_from_the_source_distribution(tmp_path: Path) -> None:
    """It has the same files as one from the repository; links of its README work on PyPI."""
    environment = os.environ | {
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PYTHONPATH": str(tmp_path / "tools"),
    }
    pip = [sys.executable, "-m", "pip", "--quiet"]
    clone = tmp_path / "clone"

    def run(*command: str) -> None:
        subprocess.run(command, cwd=clone if clone.exists() else ROOT, env=environment, check=True)

    run("git", "clone", "--quiet", str(ROOT), str(clone))
    run("git", "remote", "set-url", "origin", "git@example.org:someone/nearshot.git")
    # The commands of CONTRIBUTING, but the upload.
    run(*pip, "install", "--target", str(tmp_path / "tools"), "build", "twine")
    run(sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"))
    source = tmp_path / "dist" / f"nearshot-{__version__}.tar.gz"
    built = [str(source), str(tmp_path / "dist" / f"nearshot-{__version__}-py3-none-any.whl")]
    run(sys.executable, "-m", "twine", "check", "--strict", *built)
    for name, origin in {"source": source, "repository": clone}.items():
        run(*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path / name), str(origin))
    wheel = f"nearshot-{__version__}-py3-none-any.whl"
    wheels = [zipfile.ZipFile(tmp_path / name / wheel) for name in ("source", "repository")]
    from_source, from_repository = (
        {file.filename: file.CRC for file in archive.infolist()} for archive in wheels
    )
    assert from_source == from_repository
    assert len(from_source) > 100
    page = wheels[0].read(f"nearshot-{__version__}.dist-info/METADATA").decode()
    assert "Project-URL: Repository, https://example.org/someone/nearshot\n" in page
    assert "](https://example.org/someone/nearshot/raw/HEAD/docs/images/app.jpg)" in page
    assert "](https://example.org/someone/nearshot/blob/HEAD/docs/tutorial.md)" in page
    assert "](docs/" not in page
