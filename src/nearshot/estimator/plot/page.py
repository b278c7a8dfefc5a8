"""A scene as one page of HTML, which fetches nothing and runs nothing."""

from __future__ import annotations

import base64
import io
from importlib import resources
from pathlib import PurePath
from typing import Any

import numpy as np
from PIL import Image

from nearshot._version import __version__
from nearshot.data.images import Pixels
from nearshot.estimator.plot.labels import place_names
from nearshot.estimator.plot.scene import Places, Query, Scene, Seen
from nearshot.html import Html, element, joined
from nearshot.styles import class_style
from nearshot.text import counted

__all__ = ["page_of"]

WIDTH, HEIGHT, MARGIN = 900.0, 560.0, 50.0
MOST_OF_A_CLASS, MOST_QUERIES, MOST_NAMED = 40, 300, 40
INK = "#1b1f24"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

# The markers of `nearshot.styles` as paths around the origin, about 12 wide.
SHAPES = {
    "o": "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0Z",
    "D": "M0 -8L6 0L0 8L-6 0Z",
    "s": "M-5.5 -5.5H5.5V5.5H-5.5Z",
    "^": "M0 -7L7 6H-7Z",
    "v": "M0 7L7 -6H-7Z",
    "P": "M-2.5 -7H2.5V-2.5H7V2.5H2.5V7H-2.5V2.5H-7V-2.5H-2.5Z",
    "*": "M0 -8L2 -2.6L7.6 -2.5L3.2 1L4.7 6.5L0 3.3L-4.7 6.5L-3.2 1L-7.6 -2.5L-2 -2.6Z",
}


def page_of(scene: Scene) -> str:
    """Return the page."""
    style = resources.files("nearshot.estimator.plot").joinpath("style.css").read_text(encoding="utf-8")
    head = joined(
        [
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", scene.title),
            element("link", rel="icon", href="data:,"),
            Html(f"<style>{style}</style>"),
        ]
    )
    sections = [
        element("h1", scene.title),
        *(element("p", note, class_="faint") for note in scene.notes),
        _queries(scene),
        element("section", element("h2", "The plane"), _plane(scene)),
        element("section", element("h2", "Support"), *(_class(scene, number) for number in range(len(scene.support)))),
        element("footer", element("p", f"Made by nearshot {__version__}. This page fetches nothing.")),
    ]
    body = element("body", *sections)
    return f'<!doctype html>\n<html lang="en-GB">\n<head>{head}</head>\n{body}\n</html>\n'


def _queries(scene: Scene) -> Html:
    if not scene.queries and not scene.errors:
        return Html("")
    shown = scene.queries[:MOST_QUERIES]
    parts = [element("h2", f"{counted(len(scene.queries), 'picture')} and what nearshot says")]
    if scene.errors:
        parts.append(element("ul", *(element("li", error) for error in scene.errors), class_="errors"))
    parts.append(
        element("div", *(_card(scene, query, number) for number, query in enumerate(shown, 1)), class_="cards")
    )
    if len(shown) < len(scene.queries):
        parts.append(element("p", f"… and {len(scene.queries) - len(shown):,} more.", class_="faint"))
    return element("section", *parts)


def _card(scene: Scene, query: Query, number: int) -> Html:
    told = query.explanation
    percent = f"{100 * told.probability:.0f} %"
    lines = [
        element("p", f"{number} · {PurePath(query.name).name}", class_="name faint", title=query.name),
        element("p", "" if told.is_unknown else _key(scene, str(told.nearest)), f" {told.label}", class_="answer"),
    ]
    if told.is_unknown:
        lines.append(element("p", f"unlike all classes: novelty {query.novelty}"))
        key = _key(scene, str(told.nearest))
        lines.append(element("p", "nearest is ", key, f" {told.nearest}, {percent} of the classes", class_="faint"))
    else:
        meter = element("meter", percent, min=0, max=1, value=round(told.probability, 3))
        others = [f", else {label} {100 * share:.0f} %" for label, share in _others(query) if share >= 0.005]
        lines += [element("p", percent, *others[:1]), meter]
        lines.append(element("p", f"novelty {query.novelty} (about 1 is usual)", class_="faint"))
    near = []
    for one in told.neighbours:
        seen = scene.support_image(one.name, str(one.label))
        caption = element("figcaption", str(one.label), element("br"), f"{one.distance:.2f}")
        near.append(element("figure", _tile(seen, "small", f"{one.label}: {one.name}"), caption))
    lines.append(element("div", *near, class_="near"))
    picture = _tile(query, "large", f"{query.name}: {told.label}, {percent}")
    return element("article", picture, element("div", *lines), class_="card unknown" if told.is_unknown else "card")


def _others(query: Query) -> list[tuple[Any, float]]:
    """Return the classes after the most probable, and their probabilities."""
    return list(query.explanation.probabilities.items())[1:]


