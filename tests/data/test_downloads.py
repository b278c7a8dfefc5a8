"""Downloads from a real server on loopback that cuts off, corrupts, stalls and lies."""

import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.helpers.layouts import class_folders, write_zip

from nearshot.data import SOURCES, prepare
from nearshot.data.datasets.source import standard_splits
from nearshot.data.downloads import Download, DownloadError, download

CONTENT = bytes(range(256)) * 12_000  # 3 MB


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT in the manner that the path asks for."""

    content: ClassVar[bytes] = CONTENT
    requests: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        type(self).requests.append((self.path, wanted))
        start = 0
        if wanted and self.path != "/no-ranges":
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if self.path == "/missing":
            self.send_error(404)
            return
        body = self.content[start:]
        if self.path == "/corrupt":
            body = bytes([body[0] ^ 1]) + body[1:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path == "/cuts":  # a third of the file at a time
            self.wfile.write(body[:1_100_000])
            self.close_connection = True
        elif self.path == "/stalls":
            self.wfile.write(body[:1000])
            self.wfile.flush()
            time.sleep(2)
        else:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("nearshot.data.downloads.STALL_SECONDS", 0.3)
    Server.requests.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(tmp_path: Path, *urls: str) -> Path:
    digest = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    return download(Download("file.bin", urls, digest, len(CONTENT)), tmp_path)


def test_a_file_arrives_once(tmp_path: Path, address: str) -> None:
    path = fetch(tmp_path, f"{address}/good")
    assert path.read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]
    fetch(tmp_path, f"{address}/good")
    assert len(Server.requests) == 1


@pytest.mark.parametrize(
    ("part", "url", "requests"),
    [
        (b"", "cuts", [None, "bytes=1100000-", "bytes=2200000-"]),
        (CONTENT[:2_000_000], "good", ["bytes=2000000-"]),  # of an earlier session
        (b"something else", "no-ranges", ["bytes=14-"]),
        (b"x" * 2_000_000, "good", ["bytes=2000000-", None]),  # of another file
    ],
)
def test_a_part_is_used_if_it_can_be(
    tmp_path: Path, address: str, part: bytes, url: str, requests: list[str | None]
) -> None:
    (tmp_path / ".file.bin.partial").write_bytes(part)
    assert fetch(tmp_path, *[f"{address}/{url}"] * 2).read_bytes() == CONTENT
    assert [wanted for _, wanted in Server.requests] == requests


@pytest.mark.parametrize("bad", ["missing", "corrupt", "stalls"])
def test_the_next_mirror_is_tried(tmp_path: Path, address: str, bad: str) -> None:
    assert fetch(tmp_path, f"{address}/{bad}", f"{address}/good").read_bytes() == CONTENT


def test_preparing_without_files_downloads_them(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloaded, verified and packed, once for two that ask at the same time."""
    names = set().union(*standard_splits("cifar-fs").values())
    members = class_folders(sorted(names), prefix="cifar100/data/", side=4)
    archive = write_zip(tmp_path / "cifar100.zip", members).read_bytes()
    monkeypatch.setattr(Server, "content", archive)
    digest = hashlib.md5(archive, usedforsecurity=False).hexdigest()
    file = Download("c.zip", (f"{address}/cuts",), digest, len(archive))
    source = replace(SOURCES["cifar-fs"], downloads=(file,))
    monkeypatch.setattr("nearshot.data.preparation.SOURCES", {"cifar-fs": source})
    sizes: list[list[int]] = []

    def prepare_and_add_sizes() -> None:
        stores = prepare("cifar-fs", data_dir=tmp_path / "d", side=4)
        sizes.append([len(store) for store in stores.values()])

    threads = [threading.Thread(target=prepare_and_add_sizes) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sizes == [[128, 32, 40]] * 2
    # One downloads, and the other waits.
    assert [requested for _, requested in Server.requests].count(None) == 1
    assert (tmp_path / "d" / "downloads" / "c.zip").is_file()


def test_a_failure_lists_what_was_tried(tmp_path: Path, address: str) -> None:
    urls = [f"{address}/missing", f"{address}/corrupt", "http://127.0.0.1:9/closed"]
    with pytest.raises(DownloadError) as error:
        fetch(tmp_path, *urls)
    for part in ("404", "checksum", f"{address}/missing", "paths"):
        assert part in str(error.value)
    assert list(tmp_path.iterdir()) == []
