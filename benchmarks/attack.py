"""Attack nearshot with hostile files and requests, and count what happens.

    python benchmarks/attack.py

Every attack runs in a process of its own with a limit of memory and of time. The outcome of each
must be one of
- harmless: it is read, and what comes of it is plain data; a photo is copied, once;
- refused: one sentence (an error of nearshot), or a status of HTTP that says so.
Anything else is a bug: a traceback, a process that ends by a signal, takes too long or needs more
memory. Writes benchmarks/results/attack.json and .md.
"""

import argparse
import gzip
import http.client
import io
import json
import pickle
import random
import resource
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image

from nearshot.data.pickles import _Function, load_pickle
from nearshot.data.readers import open_files
from nearshot.errors import NearshotError
from nearshot.estimator.copy_images import copy_into_classes
from nearshot.estimator.read_images import read_each, read_image

RESULTS = Path(__file__).parent / "results"
OUTCOMES = ("harmless", "refused")
MEGABYTES = 1024  # that an attack may take beside what the process has
IMAGE_MEGABYTES = 2048  # the budget of the threads that decode is half of it
SECONDS = 300  # that the attacks of one kind may take

Attack = Callable[[], Any]


def outcome(attack: Attack) -> str:
    """Return what comes of an attack."""
    try:
        attack()
    except NearshotError as error:
        return "refused" if "\n" not in str(error) else "error of several lines"
    except Exception as error:
        return type(error).__name__
    return "harmless"


def limit_memory(megabytes: int = MEGABYTES) -> None:
    """Limit the memory of this process to some more than it has."""
    n_pages = int(Path("/proc/self/statm").read_text().split()[0])
    n_bytes = n_pages * resource.getpagesize() + (megabytes << 20)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes, most))


# Pickles.


