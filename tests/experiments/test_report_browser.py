"""The report in a real browser: tables sort and filter, figures show, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, open_browser
from made_up import make_up

from nearshot.experiments.report import write_report
from nearshot.experiments.scales import PAPER, QUICK

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; make browser installs it")

SHOWN = "[...document.querySelectorAll('#{} > tbody')].filter(body => body.offsetHeight > 0)"
DIFFERENCES = SHOWN.format("differences")
RUNS = SHOWN.format("runs-table")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    make_up(folder, ["schedule", "ablations"], PAPER, seeds=2)
    results = make_up(folder, ["schedule"], QUICK)
    page = write_report(results, folder / "report.html")
    with open_browser(folder / "profile") as browser:
        browser.open(page)
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
    scales = browser.ask(f"{RUNS}.map(body => body.rows[0].cells[2].textContent)")
    assert scales == sorted(scales)
    assert set(scales) == {"paper", "quick"}
    table = "#pair-subsampling-cifar-fs-paper-pair-subsampling-cifar-fs"
    for _ in range(2):
        click(browser, f"{table} thead th:nth-child(4) button")
        there = browser.ask(
            f"[...document.querySelectorAll('{table} > tbody')].map(body => body.rows[0].cells[3].textContent !== '')"
        )
        assert there == sorted(there, reverse=True)
        assert 0 < sum(there) < len(there)


def test_a_run_keeps_its_details_when_it_moves(browser: Browser) -> None:
    click(browser, "#runs-table thead th:nth-child(4) button")
    ids = browser.ask(f"{RUNS}.map(body => [body.rows[0].querySelector('code').textContent, body.rows[1].textContent])")
    assert len(ids) > 20
    assert all(short in details for short, details in ids)


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


def test_a_number_leads_to_its_runs(browser: Browser) -> None:
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
    assert browser.requests
    assert all(url.startswith(("file:", "data:")) for url in browser.requests)
    assert len([url for url in browser.requests if url.startswith("file:")]) == 1
    assert not browser.ask("performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length")
    assert not browser.complaints
    # The page's own policy refuses, not only the lack of a network.
    refused = "fetch('https://example.org/').then(() => 'fetched', error => 'refused')"
    violated = "new Promise(done => addEventListener('securitypolicyviolation', e => done(e.effectiveDirective)))"
    assert (
        browser.ask(f"(async () => {{ const seen = {violated}; await {refused}; return await seen }})()")
        == "connect-src"
    )
