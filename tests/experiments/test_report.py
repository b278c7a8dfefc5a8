"""The report as a file, and runs from elsewhere in it: nothing gets in unescaped, nothing is fetched."""

import base64
import hashlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from browser import CHROMIUM, Browser, open_browser
from made_up import make_up
from settings import TINY
from tiny import prepare_tiny
from torch import Tensor

from nearshot.cli import main
from nearshot.errors import InputError
from nearshot.experiments import RECIPES, Results
from nearshot.experiments.claims import CLAIMS, Claim, Verdict, check_claims
from nearshot.experiments.claims.verdict import ABOVE
from nearshot.experiments.differences import Difference
from nearshot.experiments.identity import has_own_loss, run_id
from nearshot.experiments.jobs import images_of
from nearshot.experiments.recipe import Found
from nearshot.experiments.report import write_report
from nearshot.experiments.reproduce import collect
from nearshot.experiments.results import LeftOutWarning
from nearshot.experiments.scales import PAPER, QUICK, Scale, scale_named, smaller
from nearshot.training import OwnLoss, TrainConfig, train

SHOWN = "[...document.querySelectorAll('#{} > tbody')].filter(body => body.offsetHeight > 0)"
DIFFERENCES = SHOWN.format("differences")
RUNS = SHOWN.format("runs-table")
ATTACK = "<script>alert('stolen')</script>"
SHORT = replace(TINY, epochs=1, steps_per_epoch=2, input_size=16, validate_every=1, validation_episodes=10)
SCALE = Scale(
    "own-scale",
    "two steps",
    lambda config: replace(config, input_size=16, validate_every=1, validation_episodes=10, validation_way=2),
    dataset="tiny",
)


class Page(HTMLParser):
    """Tags, texts and identifiers of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.text = path, path.read_text()
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
    monkeypatch.setattr("nearshot.experiments.report.page.image_of", lambda figure: "data:,")


def test_the_page_needs_nothing_but_itself(page: Page) -> None:
    names = ("src", "href", "xlink:href", "data", "action")
    addresses = [attributes[name] for _, attributes in page.tags for name in names if name in attributes]
    assert all(str(address).startswith(("data:", "#")) for address in addresses)
    assert "@import" not in page.text
    assert "url(" not in page.text
    (policy,) = (str(one["content"]) for one in page.of("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:")
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
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
    assert base64.b64decode(str(images[0]["src"]).split(",")[1]).startswith(b"<?xml")
    assert QUICK.label in page.text


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


def is_harmless(page: Page) -> bool:
    handlers = [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    return len(page.of("script")) == 1 and not handlers and ATTACK in "".join(page.words)


@pytest.mark.usefixtures("no_drawings")
def test_what_files_say_is_text_and_an_unknown_scale_has_runs_only(tmp_path: Path) -> None:
    changes = {
        "environment": {ATTACK: ATTACK, "command": [ATTACK]},
        "by_class": {ATTACK: {ATTACK: 50.0, "\" onload='x": 20.0}},
        "fingerprints": {"train": ATTACK},
        "history": [{"epoch": 1, "loss": 1.0, "validation": {ATTACK: 20.0}}],
        "scale": '<b>"&',
    }
    results = make_up(tmp_path, ["schedule"], PAPER, changes=changes)
    page = Page(write_report(results, tmp_path / "report.html"))
    assert is_harmless(page)
    assert '<b>"&' in "".join(page.words)
    assert "an unknown scale; not a reproduction" in page.text
    assert 'id="schedule-cifar-fs-paper"' not in page.text
    assert page.text.count("<details>") == 4  # one for each run


class Row(NamedTuple):
    """A claim's row as a reader has it: words, numbers and the picture."""

    title: str
    status: str
    numbers: list[float]
    ends: list[float]  # of the interval, in pixels
    claimed: list[float]  # from where to where the claim says that it lies, in pixels
    reason: str


def studies_of(page: Page) -> list[tuple[dict[float, float], list[Row], str]]:
    """Return the ticks of each study's axis with their places, its rows, and what is said of claims not run."""
    studies = []
    for study in page.text.split('<details class="study"')[1:]:
        ticks = re.findall(r'<text x="([^"]*)" y="[^"]*">([^<]*)</text>', study.partition('<ul class="rows">')[0])
        axis = {float(label.replace("−", "-")): float(x) for x, label in ticks}
        rows = [row_of(row) for row in re.findall(r'<details class="claim .*?</summary>', study, re.DOTALL)]
        studies.append((axis, rows, unescape(study.partition('<details class="not-run">')[2])))
    return studies


