"""Read folders, zip archives and tar archives through one interface: names, and their bytes.

Nothing is unpacked to disk. An archive is refused if a member could reach outside it (an absolute
name, "..", a link or a device), if it is a decompression bomb, or if it is damaged. In a folder,
links to folders are not followed, since they can form a cycle, unless the link is the given path
itself.
"""

import math
import os
import stat
import tarfile
import threading
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nearshot.data.images import MOST_FILE_BYTES
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.io import read_file
from nearshot.text import printable

__all__ = ["Files", "open_files"]

MOST_BYTES_OF_A_MEMBER = 1 << 30
MOST_BYTES_OF_A_HEADER = 8192  # a path has at most 4,096
MOST_MEMBERS = 2_000_000  # of a tar archive; ILSVRC2012 has 1.3 million
MOST_DEPTH = 3  # of archives inside of archives
# Images hardly compress. Text and one-bit drawings do, but not by a factor of a thousand.
MOST_GROWTH = 1000
GROWTH_COUNTS_FROM = 10 << 20
SUFFIXES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".avif",
    ".ppm",
    ".pgm",
    ".heic",
    ".heif",
)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
ARCHIVE_SUFFIXES = (".zip", *TAR_SUFFIXES)
LONG_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class Member(NamedTuple):
    """A file: how to read it, its size, and a text that changes with its content."""

    read: Callable[[], bytes]
    n_bytes: int
    stamp: str  # the size, with the time or a checksum


class Files:
    """Files by name, sorted. Names use forward slashes; hidden files and folders are skipped.

    Args:
        label: what error messages call it.
        members: the files by name.
        folders: the names of folders, needed for those without files only.
    """

    def __init__(
        self, label: str, members: Mapping[str, Member], folders: Iterable[str] = ()
    ) -> None:
        self.label = printable(label)
        visible = [name for name in members if not _is_hidden(name)]
        by_name = {printable(name): members[name] for name in visible}
        self.members = dict(sorted(by_name.items()))
        self.folders = {printable(name) for name in folders if not _is_hidden(name)}

    def names(self) -> list[str]:
        """Return the names of all files."""
        return list(self.members)

    def folders_without_images(self) -> list[str]:
        """Return the names of the known folders that have no image at any depth, sorted."""
        known = self.folders | {"."}
        with_images = {"."}
        for name in self.members:
            parents = {str(parent) for parent in PurePosixPath(name).parents}
            known |= parents
            if is_image(name):
                with_images |= parents
        return sorted(known - with_images)

    def read(self, name: str) -> bytes:
        """Return a file's content. Thread-safe."""
        try:
            return self.members[name].read()
        except NearshotError:
            raise
        except Exception as error:  # a damaged archive can raise anything
            raise FileFormatError(
                f"{name!r} in {self.label} cannot be read: {_reason(error)}."
            ) from error


@dataclass
class Skipped:
    """What was skipped in a folder.

    Attributes:
        locked: the folders that could not be read, each with the reason.
        linked: the links to folders.
    """

    locked: dict[Path, str] = field(default_factory=dict)
    linked: list[Path] = field(default_factory=list)

    def refuse_locked(self) -> None:
        """Raise an error if a folder could not be read."""
        for folder, reason in self.locked.items():
            raise InputError(
                f"{folder} cannot be read: {reason}. Allow reading it, or move it elsewhere."
            )

    def sentences(self) -> list[str]:
        """Return one sentence for each kind of skipped folder: how many, an example, and why."""
        sentences = []
        if self.locked:
            folders = list(self.locked)
            sentences.append(_about_skipped(folders, "folder", self.locked[folders[0]]))
        if self.linked:
            sentences.append(about_linked(self.linked))
        return sentences


def about_linked(links: Sequence[Path]) -> str:
    """Return the sentence about links to folders that were not followed."""
    reason = "a link is followed only where it is given itself"
    return _about_skipped(links, "linked folder", reason)


def _about_skipped(folders: Sequence[Path], noun: str, reason: str) -> str:
    if len(folders) == 1:
        return f"The {noun} {folders[0]} is skipped: {reason}."
    return f"{len(folders):,} {noun}s are skipped, such as {folders[0]}: {reason}."


def files_under(folder: Path, skipped: Skipped) -> list[Path]:
    """Return the files in a folder, at any depth, sorted. Hidden files and folders are skipped."""
    paths = []
    for _, files in _walk(folder, skipped):
        paths += files
    return sorted(paths)


