"""Copy images into one folder per class.

No file is ever overwritten, and no name leads out of the folder.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePath

from nearshot.errors import NearshotError
from nearshot.io import read_file, waiting_for_folder, write_new_file
from nearshot.text import counted, format_list

MAX_NAME_LENGTH = 100  # in letters
MAX_NAME_BYTES = 200  # most systems allow 255, and a number may follow
# On some system. Of surrogates, only those that stand for a byte have a place in a name.
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*\ud800-\udc7f\udd00-\udfff]')
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # devices of Windows


@dataclass
class CopyResult:
    """What `copy_into_classes` did.

    Attributes:
        n_new: how many images were copied.
        n_same: how many images the folder had already.
        failures: one sentence for every image that could not be copied.
        earlier: copies of the same images in folders of other classes.
    """

    n_new: int = 0
    n_same: int = 0
    failures: list[str] = field(default_factory=list)
    earlier: list[Path] = field(default_factory=list)

    @property
    def about_earlier(self) -> str:
        """A sentence about earlier copies, which are never deleted; empty if there are none."""
        if not self.earlier:
            return ""
        copies = counted(len(self.earlier), "earlier copy", "earlier copies")
        paths = format_list(self.earlier, str)
        return f"{copies} of these photos in other classes: {paths}. Delete what is wrong."


def safe_name(text: str) -> str:
    r"""Return text as the name of one file or folder that every system allows.

    >>> safe_name("../etc/passwd"), safe_name("rose?"), safe_name("..."), safe_name("CON.jpg")
    ('_etc_passwd', 'rose_', '_', '_CON.jpg')
    """
    name = FORBIDDEN.sub("_", text).strip(". ")
    suffix = PurePath(name).suffix
    if len(suffix.encode(errors="surrogateescape")) >= MAX_NAME_LENGTH:
        suffix = ""
    stem = name.removesuffix(suffix)[: MAX_NAME_LENGTH - len(suffix)]
    while len((stem + suffix).encode(errors="surrogateescape")) > MAX_NAME_BYTES:
        stem = stem[:-1]
    name = (stem + suffix).strip(". ")
    return f"_{name}" if not name or RESERVED.match(name) else name


def class_folders(labels: Iterable[str]) -> dict[str, str]:
    """Return a folder name for each label. No two are equal, also where a system ignores case.

    >>> class_folders(["rose", "a/b", "a:b", "Rose"])
    {'rose': 'rose', 'a/b': 'a_b', 'a:b': 'a_b (2)', 'Rose': 'Rose (2)'}
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for label in dict.fromkeys(labels):
        for number in count(1):
            name = _numbered(safe_name(label), number)
            if name.casefold() not in taken:
                break
        names[label] = name
        taken.add(name.casefold())
    return names


def copy_into_classes(labelled_images: Iterable[tuple[Path, str]], folder: Path) -> CopyResult:
    """Copy images, given with their labels, into `folder`/label.

    An image that is already in the folder of its class is not copied again.
    """
    labelled_images = list(labelled_images)
    folder_names = class_folders(label for _, label in labelled_images)
    result = CopyResult()
    copies: set[Path] = set()
    digests: set[bytes] = set()
    for path, label in labelled_images:
        try:
            class_folder = folder / folder_names[label]
            class_folder.mkdir(parents=True, exist_ok=True)
            data = read_file(path)
            is_new, copy = write_new(data, class_folder, path.name, times_of=path)
        except (OSError, NearshotError) as error:
            result.failures.append(f"{path}: {getattr(error, 'strerror', None) or error}")
            continue
        if is_new:
            result.n_new += 1
        else:
            result.n_same += 1
        copies.add(copy)
        digests.add(hashlib.sha256(data).digest())
    sizes = {copy.stat().st_size for copy in copies}
    for path in sorted(set(folder.glob("*/*")) - copies):
        with suppress(OSError):  # not a file, or locked
            if path.stat().st_size not in sizes:
                continue
            if hashlib.sha256(read_file(path)).digest() in digests:
                result.earlier.append(path)
    return result


def write_new(
    data: bytes, folder: Path, name: str, *, times_of: Path | None = None
) -> tuple[bool, Path]:
    """Write a file under a name that no other content has: name.jpg, name (2).jpg, ….

    Return whether the file is new, and its path. A new file gets the times of the file `times_of`.
    """
    wanted = PurePath(safe_name(name))
    with waiting_for_folder(folder):  # otherwise two processes could copy one photo twice
        for number in count(1):
            path = folder / f"{_numbered(wanted.stem, number)}{wanted.suffix}"
            is_taken = os.path.lexists(path)
            if not is_taken and write_new_file(path, data, times_of=times_of):
                return True, path
            if path.is_file() and path.stat().st_size == len(data) and read_file(path) == data:
                return False, path
    raise AssertionError("unreachable")


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name} ({number})"
