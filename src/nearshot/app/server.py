"""The server of the app: reachable from this computer only, at an address with a secret part."""

import mimetypes
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

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

from nearshot.app.bodies import checked_body
from nearshot.app.changes import CHANGES
from nearshot.app.connections import MAX_CONNECTIONS, limited_protocol
from nearshot.app.exports import EXPORTS, copy_photos
from nearshot.app.label_table import import_labels
from nearshot.app.page_state import page_state
from nearshot.app.project import Photo
from nearshot.app.session import Session
from nearshot.app.thumbnails import large_jpeg, smaller_jpeg, thumbnail_jpeg
from nearshot.errors import NearshotError
from nearshot.estimator.backbone_choice import BackboneChoice
from nearshot.io import readable
from nearshot.models.recommended import MORE_ACCURATE

HOST = "127.0.0.1"
MAX_UPLOAD_BYTES = 64 << 20
N_DECODERS = 3  # photos decoded at a time: a large one takes hundreds of megabytes
POLL_SECONDS = 0.1
MAX_POLLS = 200  # how often a request looks for a newer state before it is answered
STATIC = Path(__file__).parent / "static"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
REFUSED = (
    "Open the address that nearshot app printed in the terminal: it has a secret part that this "
    "one lacks.\n"
)
REDIRECT = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>nearshot</title>
<a href="{address}">Open the page of nearshot</a>
"""
HTTP_PORT = 80
MAX_DIGITS = 15  # of a version
mimetypes.add_type("text/javascript", ".js")  # Windows may say text/plain, which browsers refuse


def _choice(choice: BackboneChoice) -> dict[str, str | float]:
    """Return what the page shows of a backbone."""
    return {
        "name": choice.name,
        "accuracy": choice.estimate.mean,
        "speed": choice.photos_per_second,
    }


class Guard:
    """Middleware that refuses requests of other hosts and pages, and those without the secret.

    The Host header keeps out pages whose name was made to point to this computer (DNS rebinding),
    Origin keeps out forms and scripts of other pages, and the secret, which is the first part of
    every address, keeps out other users of this computer. It is no cookie: a browser would send
    that to every port of this computer.
    """

    def __init__(self, app: ASGIApp, secret: str, port: int) -> None:
        self.app = app
        self.secret = secret
        self.hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        if port == HTTP_PORT:  # which browsers leave out
            self.hosts |= {HOST, "localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        response: ASGIApp = PlainTextResponse(REFUSED, 403)
        secret, slash, path = scope["path"].removeprefix("/").partition("/")
        if slash and self._is_allowed(Request(scope), secret):
            response = self.app
            scope = {**scope, "path": f"/{path}"}
        await response(scope, receive, send_with_headers)

    def _is_allowed(self, request: Request, secret: str) -> bool:
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        if origin is None:
            # Browsers send Origin with everything that changes something.
            is_from_here = request.method in ("GET", "HEAD")
        else:
            is_from_here = origin == f"http://{host}"
        is_secret = secrets.compare_digest(readable(secret).encode(), self.secret.encode())
        return host in self.hosts and is_from_here and is_secret


class Server:
    """The routes of the app for one session. Starlette calls those that are not `async` in threads.

    Attributes:
        session: the session.
        decoders: limits how many photos are decoded at a time.
        is_ending: returns whether the server is about to end, so that no request should wait.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.decoders = threading.Semaphore(N_DECODERS)
        self.is_ending: Callable[[], bool] = _never

    def make_app(self, secret: str, port: int) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/", self.page),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/state", self.state),
            Route("/api/photos/{id}", self.photo),
            Route("/api/photos", self.upload, methods=["PUT"]),
            Route("/api/labels", self.import_labels, methods=["PUT"]),
            Route("/thumbnails/{id}.jpg", self.thumbnail),
            Route("/large/{id}.jpg", self.large),
            Route("/export/{name}", self.export),
            Route("/api/copy", self.copy, methods=["POST"]),
            Route("/api/offer", self.offer),
            Route("/api/offer", self.accept_offer, methods=["POST"]),
            *[Route(f"/api/{name}", self.change, methods=["POST"]) for name in CHANGES],
        ]
        errors = (NearshotError, HTTPException, OSError)
        return Starlette(
            routes=routes,
            middleware=[Middleware(Guard, secret=secret, port=port)],
            exception_handlers=dict.fromkeys(errors, _answer_error),
        )

    def page(self, request: Request) -> Response:
        """The page."""
        return FileResponse(STATIC / "page.html")

    async def state(self, request: Request) -> Response:
        """Everything that the page shows.

        With ?after=3, the answer comes once there is a newer version than 3.
        """
        after = request.query_params.get("after", "")
        if after.isdecimal() and len(after) <= MAX_DIGITS:
            await self._wait_for_newer(int(after), request)
        return JSONResponse(await anyio.to_thread.run_sync(page_state, self.session))

    async def _wait_for_newer(self, version: int, request: Request) -> None:
        for _ in range(MAX_POLLS):
            if self.session.version > version or self.is_ending():
                return
            if await request.is_disconnected():
                return
            await anyio.sleep(POLL_SECONDS)

    def photo(self, request: Request) -> Response:
        """What the answer for a photo is based on."""
        return JSONResponse(asdict(self.session.explain(self._photo(request))))

    def offer(self, request: Request) -> Response:
        """The more accurate backbone, and the present one, measured on the labelled photos."""
        offer = self.session.offer()
        if offer is None:
            return JSONResponse(None)
        return JSONResponse({"present": _choice(offer.present), "offered": _choice(offer.offered)})

    def accept_offer(self, request: Request) -> Response:
        """Use the more accurate backbone from now on."""
        self.session.use_backbone(MORE_ACCURATE)
        return JSONResponse({})

    def thumbnail(self, request: Request) -> Response:
        """A photo as a small JPEG."""
        photo = self._photo(request)
        with self.decoders:
            return _jpeg(thumbnail_jpeg(self.session.project, photo))

    def large(self, request: Request) -> Response:
        """A photo as a new JPEG: the bytes of the file itself are never sent."""
        photo = self._photo(request)
        with self.decoders:
            return _jpeg(large_jpeg(photo))

    async def import_labels(self, request: Request) -> Response:
        """Label photos by a table."""
        data = await _body_of(request, "A table")
        result = await anyio.to_thread.run_sync(
            self.session.change, lambda project: import_labels(project, data)
        )
        return JSONResponse(asdict(result))

    async def upload(self, request: Request) -> Response:
        """Keep a photo, if it can be decoded."""
        name = request.query_params.get("name", "")
        group = request.query_params.get("group", "")
        batch = request.query_params.get("batch", "")
        data = await _body_of(request, "A photo")
        photo = await anyio.to_thread.run_sync(self._add_photo, data, name, group, batch)
        return JSONResponse({"id": photo.id})

    def _add_photo(self, data: bytes, name: str, group: str, batch: str) -> Photo:
        with self.decoders:
            smaller_jpeg(data, name, side=32)  # an error if it is no image
        return self.session.change(lambda project: project.add_photo(data, name, group, batch))

    def export(self, request: Request) -> Response:
        """A file to download: the classifier, or a table of the photos."""
        name = request.path_params["name"]
        if name not in EXPORTS:
            raise HTTPException(404)
        return Response(
            EXPORTS[name](self.session),
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    async def change(self, request: Request) -> Response:
        """Change the project, by one of `CHANGES`."""
        name = request.scope["path"].removeprefix("/api/")
        change_project = CHANGES[name]
        body = checked_body(await _body_of(request, "A request"), name)
        result = await anyio.to_thread.run_sync(
            self.session.change, lambda project: change_project(project, body)
        )
        return JSONResponse({"version": self.session.version, "result": result})

    async def copy(self, request: Request) -> Response:
        """Copy photos into one folder per class."""
        body = checked_body(await _body_of(request, "A request"), "copy")
        copied = await anyio.to_thread.run_sync(copy_photos, self.session, body["predicted"])
        return JSONResponse(copied)

    def _photo(self, request: Request) -> Photo:
        return self.session.project.find([request.path_params["id"]])[0]


async def _body_of(request: Request, what: str) -> bytes:
    """Return what was sent, up to a limit."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_UPLOAD_BYTES:
            raise HTTPException(413, f"{what} must be at most {MAX_UPLOAD_BYTES >> 20} MB.")
    return bytes(data)


def _never() -> bool:
    return False


def _jpeg(data: bytes) -> Response:
    return Response(
        data, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"}
    )


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    if isinstance(error, OSError):  # a folder that cannot be written, a full disk, …
        reason = readable(f"{error.filename or 'A file'}: {error.strerror or error}.")
        return JSONResponse({"error": reason}, 507)
    return JSONResponse({"error": readable(str(error))}, 400)


def make_server(session: Session, port: int) -> tuple[uvicorn.Server, str]:
    """Return a server for a session, and the address of its page, with a new secret."""
    secret = secrets.token_urlsafe(24)
    routes = Server(session)
    config = uvicorn.Config(
        routes.make_app(secret, port),
        http=limited_protocol(),
        backlog=MAX_CONNECTIONS,  # so many are accepted at once, before any is closed
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    routes.is_ending = lambda: server.should_exit
    return server, f"http://{HOST}:{port}/{secret}/"


@dataclass(frozen=True)
class ListeningServer:
    """A server whose address is known: a browser may connect before it answers.

    `redirect` is a file that only the user can read, and that leads to the address.
    """

    address: str
    redirect: Path
    server: uvicorn.Server
    listener: socket.socket

    def run(self, *, open_browser: bool) -> None:
        """Answer requests until Ctrl-C."""
        if open_browser:  # some browsers return only when they are closed
            # The command line of a browser can be read by other users of the computer.
            arguments = [self.redirect.as_uri()]
            threading.Thread(target=webbrowser.open, args=arguments, daemon=True).start()
        self.server.run(sockets=[self.listener])


@contextmanager
def listening(session: Session, port: int) -> Iterator[ListeningServer]:
    """Start a session and listen for requests to its page; stop it at the end."""
    with socket.create_server((HOST, port), backlog=MAX_CONNECTIONS) as listener:
        server, address = make_server(session, listener.getsockname()[1])
        redirect = session.project.folder / "open-the-page.html"
        _write_redirect(redirect, address)
        session.start()
        try:
            yield ListeningServer(address, redirect, server, listener)
        finally:
            session.stop()
            with suppress(OSError):
                redirect.unlink()


def _write_redirect(path: Path, address: str) -> None:
    """Write a page that leads to an address, for the eyes of this user only."""
    with suppress(FileNotFoundError):
        path.unlink()
    # A new file, and not what another user might have put there.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (a descriptor)
        file.write(REDIRECT.format(address=address))
