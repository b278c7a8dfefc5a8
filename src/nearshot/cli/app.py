"""`nearshot app`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from nearshot.cli._options import AUTO_BACKBONE, REJECT_RATE, option, weights_of
from nearshot.data.store import data_folder
from nearshot.errors import InputError, MissingExtraError
from nearshot.text import counted, printable

if TYPE_CHECKING:
    from nearshot.app.session import Session

UNTITLED = Path("nearshot-project")


@dataclass(frozen=True)
class App:
    """Sort photos on a page in your browser: label a few, and all others get a class at once.

    Drop photos on the page, or start with a folder of them. Name classes, drag a few photos to
    each, and correct what is wrong. The page shows how accurate it expects to be, which photos to
    label next and which labels look wrong. It copies photos into one folder per class, and exports
    the classifier for nearshot predict or as ONNX.

    Photos stay on this computer: the page is served to it alone, at an address with a secret part.
    Labels are saved at once in a project folder, by default FOLDER-nearshot beside the photos; the
    same command opens it again. Photos of FOLDER are read, and never changed. Ctrl-C ends the
    command.

    It needs the extra app: pip install '.[app]' in the clone.

    Examples:
      nearshot app
      nearshot app ./holiday
      nearshot app ./holiday --project ./birds --no-browser
    """

    folder: Annotated[
        tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")
    ] = None
    """A folder of photos; those in folders inside of it count too."""
    project: Annotated[Path | None, option(f"FOLDER-nearshot, or {UNTITLED}", "DIR")] = None
    """The folder for labels, added photos and copies; it is created if it does not exist."""
    backbone: Annotated[str, tyro.conf.arg(metavar="NAME|RUN|WEIGHTS")] = AUTO_BACKBONE
    """Embeds photos, as in nearshot predict."""
    input_size: Annotated[int | None, option("its own", "PIXELS")] = None
    """The side that photos are resized to for the backbone; smaller is faster."""
    reject_rate: float = REJECT_RATE
    """The share of photos of your own classes that you accept to lose to "none of these"."""
    device: str = "auto"
    """cpu or cuda; auto is a GPU if there is one."""
    port: int = 0
    """The port of the page's address; 0 is any that is free."""
    no_browser: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the page's address only, and open no browser."""

    def run(self, console: Console) -> None:
        """Serve the page until Ctrl-C."""
        try:
            from nearshot.app.server import listening  # noqa: PLC0415 (an extra)
        except ImportError as error:
            if (error.name or "").startswith("nearshot"):
                raise
            raise MissingExtraError(
                "nearshot app needs a web server: pip install '.[app]' in the clone."
            ) from error
        session = self._make_session()
        project = session.project
        photos = counted(len(project.present), "photo")
        console.print(
            f"Project {printable(project.folder)}: {photos}, {len(project.labels):,} labelled."
        )
        try:
            with listening(session, self.port) as server:
                console.print(
                    f"Open {server.address}\nPress Ctrl-C to stop. Labels are saved at once."
                )
                server.run(open_browser=not self.no_browser)
        except KeyboardInterrupt:
            console.print("Stopped. The same command opens the project again.")

    def _make_session(self) -> Session:
        from nearshot.app.project import Project  # noqa: PLC0415 (imports scikit-learn)
        from nearshot.app.session import Session  # noqa: PLC0415 (imports scikit-learn)
        from nearshot.estimator import Embedder  # noqa: PLC0415 (imports scikit-learn)
        from nearshot.estimator.state import check_reject_rate  # noqa: PLC0415 (imports PyTorch)

        check_reject_rate(self.reject_rate)
        if not 0 <= self.port < 1 << 16:
            raise InputError(f"port must be from 0 to 65535 (got {self.port}).")
        project_folder = self.project or UNTITLED
        photo_folders = []
        if self.folder is not None:
            photos = self.folder.absolute()
            project_folder = self.project or photos.with_name(f"{photos.name}-nearshot")
            photo_folders.append(photos)
        project = Project(project_folder, photo_folders)
        embedder = Embedder(
            weights_of(self.backbone),
            device=self.device,
            cache_dir=data_folder() / "embeddings",
            input_size=self.input_size,
            all_sets=True,
        )
        return Session(project, embedder, self.reject_rate)
