"""Folders, zip and tar archives as one thing: names, and the bytes behind them. Nothing is ever unpacked to the disk.

An archive is refused, with its name, when a member could reach outside (an absolute name, "..", a link or a device),
when it claims to grow out of all proportion, or when it is damaged.
"""

from __future__ import annotations

import stat
import tarfile
import threading
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from nearshot.data.walk import Skipped, walk
from nearshot.errors import FileFormatError, InputError
from nearshot.io import readable

__all__ = ["Files", "NoFiles", "is_picture", "open_files", "readable_name"]

MOST_BYTES_OF_A_MEMBER = 1 << 30
# Images hardly compress; text and one-bit drawings do, but not a thousandfold.
MOST_GROWTH = 1000
GROWTH_COUNTS_FROM = 10 << 20
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
# What may lie beside the archives of a dataset that is given as the folder they are in.
BESIDE_ARCHIVES = {"", ".txt", ".md", ".csv", ".json", ".html", ".pdf", ".md5", ".sha256"}


class Files(ABC):
    """Some files, by name; names have forward slashes and stay inside."""

    def __init__(self, label: str) -> None:
        self.label = label

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all files, sorted."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return a file's content. May be called from several threads."""

    @abstractmethod
    def stamp(self, name: str) -> str:
        """Return what tells, without reading a file, that its content may be another: its size, and when or what."""

    def folders(self) -> list[str]:
        """Return the names of all folders that are known, also of empty ones, sorted."""
        return sorted({str(folder) for name in self.names() for folder in PurePosixPath(name).parents} - {"."})


class NoFiles(Files):
    """Nothing, for a dataset that is made rather than read."""

    def __init__(self) -> None:
        super().__init__("nothing")

    def names(self) -> list[str]:
        """Return no names."""
        return []

    def read(self, name: str) -> bytes:
        """Refuse: there is nothing to read."""
        raise InputError(f"There is no file {name!r}.")

    def stamp(self, name: str) -> str:
        """Refuse: there is nothing to look at."""
        raise InputError(f"There is no file {name!r}.")


class _Folder(Files):
    def __init__(self, path: Path) -> None:
        super().__init__(readable_name(str(path)))
        self.members: dict[str, Path] = {}
        self._folders: set[str] = set()
        readable, skipped = _Readable(self.label), Skipped()
        for above, names in walk(path, skipped):
            inside = above.relative_to(path)
            self._folders.add(readable(inside.as_posix()))
            for name in names:
                file = above / name
                if file.is_file() or file.is_symlink():  # reading a broken link gives an error
                    self.members[readable((inside / name).as_posix())] = file
        skipped.refuse_locked()
        self._folders |= {readable(link.relative_to(path).as_posix()) for link in skipped.linked}
        self._names = sorted(self.members)

    def names(self) -> list[str]:
        return self._names

    def folders(self) -> list[str]:
        return sorted(self._folders - {"."})

    def read(self, name: str) -> bytes:
        try:
            return self.members[name].read_bytes()
        except OSError as error:
            raise FileFormatError(f"{self.members[name]} cannot be read: {error.strerror}.") from error

    def stamp(self, name: str) -> str:
        try:
            found = self.members[name].stat()
        except OSError:
            return "gone"  # which reading it will say
        return f"{found.st_size} {found.st_mtime_ns}"


class _Zip(Files):
    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        try:
            self.archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise FileFormatError(f"{path} is not a zip archive, or is cut short: {error}.") from error
        self.members: dict[str, zipfile.ZipInfo] = {}
        self._folders: set[str] = set()
        readable = _Readable(self.label)
        for member in self.archive.infolist():
            if member.is_dir():
                self._folders.add(readable(member.filename.rstrip("/")))
                continue
            _check_name(member.filename, path)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise FileFormatError(
                    f"{path} has a link, {member.filename!r}, instead of a file. It was not followed."
                )
            if member.flag_bits & 1:
                raise FileFormatError(f"{path} is encrypted; unpack it yourself and give the folder.")
            _check_growth(member.filename, member.file_size, member.compress_size, path)
            if not _is_hidden(PurePosixPath(member.filename).name):
                self.members[readable(member.filename)] = member

    def names(self) -> list[str]:
        return sorted(self.members)

    def folders(self) -> list[str]:
        return sorted(self._folders.union(super().folders()))

    def read(self, name: str) -> bytes:
        try:
            return self.archive.read(self.members[name])
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise FileFormatError(f"{name!r} in {self.label} is damaged: {error}.") from error

    def stamp(self, name: str) -> str:
        return f"{self.members[name].file_size} {self.members[name].CRC}"


