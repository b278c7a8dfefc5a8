"""Photos as JPEGs for the page: thumbnails, and versions as large as a screen."""

import io
from contextlib import suppress

from nearshot.app.project import Photo, Project
from nearshot.data.images import MOST_FILE_BYTES, decoded
from nearshot.errors import InputError, NearshotError
from nearshot.io import atomic_write, read_file

THUMBNAIL_SIDE = 320
LARGE_SIDE = 1600
JPEG_QUALITY = 85


def smaller_jpeg(data: bytes, name: str, side: int) -> bytes:
    """Decode an image and return it as a JPEG with at most `side` pixels on each side."""
    file = io.BytesIO()
    with decoded(data, name, shrink_to=side) as image:
        image.thumbnail((side, side))
        image.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def large_jpeg(photo: Photo) -> bytes:
    """Return a photo as large as a screen."""
    return smaller_jpeg(_read(photo), photo.name, LARGE_SIDE)


def thumbnail_jpeg(project: Project, photo: Photo) -> bytes:
    """Return a photo as a thumbnail, which is made once for each content of the file."""
    try:
        status = photo.path.stat()
    except OSError as error:
        raise _unreadable(photo, error) from error
    file_name = f"{photo.id}-{status.st_size:x}-{status.st_mtime_ns:x}.jpg"
    path = project.folder / "thumbnails" / file_name
    if path.exists():
        return path.read_bytes()
    thumbnail = smaller_jpeg(_read(photo), photo.name, THUMBNAIL_SIDE)
    with suppress(OSError, NearshotError):  # a full disk, or a folder that may only be read
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path, durable=False) as file:
            file.write(thumbnail)
    return thumbnail


def _read(photo: Photo) -> bytes:
    try:
        return read_file(photo.path, most_bytes=MOST_FILE_BYTES)
    except OSError as error:
        raise _unreadable(photo, error) from error


def _unreadable(photo: Photo, error: OSError) -> InputError:
    return InputError(f"{photo.name} cannot be read: {error.strerror}.")
