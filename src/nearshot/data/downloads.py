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
    """A file that can be downloaded.

    Attributes:
        name: the name of the local file.
        urls: where it is; they are tried in turn.
        md5: the MD5 checksum of its content, in hexadecimal digits.
        n_bytes: its size.
    """

    name: str
    urls: tuple[str, ...]
    md5: str
    n_bytes: int


def download(file: Download, folder: str | Path, *, progress: bool | None = None) -> Path:
    """Download a file, or resume an interrupted download; verify it and return its path.

    Two processes must not download to one folder at once.
    """
    target = Path(folder) / file.name
    if target.is_file() and _md5(target) == file.md5:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    problems = []
    for url in file.urls * TRIES_PER_MIRROR:
        try:
            _fetch(url, partial, file, progress)
        except (OSError, http.client.HTTPException) as error:
            problems.append(f"{url}: {error}")
            continue
        if _md5(partial) == file.md5:
            return partial.replace(target)
        problems.append(f"{url}: the checksum is wrong")
        partial.unlink()
    raise DownloadError(
        f"{file.name} could not be downloaded ({'; '.join(dict.fromkeys(problems))}). "
        f"Get it from {file.urls[0]} by other means, and give its path as paths."
    )


def _fetch(url: str, partial: Path, file: Download, progress: bool | None) -> None:
    """Append the rest of a file to its first part, or start again if the server cannot resume."""
    n_present = partial.stat().st_size if partial.exists() else 0
    if n_present >= file.n_bytes:
        return
    headers = {"Range": f"bytes={n_present}-"} if n_present else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=STALL_SECONDS) as response:  # noqa: S310
        resumes = n_present > 0 and response.status == http.HTTPStatus.PARTIAL_CONTENT
        with partial.open("ab" if resumes else "wb") as output:
            n_chunks = file.n_bytes // CHUNK + 2  # a server that sends more is cut off
            for _ in with_progress(range(n_chunks), f"{file.name} (MiB)", progress=progress):
                data = response.read(CHUNK)
                output.write(data)
                if not data:
                    break
    n_present = partial.stat().st_size
    if n_present < file.n_bytes:
        raise OSError(f"the connection broke after {n_present:,} of {file.n_bytes:,} bytes")


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
