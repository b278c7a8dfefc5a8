"""The picture of a classifier at work."""

import re
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, open_browser
from clouds import colours, tinted
from layouts import encoded, write_folder
from PIL import Image

from nearshot.estimator import FewShotClassifier
from nearshot.estimator.plot import Scene, draw, make_scene, principal_plane
from nearshot.estimator.plot.figure import make_figure

NASTY = f"<script>alert('dog & co')_{'W' * 60}"  # and long


def photo(seed: int, channel: int) -> bytes:
    return encoded(tinted(seed, channel, 30, 40))


@pytest.fixture
def classifier(tmp_path: Path) -> FewShotClassifier:
    members = {f"{label}/{i}.png": photo(i, channel) for channel, label in enumerate("ab") for i in range(3)}
    paths = sorted(write_folder(tmp_path / "support", members).rglob("*.png"))
    labels = [NASTY if path.parent.name == "b" else "a" for path in paths]
    return FewShotClassifier(colours, unknown_rate=0.05).fit(paths, labels)


@pytest.fixture
def scene(classifier: FewShotClassifier, tmp_path: Path) -> Scene:
    files = {"like a.png": photo(9, 0), "like b.png": photo(8, 1), "unlike.png": photo(7, 2), "<no>.png": b"x"}
    queries = sorted(write_folder(tmp_path / "queries", files).iterdir())
    return make_scene(classifier, queries, title="two & more", notes=["a note"])


def test_a_scene_has_everyone_and_the_answers(scene: Scene) -> None:
    assert {label: len(group) for label, group in scene.support.items()} == {NASTY: 3, "a": 3}
    answers = {Path(query.name).stem: query.explanation.label for query in scene.queries}
    assert answers == {"like a": "a", "like b": NASTY, "unlike": "unknown"}
    unlike, *others = scene.queries  # the most doubtful first
    assert unlike.explanation.is_unknown
    assert others == sorted(others, key=lambda query: query.explanation.probability)
    nearest = next(query for query in others if query.explanation.label == "a").explanation.neighbours[0]
    assert scene.images[nearest.index].name == nearest.name


def test_the_plane_keeps_distances_that_lie_in_it() -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(20, 2)) @ np.linalg.qr(rng.normal(size=(10, 2)))[0].T + 5
    places, shares = principal_plane(flat)
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.testing.assert_allclose(distances, np.linalg.norm(flat[:, None] - flat[None], axis=2), atol=1e-9)
    assert sum(shares) == pytest.approx(1)
    assert shares[0] >= shares[1]
    for few in (np.ones((1, 5)), np.ones((3, 5)), np.array([[0.0, 1.0], [1.0, 0.0]])):
        places, _ = principal_plane(few)
        assert places.shape == (len(few), 2)
        assert np.isfinite(places).all()


def test_the_page_needs_nothing_and_trusts_nothing(scene: Scene, tmp_path: Path) -> None:
    draw(scene, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<img ") == 6 + 3 + 3 * 3  # support, queries, three nearest of each
    assert all(address.startswith("data:") for address in re.findall(r'(?:src|href)="(.*?)"', page))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;no&gt;.png is not an image" in page


def test_the_png(scene: Scene, tmp_path: Path) -> None:
    draw(scene, tmp_path / "picture.PNG")
    with Image.open(tmp_path / "picture.PNG") as image:
        assert (image.format, image.width) == ("PNG", 1400)
        pixels = np.asarray(image.convert("RGB")).astype(int)
    blue = (pixels[:, :, 2] > 120) & (pixels[:, :, :2].max(2) < 90)  # the tint of the unlike one, drawn 120 wide
    assert blue.sum() > 0.7 * 120**2


def test_long_names_in_the_png_end_before_the_photos(scene: Scene) -> None:
    figure = make_figure(scene)
    figure.draw_without_rendering()
    names = [(text, axes) for axes in figure.axes if not axes.get_frame_on() for text in axes.texts]
    assert len(names) == 2
    for name, axes in names:
        assert name.get_window_extent().x1 < axes.get_window_extent().x1


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; make browser installs it")
def test_a_browser_shows_it(scene: Scene, tmp_path: Path) -> None:
    draw(scene, tmp_path / "page.html")
    with open_browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "page.html")
        assert browser.complaints == []
        assert [address for address in browser.requests if not address.startswith(("file:", "data:"))] == []
        loaded = "[...document.images].every(image => image.complete && image.naturalWidth == 96)"
        assert browser.ask(loaded)
        assert browser.ask("document.querySelectorAll('.card').length") == 3
        assert browser.ask("document.querySelectorAll('.card.unknown .answer')[0].textContent.trim()") == "unknown"
        assert browser.ask("document.querySelectorAll('svg.map g').length") == 9
        assert browser.ask("[...document.querySelectorAll('svg.map text title')].map((one) => one.textContent)") == [
            NASTY,
            "a",
        ]
        assert not browser.ask("document.querySelector('svg.map').innerHTML.includes('W</text>')")
        for width in (1280, 400):
            browser.resize(width, 800)
            assert browser.ask("document.documentElement.scrollWidth") <= width
