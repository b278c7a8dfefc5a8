"""The page of the app in a browser: opened, clicked, and waited for."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.helpers.browser import Browser
from tests.helpers.small_project import wait_until

from nearshot.app.server import HOST, make_server
from nearshot.app.session import Session


@contextmanager
def opened(browser: Browser, session: Session) -> Iterator[Browser]:
    """Serve a session in a thread, as the command does, and open its page."""
    listener = socket.create_server((HOST, 0))
    server, address = make_server(session, listener.getsockname()[1])
    thread = threading.Thread(target=server.run, args=[[listener]])
    thread.start()
    browser.complaints.clear()
    try:
        browser.open(address)
        yield browser
        browser.call("Page.navigate", url="about:blank")
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        session.stop()


def settle(browser: Browser, session: Session) -> None:
    """Wait until the session has done its work, and the page shows the result.

    The page then awaits nothing but the next version.
    """

    def is_settled() -> bool:
        awaited = browser.awaited()
        is_shown = len(awaited) == 1 and awaited[0].endswith(f"?after={session.version}")
        return bool(session.failure) or (is_shown and not session.is_busy)

    wait_until(is_settled)
    assert not session.failure


def tiles(browser: Browser) -> dict[str, str]:
    """Return what is known of the rendered photos, in words, by file name."""
    captions = "(tile) => [tile.dataset.name, tile.querySelector('.caption').textContent]"
    return dict(browser.ask(f"[...document.querySelectorAll('.tile')].map({captions})"))


def click(browser: Browser, text: str, scope: str = "body") -> None:
    buttons = f"[...document.querySelectorAll({json.dumps(f'{scope} button')})]"
    button = f"{buttons}.find((button) => button.textContent.includes({json.dumps(text)}))"
    browser.wait_for(f"Boolean({button})")
    browser.ask(f"{button}.click()")


def add_class(browser: Browser, name: str) -> None:
    browser.ask(f"document.getElementById('class-name').value = {json.dumps(name)}")
    browser.ask("document.getElementById('new-class').requestSubmit()")
    names = "[...document.querySelectorAll('#classes .name')].map((name) => name.textContent)"
    browser.wait_for(f"{names}.includes({json.dumps(name)})")


def tile(name: str) -> str:
    return f"document.querySelector('.tile[data-name=\"{name}\"]')"


def select(browser: Browser, *names: str) -> None:
    for number, name in enumerate(names):
        keys = "{bubbles: true, ctrlKey: true}" if number > 0 else "{bubbles: true}"
        browser.ask(f"{tile(name)}.dispatchEvent(new MouseEvent('click', {keys}))")


def is_labelled(name: str, label: str) -> str:
    return f"{tile(name)}?.querySelector('.caption').textContent == 'labelled {label}'"


def says(name: str, text: str) -> str:
    return f"{tile(name)}?.textContent.includes({json.dumps(text)})"
