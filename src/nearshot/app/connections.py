"""Connections to the page's server: their number is limited, and so is the time for a request."""

import asyncio
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 64  # a browser opens about six
SECONDS_FOR_A_REQUEST = 10.0  # until its headers are here
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\n"
    b"connection: close\r\n\r\nToo many connections.\n"
)

logger = logging.getLogger(__name__)


class LimitedProtocol(H11Protocol):
    """HTTP for one connection, which is closed if it sends no request in time.

    If there are too many connections, the one that has waited longest makes room: so connections
    that do nothing cannot lock out the browser. If all have a request, the new one is answered 503.
    """

    waiting: dict["LimitedProtocol", asyncio.TimerHandle]
    """The connections without a request, the one that has waited longest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, if there is room for another connection."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._warn_once()
            if not self.waiting:
                self._refuse()
                return
            next(iter(self.waiting))._refuse()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._end_wait()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Wait no more once a request is there."""
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._end_wait()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._wait()

    def _wait(self) -> None:
        self._end_wait()
        self.waiting[self] = self.loop.call_later(SECONDS_FOR_A_REQUEST, self.transport.abort)

    def _end_wait(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _refuse(self) -> None:
        self._end_wait()
        self.connections.discard(self)
        self.transport.write(BUSY)
        self.transport.close()

    def _warn_once(self) -> None:
        if not self.app_state.get("is_warned"):
            self.app_state["is_warned"] = True
            logger.warning(
                "Over %d programs are connected to the page: idle ones are closed.", MAX_CONNECTIONS
            )


def limited_protocol() -> type[LimitedProtocol]:
    """Return the protocol for one server, whose connections share a limit."""
    waiting: dict[LimitedProtocol, Any] = {}
    return type("Protocol", (LimitedProtocol,), {"waiting": waiting})
