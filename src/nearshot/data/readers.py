"""Read folders, zip archives and tar archives through one interface: names, and the bytes behind them.

Nothing is unpacked to disk. An archive is refused if a member could reach outside it (an absolute
name, "..", a link or a device), if it is a decompression bomb, or if it is damaged. In a folder,
links to folders are not followed, since they can form a cycle, unless the link is the given path
itself.
"""

import lzma
import os
import stat
import tarfile
import threading
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nearshot.errors import FileFormatError, InputError
from nearshot.text import printable

__all__ = ["Files", "open_files"]

MOST_BYTES_OF_A_MEMBER = 1 << 30
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
    ".ppm",
    ".pgm",
    ".heic",
    ".heif",
)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
ARCHIVE_SUFFIXES = (".zip", *TAR_SUFFIXES)
READ_ERRORS = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
)


class Member(NamedTuple):
    """A file: how to read it, and a stamp that changes with its content (size with time or checksum)."""

    read: Callable[[], bytes]
    stamp: str


class Files:
    """Files by name, sorted. Names use forward slashes; hidden files and folders are skipped.

    Error messages call it by its `label`. `folders` are names of folders, needed for empty ones
    only, which are not looked for in archives.
    """

    def __init__(
        self, label: str, members: Mapping[str, Member], folders: Iterable[str] = ()
    ) -> None:
        self.label = printable(label)
        named = {printable(name): one for name, one in members.items() if not _is_hidden(name)}
        self.members = dict(sorted(named.items()))
        self.folders = {printable(name) for name in folders if not _is_hidden(name)}

    def names(self) -> list[str]:
        """Return the names of all files."""
        return list(self.members)

    def folders_without_images(self) -> list[str]:
        """Return the names of the known folders that have no image at any depth, sorted."""
        known, full = self.folders | {"."}, {"."}
        for name in self.members:
            above = set(map(str, PurePosixPath(name).parents))
            known |= above
            full |= above if is_image(name) else set()
        return sorted(known - full)

    def read(self, name: str) -> bytes:
        """Return a file's content. Thread-safe."""
        try:
            return self.members[name].read()
        except READ_ERRORS as error:
            raise FileFormatError(
                f"{name!r} in {self.label} cannot be read: {printable(error)}."
            ) from error


@dataclass
class Skipped:
    """What was skipped in a folder: folders that could not be read, each with the reason, and links to folders."""

    locked: dict[Path, str] = field(default_factory=dict)
    linked: list[Path] = field(default_factory=list)

    def refuse_locked(self) -> None:
        """Raise an error if a folder could not be read."""
        for folder, reason in self.locked.items():
            raise InputError(
                f"{folder} cannot be read: {reason}. Allow reading it, or remove it from what you give."
            )

    def sentences(self) -> list[str]:
        """Return one sentence for each kind of skipped folder: how many, an example, and why."""
        reason = next(iter(self.locked.values()), "")
        locked = [_about_skipped(list(self.locked), "folder", reason)] if self.locked else []
        return locked + ([about_linked(self.linked)] if self.linked else [])


def about_linked(links: Sequence[Path]) -> str:
    """Return the sentence about links to folders that were not followed."""
    return _about_skipped(
        links, "linked folder", "a link is followed only where it is given itself"
    )


def _about_skipped(folders: Sequence[Path], what: str, why: str) -> str:
    if len(folders) == 1:
        return f"The {what} {folders[0]} is skipped: {why}."
    return f"{len(folders):,} {what}s are skipped, such as {folders[0]}: {why}."


def files_under(folder: Path, skipped: Skipped) -> list[Path]:
    """Return the files in a folder, at any depth, sorted. Hidden files and folders are skipped."""
    return sorted(file for _, files in _walk(folder, skipped) for file in files)


def _walk(folder: Path, skipped: Skipped) -> Iterator[tuple[Path, list[Path]]]:
    """Yield a folder and every folder below it, each with its files. A broken link is one: reading it is the error."""

    def note(error: OSError) -> None:
        skipped.locked[Path(error.filename)] = error.strerror or type(error).__name__

    for above, folders, names in os.walk(folder, onerror=note):
        try:
            os.stat(f"{above}/.")  # noqa: PTH116 (Path drops the dot, which needs the right to enter the folder)
        except OSError as error:
            folders.clear()
            note(error)
            continue
        seen = [Path(above, name) for name in sorted(folders) if not name.startswith(".")]
        skipped.linked += [one for one in seen if one.is_symlink()]
        folders[:] = [one.name for one in seen if not one.is_symlink()]
        files = [Path(above, name) for name in names if not _is_hidden(name)]
        yield (
            Path(above),
            [file for file in files if os.path.isfile(file) or not os.path.exists(file)],
        )