class _Tar(Files):
    """A tar archive, with tar archives inside it as folders (as ILSVRC2012's training images are distributed)."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._lock = threading.Lock()
        self.members: dict[str, tuple[tarfile.TarFile, tarfile.TarInfo]] = {}
        self._folders: set[str] = set()
        self._readable = _Readable(self.label)
        self._written = path.stat().st_mtime_ns
        self._promised = 0  # bytes, by the headers read so far
        self._open: list[tarfile.TarFile] = []
        try:
            self._add(tarfile.open(path), "", path)  # noqa: SIM115 (stays open for reading)
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise FileFormatError(f"{path} is not a tar archive, or is cut short: {error}.") from error

    def __del__(self) -> None:
        for archive in reversed(getattr(self, "_open", [])):
            archive.close()

    def _add(self, archive: tarfile.TarFile, folder: str, path: Path) -> None:
        self._open.append(archive)
        end = 0
        for member in archive:
            end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            if member.isdir():
                self._folders.add(self._readable(str(PurePosixPath(folder + member.name))))
                continue
            _check_name(member.name, path)
            if not member.isreg():
                raise FileFormatError(f"{path} has a link or device, {member.name!r}. It was not followed.")
            self._promised += member.size
            _check_growth(member.name, self._promised, path.stat().st_size, path)
            if member.name.endswith(".tar"):
                inner = archive.extractfile(member)
                if inner is None:
                    raise FileFormatError(f"{member.name!r} in {path} cannot be read.")
                inside = tarfile.open(fileobj=inner)  # noqa: SIM115
                self._add(inside, f"{folder}{member.name.removesuffix('.tar')}/", path)
            elif not _is_hidden(PurePosixPath(member.name).name):
                self.members[self._readable(folder + member.name)] = (archive, member)
        # The library takes a missing end for the end; a whole archive closes with blocks of zeros.
        if archive.fileobj is not None:
            archive.fileobj.seek(end)
            if len(archive.fileobj.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
                raise FileFormatError(f"{path} is cut short: it has no end.")

    def names(self) -> list[str]:
        return sorted(self.members)

    def folders(self) -> list[str]:
        return sorted(self._folders.union(super().folders()))

    def read(self, name: str) -> bytes:
        archive, member = self.members[name]
        try:
            with self._lock:  # one position in the file for all threads
                file = archive.extractfile(member)
                if file is None:
                    raise FileFormatError(f"{name!r} in {self.label} cannot be read.")
                data = file.read()
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise FileFormatError(f"{name!r} in {self.label} is damaged: {error}.") from error
        if len(data) != member.size:
            raise FileFormatError(f"{name!r} in {self.label} is cut short.")
        return data

    def stamp(self, name: str) -> str:
        _, member = self.members[name]
        return f"{member.size} {member.mtime} {self._written}"  # it has no checksums


class _Within(Files):
    """An archive as if it were unpacked in the folder, of others, that it lies in."""

    def __init__(self, inner: Files, folder: PurePosixPath) -> None:
        super().__init__(inner.label)
        self._inner, self._folder = inner, folder
        self._members = {str(folder / name): name for name in inner.names()}

    def names(self) -> list[str]:
        return sorted(self._members)

    def folders(self) -> list[str]:
        return sorted({str(self._folder / name) for name in self._inner.folders()})

    def read(self, name: str) -> bytes:
        return self._inner.read(self._members[name])

    def stamp(self, name: str) -> str:
        return self._inner.stamp(self._members[name])


class _Merged(Files):
    """Several archives that unpack over each other, as a dataset that is distributed in parts."""

    def __init__(self, parts: Sequence[Files]) -> None:
        super().__init__(", ".join(part.label for part in parts))
        self._holder: dict[str, Files] = {}
        for part in parts:
            for name in part.names():
                other = self._holder.get(name)
                if other is not None and is_picture(name) and other.stamp(name) != part.stamp(name):
                    self._check_same(name, other, part)
                self._holder[name] = part
        self._folders = sorted({folder for part in parts for folder in part.folders()})

    @staticmethod
    def _check_same(name: str, one: Files, other: Files) -> None:
        """Refuse two pictures of one name, of which one would be lost."""
        if one.read(name) != other.read(name):
            raise FileFormatError(
                f"{one.label} and {other.label} both have a picture {name!r}, and not the same. Unpack them into "
                "folders of their own."
            )

    def names(self) -> list[str]:
        return sorted(self._holder)

    def folders(self) -> list[str]:
        return self._folders

    def read(self, name: str) -> bytes:
        return self._holder[name].read(name)

    def stamp(self, name: str) -> str:
        return self._holder[name].stamp(name)


def open_files(paths: Path | str | Iterable[Path | str]) -> Files:
    """Open a folder or an archive; or several, as if they were unpacked over each other."""
    if isinstance(paths, Path | str):
        path = Path(paths)
        if path.is_dir():
            return _with_archives_inside(_Folder(path))
        if not path.is_file():
            raise InputError(f"There is no file or folder {path}.")
        if path.name.endswith(TAR_SUFFIXES):
            return _Tar(path)
        if path.suffix == ".zip":
            return _Zip(path)
        raise InputError(f"{path} is neither a folder nor a .zip or .tar archive.")
    parts = [open_files(path) for path in paths]
    if not parts:
        raise InputError("There is nothing to open.")
    return parts[0] if len(parts) == 1 else _Merged(parts)


def _with_archives_inside(folder: _Folder) -> Files:
    """Return a folder; one of archives, as a dataset is downloaded in parts, as if they were unpacked in it."""
    archives = {name: path for name, path in folder.members.items() if name.endswith((".zip", *TAR_SUFFIXES))}
    others = {path.suffix.lower() for path in folder.members.values()} - {path.suffix for path in archives.values()}
    if not archives or others - BESIDE_ARCHIVES:
        return folder
    inside = [_Within(open_files(archives[name]), PurePosixPath(name).parent) for name in sorted(archives)]
    return _Merged([folder, *inside])


def is_picture(name: str) -> bool:
    """Whether a file's name says that it is a picture."""
    return name.lower().endswith(SUFFIXES)


