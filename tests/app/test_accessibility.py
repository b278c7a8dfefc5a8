"""Every view and dialog of the page, light and dark: axe-core finds nothing serious."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.axe import load_axe, serious_violations
from tests.helpers.browser import CHROMIUM, Browser, open_browser
from tests.helpers.clouds import conv4
from tests.helpers.page import opened, settle

pytest.importorskip("starlette")
from nearshot.app.project import Project
from nearshot.app.session import Session
from nearshot.estimator import Embedder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; make browser installs it"),
    pytest.mark.skipif(
        importlib.util.find_spec("axe_playwright_python") is None,
        reason="needs axe-core, of the extra slow",
    ),
]
SHOWN_VIEWS = "[...document.querySelectorAll('#views li:not([hidden]), #classes li')]"
TILE = "document.querySelector('.tile:has(img)')"


@pytest.fixture(params=["light", "dark"])
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Browser]:
    """A browser with a colour scheme; nothing fades in, since half a fade has no contrast."""
    with open_browser(tmp_path / "profile") as browser:
        features = [
            {"name": "prefers-color-scheme", "value": request.param},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        browser.call("Emulation.setEmulatedMedia", features=features)
        yield browser


def check(browser: Browser, where: str) -> None:
    assert serious_violations(browser) == [], where


def check_views(browser: Browser) -> int:
    """Check every view of the list on the left, and return how many there are."""
    names = browser.ask(f"{SHOWN_VIEWS}.map((item) => item.dataset.view)")
    for name in names:
        browser.ask(
            f"{SHOWN_VIEWS}.find((item) => item.dataset.view == '{name}').firstChild.click()"
        )
        check(browser, name)
    return len(names)


def test_an_empty_project(browser: Browser, tmp_path: Path) -> None:
    session = Session(Project(tmp_path / "empty"), Embedder(conv4()))
    session.start()
    with opened(browser, session):
        browser.wait_for("document.getElementById('empty').textContent.includes('Drop photos')")
        load_axe(browser)
        check(browser, "empty")


@pytest.mark.parametrize("width", [1200, 400])
def test_every_view_and_dialog(
    width: int, browser: Browser, session: Session, photos: Path
) -> None:
    """Twelve classes, hence colours, of a photo each; predicted, removed and damaged photos."""
    (photos / "bad.png").write_bytes(b"no image")
    session.project.sync()
    *labelled, wrong, removed = [p for p in session.project.present if p.name != "bad.png"][:14]

    def label(project: Project) -> None:
        for number, photo in enumerate(labelled):
            project.add_class(f"class {number}")
            project.set_label([photo.id], f"class {number}")
        project.set_label([wrong.id], "class 11")
        project.set_removed([removed.id], removed=True)

    session.change(label)
    browser.resize(width, 900)
    with opened(browser, session):
        browser.wait_for("document.querySelectorAll('.tile').length > 0")
        settle(browser, session)
        load_axe(browser)
        assert check_views(browser) > 15
        browser.ask("document.querySelector('[data-view=all]').firstChild.click()")
        browser.ask(f"{TILE}.click()")
        check(browser, "selection")
        browser.ask("document.getElementById('accuracy').click()")
        check(browser, "expected accuracy")
        browser.ask("document.getElementById('confusions').close()")
        browser.ask(f"{TILE}.dispatchEvent(new MouseEvent('dblclick'))")
        browser.wait_for("document.querySelectorAll('#viewer-near img').length > 0")
        settle(browser, session)
        check(browser, "viewer")
        browser.ask("document.getElementById('viewer').close()")
        for name in browser.ask("[...document.querySelectorAll('dialog')].map(({id}) => id)"):
            if name != "viewer":
                browser.ask(f"document.getElementById('{name}').showModal()")
                check(browser, name)
                browser.ask(f"document.getElementById('{name}').close()")
        assert browser.complaints == []