def open_files(paths: Path | str | Iterable[Path | str]) -> Files:
    """Open a folder or an archive, or several as if they were unpacked over each other."""
    if not isinstance(paths, Path | str):
        parts = [open_files(path) for path in paths]
        if not parts:
            raise InputError("There is nothing to open: paths is empty.")
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
    members, folders, skipped = {}, [], Skipped()
    for above, found in _walk(path, skipped):
        folders.append(above.relative_to(path).as_posix())
        for file in found:
            try:
                stamp = f"{file.stat().st_size} {file.stat().st_mtime_ns}"
            except OSError:  # reading it gives the error
                stamp = "unreadable"
            members[file.relative_to(path).as_posix()] = Member(file.read_bytes, stamp)
    skipped.refuse_locked()
    folders += [link.relative_to(path).as_posix() for link in skipped.linked]
    files = Files(str(path), members, folders)
    archives = [name for name in members if name.endswith(ARCHIVE_SUFFIXES)]
    if not archives or any(is_image(name) for name in members):
        return files
    # Archives without images beside them are read as if they were unpacked.
    parts = [files]
    for name in sorted(archives):
        archive, within = open_files(path / name), PurePosixPath(name).parent
        parts.append(
            Files(
                archive.label,
                {str(within / member): one for member, one in archive.members.items()},
            )
        )
    return _merged(parts)


def _open_zip(path: Path) -> Files:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise FileFormatError(f"{path} is not a zip archive, or is cut short: {error}.") from error
    members = {}
    for member in archive.infolist():
        if member.is_dir():
            continue
        _check_member(
            path,
            member.filename,
            member.file_size,
            total=member.file_size,
            packed=member.compress_size,
        )
        if stat.S_ISLNK(member.external_attr >> 16):
            raise FileFormatError(
                f"{path} has a link, {member.filename!r}, instead of a file. It was not followed."
            )
        if member.flag_bits & 1:
            raise FileFormatError(f"{path} is encrypted; unpack it yourself and give the folder.")
        members[member.filename] = Member(
            partial(archive.read, member), f"{member.file_size} {member.CRC}"
        )
    return Files(str(path), members)


class _Tar:
    """A tar archive. Tar archives inside it are read as folders, as ILSVRC2012's training images are distributed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()  # threads share one position in the file
        self.n_promised = 0  # bytes, by the headers read so far
        self.opened = ExitStack()  # stays open as long as a member of it can be read
        weakref.finalize(self, self.opened.close)

    def members(self, archive: tarfile.TarFile, folder: str = "") -> Iterator[tuple[str, Member]]:
        self.opened.enter_context(archive)
        end, packed = 0, self.path.stat()
        for member in archive:
            end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            if member.isdir():
                continue
            self.n_promised += member.size
            _check_member(
                self.path, member.name, member.size, total=self.n_promised, packed=packed.st_size
            )
            if not member.isreg():
                raise FileFormatError(
                    f"{self.path} has a link or device, {member.name!r}. It was not followed."
                )
            if member.name.endswith(".tar"):
                inside = tarfile.open(fileobj=archive.extractfile(member))  # noqa: SIM115 (stays open)
                yield from self.members(inside, f"{folder}{member.name.removesuffix('.tar')}/")
            else:
                stamp = f"{member.size} {member.mtime} {packed.st_mtime_ns}"  # tar archives have no checksums
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
    return Files(str(path), members)


def _merged(parts: Sequence[Files]) -> Files:
    """Return several folders or archives as if they were unpacked over each other."""
    if len(parts) < 2:
        return parts[0]
    members: dict[str, Member] = {}
    for part in parts:
        for name, one in part.members.items():
            other = members.get(name, one)
            if is_image(name) and one.stamp != other.stamp and one.read() != other.read():
                advice = "Unpack the archives into folders of their own."
                raise FileFormatError(
                    f"{part.label} has another image of the name {name!r}. {advice}"
                )
        members |= part.members
    return Files(
        ", ".join(part.label for part in parts),
        members,
        {name for part in parts for name in part.folders},
    )


def is_image(name: str) -> bool:
    """Return whether a file's name has the suffix of an image."""
    return name.lower().endswith(SUFFIXES)


def _is_hidden(name: str) -> bool:
    """Return whether a file is hidden or belongs to an operating system: .DS_Store, ._photo.jpg, Thumbs.db."""
    parts = name.split("/")
    return any(
        (part[:1] == "." and part != ".") or part in ("Thumbs.db", "__MACOSX") for part in parts
    )


def _check_member(path: Path, name: str, size: int, *, total: int, packed: int) -> None:
    """Refuse a member that would reach outside of its archive, is too large, or makes `total` out of `packed` bytes."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0] or "\0" in name:
        raise FileFormatError(
            f"{path} has a member {name!r} that would reach outside of it. It was not read."
        )
    if size > MOST_BYTES_OF_A_MEMBER and not name.endswith(".tar"):
        raise FileFormatError(
            f"{name!r} in {path} has {size:,} bytes, over the limit of {MOST_BYTES_OF_A_MEMBER:,}."
        )

    if total > max(GROWTH_COUNTS_FROM, MOST_GROWTH * packed):
        raise FileFormatError(
            f"{name!r} in {path} would grow from {packed:,} to {total:,} bytes: a decompression bomb."
        )
