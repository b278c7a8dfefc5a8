"""Read folders, zip archives and tar archives through one interface: names, and the bytes behind them.

Nothing is unpacked to disk. An archive is refused if a member could reach outside it (an absolute name, "..", a link
or a device), if it is a decompression bomb, or if it is damaged.
"""

from __future__ import annotations

import stat
import tarfile
import threading
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nearshot.data.walk import Skipped, walk
from nearshot.errors import FileFormatError, InputError
from nearshot.text import printable

__all__ = ["Files", "open_files"]

MOST_BYTES_OF_A_MEMBER = 1 << 30
# Images hardly compress. Text and one-bit drawings do, but not by a factor of a thousand.
MOST_GROWTH = 1000
GROWTH_COUNTS_FROM = 10 << 20
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".heic", ".heif")
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
ARCHIVE_SUFFIXES = (".zip", *TAR_SUFFIXES)
# A folder that holds archives and otherwise only files of these suffixes is read as if the archives were unpacked.
BESIDE_ARCHIVES = {"", ".txt", ".md", ".csv", ".json", ".html", ".pdf", ".md5", ".sha256"}
READ_ERRORS = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, NotImplementedError)


class Member(NamedTuple):
    """A file: how to read it, and a stamp that changes with its content (size with time or checksum)."""

    read: Callable[[], bytes]
    stamp: str


class Files:
    """Files by name. Names use forward slashes; hidden files and folders are skipped.

    Error messages call it by its `label`. `folders` are names of folders, needed for empty ones only.
    """

    def __init__(self, label: str, members: Mapping[str, Member], folders: Iterable[str] = ()) -> None:
        self.label = printable(label)
        self._named: dict[str, str] = {}
        named = {self._readable(name): one for name, one in members.items() if not _is_hidden(name)}
        self.members = dict(sorted(named.items()))
        self._folders = {self._readable(name) for name in folders if not _is_hidden(name)}

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return list(self.members)

    def folders(self) -> list[str]:
        """Return the names of all folders, including known empty ones, sorted."""
        above = {str(folder) for name in self.members for folder in PurePosixPath(name).parents}
        return sorted((above | self._folders) - {"."})

    def read(self, name: str) -> bytes:
        """Return a file's content. Thread-safe."""
        try:
            return self.members[name].read()
        except READ_ERRORS as error:
            raise FileFormatError(f"{name!r} in {self.label} cannot be read: {printable(error)}.") from error

    def _readable(self, name: str) -> str:
        """Return a name as one line of text; refuse two names that become the same, which would merge two classes."""
        if "\\" not in name and name.isascii() and name.isprintable():
            return name
        parts = []
        for part in name.split("/"):
            parts.append(printable(part))
            if self._named.setdefault(parts[-1], part) != part:
                raise FileFormatError(f"{self.label} has two names that both read {parts[-1]!r}. Rename one of them.")
        return "/".join(parts)


def open_files(paths: Path | str | Iterable[Path | str]) -> Files:
    """Open a folder or an archive, or several as if they were unpacked over each other."""
    if not isinstance(paths, Path | str):
        parts = [open_files(path) for path in paths]
        if not parts:
            raise InputError("There is nothing to open: paths is empty.")
        return parts[0] if len(parts) == 1 else _merged(parts)
    path = Path(paths)
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise InputError(f"There is no file or folder {path}.")
    if path.name.endswith(TAR_SUFFIXES):
        return _open_tar(path)
    if path.suffix == ".zip":
        return _open_zip(path)
    raise InputError(f"{path} is neither a folder nor a .zip or .tar archive.")


def _open_folder(path: Path) -> Files:
    members, folders, skipped = {}, [], Skipped()
    for above, names in walk(path, skipped):
        folder = above.relative_to(path).as_posix()
        folders.append(folder)
        for name in names:
            stamp = _file_stamp(above / name)
            if stamp is not None:
                members[f"{folder}/{name}".removeprefix("./")] = Member((above / name).read_bytes, stamp)
    skipped.refuse_locked()
    folders += [link.relative_to(path).as_posix() for link in skipped.linked]
    files = Files(str(path), members, folders)
    archives = [name for name in members if name.endswith(ARCHIVE_SUFFIXES)]
    others = {Path(name).suffix.lower() for name in files.names() if not name.endswith(ARCHIVE_SUFFIXES)}
    if not archives or others - BESIDE_ARCHIVES:
        return files
    parts = [files]
    for name in sorted(archives):
        archive, within = open_files(path / name), PurePosixPath(name).parent
        unpacked = {str(within / member): archive.members[member] for member in archive.names()}
        parts.append(Files(archive.label, unpacked, (str(within / folder) for folder in archive.folders())))
    return _merged(parts)


def _file_stamp(path: Path) -> str | None:
    """Return the size and time of a file; None if it is not a regular file. Reading a broken link gives the error."""
    try:
        found = path.stat()
    except OSError:
        return "unreadable"
    return f"{found.st_size} {found.st_mtime_ns}" if stat.S_ISREG(found.st_mode) else None