def row_of(row: str) -> Row:
    def part(name: str) -> str:
        found = re.findall(rf'<span class="{name}[^>]*>(.*?)</span>\n', row, re.DOTALL)[0]
        return unescape(re.sub(r"<span.*?</span>", "", found)).strip()

    def places(pattern: str) -> list[float]:
        return [float(place) for places in re.findall(pattern, row) for place in places]

    numbers = [float(number) for number in re.findall(r"[+-]?\d+(?:\.\d+)?", part("numbers").replace("−", "-"))]
    ends = places(r'<path d="M([\d.]+) \d+H([\d.]+)" class="margin"')
    claimed = places(r'<rect x="([\d.]+)" width="([\d.]+)" height="\d+" class="claimed"')  # from, and how far
    limits = [claimed[0], sum(claimed)] if claimed else []
    return Row(part("title"), part("pill"), numbers, ends, limits, part("reason"))


def test_every_claim_has_a_row_or_is_folded_away_as_not_run(page: Page) -> None:
    results = Results(page.path.parent)
    for (_, rows, not_run), scale, seeds in zip(studies_of(page), (PAPER, QUICK), ((0, 1), (0,)), strict=True):
        checked = check_claims(Found(results, scale, seeds), "cifar-fs")
        judged = {claim.title: verdict for claim, verdict in checked if verdict.status != "not yet run"}
        expected = {title: (one.status, one.reason(len(seeds))) for title, one in judged.items()}
        assert {row.title: (row.status, row.reason) for row in rows} == expected
        statuses = [row.status for row in rows]
        assert statuses == sorted(statuses)  # those with the same verdict are together
        missing = [claim.statement for claim, verdict in checked if verdict.status == "not yet run"]
        assert missing
        assert all(statement in not_run for statement in missing)
        assert len(rows) + len(missing) == len(checked)


def test_pictures_show_the_numbers_beside_them_on_one_axis(page: Page) -> None:
    studies = studies_of(page)
    assert len({tuple(axis.items()) for axis, _, _ in studies}) == 1
    axis = studies[0][0]
    points_per_pixel = (max(axis) - min(axis)) / (axis[max(axis)] - axis[min(axis)])
    width = float(re.findall(r'<svg viewBox="0 0 (\d+) \d+"[^>]*class="picture axis"', page.text)[0])
    assert {-1.0, 0.0, 1.0} <= {*axis} or {-2.0, 0.0, 2.0} <= {*axis}

    def place(points: float) -> float:
        return min(max(axis[0.0] + points / points_per_pixel, 0.0), width)

    drawn = [row for _, rows, _ in studies for row in rows if row.ends]
    assert len(drawn) > 15
    for row in drawn:
        difference, *halves = row.numbers
        ends = [place(difference - sum(halves)), place(difference + sum(halves))]
        assert row.ends == pytest.approx(ends, abs=0.5), row  # the numbers are rounded
        # The picture says what the verdict says.
        (start, end), (left, right) = row.ends, row.claimed
        if row.status == "confirmed":
            assert left <= start <= end <= right
        if row.status == "contradicted":
            assert end <= left or start >= right


@pytest.mark.usefixtures("no_drawings")
def test_claims_are_judged_for_each_scale_and_their_words_are_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Claim("nca", f"{ATTACK} & MN", ATTACK, ATTACK, lambda found, dataset: Verdict("not yet run"), ())
    judged = Difference(f"{ATTACK} minus \" onload='x", 20.0, 2.0, 1, limits=ABOVE)

    def check(found: object, dataset: str) -> list[tuple[Claim, Verdict]]:
        return [(claim, Verdict("confirmed", ATTACK, (judged,))), (claim, Verdict("not yet run", ATTACK))]

    monkeypatch.setattr("nearshot.experiments.report.page.check_claims", check)
    make_up(tmp_path, ["schedule"], PAPER)
    page = Page(write_report(make_up(tmp_path, ["schedule"], QUICK), tmp_path / "report.html"))
    assert [len(rows) for _, rows, _ in studies_of(page)] == [1, 1]
    (row,) = studies_of(page)[0][1]
    assert row.title == f"{ATTACK} & MN"
    assert f"{ATTACK} − \" onload='x" in "".join(page.words)
    assert row.ends[0] == row.ends[1]  # beyond the axis, which an arrow shows
    assert page.text.count('class="beyond"') == 4  # in the row and below it, for both scales
    assert is_harmless(page)


