"""Headless Chromium for tests, by its DevTools protocol over two pipes.

It needs nothing but Python and the browser.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
SECONDS = 60.0
CODES = {"Enter": 13, "Escape": 27}  # of keys for which the browser itself does something
# The browser reads from file descriptor 3 and writes to 4, so they are put there just before it
# takes over.
LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab of a browser, which can reach no other host, and records its requests."""

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._awaited: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path | str) -> None:
        """Open a file, or an address of this computer, and wait until it has loaded."""
        address = page.resolve().as_uri() if isinstance(page, Path) else page
        self._awaited.clear()
        self.call("Page.navigate", url=address)
        self.wait_for(
            f"location.protocol + document.readyState == '{address.split(':')[0]}:complete'"
        )

    def awaited(self) -> list[str]:
        """Return the addresses of the page's requests that have not been answered."""
        self.ask("0")  # reads what the browser has said since
        return list(self._awaited.values())

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self.ask(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{condition} was not true in {SECONDS} s; errors of the page: "
                    f"{self.complaints}"
                )
            time.sleep(0.05)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key: 1, a, ArrowLeft, …. `modifiers`: 2 is Ctrl, 8 is Shift."""
        down: dict[str, Any] = {"type": "keyDown", "key": key, "modifiers": modifiers}
        if len(key) == 1 and not modifiers & 2:
            down["text"] = key
        else:
            down["windowsVirtualKeyCode"] = CODES.get(key, 0)
        self.call("Input.dispatchKeyEvent", **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, modifiers=modifiers)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        """Save what the page looks like as PNG."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], SECONDS)[0]:
                raise TimeoutError(f"the browser did not answer for {SECONDS} s")
            received = os.read(self._read, 1 << 16)
            if not received:
                raise RuntimeError("the browser has ended")
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
            self._awaited[parameters["requestId"]] = parameters["request"]["url"]
        elif method in ("Network.loadingFinished", "Network.loadingFailed"):
            self._awaited.pop(parameters["requestId"], None)
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with a new profile, and end it."""
    if CHROMIUM is None:
        raise RuntimeError("There is no Chromium; make browser installs it.")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Clear of 3 and 4, which the launcher overwrites.
    passed = [fcntl.fcntl(number, fcntl.F_DUPFD, 10) for number in (theirs_in, theirs_out)]
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]
    options += [
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ]
    options += [
        "--disable-background-networking",
        "--disable-component-update",
        "--hide-scrollbars",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *map(str, passed), CHROMIUM, *options],
        pass_fds=passed,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for number in (theirs_in, theirs_out, *passed):
        os.close(number)
    try:
        browser = Browser(ours_in, ours_out)
        yield browser
        os.write(ours_out, b'{"id": 0, "method": "Browser.close"}\0')
        process.wait(SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(ours_in)
        os.close(ours_out)
