"""The quick form of everything, as a user runs it: on the glyphs, from nothing, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearshot.experiments import RECIPES, Results
from nearshot.experiments.jobs import jobs_of
from nearshot.experiments.scales import QUICK


@pytest.mark.slow
def test_all_of_it_in_under_an_hour(tmp_path: Path) -> None:
    environment = os.environ | {"NEARSHOT_DATA": str(tmp_path / "data")}
    command = [sys.executable, "-m", "nearshot", "reproduce", "--all", "--quick"]
    started = time.monotonic()
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    assert time.monotonic() - started < 3600
    results = Results(tmp_path / "results")
    jobs = jobs_of(RECIPES.values(), None, QUICK, [0])
    assert all(job.is_done(results) for job in jobs)
    report = [sys.executable, "-m", "nearshot", "report"]
    subprocess.run(report, check=True, cwd=tmp_path, env=environment)
    page = (tmp_path / "results" / "report.html").read_text()
    assert "not a reproduction" in page
    assert page.count("QUICK") > len(RECIPES)