def readable_name(name: str) -> str:
    r"""Return the name of a file as text in one line, in which what is no text is written out.

    Names are bytes on some systems, and not all bytes are UTF-8; new lines and the like would break a list of names.

    >>> print(readable_name("caf\udce9/日本.png"), readable_name("two\nlines"))
    caf\xe9/日本.png two\nlines
    """
    return "".join(one.encode("unicode_escape").decode() if one in LINE_ENDS else one for one in readable(name))


class _Readable:
    """Makes the names of some files readable, and refuses two that would become the same: two classes would be one."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._named: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if "\\" not in name and name.isascii() and name.isprintable():
            return name  # as it is, and nothing that is written out looks like it
        return "/".join(map(self._part, name.split("/")))

    def _part(self, part: str) -> str:
        readable = readable_name(part)
        if self._named.setdefault(readable, part) != part:
            raise FileFormatError(f"{self.label} has two names that both read {readable!r}. Rename one of them.")
        return readable


def _is_hidden(name: str) -> bool:
    """Whether a file is an operating system's own: .DS_Store, ._photo.jpg, Thumbs.db."""
    return name.startswith(".") or name == "Thumbs.db"


def _check_name(name: str, path: Path) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0] or "\0" in name:
        raise FileFormatError(f"{path} has a member {name!r} that would reach outside of it. It was not read.")


def _check_growth(name: str, size: int, packed: int, path: Path) -> None:
    if size > MOST_BYTES_OF_A_MEMBER and not name.endswith(".tar"):
        raise FileFormatError(f"{name!r} in {path} has {size:,} bytes, over the limit of {MOST_BYTES_OF_A_MEMBER:,}.")
    if size > GROWTH_COUNTS_FROM and size > MOST_GROWTH * max(packed, 1):
        raise FileFormatError(f"{name!r} in {path} would grow from {packed:,} to {size:,} bytes: a decompression bomb.")
