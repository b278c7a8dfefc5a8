"""Download files: resume interrupted ones, verify checksums, try mirrors."""

import hashlib
import http.client
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from nearshot.errors import NearshotError
from nearshot.text import with_progress

CHUNK = 1 << 20
STALL_SECONDS = 30.0  # give up a URL after so long without a byte
TRIES_PER_MIRROR = 3


class DownloadError(NearshotError, OSError):
    """A file could not be downloaded from any of its URLs."""


@dataclass(frozen=True)
class Download:
    """A file that can be downloaded."""

    name: str  # of the local file
    urls: tuple[str, ...]  # tried in turn
    md5: str
    n_bytes: int


def download(wanted: Download, folder: str | Path, *, progress: bool | None = None) -> Path:
    """Download a file, or resume an interrupted download; verify it and return its path.

    Two processes must not download to one folder at once.
    """
    target = Path(folder) / wanted.name
    if target.is_file() and _md5(target) == wanted.md5:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, problems = target.with_name(f".{target.name}.partial"), []
    for url in wanted.urls * TRIES_PER_MIRROR:
        try:
            _fetch(url, partial, wanted, progress)
        except (OSError, http.client.HTTPException) as error:
            problems.append(f"{url}: {error}")
            continue
        if _md5(partial) == wanted.md5:
            return partial.replace(target)
        problems.append(f"{url}: the checksum is wrong")
        partial.unlink()
    raise DownloadError(
        f"{wanted.name} could not be downloaded ({'; '.join(dict.fromkeys(problems))}). Get it from {wanted.urls[0]} "
        "by other means, and give its path: paths=PATH (--from PATH)."
    )


def _fetch(url: str, partial: Path, wanted: Download, progress: bool | None) -> None:
    """Append the rest of a file to its first part, or start again if the server cannot resume."""
    have = partial.stat().st_size if partial.exists() else 0
    if have >= wanted.n_bytes:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    with urllib.request.urlopen(request, timeout=STALL_SECONDS) as answer:  # noqa: S310
        resumes = have and answer.status == http.HTTPStatus.PARTIAL_CONTENT
        with partial.open("ab" if resumes else "wb") as file:
            n_chunks = wanted.n_bytes // CHUNK + 2  # a server that sends more is cut off
            for _ in with_progress(range(n_chunks), f"{wanted.name} (MiB)", show=progress):
                data = answer.read(CHUNK)
                file.write(data)
                if not data:
                    break
    got = partial.stat().st_size
    if got < wanted.n_bytes:
        raise OSError(f"the connection broke after {got:,} of {wanted.n_bytes:,} bytes")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