def _class(scene: Scene, number: int) -> Html:
    label, members = list(scene.support.items())[number]
    tiles = [_tile(seen, "small", f"{label}: {seen.name}") for seen in members[:MOST_OF_A_CLASS]]
    more = [] if len(members) <= MOST_OF_A_CLASS else [element("p", f"… and {len(members) - MOST_OF_A_CLASS:,} more")]
    heading = element("h3", _key(scene, label), f" {label} ", element("small", f"({len(members)})", class_="faint"))
    return joined([heading, element("div", *tiles, class_="row"), *more])


def _plane(scene: Scene) -> Html:
    """Draw features on their principal plane: support images as markers, queries with a cross."""
    members = [seen for group in scene.support.values() for seen in group]
    everyone = np.stack([seen.place for seen in (*members, *scene.queries)])
    low, high = everyone.min(0), everyone.max(0)
    # One scale for both axes: distances on the plane are then distances of the features.
    unit = min((WIDTH - 2 * MARGIN) / max(high[0] - low[0], 1e-9), (HEIGHT - 2 * MARGIN) / max(high[1] - low[1], 1e-9))
    middle = (low + high) / 2

    def at(place: Places) -> tuple[float, float]:
        across, up = (place - middle) * min(unit, 1e6)
        return WIDTH / 2 + float(across), HEIGHT / 2 - float(up)

    drawn, texts = [], []
    for number, (label, group) in enumerate(scene.support.items()):
        drawn += [_marker(at(seen.place), number, f"{label}: {seen.name}") for seen in group]
    if len(scene.support) <= MOST_NAMED:
        groups = [np.array([at(seen.place) for seen in group]) for group in scene.support.values()]
        asked = np.reshape([at(query.place) for query in scene.queries], (-1, 2))
        spots = place_names(
            list(scene.support), groups, np.concatenate([asked, np.add(asked, (14, -11))]), letter=8, room=10
        )
        for label, (x, y) in zip(scene.support, spots, strict=True):
            texts.append(element("text", label, x=_short(x), y=_short(y + 4), text_anchor="middle"))
    for number, query in enumerate(scene.queries, 1):
        x, y = at(query.place)
        told = f"{query.name}: {query.explanation.label}, {100 * query.explanation.probability:.0f} %"
        drawn.append(element("g", element("title", told), *_asked(scene, query), transform=_moved(x, y)))
        if len(scene.queries) <= MOST_NAMED:
            texts.append(element("text", str(number), x=_short(x + 10), y=_short(y - 7), class_="query"))
    drawing = element("svg", *drawn, *texts, class_="map", viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", role="img")
    first, second = scene.shares
    caption = (
        f"Features as the classifier compares them, on their two principal axes, which hold {100 * first:.0f} % and "
        f"{100 * second:.0f} % of the variance; decisions use all of it. Markers are support images; with a cross are "
        "the pictures asked about, hollow markers of the classes that they are said to be of, × if unknown. Point at "
        "one for its name."
    )
    return joined([drawing, element("p", caption, class_="faint")])


def _asked(scene: Scene, query: Query) -> list[Html]:
    """Return a picture that was asked about, around the origin: its class's marker, hollow, with a cross."""
    if query.explanation.is_unknown:
        return [element("path", d="M-6 -6L6 6M-6 6L6 -6", stroke=INK, stroke_width=3)]
    colour, marker = class_style(list(scene.support).index(str(query.explanation.label)))
    hollow = element("path", d=SHAPES[marker], transform="scale(1.6)", fill="none", stroke=colour, stroke_width=1.4)
    return [hollow, element("path", d="M-5 0H5M0 -5V5", stroke=INK, stroke_width=2)]


def _moved(x: float, y: float) -> str:
    return f"translate({_short(x)} {_short(y)})"


def _marker(at: tuple[float, float], number: int, title: str) -> Html:
    colour, marker = class_style(number)
    shape = element("path", d=SHAPES[marker], transform=_moved(*at), fill=colour, stroke="#fff")
    return element("g", element("title", title), shape)


def _key(scene: Scene, label: str) -> Html:
    """Return a class's marker, to find it on the plane by."""
    number = list(scene.support).index(label)
    colour, marker = class_style(number)
    return element("svg", element("path", d=SHAPES[marker], fill=colour), class_="key", viewBox="-9 -9 18 18")


def _tile(seen: Seen | None, size: str, text: str) -> Html:
    if seen is None or seen.thumbnail is None:
        return element("span", "?", class_="gone", title=f"{text} (cannot be read any more)")
    return element("img", src=_data_uri(seen.thumbnail), class_=size, alt=text, title=text)


def _data_uri(pixels: Pixels) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _short(number: float) -> str:
    return f"{number:.1f}"