def _walk(folder: Path, skipped: Skipped) -> Iterator[tuple[Path, list[Path]]]:
    """Yield a folder and every folder below it, each with its files.

    A broken link is a file: reading it gives the error.
    """

    def add_locked(error: OSError) -> None:
        skipped.locked[Path(error.filename)] = error.strerror or type(error).__name__

    for parent, folders, names in os.walk(folder, onerror=add_locked):
        try:
            # The dot needs the right to enter the folder, and Path would drop it.
            os.stat(f"{parent}/.")  # noqa: PTH116
        except OSError as error:
            folders.clear()
            add_locked(error)
            continue
        visible = [Path(parent, name) for name in sorted(folders) if not name.startswith(".")]
        skipped.linked += [path for path in visible if path.is_symlink()]
        folders[:] = [path.name for path in visible if not path.is_symlink()]
        paths = [Path(parent, name) for name in names if not _is_hidden(name)]
        yield Path(parent), [path for path in paths if _is_file_or_broken_link(path)]


def _is_file_or_broken_link(path: Path) -> bool:
    # The methods of a Path raise an error where the right to look is missing.
    return os.path.isfile(path) or not os.path.exists(path)  # noqa: PTH110, PTH113


def open_files(paths: Path | str | Iterable[Path | str]) -> Files:
    """Open a folder or an archive, or several as if they were unpacked over each other."""
    if not isinstance(paths, Path | str):
        parts = [open_files(path) for path in paths]
        if not parts:
            raise InputError("paths must name at least one folder or archive; it is empty.")
        return _merged(parts)
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
    members = {}
    folders = []
    skipped = Skipped()
    for folder, paths in _walk(path, skipped):
        folders.append(folder.relative_to(path).as_posix())
        for file in paths:
            members[file.relative_to(path).as_posix()] = _member_of_file(file)
    skipped.refuse_locked()
    folders += [link.relative_to(path).as_posix() for link in skipped.linked]
    files = Files(str(path), members, folders)
    archives = [name for name in members if name.endswith(ARCHIVE_SUFFIXES)]
    if not archives or any(is_image(name) for name in members):
        return files
    # Archives without images beside them are read as if they were unpacked.
    parts = [files]
    for name in sorted(archives):
        archive = open_files(path / name)
        folder_name = PurePosixPath(name).parent
        inside = {str(folder_name / key): member for key, member in archive.members.items()}
        parts.append(Files(archive.label, inside))
    return _merged(parts)


def _member_of_file(file: Path) -> Member:
    read = partial(read_file, file, most_bytes=_most_bytes(file.name))
    try:
        status = file.stat()
    except OSError:  # reading it gives the error
        return Member(read, 0, "unreadable")
    return Member(read, status.st_size, f"{status.st_size} {status.st_mtime_ns}")


def _open_zip(path: Path) -> Files:
    try:
        members = dict(_zip_members(path))
    except NearshotError:
        raise
    except Exception as error:  # a damaged directory can raise anything
        raise FileFormatError(
            f"{path} is not a zip archive, or is damaged: {_reason(error)}."
        ) from error
    return Files(str(path), members)


def _zip_members(path: Path) -> Iterator[tuple[str, Member]]:
    """Yield the names of the files in an archive with the files."""
    # It stays open, for reading.
    archive = zipfile.ZipFile(path)
    for info in archive.infolist():
        if info.is_dir():
            continue
        name = info.filename
        size = info.file_size
        _check_member(path, name, size, total=size, packed=info.compress_size)
        if stat.S_ISLNK(info.external_attr >> 16):
            raise FileFormatError(
                f"{path} has a link, {name!r}, instead of a file. It was not followed."
            )
        if info.flag_bits & 1:
            raise FileFormatError(f"{path} is encrypted; unpack it yourself and give the folder.")
        yield name, Member(partial(archive.read, info), size, f"{size} {info.CRC}")


