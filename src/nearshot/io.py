"""Files that are there whole or not at all, and files that one process owns."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nearshot.errors import NearshotError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FileLock", "append_line", "atomic_write", "naming_a_full_disk", "readable", "write_tensors"]


@contextmanager
def atomic_write(path: str | Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes its place under `path` only when all of it is on the disk.

    Until then, and if anything goes wrong, what was at `path` before is still there and nothing else is.

    Args:
        path: where the file will be.
        durable: wait until it would survive a power cut too; without, it is whole after all but that, and much sooner.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "greeting.txt"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"hello")
    >>> path.read_bytes()
    b'hello'
    """
    path = Path(path).resolve()  # a link stays, and the file that it leads to is replaced
    if not path.parent.is_dir():
        raise NearshotError(f"Cannot write {path}: the folder {path.parent} does not exist.")
    if path.is_dir():
        raise NearshotError(f"Cannot write {path}: it is a folder.")
    temporary = path.parent / f".{secrets.token_hex(8)}.partial"
    try:
        with naming_a_full_disk(path):
            with _opened(temporary, path) as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            if path.exists():
                temporary.chmod(path.stat().st_mode)
            temporary.replace(path)
            if durable:
                _sync_folder(path.parent)
    finally:
        with suppress(OSError):  # a disk that is read-only says so even of a file that is not there
            temporary.unlink(missing_ok=True)


def _opened(temporary: Path, path: Path) -> IO[bytes]:
    try:
        return temporary.open("xb")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NearshotError(f"Cannot write {path}: {error.strerror}.") from error


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all; the same content gives the same file, byte by byte.

    Args:
        path: where the file will be.
        tensors: on the CPU, contiguous, and none in the memory of another.
        metadata: texts by name.
    """
    import safetensors.torch  # noqa: PLC0415 (takes seconds to import, and most files need no torch)

    # The library writes tensors in an order of its own, but metadata in that of a hash map, which is another each time.
    plain = memoryview(safetensors.torch.save(dict(tensors)))
    n_bytes = int.from_bytes(plain[:8], "little")
    entries = json.loads(bytes(plain[8 : 8 + n_bytes]))
    described = {"__metadata__": {name: metadata[name] for name in sorted(metadata)}} | entries
    header = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # what follows begins at a multiple of 8 bytes
    with atomic_write(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(plain[8 + n_bytes :])


@contextmanager
def naming_a_full_disk(path: Path) -> Iterator[None]:
    """Say in one sentence that there is no room for a file; other errors of the system get its name."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NearshotError(f"The disk is full: {path} was not written.") from error
        if error.errno == errno.EFBIG:
            raise NearshotError(
                f"{path} was not written: it is larger than files may be here. See ulimit -f, or choose another disk."
            ) from error
        if error.filename is None:
            error.filename = str(path)
        raise


def append_line(path: Path, line: str) -> None:
    """Add a line to a text file."""
    with naming_a_full_disk(path), path.open("a") as file:
        file.write(line)


def readable(text: str) -> str:
    r"""Return text that can be encoded, where a file's name in it was no UTF-8: such bytes are written out.

    >>> print(readable(b"caf\xe9 \xe6\x97\xa5".decode(errors="surrogateescape")))
    caf\xe9 日
    """
    return "".join(_written_out(letter) if "\ud800" <= letter <= "\udfff" else letter for letter in text)


def _written_out(surrogate: str) -> str:
    code = ord(surrogate)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


class FileLock:
    """A file that one process owns at a time, until it lets go or ends, however it ends.

    Where the system or the disk knows no such locks, everybody owns it. What cannot be opened, such as a folder of that
    name, is an error that says so.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def acquire(self, *, wait: bool = False) -> bool:
        """Own the file; return whether that was possible, or `wait` until it is."""
        try:
            import fcntl  # noqa: PLC0415
        except ImportError:  # on Windows
            return True
        if self._file is not None:
            return False  # two in one process are two as well
        while self._file is None:
            file = self._open()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    self._file = file
            except BlockingIOError:
                return False
            except FileNotFoundError:  # whoever had it has removed it
                continue
            except OSError:  # such as a network's disk without locks
                return True
            finally:
                if self._file is None:
                    file.close()
        return True

    def release(self, *, remove: bool = False) -> None:
        """Let others have it; `remove` leaves no file behind, if it may be removed."""
        if self._file is not None:
            try:
                if remove:
                    with suppress(OSError):  # in a folder of somebody else it stays
                        self.path.unlink()  # whoever waits for it will see that it is another then
            finally:
                self._file.close()  # which unlocks it
                self._file = None

    def _open(self) -> IO[str]:
        try:
            return self.path.open("a")
        except OSError as error:
            try:
                return self.path.open()  # somebody else's, which can be locked all the same
            except OSError:
                is_there = os.path.lexists(self.path)
                advice = "Remove it if nothing else is at work there, or choose" if is_there else "Choose"
                raise NearshotError(
                    f"{self.path} cannot be locked: {error.strerror}. {advice} another folder."
                ) from error


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut too, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
