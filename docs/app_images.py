"""Make the screenshots of `nearshot app` in docs/images, from one folder of photos per class.

    PYTHONPATH=. python docs/app_images.py PHOTOS

Those in the repository show the training images of clothing-dataset-small (CC0 1.0).
"""

import json
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from PIL import Image
from tests.helpers.browser import Browser, open_browser

from nearshot.app.project import Project
from nearshot.app.server import HOST, make_server
from nearshot.app.session import Session
from nearshot.data.store import data_folder
from nearshot.estimator import Embedder

IMAGES = Path(__file__).parent / "images"
CLASSES = ("dress", "hat", "pants", "shoes", "shorts", "t-shirt")
OTHERS = ("outwear",)
LABELLED = 6
SHOWN = 40
STRANGERS = 6


def copy_photos(source: Path, folder: Path) -> dict[str, list[str]]:
    """Copy photos of some classes into one folder, in no order, and return their names by class."""
    names: dict[str, list[str]] = {}
    for label in CLASSES + OTHERS:
        paths = sorted((source / label).iterdir())[: SHOWN if label in CLASSES else STRANGERS]
        names[label] = [path.name for path in paths]
        for path in paths:
            (folder / path.name).write_bytes(path.read_bytes())
    return names


def label_some(session: Session, names: dict[str, list[str]]) -> None:
    """Label a few photos of each class, and one of them wrongly."""
    ids = {photo.name: photo.id for photo in session.project.present}
    for label in CLASSES:
        session.change(lambda project, label=label: project.add_class(label))
        chosen = [ids[name] for name in names[label][:LABELLED]]
        session.change(lambda project, label=label, chosen=chosen: project.set_label(chosen, label))
    wrong = ids[names["shorts"][LABELLED]]
    session.change(lambda project: project.set_label([wrong], "pants"))


def take_pictures(
    browser: Browser, address: str, session: Session, names: dict[str, list[str]]
) -> None:
    """Open the page and save what it looks like."""

    def settle() -> None:
        while session.is_busy:
            time.sleep(0.2)
        time.sleep(1.5)
        browser.wait_for("[...document.images].every((image) => image.complete)")

    def take(name: str, *, width: int = 1280, height: int = 860, dark: bool = False) -> None:
        with tempfile.TemporaryDirectory() as made:
            browser.screenshot(Path(made) / "shot.png", width=width, height=height, dark=dark)
            settle()
            browser.screenshot(Path(made) / "shot.png", width=width, height=height, dark=dark)
            Image.open(Path(made) / "shot.png").convert("RGB").save(
                IMAGES / f"{name}.jpg", quality=84
            )

    def click(text: str, scope: str = "nav") -> None:
        buttons = f"[...document.querySelectorAll('{scope} button')]"
        browser.ask(
            f"{buttons}.find((one) => one.textContent.includes({json.dumps(text)})).click()"
        )
        settle()

    browser.resize(1280, 860)
    browser.open(address)
    browser.wait_for("document.querySelectorAll('.tile').length > 0")
    settle()
    take("app-start")
    label_some(session, names)
    settle()
    click("Not labelled")
    browser.ask(
        "sort.value = 'name'; sort.dispatchEvent(new Event('change', {bubbles: true}))"
    )  # a fair sample
    settle()
    browser.ask("document.querySelector('.tile[aria-posinset=\"8\"]').click()")
    settle()
    take("app")
    take("app-dark", dark=True)
    take("app-phone", width=400, height=760)
    browser.resize(1280, 860)
    click("Check labels")
    browser.ask("document.querySelector('.tile').dispatchEvent(new MouseEvent('dblclick'))")
    settle()
    take("app-photo")
    browser.ask(
        "document.getElementById('viewer').close(); document.getElementById('accuracy').click()"
    )
    settle()
    take("app-accuracy")


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "wardrobe"
        folder.mkdir()
        names = copy_photos(Path(sys.argv[1]), folder)
        embedder = Embedder("auto", cache_dir=data_folder() / "embeddings", all_sets=True)
        session = Session(Project(Path(made) / "wardrobe-nearshot", [folder]), embedder)
        session.start()
        listener = socket.create_server((HOST, 0))
        server, address = make_server(session, listener.getsockname()[1])
        thread = threading.Thread(target=server.run, args=[[listener]])
        thread.start()
        try:
            with open_browser(Path(made) / "profile") as browser:
                take_pictures(browser, address, session, names)
                print(browser.complaints)
        finally:
            server.should_exit = True
            thread.join()
            listener.close()
            session.stop()


if __name__ == "__main__":
    main()