def good_pickles() -> list[bytes]:
    """Return pickles as datasets have them, in every protocol."""
    content = {
        "data": np.arange(48, dtype=np.uint8).reshape(4, 12),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "labels": [1, 2, 300, 70_000],
        "big-endian": np.arange(3, dtype=">i4"),
        "scalar": np.int64(7),
        b"names": ("a", "é", 1.5, None, True),
        "classes": {"n01": [0, 1], "n02": (2, 3)},
    }
    return [pickle.dumps(content, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]


def mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Return a pickle with one to four mutations."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content))
        kind = rng.randrange(8)
        if kind == 0:
            content[start] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[start] = rng.randrange(256)
        elif kind == 2:
            content[start:start] = bytes([rng.randrange(256)])
        elif kind == 3:
            del content[start : start + rng.randint(1, 8)]
        elif kind == 4:
            content[start : start + 4] = struct.pack("<I", rng.choice(LENGTHS))
        elif kind == 5:
            content[start : start + 8] = struct.pack("<Q", rng.choice(LENGTHS) << 24)
        elif kind == 6:
            other = rng.choice(others)
            cut = rng.randrange(len(other))
            content[start:start] = other[cut : cut + rng.randint(1, 60)]
        else:
            content[start : start + 1] = rng.choice(OPCODES)
        if not content:
            content += b"."
    return bytes(content)


LENGTHS = (0, 1, 255, 65_536, 100_000_000, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
OPCODES = [
    getattr(pickle, name)
    for name in dir(pickle)
    if name.isupper()
    and isinstance(getattr(pickle, name), bytes)
    and len(getattr(pickle, name)) == 1
]

ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\n"
    b"(cnumpy\nndarray\n(I0\ntc_codecs\nencode\n(Vb\nVlatin1\ntRtR"
)


def array_pickle(dtype: bytes, state: bytes, n_items: int, data: bytes) -> bytes:
    """Return a pickle of an array whose type, type's state and content are those given."""
    content = b"C" + bytes([len(data)]) + data
    return (
        ARRAY
        + b"(I1\n(I%d\ntcnumpy\ndtype\n(V%sI00\nI01\ntR(%stbI00\n" % (n_items, dtype + b"\n", state)
        + content
        + b"tb."
    )


NORMAL = b"I3\nV<\nNNNI-1\nI-1\nI0\n"


def hostile_pickles() -> dict[str, bytes]:
    """Return pickles that would corrupt memory, fill it, or take forever."""
    colliding = b"".join(b"L%dL\nN" % (i * ((1 << 61) - 1)) for i in range(20_000))
    shared = b"(lp0\nI1\na" + b"".join(
        b"0(lp%d\n" % i + b"g%d\na" % (i - 1) * 2 for i in range(1, 60)
    )
    return {
        "flags of an object type cleared": array_pickle(
            b"O8", b"I3\nV|\nNNNI-1\nI-1\nI0\n", 1, b"\x01" * 8
        ),
        "larger items": array_pickle(b"u1", b"I3\nV|\nNNNI4096\nI1\nI0\n", 1, b"x"),
        "a type with fields": array_pickle(
            b"V8", b"I3\nV|\nN(Va\nt(dVa\n(NI0\nts(dI8\nI1\nI16\n", 1, b"x" * 8
        ),
        "more items than bytes": array_pickle(b"u1", NORMAL, 1 << 30, b"x"),
        "fewer items than bytes": array_pickle(b"u1", NORMAL, 1, b"xyz"),
        "a negative length": array_pickle(b"u1", NORMAL, -1, b"x"),
        "memory as it is found": b"cnumpy\nndarray\n((I1000\ntVu1\ntR.",
        "an array without content": ARRAY + b".",
        "an array used before its content": ARRAY + b"p0\n(g0\nl.",
        "nested a million deep": b")" + b"\x85" * 1_000_000 + b".",
        "a key nested a million deep": b"})" + b"\x85" * 1_000_000 + b"Ns.",
        "marks a million deep": b"(" * 1_000_000 + b".",
        "a memo index of 100 million": b"Nr\x00\xe1\xf5\x05.",
        "a text index": b"Np" + b"9" * 4000 + b"\n.",
        "bytes that are not there": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
        "a text that is not there": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
        "a frame that is not there": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "a number of a gigabyte": b"\x8b\xff\xff\xff\x7f" + b"x" * 100 + b".",
        "a number of a million digits": b"I" + b"9" * 1_000_000 + b"\n.",
        "keys with equal hashes": b"(" + colliding + b"d.",
        "lists that double sixty times": shared + b".",
        "another codec": b"c_codecs\nencode\n(Vabc\nVzlib\ntR.",
        "a call": b"cos\nsystem\n(Vtrue\ntR.",
        "a call by its stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        "an instance": b"(Vtrue\nios\nsystem\n.",
        "a new object": b"cbuiltins\nobject\n)\x81.",
        "an extension": b"\x82\x01.",
        "a persistent object": b"P1\n.",
        "a set": b"\x80\x04\x8f(K\x01\x90.",
    }


def attack_pickles(n_attacks: int) -> dict[str, Counter[str]]:
    """Read mutated and hostile pickles."""
    rng = random.Random(0)
    good = good_pickles()
    limit_memory()
    mutations = Counter[str]()
    for number in range(n_attacks):
        data = mutated(good[number % len(good)], good, rng)
        mutations[outcome(partial(read_pickle, data))] += 1
    hostile = Counter[str]()
    for data in hostile_pickles().values():
        hostile[outcome(partial(read_pickle, data))] += 1
    return {"mutated pickles": mutations, "hostile pickles": hostile}


def read_pickle(data: bytes) -> None:
    """Read a pickle, and check that its value is plain data."""
    waiting = [load_pickle(data, "a pickle")]
    seen = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is dict:
            waiting += [*value.keys(), *value.values()]
        elif type(value) in (list, tuple):
            waiting += value
        elif isinstance(value, np.ndarray | np.generic | np.dtype):
            if np.dtype(getattr(value, "dtype", value)).kind not in "biuf":
                raise TypeError("an array of something else than numbers")
        elif value is not None and type(value) not in PLAIN:
            raise TypeError(f"a {type(value).__name__}")


# Of a pickle; the last only names a function, and is never called.
PLAIN = (str, bytes, bytearray, int, float, bool, _Function)


# Images.


def encoded_image(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def good_images() -> list[bytes]:
    """Return an image in every format, and of several modes."""
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8))
    grey = Image.fromarray(rng.integers(0, 1 << 16, (40, 30), dtype=np.uint16))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    files = [encoded_image(image, kind) for kind in ("BMP", "GIF", "PPM", "TIFF")]
    files += [encoded_image(image, kind, exif=exif) for kind in ("PNG", "JPEG", "WEBP")]
    files += [encoded_image(image.convert("RGBA"), kind) for kind in ("PNG", "TIFF", "WEBP")]
    files += [encoded_image(grey, kind) for kind in ("PNG", "TIFF")]
    files += [encoded_image(image, "JPEG", progressive=True)]
    files += [encoded_image(image, "TIFF", compression="tiff_lzw")]
    return files


def png(width: int, height: int, *, bits: int = 8, colour: int = 0) -> bytes:
    """Return a PNG of zeros, which is small however large the image is."""
    channels = {0: 1, 2: 3, 6: 4}[colour]
    line = bytes(1 + width * channels * bits // 8)
    packer = zlib.compressobj(1)
    pixels = b"".join([packer.compress(line) for _ in range(height)]) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + kind + data
        content += struct.pack(">I", zlib.crc32(kind + data))
    return content


def hostile_images() -> dict[str, bytes]:
    """Return small files whose images are huge, or which promise what is not there."""
    large_webp = bytearray(encoded_image(Image.new("RGB", (64, 64)), "WEBP", lossless=True))
    large_webp[21:25] = (0x2F_FF_FF_FF).to_bytes(4, "little")
    return {
        "16-bit grey, 9,900 × 9,900": png(9900, 9900, bits=16),
        "16-bit colours, 9,900 × 9,900": png(9900, 9900, bits=16, colour=2),
        "transparent, 9,900 × 9,900": png(9900, 9900, colour=6),
        "a billion pixels": png(1_000_000_000, 1),
        "as wide as can be": png((1 << 31) - 1, 0),
        "no pixels": png(0, 0),
        "one pixel high": png(99_000_000, 1),
        "a WebP as large as can be": bytes(large_webp),
        "nothing": b"",
        "no image": b"GIF89a",
        "a pickle": pickle.dumps([1, 2]),
    }


def attack_images(n_attacks: int) -> dict[str, Counter[str]]:
    """Read mutated images, and huge ones in several threads."""
    rng = random.Random(0)
    good = good_images()
    mutations = Counter[str]()
    hostile = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photo.jpg"
        for number in range(n_attacks):
            path.write_bytes(mutated(good[number % len(good)], good, rng))
            mutations[outcome(partial(read_photo, path))] += 1
        paths = []
        for number, data in enumerate(hostile_images().values()):
            paths.append(Path(folder) / f"{number}.png")
            paths[-1].write_bytes(data)
        limit_memory(IMAGE_MEGABYTES)
        for result in read_each(6 * paths, lambda content: content.square(224)):
            kind = "refused" if isinstance(result, NearshotError) else "harmless"
            hostile[kind] += 1
    return {"mutated images": mutations, "hostile images, six times at once": hostile}


def read_photo(path: Path) -> None:
    """Read a photo as a network needs it."""
    read_image(path, "a photo").square(32)


# Archives.


def tar_of(headers: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """Return a tar archive of headers, each with its content, as they are."""
    content = b""
    for header, data in headers:
        content += header.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)
    return content + bytes(1024)


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> tarfile.TarInfo:
    """Return the header of a member of a tar archive."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = size
    return info


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> tuple[tarfile.TarInfo, bytes]:
    """Return a header with records, such as 11 size=5."""
    return header("pax", kind, len(records)), records


def nested_tar(depth: int) -> bytes:
    """Return archives inside of archives."""
    content = tar_of([(header("a.png", size=1), b"x")])
    for _ in range(depth):
        content = tar_of([(header("a.tar", size=len(content)), content)])
    return content


def good_archives() -> dict[str, bytes]:
    """Return archives as datasets have them, by their names."""
    image = encoded_image(Image.new("L", (8, 8)), "PNG")
    names = ("a/1.png", "b/2.png", "b/" + "long" * 30 + ".png")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, image)
    archives = {"good.zip": file.getvalue()}
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
            for name in names:
                tar.addfile(header(name, size=len(image)), io.BytesIO(image))
        archives[f"good-{kind}.tar"] = file.getvalue()
        archives[f"good-{kind}.tar.gz"] = gzip.compress(file.getvalue())
    archives["nested.tar"] = nested_tar(2)
    return archives


def hostile_archives() -> dict[str, bytes]:
    """Return archives that would fill the memory, or take forever, by their names."""
    long_name = (header("././@LongLink", tarfile.GNUTYPE_LONGNAME, 1 << 30), b"")
    zeros = tar_of([long_name])[:-1024]
    packer = zlib.compressobj(9, wbits=31)
    packed = packer.compress(zeros)
    for _ in range(1024):
        packed += packer.compress(bytes(1 << 20))
    packed += packer.flush()
    negative = bytearray(tar_of([(header("a.png"), b"")]))
    negative[124:136] = b"\xff" * 11 + b"\x00"
    checksum = sum(negative[:148]) + 8 * 32 + sum(negative[156:512])
    negative[148:156] = b"%06o\0 " % checksum
    chain = [(header("././@LongLink", tarfile.GNUTYPE_LONGNAME, 5), b"name\0")] * 1500
    keys = b"".join(b"11 %05d=x\n" % number for number in range(700))
    sparse = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
    lines = b"100000000\n" + b"0\n" * 100_000
    return {
        "a name of a gigabyte.tar.gz": packed,
        "1,500 archives inside each other.tar": nested_tar(1500),
        "1,500 names of one member.tar": tar_of([*chain, (header("a.png"), b"")]),
        "a negative size.tar": bytes(negative),
        "a negative size in pax.tar": tar_of([pax(b"14 size=-1024\n"), (header("a.png"), b"")]),
        "global headers.tar.gz": gzip.compress(
            tar_of([pax(keys, tarfile.XGLTYPE), *[(header("a.png"), b"")] * 20_000])
        ),
        "digits.tar": tar_of([pax(b"1" * 8000), (header("a.png"), b"")]),
        "a sparse file.tar": tar_of([(header("a.png", tarfile.GNUTYPE_SPARSE), b"")]),
        "a sparse list.tar": tar_of([pax(sparse), (header("a.png", size=len(lines)), lines)]),
        "cut.tar": tar_of([(header("a.png", size=1000), b"x")])[:700],
        "empty.tar": b"",
        "empty.zip": b"",
    }


def attack_archives(n_attacks: int) -> dict[str, Counter[str]]:
    """Read mutated and hostile archives."""
    rng = random.Random(0)
    good = good_archives()
    names = sorted(good)
    attacks = hostile_archives()
    limit_memory()
    mutations = Counter[str]()
    hostile = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(n_attacks):
            name = names[number % len(names)]
            path = Path(folder) / name
            path.write_bytes(mutated(good[name], list(good.values()), rng))
            mutations[outcome(partial(read_archive, path))] += 1
        for name, data in attacks.items():
            path = Path(folder) / name
            path.write_bytes(data)
            hostile[outcome(partial(read_archive, path))] += 1
    return {"mutated archives": mutations, "hostile archives": hostile}


def read_archive(path: Path) -> None:
    """Read every member of an archive."""
    files = open_files(path)
    for name in files.names():
        files.read(name)


# Copies.

COPY = """
import sys
from pathlib import Path
from nearshot.estimator.copy_images import copy_into_classes
images = [(path, "rose") for path in sorted(Path(sys.argv[1]).glob("*/photo.jpg"))]
for target in sys.stdin:  # both processes get one at the same time
    assert copy_into_classes(images, Path(target.strip())).failures == []
    print(flush=True)
"""
N_COPIED = 100


def attack_copies(n_attacks: int) -> dict[str, Counter[str]]:
    """Copy photos of one name into one folder, in six threads, and in two processes."""
    n_rounds = max(1, n_attacks // 500)
    outcomes = {"copies in six threads": Counter[str](), "in two processes": Counter[str]()}
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        paths = []
        for number in range(N_COPIED):
            paths.append(photos / f"{number:03}" / "photo.jpg")
            paths[-1].parent.mkdir(parents=True)
            paths[-1].write_bytes(b"%03d" % number)
        for number in range(n_rounds):
            target = Path(folder) / f"threads {number}"
            orders = [paths[10 * start :] + paths[: 10 * start] for start in range(6)]
            with ThreadPoolExecutor(6) as threads:
                list(threads.map(partial(copy_all, target), orders))
            outcomes["copies in six threads"] += kept_once(target)
        command = [sys.executable, "-c", COPY, str(photos)]
        pipe = subprocess.PIPE
        processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(2)]
        for number in range(n_rounds):
            target = Path(folder) / f"processes {number}"
            for process in processes:
                assert process.stdin is not None  # noqa: S101 (for mypy)
                process.stdin.write(f"{target}\n".encode())
                process.stdin.flush()
            for process in processes:
                assert process.stdout is not None  # noqa: S101 (for mypy)
                process.stdout.readline()
            outcomes["in two processes"] += kept_once(target)
        for process in processes:
            process.communicate()
    return outcomes


def copy_all(target: Path, paths: list[Path]) -> None:
    """Copy photos into one class."""
    copy_into_classes([(path, "rose") for path in paths], target)


def kept_once(target: Path) -> Counter[str]:
    """Return how many photos are there once, and how many are not."""
    contents = Counter(path.read_bytes() for path in (target / "rose").iterdir())
    counts = [contents[b"%03d" % number] for number in range(N_COPIED)]
    return Counter("harmless" if count == 1 else f"{count} copies" for count in counts)


# The page.

HOSTS = ("evil.example", "127.0.0.1", "localhost:1", "", "[::1]")
PATHS = ("", "api/state", "api/label", "export/photos.csv", "static/app.js", "..", "%2e%2e/", "//")
TRAVERSALS = (
    "../server.py",
    "..%2fserver.py",
    "%2e%2e/server.py",
    "..%5cserver.py",
    "%252e%252e/server.py",
    "/etc/passwd",
    "....//server.py",
    "a%00.js",
)
VALUES: tuple[Any, ...] = (
    None,
    1,
    -1.5,
    1e400,
    "",
    "x",
    "\ud800",
    [],
    [1],
    [[]],
    {},
    {"x": 1},
    True,
)


def attack_page(n_attacks: int) -> dict[str, Counter[str]]:
    """Send requests without the secret, paths that lead out, wrong bodies, and idle connections."""
    from nearshot.app.bodies import FIELDS  # an extra

    rng = random.Random(0)
    n_requests = n_attacks // 10
    with tempfile.TemporaryDirectory() as folder, running_page(Path(folder)) as (port, secret):
        outsiders = Counter[str]()
        for _ in range(n_requests):
            path = f"/{rng.choice((secret[:-1], secret + 'x', '', 'x', '%00', secret))}"
            path += f"/{rng.choice(PATHS)}"
            host = f"127.0.0.1:{port}"
            headers = {"host": host, "origin": f"http://{host}"}
            if path.startswith(f"/{secret}/"):
                name = rng.choice(("host", "origin"))
                headers[name] = rng.choice(HOSTS) if name == "host" else "http://evil.example"
            method = rng.choice(("GET", "POST", "PUT", "DELETE"))
            outsiders[status(port, method, path, headers)] += 1
        headers = {"host": f"127.0.0.1:{port}", "origin": f"http://127.0.0.1:{port}"}
        paths = Counter[str]()
        for route in ("static", "export", "thumbnails", "large", "api/photos"):
            for name in TRAVERSALS:
                paths[status(port, "GET", f"/{secret}/{route}/{name}", headers)] += 1
        bodies = Counter[str]()
        for _ in range(n_requests):
            name = rng.choice(sorted(FIELDS))
            keys = [*FIELDS[name], "unknown"]
            chosen = rng.sample(keys, rng.randint(0, len(keys)))
            body: Any = {key: rng.choice(VALUES) for key in chosen}
            if rng.random() < 0.3:
                body = rng.choice(VALUES)
            content = json.dumps(body).encode()
            if rng.random() < 0.2:
                content = rng.choice((b"[" * 100_000, b"\xff", b"", content[:-1], content * 2))
            bodies[status(port, "POST", f"/{secret}/api/{name}", headers, content)] += 1
        idle = Counter[str]()
        with ExitStack() as opened:
            for _ in range(1100):
                opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            for _ in range(20):
                answer = status(port, "GET", f"/{secret}/api/state", headers)
                idle[answer] += 1
    return {
        "requests without the secret, or from elsewhere": outsiders,
        "paths that lead out": paths,
        "wrong bodies": bodies,
        "requests beside 1,100 idle connections": idle,
    }


@contextmanager
def running_page(folder: Path) -> Iterator[tuple[int, str]]:
    """Serve the page of a small project, and yield its port and secret."""
    from nearshot.app.project import Project
    from nearshot.app.server import listening
    from nearshot.app.session import Session
    from nearshot.estimator import Embedder
    from nearshot.models import build_backbone

    photo = encoded_image(Image.new("RGB", (16, 16)), "PNG")
    (folder / "photos").mkdir()
    (folder / "photos" / "a.png").write_bytes(photo)
    backbone = build_backbone("conv4-32", input_size=16).eval()
    session = Session(Project(folder / "project", [folder / "photos"]), Embedder(backbone))
    with listening(session, 0) as server:
        thread = threading.Thread(target=server.run, kwargs={"open_browser": False})
        thread.start()
        try:
            parts = server.address.split("/")
            yield int(parts[2].partition(":")[2]), parts[3]
        finally:
            server.server.should_exit = True
            thread.join()


def status(port: int, method: str, path: str, headers: dict[str, str], content: bytes = b"") -> str:
    """Send a request, and return what comes of it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            connection.putheader(name, value)
        connection.endheaders(content)
        code = connection.getresponse().status
    except OSError as error:
        return type(error).__name__
    finally:
        connection.close()
    if code == HTTPStatus.OK:
        return "harmless"
    return "refused" if code in REFUSALS else str(code)


REFUSALS = (400, 403, 404, 405)


KINDS: dict[str, Callable[[int], dict[str, Counter[str]]]] = {
    "pickles": attack_pickles,
    "images": attack_images,
    "archives": attack_archives,
    "copies": attack_copies,
    "page": attack_page,
}


def attacked(kind: str, n_attacks: int) -> dict[str, Counter[str]]:
    """Run the attacks of a kind in a process of their own, and return their outcomes."""
    command = [sys.executable, __file__, "--kind", kind, "--attacks", str(n_attacks)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {kind: Counter({f"over {SECONDS} seconds": 1})}
    if done.returncode < 0:
        return {kind: Counter({f"signal {-done.returncode}": 1})}
    if done.returncode > 0:
        return {kind: Counter({done.stderr.decode().splitlines()[-1]: 1})}
    return {name: Counter(counts) for name, counts in json.loads(done.stdout).items()}


def table(outcomes: dict[str, Counter[str]]) -> str:
    """Return the outcomes as a Markdown table."""
    lines = ["| attack | tries | outcomes |", "|---|---:|---|"]
    for name, counts in outcomes.items():
        cell = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(counts.items()))
        lines.append(f"| {name} | {counts.total():,} | {cell} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all attacks, print the table of outcomes and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, help="print the outcomes of one kind as JSON")
    parser.add_argument("--attacks", type=int, default=10_000, help="random ones (default: 10000)")
    arguments = parser.parse_args()
    if arguments.kind:
        print(json.dumps(KINDS[arguments.kind](arguments.attacks)))
        return
    outcomes = {}
    for kind in KINDS:
        outcomes.update(attacked(kind, arguments.attacks))
    write_results(arguments.attacks, outcomes)
    print(table(outcomes))


def write_results(n_attacks: int, outcomes: dict[str, Counter[str]]) -> None:
    """Write the outcomes as JSON and as a table."""
    content = {"attacks": n_attacks, "outcomes": outcomes}
    (RESULTS / "attack.json").write_text(json.dumps(content, indent=2) + "\n")
    (RESULTS / "attack.md").write_text(table(outcomes))


if __name__ == "__main__":
    main()
