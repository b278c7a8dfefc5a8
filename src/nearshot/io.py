"""Atomic writes, file locks, and files of tensors and of JSON."""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import filelock

if os.name == "posix":
    import fcntl

from nearshot.errors import FileFormatError, NearshotError

if TYPE_CHECKING:
    from torch import Tensor

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
HAS_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
SECONDS_FOR_A_FOLDER = 30.0
MOST_BYTES = 1 << 30  # of a file that is read into memory
# In the metadata of tensors, where the checksum is computed with zeros in its place, and in JSON.
CHECKSUM = "crc32"
NONE_YET = "0" * 8


@contextmanager
def atomic_write(path: str | Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path` only when it is complete.

    If writing fails, the previous file at `path` stays and no other file is left behind. A
    `durable` file also survives a power cut; without it, writing is much faster.
    """
    # A symbolic link stays; its target is replaced.
    path = Path(path).resolve()
    if path.is_dir():
        raise NearshotError(f"Cannot write {path}: it is a folder.")
    if not path.parent.is_dir():
        raise NearshotError(f"Cannot write {path}: the folder {path.parent} does not exist.")
    temporary = path.parent / f".{secrets.token_hex(8)}.partial"
    try:
        with naming_a_full_disk(path):
            try:
                file = temporary.open("xb")
            except OSError as error:
                raise NearshotError(f"Cannot write {path}: {error.strerror}.") from error
            with file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            if path.exists():
                temporary.chmod(path.stat().st_mode)
            temporary.replace(path)
            if durable and os.name == "posix":
                descriptor = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
    finally:
        # A read-only disk raises even if the file does not exist.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors as a safetensors file, atomically, with a checksum.

    The tensors are contiguous, on the CPU, and share no memory. The same content always gives the
    same bytes.
    """
    # It takes seconds to import, and most files need no torch.
    import safetensors.torch  # noqa: PLC0415

    # The library writes metadata in the order of a hash map, which varies between processes.
    plain = memoryview(safetensors.torch.save(dict(tensors)))
    n_bytes = int.from_bytes(plain[:8], "little")
    entries = json.loads(bytes(plain[8 : 8 + n_bytes]))
    sorted_metadata = {name: metadata[name] for name in sorted(metadata)}
    described = {"__metadata__": {CHECKSUM: NONE_YET} | sorted_metadata} | entries
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    # Tensors start at a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    data = plain[8 + n_bytes :]
    checksum = zlib.crc32(data, zlib.crc32(header))
    with atomic_write(path) as file:
        file.write(header.replace(NONE_YET.encode(), f"{checksum:08x}".encode(), 1))
        file.write(data)


def read_tensors(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a safetensors file.

    A file that has changed since `write_tensors` wrote it is an error. Files of other programs have
    no checksum, and are read without this check.
    """
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            checksum = metadata.pop(CHECKSUM, None)
            if checksum is not None and checksum != _checksum(path, checksum):
                raise FileFormatError(
                    f"{path} is damaged: it has changed since it was written. Make it again."
                )
            # The file is no mapping.
            names = file.keys()
            return metadata, {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise FileFormatError(
            f"{path} is not a safetensors file, or is damaged: {error}."
        ) from error


def _checksum(path: str | Path, written: str) -> str:
    """Return the checksum of a file of tensors, in which `written` stands for it."""
    with (
        Path(path).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        end = 8 + int.from_bytes(content[:8], "little")
        header = content[:end].replace(written.encode(), NONE_YET.encode(), 1)
        with memoryview(content) as view, view[end:] as data:
            return f"{zlib.crc32(data, zlib.crc32(header)):08x}"


def write_json(
    path: str | Path,
    content: Mapping[str, Any],
    *,
    compact: bool = False,
    checksum: bool = False,
    durable: bool = True,
) -> None:
    """Write a JSON object atomically.

    With `compact` it is one line. A file that nobody edits may have a `checksum`. For `durable` see
    `atomic_write`. Bytes of a file name that are not UTF-8 are escaped, and come back.
    """
    if checksum:
        content = {**content, CHECKSUM: json_checksum(content)}
    if compact:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    else:
        text = json.dumps(content, ensure_ascii=False, indent=2)
    with atomic_write(path, durable=durable) as file:
        file.write((text + "\n").encode(errors="backslashreplace"))


def read_json(path: str | Path) -> dict[str, Any]:
    """Return the JSON object in a file. One that has changed despite its checksum is an error."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} is damaged: it must hold a JSON object.")
    checksum = content.pop(CHECKSUM, None)
    if checksum is not None and checksum != json_checksum(content):
        raise FileFormatError(
            f"{path} is damaged: it has changed since it was written. Restore it, or make it again."
        )
    return content


def json_checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON object, whatever the order of its names."""
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


@contextmanager
def naming_a_full_disk(path: Path) -> Iterator[None]:
    """Raise one clear sentence if the disk is full; other system errors get the file's name."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_IS_FULL:
            raise NearshotError(f"The disk is full: {path} was not written.") from error
        error.filename = error.filename or str(path)
        raise


def read_file(path: str | Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Anything else is an `OSError`: reading a FIFO would wait forever, and a device has no end. So is
    a file of more than `most_bytes`, and a path that no file can have.
    """
    try:
        # O_NONBLOCK: to open a FIFO would wait for its writer.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
    except ValueError as error:  # a NUL, or a letter that the file system cannot encode
        raise OSError(errno.EINVAL, "no file can have this name", readable(str(path))) from error
    with open(descriptor, "rb") as file:  # noqa: PTH123 (a descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > most_bytes:
            reason = f"its {status.st_size:,} bytes are over the limit of {most_bytes:,}"
            raise OSError(errno.EFBIG, reason, str(path))
        return file.read(most_bytes)


def write_new_file(path: Path, data: bytes, *, times_of: Path | None = None) -> bool:
    """Write a file under a name that is free; return False, and change nothing, if it is taken.

    The file is complete or not there, also after a kill, where the file system has hard links. It
    gets the times of the file `times_of`.
    """
    temporary = path.parent / f".{secrets.token_hex(8)}.partial"
    try:
        with naming_a_full_disk(path):
            with temporary.open("xb") as file:
                file.write(data)
            if times_of is not None:
                shutil.copystat(times_of, temporary)
            try:
                # A rename would replace a file that another process wrote meanwhile.
                path.hardlink_to(temporary)
            except FileExistsError:
                return False
            except OSError:  # a file system without links, such as FAT
                try:
                    path.open("xb").close()
                except FileExistsError:
                    return False
                temporary.replace(path)
        return True
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Append a line to a text file."""
    with naming_a_full_disk(path), path.open("a") as file:
        file.write(line)


def readable(text: str) -> str:
    r"""Return text that can be encoded: bytes of a file name that are not UTF-8 are escaped.

    >>> print(readable(b"caf\xe9 \xe6\x97\xa5".decode(errors="surrogateescape")))
    caf\xe9 日
    """
    try:
        content = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        # A surrogate that does not stand for a byte.
        content = text.encode(errors="backslashreplace")
    return content.decode(errors="backslashreplace")


class FileLock:
    """A lock that one process holds at a time, until it releases it or ends.

    On a file system without locks, every process gets it. A path that cannot be locked, such as a
    folder, is an error.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = filelock.FileLock(self.path, thread_local=False)

    def acquire(self, *, wait: bool = False) -> bool:
        """Take the lock and return True; if it is held, return False, or `wait` for it."""
        if self._lock.is_locked:
            return False
        try:
            self._lock.acquire(timeout=-1 if wait else 0)
        except filelock.Timeout:
            return False
        except RuntimeError as error:  # this thread would wait for itself
            raise NearshotError(
                f"{self.path} is already locked by this thread. Finish what holds the lock first."
            ) from error
        except OSError as error:
            if error.errno in HAS_NO_LOCKS:
                return True
            raise NearshotError(
                f"{self.path} cannot be locked: {error.strerror}. Choose another folder."
            ) from error
        return True

    def release(self, *, remove: bool = False) -> None:
        """Release the lock; `remove` also deletes its file, if that is allowed."""
        try:
            if self._lock.is_locked and remove:
                with suppress(OSError):
                    self.path.unlink()
        finally:  # also after Ctrl-C while the file is deleted
            self._lock.release()


class FolderLock:
    """A lock on a folder that one holder has at a time, until it releases it or its process ends.

    On POSIX systems the folder itself is locked: there is no file that somebody could delete.
    Elsewhere, and on a network's file system that locks no folders, it is a `FileLock` in it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._file = FileLock(self.folder / ".lock")
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock and return True; if it is held, return False."""
        if os.name != "posix":
            return self._file.acquire()
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            return self._file.acquire()
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._file.release(remove=True)


@contextmanager
def waiting_for_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, if it is free within half a minute; else, continue without it."""
    lock = FolderLock(folder)
    deadline = time.monotonic() + SECONDS_FOR_A_FOLDER
    while not lock.acquire() and time.monotonic() < deadline:
        time.sleep(0.001)
    try:
        yield
    finally:
        lock.release()
