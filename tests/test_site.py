"""The built site works from disk, in Chromium, on a wide and on a narrow screen."""

import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.helpers.browser import CHROMIUM, open_browser

ROOT = Path(__file__).parent.parent
MOST_WORDS = 1500
# Folded text does not count.
WORDS = "document.querySelector('article').innerText.split(/\\s+/).length"
REFERENCE = ("api/", "architecture.html")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(find_spec(name) for name in ("mkdocs", "material", "mkdocstrings", "nbconvert")),
        reason="needs the extra docs",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> list[Path]:
    """Return the pages except for 404.html, whose relative links depend on the address."""
    result = sorted(page for page in site.rglob("*.html") if page.name != "404.html")
    assert len(result) > 20
    return result


class Links(HTMLParser):
    """The addresses that a page links to, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.addresses.append(value)
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)


def test_no_link_is_broken(site: Path) -> None:
    links = {page: Links(page) for page in pages(site)}
    for page, links_of_page in links.items():
        for address in links_of_page.addresses:
            parts = urlsplit(address)
            if parts.scheme or address.startswith("//"):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.is_file(), f"{page.relative_to(site)}: {address}"
            if parts.fragment and target in links:
                assert unquote(parts.fragment) in links[target].anchors, (
                    f"{page.relative_to(site)}: {address}"
                )


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing; `make browser` installs it")
@pytest.mark.parametrize("width", [1280, 400])
def test_every_page_fits_the_screen(width: int, site: Path, tmp_path: Path) -> None:
    """No horizontal scrolling, no console message, no request to another host, not too long."""
    with open_browser(tmp_path) as browser:
        browser.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        for page in pages(site):
            name = page.relative_to(site).as_posix()
            browser.open(page)
            assert browser.ask("document.documentElement.scrollWidth") <= width, name
            assert browser.complaints == [], name
            if not name.startswith(REFERENCE):
                assert browser.ask(WORDS) <= MOST_WORDS, name
        assert {urlsplit(request).scheme for request in browser.requests} <= {
            "file",
            "data",
            "about",
            "blob",
        }


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing; `make browser` installs it")
def test_the_search_finds_a_function_without_a_server(site: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as browser:
        browser.open(site / "index.html")
        addresses = browser.ask(
            """new Promise((resolve, reject) => {
                const input = document.querySelector(".md-search__input");
                input.focus();
                input.value = "nca_loss";
                input.dispatchEvent(new Event("keyup", {bubbles: true}));
                setInterval(() => {
                    const results = document.querySelectorAll(".md-search-result__link");
                    if (results.length) resolve([...results].map(link => link.href));
                }, 100);
                setTimeout(() => reject("no results"), 30000);
            })"""
        )
    assert any("api/losses.html" in link for link in addresses)