def _open_zip(path: Path) -> Files:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise FileFormatError(f"{path} is not a zip archive, or is cut short: {error}.") from error
    members, folders = {}, []
    for member in archive.infolist():
        if member.is_dir():
            folders.append(member.filename.rstrip("/"))
            continue
        _check_name(member.filename, path)
        if stat.S_ISLNK(member.external_attr >> 16):
            raise FileFormatError(f"{path} has a link, {member.filename!r}, instead of a file. It was not followed.")
        if member.flag_bits & 1:
            raise FileFormatError(f"{path} is encrypted; unpack it yourself and give the folder.")
        _check_growth(member.filename, member.file_size, member.compress_size, path)
        stamp = f"{member.file_size} {member.CRC}"
        members[member.filename] = Member(partial(archive.read, member), stamp)
    return Files(str(path), members, folders)


class _Tar:
    """A tar archive. Tar archives inside it are read as folders, as ILSVRC2012's training images are distributed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()  # threads share one position in the file
        self.n_promised = 0  # bytes, by the headers read so far
        self.folders: list[str] = []
        self.opened = ExitStack()  # stays open as long as a member of it can be read
        weakref.finalize(self, self.opened.close)

    def members(self, archive: tarfile.TarFile, folder: str = "") -> Iterator[tuple[str, Member]]:
        self.opened.enter_context(archive)
        end, written = 0, self.path.stat().st_mtime_ns
        for member in archive:
            end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            if member.isdir():
                self.folders.append(str(PurePosixPath(folder + member.name)))
                continue
            _check_name(member.name, self.path)
            if not member.isreg():
                raise FileFormatError(f"{self.path} has a link or device, {member.name!r}. It was not followed.")
            self.n_promised += member.size
            _check_growth(member.name, self.n_promised, self.path.stat().st_size, self.path)
            if member.name.endswith(".tar"):
                inside = tarfile.open(fileobj=archive.extractfile(member))  # noqa: SIM115 (stays open)
                yield from self.members(inside, f"{folder}{member.name.removesuffix('.tar')}/")
            else:
                stamp = f"{member.size} {member.mtime} {written}"  # tar archives have no checksums
                yield folder + member.name, Member(partial(self.read, archive, member), stamp)
        # tarfile takes a missing end for the end; a complete archive closes with blocks of zeros.
        if archive.fileobj is not None:
            archive.fileobj.seek(end)
            if len(archive.fileobj.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
                raise FileFormatError(f"{self.path} is cut short: it has no end.")

    def read(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        with self.lock:
            file = archive.extractfile(member)
            data = file.read() if file is not None else b""
        if len(data) != member.size:
            raise EOFError("the archive is cut short")
        return data


def _open_tar(path: Path) -> Files:
    tar = _Tar(path)
    try:
        members = dict(tar.members(tarfile.open(path)))  # noqa: SIM115 (stays open for reading)
    except READ_ERRORS as error:
        raise FileFormatError(f"{path} is not a tar archive, or is cut short: {error}.") from error
    return Files(str(path), members, tar.folders)


def _merged(parts: Sequence[Files]) -> Files:
    """Return several folders or archives as if they were unpacked over each other."""
    members: dict[str, Member] = {}
    for part in parts:
        for name, one in part.members.items():
            other = members.get(name, one)
            if is_image(name) and one.stamp != other.stamp and one.read() != other.read():
                label = " and ".join(part.label for part in parts if name in part.members)
                raise FileFormatError(
                    f"{label} have different images of the name {name!r}. Unpack them into folders of their own."
                )
        members |= part.members
    return Files(", ".join(part.label for part in parts), members, {name for part in parts for name in part.folders()})


def is_image(name: str) -> bool:
    """Return whether a file's name has the suffix of an image."""
    return name.lower().endswith(SUFFIXES)


def _is_hidden(name: str) -> bool:
    """Return whether a file is hidden or belongs to an operating system: .DS_Store, ._photo.jpg, Thumbs.db."""
    parts = name.split("/")
    return any((part[:1] == "." and part != ".") or part in ("Thumbs.db", "__MACOSX") for part in parts)


def _check_name(name: str, path: Path) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0] or "\0" in name:
        raise FileFormatError(f"{path} has a member {name!r} that would reach outside of it. It was not read.")


def _check_growth(name: str, size: int, packed: int, path: Path) -> None:
    if size > MOST_BYTES_OF_A_MEMBER and not name.endswith(".tar"):
        raise FileFormatError(f"{name!r} in {path} has {size:,} bytes, over the limit of {MOST_BYTES_OF_A_MEMBER:,}.")
    if size > GROWTH_COUNTS_FROM and size > MOST_GROWTH * max(packed, 1):
        raise FileFormatError(f"{name!r} in {path} would grow from {packed:,} to {size:,} bytes: a decompression bomb.")
