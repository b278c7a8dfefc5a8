"""The server of the app: reachable from this computer only, and only with the token."""

import mimetypes
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from json import JSONDecodeError
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

from nearshot.app.changes import CHANGES
from nearshot.app.exports import EXPORTS, copy_photos
from nearshot.app.label_table import import_labels
from nearshot.app.page_state import page_state
from nearshot.app.project import Photo
from nearshot.app.session import Session
from nearshot.app.thumbnails import large_jpeg, smaller_jpeg, thumbnail_jpeg
from nearshot.errors import NearshotError

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
mimetypes.add_type("text/javascript", ".js")  # Windows may say text/plain, which browsers refuse


class Guard:
    """Middleware that refuses requests of other hosts and pages, and those without the token.

    The Host header keeps out pages whose name was made to point to this computer (DNS rebinding),
    Origin keeps out forms and scripts of other pages, and the token keeps out other users of this
    computer.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app = app
        self.token = token
        self.cookie = f"nearshot-{port}"
        self.hosts = {f"{HOST}:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        token = None
        if request.url.path == "/":  # the only address that takes the token
            token = request.query_params.get("token")
        gets_cookie = token is not None and self._is_token(token)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._add_headers(MutableHeaders(scope=message), gets_cookie=gets_cookie)
            await send(message)

        response: ASGIApp = PlainTextResponse(REFUSED, 403)
        if self._is_allowed(request, token):
            response = self.app
        await response(scope, receive, send_with_headers)

    def _is_allowed(self, request: Request, token: str | None) -> bool:
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        if origin is None:
            # Browsers send Origin with everything that changes something.
            is_from_here = request.method in ("GET", "HEAD")
        else:
            is_from_here = origin == f"http://{host}"
        has_token = self._is_token(token or request.cookies.get(self.cookie, ""))
        return host in self.hosts and is_from_here and has_token

    def _add_headers(self, headers: MutableHeaders, *, gets_cookie: bool) -> None:
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        if gets_cookie:
            cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            headers.append("set-cookie", cookie)

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self.token.encode())


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

    def make_app(self, token: str, port: int) -> Starlette:
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
            *[Route(f"/api/{name}", self.change, methods=["POST"]) for name in CHANGES],
        ]
        errors = (NearshotError, HTTPException, JSONDecodeError, UnicodeDecodeError)
        return Starlette(
            routes=routes,
            middleware=[Middleware(Guard, token=token, port=port)],
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
        if after.isdecimal():
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
        change_project = CHANGES[request.url.path.removeprefix("/api/")]
        body = await request.json()
        result = await anyio.to_thread.run_sync(
            self.session.change, lambda project: change_project(project, body)
        )
        return JSONResponse({"version": self.session.version, "result": result})

    async def copy(self, request: Request) -> Response:
        """Copy photos into one folder per class."""
        body = await request.json()
        copied = await anyio.to_thread.run_sync(copy_photos, self.session, bool(body["predicted"]))
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
    return JSONResponse({"error": str(error)}, 400)


def make_server(session: Session, port: int) -> tuple[uvicorn.Server, str]:
    """Return a server for a session, and the address of its page, with a new token."""
    token = secrets.token_urlsafe(24)
    routes = Server(session)
    config = uvicorn.Config(
        routes.make_app(token, port),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    routes.is_ending = lambda: server.should_exit
    return server, f"http://{HOST}:{port}/?token={token}"


@dataclass(frozen=True)
class ListeningServer:
    """A server whose address is known: a browser may connect before it answers."""

    address: str
    server: uvicorn.Server
    listener: socket.socket

    def run(self, *, open_browser: bool) -> None:
        """Answer requests until Ctrl-C."""
        if open_browser:  # some browsers return only when they are closed
            threading.Thread(target=webbrowser.open, args=[self.address], daemon=True).start()
        self.server.run(sockets=[self.listener])


@contextmanager
def listening(session: Session, port: int) -> Iterator[ListeningServer]:
    """Start a session and listen for requests to its page; stop it at the end."""
    with socket.create_server((HOST, port)) as listener:
        server, address = make_server(session, listener.getsockname()[1])
        session.start()
        try:
            yield ListeningServer(address, server, listener)
        finally:
            session.stop()