def test_no_results_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nearshot reproduce --all --quick"):
        write_report(Results(tmp_path), tmp_path / "report.html")


def test_scales_are_known_by_their_names() -> None:
    for scale in (PAPER, QUICK, smaller(32), smaller(steps=3), smaller(32, 3), smaller(steps=3, quick=True)):
        known = scale_named(scale.name)
        assert (known.name, known.label) == (scale.name, scale.label)
        config = next(iter(RECIPES["schedule"].wanted("cifar-fs")))
        assert known.change(config) == scale.change(config)
    assert not scale_named("papers").has_recipes
    assert not scale_named("px").has_recipes


@pytest.mark.usefixtures("no_drawings")
def test_the_command_says_where_the_page_is_and_reads_results_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_up(tmp_path / "results", ["schedule"], QUICK)
    (tmp_path / "results" / "quick" / "last-run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    assert "results/report.html" in capsys.readouterr().out.replace("\n", "")
    page = (tmp_path / "results" / "report.html").read_text()
    assert "pairs-cifar-fs-counted" in page
    assert "runs-cifar-fs-counted" not in page  # of results, and there are none that it would be about
    assert main(["report", "--results", str(tmp_path / "nothing")]) == 1


def spread(embeddings: Tensor, labels: Tensor, strength: float = 1.0) -> Tensor:
    return strength * torch.cdist(embeddings, embeddings)[labels[:, None] == labels].mean()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a loss of one's own, by its name before and after others that are good or not."""
    folder = tmp_path_factory.mktemp("runs")
    prepare_tiny(folder / "data", n_classes=40)
    configs = {
        "a-damaged": replace(SHORT, seed=7),
        "b-own": replace(SHORT, method=OwnLoss("spread-1", spread)),
        "c-built-in": SHORT,
        "d-other-scale": replace(SHORT, validation_episodes=11),
        "e-own-partly": replace(SHORT, method=OwnLoss("spread-2", partial(spread, strength=2.0))),
    }
    for name, config in configs.items():
        train(config, folder=folder / name, data_dir=folder / "data", show=False)
    (folder / "a-damaged" / "timing.jsonl").write_text("")
    return folder


def test_what_is_good_is_taken_and_the_rest_is_named(runs: Path, tmp_path: Path) -> None:
    with pytest.warns(LeftOutWarning, match=str(runs / "a-damaged")) as warned:
        found = collect(runs, tmp_path / "results", SCALE)
    assert len(warned) == 1
    assert [(has_own_loss(result.config), result.scale) for result in found] == [
        *((True, "own-scale"), (False, "own-scale"), (False, "own"), (True, "own-scale"))
    ]
    results = Results(tmp_path / "results")
    assert {(one.scale, one.id) for one in results} == {(one.scale, one.id) for one in found}
    table, _ = RECIPES["runs"].tables(Found(results, SCALE, (0,)), "cifar-fs")
    assert sum("method=own-spread-" in str(row[0]) for row in table.rows) == 2
    assert len(table.rows) == 3
    assert any("a loss of one's own" in note for note in table.notes)
    page = write_report(results, tmp_path / "report.html").read_text()
    assert found[0].config.method_name in page
    assert scale_named("own").label in page
    for wrong in ("results", "nowhere"):  # no run, no folder
        with pytest.raises(InputError, match=str(tmp_path / wrong)):
            collect(tmp_path / wrong, tmp_path / "other", SCALE)


def test_a_run_of_any_settings_is_among_ones_own(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as the example's, of a preset, and one on a folder of pictures, into which nothing is written."""
    assert main(["reproduce", "--collect", str(runs / "b-own"), "--results", str(tmp_path / "results")]) == 0
    out = capsys.readouterr().out
    assert all(words in out for words in ("1-shot centroid", "results/own", "(84×84 inputs, as in the paper)"))
    (result,) = Results(tmp_path / "results")
    of_folder = replace(result.config, dataset=str(tmp_path / "photos"))
    path = Results(tmp_path / "results").path(of_folder, "own")
    assert path.parent == tmp_path / "results" / "own" / "photos"


def test_runs_that_differ_only_in_validation_are_both_kept(runs: Path, tmp_path: Path) -> None:
    """And collecting again changes nothing."""
    both = tmp_path / "both"
    for name in ("c-built-in", "d-other-scale"):
        shutil.copytree(runs / name, both / name)
    for _ in range(3):
        found = collect(both, tmp_path / "results", PAPER)
        assert len({result.id for result in found}) == 1
        assert len(list((tmp_path / "results").rglob("*.json"))) == len(list(Results(tmp_path / "results"))) == 2


def test_a_loss_of_ones_own_is_told_by_its_code_and_what_it_sees() -> None:
    own = replace(SHORT, method=OwnLoss("spread-1", spread))
    read = TrainConfig.from_dict(own.as_dict())  # its code is not in the files, its mark is
    assert images_of(read) == images_of(own) == images_of(SHORT)
    unseen = replace(read, temperature=2.0, background=0.0, n_shot=1)
    assert run_id(read) == run_id(own) == run_id(unseen)
    other = OwnLoss("spread-2", partial(spread, strength=2.0))
    for change in ({"seed": 1}, {"batches": "episodes"}, {"method": other}, {"method": "own-spread-00000000"}):
        assert run_id(replace(read, **change)) != run_id(own)
    with pytest.raises(InputError, match="There is no method"):
        run_id(replace(SHORT, method="owner-spread"))


@pytest.fixture(scope="module")
def browser(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium; make browser installs it")
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        browser.open(page.path)
        browser.ask("document.querySelectorAll('.part, .recipe').forEach(one => one.open = true)")
        yield browser


def click(browser: Browser, selector: str) -> None:
    """Click the middle of an element's first line with the mouse, as a person does."""
    browser.ask(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    x, y = browser.ask(
        f"(() => {{ const box = document.querySelector({selector!r}).getClientRects()[0];"
        "return [box.x + box.width / 2, box.y + box.height / 2] })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def type_into(browser: Browser, table: str, text: str) -> None:
    browser.ask(f"(box => {{ box.focus(); box.select() }})(document.querySelector('[data-filter={table}]'))")
    if text:
        browser.call("Input.insertText", text=text)
    else:
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="Delete", code="Delete", windowsVirtualKeyCode=46)


def numbers(browser: Browser, column: int) -> list[float]:
    found: list[float] = browser.ask(f"{DIFFERENCES}.map(body => Number(body.rows[0].cells[{column}].dataset.value))")
    return found


def test_a_heading_sorts_by_numbers_and_back(browser: Browser) -> None:
    heading = "#differences thead th:nth-child(8) button"
    before = numbers(browser, 7)
    click(browser, heading)
    assert numbers(browser, 7) == sorted(before) != before
    assert browser.ask("document.querySelector('#differences th[aria-sort]').ariaSort") == "ascending"
    click(browser, heading)
    assert numbers(browser, 7) == sorted(before, reverse=True)
    assert browser.ask("document.querySelectorAll('#differences th[aria-sort]').length") == 1


def test_a_heading_sorts_words_and_what_is_missing_stands_last(browser: Browser) -> None:
    click(browser, "#runs-table thead th:nth-child(3) button")
    rows = browser.ask(
        f"{RUNS}.map(body => [body.rows[0].cells[2], body.querySelector('code'), body.rows[1]].map(e => e.textContent))"
    )
    scales = [scale for scale, *_ in rows]
    assert scales == sorted(scales)
    assert set(scales) == {"paper", "quick"}
    assert all(short in details for _, short, details in rows)  # a run keeps its details when it moves
    table = "#pair-subsampling-cifar-fs-paper-pair-subsampling-cifar-fs"
    for _ in range(2):
        click(browser, f"{table} thead th:nth-child(4) button")
        there = browser.ask(
            f"[...document.querySelectorAll('{table} > tbody')].map(body => body.rows[0].cells[3].textContent !== '')"
        )
        assert there == sorted(there, reverse=True)
        assert 0 < sum(there) < len(there)


def test_typing_filters_the_rows(browser: Browser) -> None:
    everything = browser.ask(f"{DIFFERENCES}.length")
    type_into(browser, "differences", "schedule nca|nothing")
    shown = browser.ask(f"{DIFFERENCES}.map(body => body.textContent)")
    assert 0 < len(shown) < everything
    assert all("schedule" in text and "NCA" in text for text in shown)
    said = browser.ask(
        "document.querySelector('[data-filter=differences]').parentElement.querySelector('output').value"
    )
    assert said == f"{len(shown)} of {everything}"
    type_into(browser, "differences", "")
    assert browser.ask(f"{DIFFERENCES}.length") == everything


def test_a_number_leads_to_its_runs_though_they_are_folded(browser: Browser) -> None:
    browser.ask("document.querySelector('#runs').open = false")
    wanted = browser.ask("document.querySelector('#differences [data-runs]').dataset.runs").split("|")
    click(browser, "#differences [data-runs]")
    assert sorted(browser.ask(f"{RUNS}.map(body => body.querySelector('code').textContent)")) == sorted(wanted)
    assert browser.ask("location.hash.startsWith('#run-')")
    type_into(browser, "runs-table", "")


def test_figures_and_charts_show(browser: Browser) -> None:
    sizes = browser.ask("Promise.all([...document.images].map(i => i.decode().then(() => i.naturalWidth)))")
    assert len(sizes) >= 3
    assert all(size > 100 for size in sizes)
    browser.ask("document.querySelector('#runs-table details').open = true")
    charts = browser.ask(
        "[...document.querySelector('#runs-table details').querySelectorAll('figure > svg')].map(chart =>"
        "[...chart.querySelectorAll('path:not(.axis), rect')].some(shape => shape.getBBox().width > 5))"
    )
    assert len(charts) >= 7  # loss, validation, four accuracies' episodes, classes
    assert all(charts)


def test_it_fits_a_narrow_window_and_the_dark(browser: Browser, tmp_path: Path) -> None:
    browser.screenshot(tmp_path / "dark.png", width=420, dark=True)
    assert (tmp_path / "dark.png").stat().st_size > 5000
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = browser.ask(colour)
    browser.screenshot(tmp_path / "light.png")
    assert browser.ask(colour) == "rgb(255, 255, 255)" != dark


def test_nothing_is_fetched_and_nothing_could_be(browser: Browser) -> None:
    assert len([url for url in browser.requests if not url.startswith("data:")]) == 1  # the page itself
    assert not browser.complaints
    # The page's own policy refuses, not only the lack of a network.
    refused = "fetch('https://example.org/').then(() => 'fetched', error => 'refused')"
    violated = "new Promise(done => addEventListener('securitypolicyviolation', e => done(e.effectiveDirective)))"
    refusal = browser.ask(f"(async () => {{ const seen = {violated}; await {refused}; return await seen }})()")
    assert refusal == "connect-src"


@pytest.mark.usefixtures("no_drawings")
def test_all_claims_fit_on_the_first_screen(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = (Difference("a name that is long, batch 512 minus " * 3, -12.34, 1.15, 1, 2.5, limits=ABOVE),)
    verdicts = [(claim, Verdict("contradicted", "", judged, 1, 100)) for claim in CLAIMS[:-1]]
    verdicts.append((CLAIMS[-1], Verdict("not yet run")))
    monkeypatch.setattr("nearshot.experiments.report.page.check_claims", lambda found, dataset: verdicts)
    results = make_up(tmp_path, ["schedule"], QUICK)
    browser.resize(1280, 800)
    browser.open(write_report(results, tmp_path / "report.html"))
    bottoms = browser.ask(
        "[...document.querySelectorAll('.study summary')].map(one => one.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == len(CLAIMS) + 1  # and the study's own
    assert max(bottoms) <= 800
    for width in (1280, 800, 400):
        browser.resize(width, 800)
        assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
        ends = browser.ask("[...document.querySelectorAll('.row > *')].map(one => one.getBoundingClientRect().right)")
        assert max(ends) <= width
