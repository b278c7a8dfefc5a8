"""The server of the app: reachable from this computer only, and only by who has the token."""

import csv
import io
import mimetypes
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearshot.estimator.copy_images import copy_into_classes
from nearshot.app.project import UNKNOWN, Photo, Project
from nearshot.app.session import Guess, Session, smaller_jpeg, version_of
from nearshot.errors import NearshotError
from nearshot.estimator import AccuracyEstimate, export_onnx
from nearshot.io import readable
from nearshot.models.recommended import advice_on

HOST = "127.0.0.1"
MOST_BYTES = 64 << 20  # of an uploaded photo
DECODERS = 3  # photos decoded at a time: a large one takes hundreds of megabytes
POLL_SECONDS, POLLS = 0.1, 200  # how long a request for a newer state waits
STATIC = Path(__file__).parent / "static"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
REFUSED = "Open the address that nearshot app printed in the terminal: it has a secret part that this one lacks.\n"
mimetypes.add_type("text/javascript", ".js")  # Windows may say text/plain, which browsers refuse


class Guard:
    """Middleware that refuses requests of other hosts and pages, and those without the token.

    The Host header keeps out pages whose name was made to point to this computer (DNS rebinding),
    Origin keeps out forms and scripts of other pages, and the token keeps out other users of this
    computer.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app, self.token, self.cookie = app, token, f"nearshot-{port}"
        self.hosts = {f"{HOST}:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        shown = request.query_params.get("token", "") if request.url.path == "/" else ""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if self._is_token(shown):
                    headers.append(
                        "set-cookie",
                        f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/",
                    )
            await send(message)

        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        # Browsers send Origin with everything that changes something.
        is_from_here = (
            origin == f"http://{host}" if origin is not None else request.method in ("GET", "HEAD")
        )
        has_token = self._is_token(shown or request.cookies.get(self.cookie, ""))
        allowed = host in self.hosts and is_from_here and has_token
        await (self.app if allowed else PlainTextResponse(REFUSED, 403))(
            scope, receive, send_guarded
        )

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.token.encode())


class Server:
    """The routes of the app for one session. Starlette calls those that are not `async` in threads."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.decoders = threading.Semaphore(DECODERS)
        self.is_ending: Callable[[], bool] = lambda: False

    def make_app(self, token: str, port: int) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/", lambda request: FileResponse(STATIC / "page.html")),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/state", self.state),
            Route("/api/photos/{id}", self.photo),
            Route("/api/photos", self.upload, methods=["PUT"]),
            Route("/thumbnails/{id}.jpg", self.image),
            Route("/large/{id}.jpg", self.image),
            Route("/export/{name}", self.export),
            Route("/api/copy", self.copy, methods=["POST"]),
            *(Route(f"/api/{name}", self.change, methods=["POST"]) for name in CHANGES),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(Guard, token=token, port=port)],
            exception_handlers=dict.fromkeys(
                (NearshotError, HTTPException, JSONDecodeError, UnicodeDecodeError), _refuse
            ),
        )

    async def state(self, request: Request) -> Response:
        """Everything that the page shows; with ?after=3, once there is a newer version than 3."""
        after = request.query_params.get("after", "")
        for _ in range(POLLS if after.isdecimal() else 0):
            if (
                self.session.version > int(after)
                or self.is_ending()
                or await request.is_disconnected()
            ):
                break
            await anyio.sleep(POLL_SECONDS)
        return JSONResponse(await anyio.to_thread.run_sync(page_state, self.session))

    def photo(self, request: Request) -> Response:
        """What the answer for a photo is based on."""
        return JSONResponse(self.session.explain(self._photo(request)))

    def image(self, request: Request) -> Response:
        """A photo as a new JPEG: the bytes of the file itself are never sent."""
        photo, is_large = self._photo(request), request.url.path.startswith("/large/")
        with self.decoders:
            data = version_of(self.session.project, photo, large=is_large)
        return Response(
            data, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"}
        )

    async def upload(self, request: Request) -> Response:
        """Keep a photo, if it can be decoded."""
        name, group = request.query_params.get("name", ""), request.query_params.get("group", "")
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MOST_BYTES:
                raise HTTPException(413, f"A photo must be at most {MOST_BYTES >> 20} MB.")

        def keep() -> Any:
            with self.decoders:
                smaller_jpeg(bytes(data), name, 32)  # raises an error if it is no image
            return self.session.change(lambda project: project.add_photo(bytes(data), name, group))

        photo = await anyio.to_thread.run_sync(keep)
        return JSONResponse({"id": photo.id})

    def export(self, request: Request) -> Response:
        """A file to download: the classifier, or a table of the photos."""
        name = request.path_params["name"]
        if name not in ("classifier.safetensors", "classifier.onnx", "photos.csv"):
            raise HTTPException(404)
        return Response(
            exported(self.session, name),
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    async def change(self, request: Request) -> Response:
        """Change the project, by one of `CHANGES`."""
        change, given = CHANGES[request.url.path.removeprefix("/api/")], await request.json()
        result = await anyio.to_thread.run_sync(
            self.session.change, lambda project: change(project, given)
        )
        return JSONResponse({"version": self.session.version, "result": result})

    async def copy(self, request: Request) -> Response:
        """Copy photos into one folder per class."""
        predicted = bool((await request.json())["predicted"])
        return JSONResponse(await anyio.to_thread.run_sync(copy_photos, self.session, predicted))

    def _photo(self, request: Request) -> Photo:
        return self.session.project.find([request.path_params["id"]])[0]


def answers_of(session: Session) -> list[tuple[Photo, str, str, Guess]]:
    """Return every photo with its label, its answer (both "" if there is none), and more about the answer."""
    found, guesses = [], session.model.guesses
    with session.lock:
        for photo in session.project.present:
            guess = guesses.get(photo.id, Guess())
            answer = UNKNOWN if guess.is_novel else guess.label
            found.append((photo, session.project.label_of(photo) or "", answer, guess))
    return found


def page_state(session: Session) -> dict[str, Any]:
    """Return what the page shows. Classes are indices; a guess of −1 is none, and −2 is "none of these"."""
    version, model, errors, project = (
        session.version,
        session.model,
        session.errors,
        session.project,
    )
    names = [] if model.classifier is None else model.classifier.classes_.tolist()
    estimate: dict[str, Any] = {"missing": model.estimate}
    advice = ""
    if isinstance(model.estimate, AccuracyEstimate):
        mean, (low, high) = model.estimate.mean, model.estimate.interval
        estimate = {"mean": mean, "low": low, "high": high, "n": model.estimate.n}
        advice = advice_on(session.embedder.backbone, mean)
    with session.lock:
        codes = {"": -1, UNKNOWN: -2} | {name: code for code, name in enumerate(project.classes)}
        photos, present = [], project.present
        for photo, label, answer, guess in answers_of(session):
            about = [photo.id, photo.name, photo.group, codes.get(label, -1), codes.get(answer, -1)]
            photos.append([*about, round(guess.confidence, 3), round(guess.doubt, 3)])
        suspicious = {
            one: [codes[guess.label], round(guess.confidence, 3)]
            for one, guess in model.suspicious.items()
            if guess.label in codes
            and (photo := project.photos[one]).key not in project.confirmed
            and project.label_of(photo) not in (None, guess.label)
        }
        return {
            "version": version,
            "title": readable(project.folder.name),
            "project": readable(str(project.folder)),
            "classes": list(project.classes),
            "photos": photos,
            "n_done": sum(photo.id in session.features or photo.id in errors for photo in present),
            "errors": [[photo.id, errors[photo.id]] for photo in present if photo.id in errors],
            "next": [
                one for one in model.label_next if project.label_of(project.photos[one]) is None
            ],
            "suspicious": suspicious,
            "confusion": {"classes": names, "counts": model.confusion.tolist()},
            "estimate": estimate,
            "advice": advice,
            "can_export": model.classifier is not None,
            "failure": session.failure,
        }


def copy_photos(session: Session, predicted: bool) -> dict[str, Any]:
    """Copy the photos into `sorted/` of the project, by class: the labelled ones, and if wanted by prediction."""
    folder = session.project.folder / "sorted"
    chosen = [
        (photo.path, label or (answer if predicted else ""))
        for photo, label, answer, _ in answers_of(session)
    ]
    done = copy_into_classes([(path, label) for path, label in chosen if label], folder)
    return {
        "folder": readable(str(folder)),
        "new": done.n_new,
        "same": done.n_same,
        "failures": list(map(readable, done.failures)),
        "earlier": readable(done.about_earlier),
    }


def exported(session: Session, name: str) -> bytes:
    """Return the content of a file to download."""
    if name == "photos.csv":
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow(["photo", "label", "predicted", "confidence"])
        for photo, label, answer, guess in answers_of(session):
            cells = [str(photo.path), label, answer, f"{guess.confidence:.4f}" if answer else ""]
            writer.writerow(map(_plain_cell, cells))
        return file.getvalue().encode(
            "utf-8-sig"
        )  # with a mark, without which Excel misreads letters
    classifier = session.classifier()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        if name.endswith(".onnx"):
            export_onnx(classifier, path)
        else:
            classifier.save(path)
        return path.read_bytes()


def _plain_cell(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    text = text.encode(errors="backslashreplace").decode()
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def make_server(session: Session, port: int) -> tuple[uvicorn.Server, str]:
    """Return a server for a session, and the address of its page, with a new token."""
    token, routes = secrets.token_urlsafe(24), Server(session)
    settings: dict[str, Any] = {
        "log_level": "warning",
        "access_log": False,
        "lifespan": "off",
        "ws": "none",
    }
    server = uvicorn.Server(
        uvicorn.Config(routes.make_app(token, port), timeout_graceful_shutdown=2, **settings)
    )
    routes.is_ending = lambda: server.should_exit
    return server, f"http://{HOST}:{port}/?token={token}"


def serve(session: Session, port: int, open_browser: bool, tell: Callable[[str], None]) -> None:
    """Serve the app until Ctrl-C; `tell` gets the address."""
    with socket.create_server(
        (HOST, port)
    ) as listener:  # a browser may connect before the server answers
        server, address = make_server(session, listener.getsockname()[1])
        session.start()
        try:
            tell(address)
            if open_browser:  # some browsers return only when they are closed
                threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
            server.run(sockets=[listener])
        finally:
            session.stop()


async def _refuse(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 400
    text = error.detail if isinstance(error, HTTPException) else str(error)
    return JSONResponse({"error": text}, status)


CHANGES: dict[str, Callable[[Project, dict[str, Any]], Any]] = {
    "label": lambda project, given: project.set_label(given["ids"], given["label"]),
    "remove": lambda project, given: project.set_removed(given["ids"], removed=given["removed"]),
    "confirm": lambda project, given: project.confirm(given["ids"]),
    "add-class": lambda project, given: project.add_class(given["name"]),
    "rename-class": lambda project, given: project.rename_class(given["name"], given["new_name"]),
    "remove-class": lambda project, given: project.remove_class(given["name"]),
    "label-by-folders": lambda project, given: project.label_by_folders(),
}