class _Header(tarfile.TarInfo):
    """A header of a tar archive, checked before what it promises is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        """Return the header in a block."""
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0:
            raise ValueError("a member has a negative size")
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise ValueError("it has a sparse file")
        if header.type in LONG_HEADERS and header.size > MOST_BYTES_OF_A_HEADER:
            raise ValueError(
                f"a header has {header.size:,} bytes, over the limit of {MOST_BYTES_OF_A_HEADER:,}"
            )
        return header

    def _proc_gnusparse_10(self, *arguments: object) -> None:
        # Another kind of sparse file, with a list of any length.
        raise ValueError("it has a sparse file")


class _Tar:
    """A tar archive. Tar archives inside it, as in ILSVRC2012, are read as folders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()  # threads share one position in the file
        self.n_promised = 0  # bytes, by the headers read so far
        self.n_members = 0
        self.opened = ExitStack()  # stays open as long as a member of it can be read
        weakref.finalize(self, self.opened.close)

    def members(
        self, archive: tarfile.TarFile, folder: str = "", depth: int = 0
    ) -> Iterator[tuple[str, Member]]:
        """Yield the names of the files in an archive, within `folder`, with the files."""
        self.opened.enter_context(archive)
        packed = self.path.stat()
        end = 0
        if depth > MOST_DEPTH:
            raise FileFormatError(
                f"{self.path} has archives inside of archives, over the limit of {MOST_DEPTH}."
            )
        for info in archive:
            info.pax_headers = {}  # each has a copy of all that are global
            self.n_members += 1
            if self.n_members > MOST_MEMBERS:
                raise FileFormatError(f"{self.path} has over {MOST_MEMBERS:,} members.")
            if info.size < 0 or info.issparse():
                raise ValueError("a member has a negative size, or is sparse")
            n_blocks = math.ceil(info.size / tarfile.BLOCKSIZE)
            end = info.offset_data + n_blocks * tarfile.BLOCKSIZE
            if info.isdir():
                continue
            self.n_promised += info.size
            _check_member(
                self.path, info.name, info.size, total=self.n_promised, packed=packed.st_size
            )
            if not info.isreg():
                raise FileFormatError(
                    f"{self.path} has a link or device, {info.name!r}. It was not followed."
                )
            if info.name.endswith(".tar"):
                # It stays open, for reading.
                file = archive.extractfile(info)
                inside = tarfile.open(fileobj=file, tarinfo=_Header)  # noqa: SIM115
                name = info.name.removesuffix(".tar")
                yield from self.members(inside, f"{folder}{name}/", depth + 1)
            else:
                # Tar archives have no checksums.
                stamp = f"{info.size} {info.mtime} {packed.st_mtime_ns}"
                member = Member(partial(self.read, archive, info), info.size, stamp)
                yield folder + info.name, member
        # tarfile takes a missing end for the end; a complete archive closes with blocks of zeros.
        if archive.fileobj is not None:
            archive.fileobj.seek(end)
            if len(archive.fileobj.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
                raise FileFormatError(f"{self.path} is cut short: it has no end.")

    def read(self, archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
        """Return a file's content."""
        with self.lock:
            file = archive.extractfile(info)
            data = file.read() if file is not None else b""
        if len(data) != info.size:
            raise EOFError("the archive is cut short")
        return data


def _open_tar(path: Path) -> Files:
    tar = _Tar(path)
    try:
        # It stays open, for reading.
        members = dict(tar.members(tarfile.open(path, tarinfo=_Header)))  # noqa: SIM115
    except NearshotError:
        raise
    except Exception as error:  # a damaged header can raise anything
        raise FileFormatError(
            f"{path} is not a tar archive, or is damaged: {_reason(error)}."
        ) from error
    return Files(str(path), members)


def _merged(parts: Sequence[Files]) -> Files:
    """Return several folders or archives as if they were unpacked over each other."""
    if len(parts) < 2:
        return parts[0]
    members: dict[str, Member] = {}
    folders: set[str] = set()
    for part in parts:
        for name, member in part.members.items():
            earlier = members.get(name, member)
            if not is_image(name) or member.stamp == earlier.stamp:
                continue
            if member.read() != earlier.read():
                raise FileFormatError(
                    f"{part.label} has another image of the name {name!r}. "
                    "Unpack the archives into folders of their own."
                )
        members |= part.members
        folders |= part.folders
    return Files(", ".join(part.label for part in parts), members, folders)


def _most_bytes(name: str) -> int:
    """Return how many bytes a file may have: an image fewer than one with all of a split."""
    return (
        min(MOST_FILE_BYTES, MOST_BYTES_OF_A_MEMBER) if is_image(name) else MOST_BYTES_OF_A_MEMBER
    )


def _reason(error: Exception) -> str:
    reason = str(error).split(":\n")[0]  # tarfile lists every compression that it tried
    return printable(reason) or type(error).__name__


def is_image(name: str) -> bool:
    """Return whether a file's name has the suffix of an image."""
    return name.lower().endswith(SUFFIXES)


def _is_hidden(name: str) -> bool:
    """Return whether a file or one of its folders is hidden, or belongs to an operating system.

    >>> _is_hidden("photos/.DS_Store"), _is_hidden("._photo.jpg"), _is_hidden("./photo.jpg")
    (True, True, False)
    """
    for part in name.split("/"):
        if part in ("Thumbs.db", "__MACOSX") or (part.startswith(".") and part != "."):
            return True
    return False


def _check_member(path: Path, name: str, size: int, *, total: int, packed: int) -> None:
    """Refuse a member that would reach outside of its archive, is too large, or grows too much.

    `total` bytes come out of `packed` bytes.
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0] or "\0" in name:
        raise FileFormatError(
            f"{path} has a member {name!r} that would reach outside of it. It was not read."
        )
    most_bytes = _most_bytes(name)
    if size > most_bytes and not name.endswith(".tar"):
        raise FileFormatError(
            f"{name!r} in {path} has {size:,} bytes, over the limit of {most_bytes:,}."
        )
    if total > max(GROWTH_COUNTS_FROM, MOST_GROWTH * packed):
        raise FileFormatError(
            f"{name!r} in {path} would grow from {packed:,} to {total:,} bytes: a decompression "
            "bomb."
        )
