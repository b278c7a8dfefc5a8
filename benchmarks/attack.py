"""Attack nearshot with hostile files and requests, and count what happens.

    python benchmarks/attack.py

Every attack runs in a process of its own with a limit of memory and of time. The outcome of each
must be one of
- harmless: it is read, and what comes of it is plain data;
- refused: one sentence (an error of nearshot).
Anything else is a bug: a traceback, a process that ends by a signal, takes too long or needs more
memory. Writes benchmarks/results/attack.json and .md.
"""

import argparse
import json
import pickle
import random
import resource
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nearshot.data.pickles import _Function, load_pickle
from nearshot.errors import NearshotError

RESULTS = Path(__file__).parent / "results"
OUTCOMES = ("harmless", "refused")
MEGABYTES = 1024  # that an attack may take beside what the process has
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


KINDS: dict[str, Callable[[int], dict[str, Counter[str]]]] = {"pickles": attack_pickles}


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
    content = {"attacks": arguments.attacks, "outcomes": outcomes}
    (RESULTS / "attack.json").write_text(json.dumps(content, indent=2) + "\n")
    (RESULTS / "attack.md").write_text(table(outcomes))
    print(table(outcomes))


if __name__ == "__main__":
    main()
