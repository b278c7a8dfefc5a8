"""Draw a classifier: its support images, its answers, and the features of both on a plane."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from nearshot._version import __version__
from nearshot.data.images import Pixels
from nearshot.errors import InputError, NearshotError
from nearshot.estimator.explanation import Explanation, explain_answers
from nearshot.estimator.image_inputs import name_of, read_each
from nearshot.io import atomic_write, readable
from nearshot.styles import class_style
from nearshot.text import counted

THUMBNAIL = 96
WIDTH, HEIGHT, MARGIN = 900, 560, 50  # of the plane on a page
MAX_LETTERS = 16  # of a class's name beside markers or photos

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

Places = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Seen:
    """An image and its position."""

    name: str  # its path, or "image 3"
    thumbnail: Pixels | None  # (96, 96, 3); None if it cannot be read any more
    place: Places  # (2,) on the plane


@dataclass(frozen=True, eq=False)
class Query(Seen):
    """A classified image and its answer."""

    explanation: Explanation

    @property
    def novelty(self) -> str:
        """The novelty and, if it is above the threshold, the threshold."""
        above = f", above {self.explanation.threshold:.2f}" if self.explanation.is_unknown else ""
        return f"{self.explanation.novelty:.2f}{above}"


@dataclass(frozen=True, eq=False)
class Scene:
    """The content of a drawing."""

    title: str
    notes: tuple[str, ...]  # lines below the title
    images: tuple[Seen, ...]  # the support images
    support: dict[str, list[Seen]]  # the same by class, in the order of classes
    queries: tuple[Query, ...]  # the most doubtful first: unknown ones, then by probability
    errors: tuple[str, ...]  # a sentence per image that could not be read
    shares: tuple[float, float]  # the fraction of the variance along each axis of the plane


def make_scene(
    classifier: Any, images: Sequence[Any], n_neighbors: int = 3, title: str = "", notes: Sequence[str] = ()
) -> Scene:
    """Classify images by a fitted `FewShotClassifier` with a backbone, and collect what to draw."""
    fitted = classifier._ready()
    support = fitted.support.features.numpy()
    embedded = fitted.embedder.attempt(images) if images else []
    errors = tuple(str(one) for one in embedded if isinstance(one, NearshotError))
    good = [number for number, one in enumerate(embedded) if not isinstance(one, NearshotError)]
    features, explanations = support, []
    if good:
        query = fitted.prepare(np.stack([embedded[number] for number in good]))
        features, explanations = np.concatenate([support, query.numpy()]), explain_answers(fitted, query, n_neighbors)
    places, shares = principal_plane(features)
    names = [name_of(images[number], number) for number in good]
    seen = tuple(map(Seen, fitted.names, _thumbnails(fitted.names), places))
    codes = enumerate(fitted.classes.tolist())
    by_class = {str(label): [seen[place] for place in np.flatnonzero(fitted.codes == code)] for code, label in codes}
    thumbnails = _thumbnails([images[number] for number in good])
    queries = map(Query, names, thumbnails, places[len(support) :], explanations)
    doubtful_first = sorted(queries, key=lambda one: (not one.explanation.is_unknown, one.explanation.probability))
    return Scene(title, tuple(notes), seen, by_class, tuple(doubtful_first), errors, shares)


def principal_plane(features: npt.NDArray[np.float64]) -> tuple[Places, tuple[float, float]]:
    """Return the positions of features on their two principal axes, (feature, 2), and the variance of each axis."""
    left, values, axes = np.linalg.svd(features - features.mean(0), full_matrices=False)
    places = np.zeros((len(features), 2))
    n_axes = min(2, len(values))
    # The sign of an axis is arbitrary: make its largest weight positive, so that drawings are reproducible.
    signs = np.sign(axes[np.arange(n_axes), np.abs(axes[:n_axes]).argmax(1)])
    places[:, :n_axes] = left[:, :n_axes] * values[:n_axes] * signs
    total = float((values**2).sum()) or 1.0
    shares = [round(float(value**2) / total, 6) for value in values[:2]] + [0.0, 0.0]
    return places, (shares[0], shares[1])


def _thumbnails(images: Sequence[Any]) -> list[Pixels | None]:
    read = read_each(images, lambda content: content.square(THUMBNAIL))
    return [None if isinstance(one, NearshotError) else one for one in read]


def shortened(text: str, most: int) -> str:
    """Return text of at most so many letters, with an ellipsis in place of the rest."""
    return text if len(text) <= most else text[: most - 1] + "…"


def check_ending(path: str | Path) -> None:
    """Raise an error unless a path ends in .png or .html."""
    if Path(path).suffix.lower() not in (".png", ".html", ".htm"):
        raise InputError(f"output must end in .png or .html (got {Path(path).name!r}).")


def draw(scene: Scene, path: str | Path) -> None:
    """Write a scene to a PNG or a self-contained HTML page, by the file's ending, atomically."""
    with atomic_write(path) as file:
        if Path(path).suffix.lower() == ".png":
            from nearshot.estimator.plot.figure import make_figure, save_png  # noqa: PLC0415 (imports matplotlib)

            save_png(make_figure(scene), file)
        else:
            file.write(readable(_html_page(scene)).encode())


def _html_page(scene: Scene) -> str:
    """Return a page. All text is escaped, and a content-security policy forbids scripts and requests."""
    files = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=files, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    drawn = {label: class_style(number) for number, label in enumerate(scene.support)}
    places = np.stack([seen.place for seen in (*scene.images, *scene.queries)])
    low, high = places.min(0), places.max(0)
    unit = min(1e6, *((WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN) / np.maximum(high - low, 1e-9)))

    def at(seen: Seen) -> Any:
        """Return its place on the page; both axes have one scale, so distances are kept."""
        return np.array([WIDTH, HEIGHT]) / 2 + (seen.place - (low + high) / 2) * unit * (1, -1)

    return environment.get_template("page.html.jinja").render(
        scene=scene,
        styles={label: {"colour": colour, "shape": SHAPES[marker]} for label, (colour, marker) in drawn.items()},
        at=at,
        top={label: max(group, key=lambda seen: seen.place[1]) for label, group in scene.support.items()},
        width=WIDTH,
        height=HEIGHT,
        max_letters=MAX_LETTERS,
        version=__version__,
        counted=counted,
        data_uri=_data_uri,
        file_name=lambda name: PurePath(name).name,
    )


def _data_uri(pixels: Pixels) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
