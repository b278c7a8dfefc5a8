"""Copy photos into one folder per class. Nothing is ever overwritten, and no name leads out of the folder."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePath

from nearshot.errors import NearshotError
from nearshot.io import atomic_write
from nearshot.text import counted, format_list

LONGEST = 100  # letters of a file name
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]')  # on some system
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # devices of Windows


@dataclass
class Copies:
    """What was copied."""

    n_new: int = 0
    n_same: int = 0  # photos that the folder had already
    failures: list[str] = field(
        default_factory=list
    )  # a sentence for every photo that could not be copied
    earlier: list[Path] = field(
        default_factory=list
    )  # copies of the same photos in folders of other classes

    @property
    def about_earlier(self) -> str:
        """A sentence about earlier copies, which are never deleted; empty if there are none."""
        what = f"{counted(len(self.earlier), 'earlier copy', 'earlier copies')} of these photos in other classes"
        return (
            f"{what}: {format_list(self.earlier, str)}. Delete what is wrong."
            if self.earlier
            else ""
        )


def safe_name(text: str) -> str:
    r"""Return text as the name of one file or folder that every system allows.

    >>> safe_name("../etc/passwd"), safe_name("rose?"), safe_name("..."), safe_name("CON.jpg")
    ('_etc_passwd', 'rose_', '_', '_CON.jpg')
    """
    name = FORBIDDEN.sub("_", text).strip(". ")
    suffix = PurePath(name).suffix if len(PurePath(name).suffix) < LONGEST else ""
    name = name.removesuffix(suffix)[: LONGEST - len(suffix)] + suffix
    return f"_{name}" if not name or RESERVED.match(name) else name


def class_folders(labels: Iterable[str]) -> dict[str, str]:
    """Return a folder name for each label, no two equal: some systems ignore case.

    >>> class_folders(["rose", "a/b", "a:b", "Rose"])
    {'rose': 'rose', 'a/b': 'a_b', 'a:b': 'a_b (2)', 'Rose': 'Rose (2)'}
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for label in dict.fromkeys(labels):
        candidates = (_numbered(safe_name(label), number) for number in count(1))
        names[label] = next(name for name in candidates if name.casefold() not in taken)
        taken.add(names[label].casefold())
    return names


def copy_into_classes(photos: Iterable[tuple[Path, str]], folder: Path) -> Copies:
    """Copy photos, given with their labels, into `folder`/label; a photo that is already there is not copied again."""
    photos = list(photos)
    names, done = class_folders(label for _, label in photos), Copies()
    copies, contents = set[Path](), set[bytes]()
    for path, label in photos:
        try:
            target = folder / names[label]
            target.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes()
            is_new, copy = write_new(data, target, path.name, like=path)
        except (OSError, NearshotError) as error:
            done.failures.append(f"{path}: {getattr(error, 'strerror', None) or error}")
            continue
        done.n_new += is_new
        done.n_same += not is_new
        copies.add(copy)
        contents.add(hashlib.sha256(data).digest())
    sizes = {copy.stat().st_size for copy in copies}
    for path in sorted(set(folder.glob("*/*")) - copies):
        with suppress(OSError):  # not a file, or locked
            if (
                path.stat().st_size in sizes
                and hashlib.sha256(path.read_bytes()).digest() in contents
            ):
                done.earlier.append(path)
    return done


def write_new(
    data: bytes, folder: Path, name: str, *, like: Path | None = None
) -> tuple[bool, Path]:
    """Write a file under a name that no other content has: name.jpg, name (2).jpg, …; with the times of `like`.

    Returns whether the file is new, and its path.
    """
    plain = PurePath(safe_name(name))
    for number in count(1):
        path = folder / f"{_numbered(plain.stem, number)}{plain.suffix}"
        if not os.path.lexists(path):
            with atomic_write(path, durable=False) as file:
                file.write(data)
            if like is not None:
                shutil.copystat(like, path)
            return True, path
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            return False, path
    raise AssertionError("unreachable")


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name} ({number})"
