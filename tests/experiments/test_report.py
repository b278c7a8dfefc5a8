"""The report as a file: what is in it, what is not, and that nothing gets into it unescaped."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_up import make_up

from nearshot.cli import main
from nearshot.errors import InputError
from nearshot.experiments import RECIPES, Results
from nearshot.experiments.claims import Claim, Verdict
from nearshot.experiments.report import write_report
from nearshot.experiments.scales import PAPER, QUICK, scale_named, smaller

ATTACK = "<script>alert('stolen')</script>"


class Page(HTMLParser):
    """Tags, texts and identifiers of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("report")
    make_up(folder, ["schedule", "ablations"], PAPER, seeds=2)
    results = make_up(folder, ["schedule"], QUICK)
    return Page(write_report(results, folder / "report.html"))


@pytest.fixture
def no_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are empty: matplotlib takes most of a page's time."""
    monkeypatch.setattr("nearshot.experiments.report.render._image_of", lambda figure: "data:,")


def test_the_page_needs_nothing_but_itself(page: Page) -> None:
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "data", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), value
    assert "@import" not in page.text
    assert "url(" not in page.text
    policy = next(one["content"] for one in page.of("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:")
    script = re.search(r"<script>(.*?)</script>", page.text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_tables_figures_and_scales_are_there(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {"schedule-cifar-fs-paper", "schedule-cifar-fs-quick", "ablations-cifar-fs-paper"} <= set(ids)
    # Every link inside the page leads somewhere.
    assert {str(one["href"])[1:] for one in page.of("a")} <= set(ids)
    images = page.of("img")
    assert len(images) >= 2
    assert all(image["alt"] for image in images)
    svg = base64.b64decode(str(images[0]["src"]).split(",")[1])
    assert svg.startswith(b"<?xml")
    assert "QUICK" in page.text
    assert "not a reproduction" in page.text


def test_a_number_leads_to_the_runs_of_its_seeds(page: Page) -> None:
    linked = [one for one in page.of("a") if "data-runs" in one]
    ids = {str(one["id"])[-16:-8] for one in page.of("tbody") if one.get("id")}
    assert linked
    for link in linked:
        runs = str(link["data-runs"]).split("|")
        assert set(runs) <= ids
        assert len(runs) == str(link["title"]).count("seed ") - 1  # one is the episodes'
    assert {str(one["data-runs"]).count("|") for one in linked} == {0, 1}  # one seed in quick, two in the paper's


def test_differences_are_ours_minus_the_papers(page: Page) -> None:
    table = page.text.split('id="differences"')[1].split("</table>")[0]
    rows = re.findall(r"<tbody>.*?</tbody>", table, re.DOTALL)
    # Four rows of the schedule's table, 1-shot and 5-shot, at the scale that the paper has numbers for; the trainings
    # serve rows of other tables too.
    assert len([row for row in rows if "<td>schedule</td>" in row]) == 8
    assert "batch-size" in table
    assert "quick" not in table
    for row in rows:
        ours, paper, difference = map(float, re.findall(r'data-value="([^"]*)"', row))
        assert difference == pytest.approx(ours - paper)
        assert (">+" in row) == (difference > 0)
        assert (">−" in row) == (difference < 0)


def test_a_run_shows_everything_behind_it(page: Page) -> None:
    details = page.text.split("<details>")[1].split("</details>")[0]
    shown = ("validation accuracy", "episodes by accuracy", "accuracy by class", "learning_rate", "0123456789abcdef")
    for expected in (*shown, "NVIDIA H200", "nearshot reproduce --all", "f00df00d", "400 episodes"):
        assert expected in details, expected


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["supcon"], PAPER)  # and a figure of pairs
    first = write_report(results, tmp_path / "one.html").read_bytes()
    assert write_report(results, tmp_path / "two.html").read_bytes() == first


@pytest.mark.usefixtures("no_drawings")
def test_what_files_say_is_text(tmp_path: Path) -> None:
    changes = {
        "environment": {ATTACK: ATTACK, "command": [ATTACK]},
        "by_class": {ATTACK: {ATTACK: 50.0, "\" onload='x": 20.0}},
        "fingerprints": {"train": ATTACK},
        "history": [{"epoch": 1, "loss": 1.0, "validation": {ATTACK: 20.0}}],
    }
    results = make_up(tmp_path, ["schedule"], PAPER, changes=changes)
    page = Page(write_report(results, tmp_path / "report.html"))
    assert len(page.of("script")) == 1
    assert ATTACK in "".join(page.words)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


@pytest.mark.usefixtures("no_drawings")
def test_an_unknown_scale_has_runs_only_and_an_odd_name_does_no_harm(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["schedule"], PAPER, changes={"scale": '<b>"&'})
    page = Page(write_report(results, tmp_path / "report.html"))
    assert not page.of("b") or all("<b>" not in str(one) for one in page.of("b"))
    assert "an unknown scale; not a reproduction" in page.text
    assert 'id="schedule-cifar-fs-paper"' not in page.text
    assert page.text.count("<details>") == 4


@pytest.mark.usefixtures("no_drawings")
def test_claims_are_judged_for_each_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim("nca", "NCA beats PN & MN", "Section 3", lambda found, dataset: Verdict("not yet run", ""), ())

    def check(found: object, dataset: str) -> list[tuple[Claim, Verdict]]:
        return [(claim, Verdict("confirmed", f"by 2.0 on {dataset}"))]

    monkeypatch.setattr("nearshot.experiments.report.contents.check_claims", check)
    make_up(tmp_path, ["schedule"], PAPER)
    page = Page(write_report(make_up(tmp_path, ["schedule"], QUICK), tmp_path / "report.html"))
    table = page.text.split('id="claims-table"')[1].split("</table>")[0]
    assert table.count("NCA beats PN &amp; MN") == 2
    assert table.count("✓ confirmed") == 2
    assert "Claims of the paper: 2 confirmed." in page.text


def test_no_results_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nearshot reproduce --all --quick"):
        write_report(Results(tmp_path), tmp_path / "report.html")


def test_scales_are_known_by_their_names() -> None:
    for scale in (PAPER, QUICK, smaller(32), smaller(steps=3), smaller(32, 3), smaller(steps=3, quick=True)):
        known = scale_named(scale.name)
        assert known is not None
        assert (known.name, known.label) == (scale.name, scale.label)
        config = RECIPES["schedule"].wanted("cifar-fs")[0].config
        assert known.change(config) == scale.change(config)
    assert scale_named("papers") is None
    assert scale_named("px") is None


@pytest.mark.usefixtures("no_drawings")
def test_the_command_says_where_the_page_is_and_reads_results_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some" / "where").mkdir(parents=True)
    (tmp_path / "some" / "where" / "settings.json").write_text("{}")
    make_up(tmp_path / "results", ["schedule"], QUICK)
    (tmp_path / "results" / "quick" / "last-run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    said = capsys.readouterr().out
    assert "results/report.html" in said.replace("\n", "")
    assert "MB" in said
    page = (tmp_path / "results" / "report.html").read_text()
    assert "pairs-cifar-fs-counted" in page
    assert "runs-cifar-fs-counted" not in page  # of results, and there are none that it would be about
    assert main(["report", "--results", str(tmp_path / "nothing")]) == 1
