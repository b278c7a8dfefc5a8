"""Scalars as TensorBoard reads them, written without TensorBoard.

An event file is a sequence of records, each with its length and two checksums, whose content is a protocol-buffer
message. Only three of its many kinds of field are needed here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from nearshot.io import atomic_write

__all__ = ["append_scalars", "start_events"]


def start_events(path: Path, records: Iterable[tuple[int, float, Mapping[str, float]]] = ()) -> None:
    """Write a new event file with these (step, seconds since 1970, {name: value})."""
    with atomic_write(path) as file:
        file.write(_record(_double(1, 0.0) + _bytes(3, b"brain.Event:2")))
        for step, time, scalars in records:
            file.write(_event(step, time, scalars))


def append_scalars(path: Path, step: int, time: float, scalars: Mapping[str, float]) -> None:
    """Add the values of a step."""
    with path.open("ab") as file:
        file.write(_event(step, time, scalars))


def _event(step: int, time: float, scalars: Mapping[str, float]) -> bytes:
    values = b"".join(
        _bytes(1, _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", value)) for name, value in scalars.items()
    )
    return _record(_double(1, time) + b"\x10" + _varint(step) + _bytes(5, values))


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _masked_checksum(length) + content + _masked_checksum(content)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli's polynomial
        table.append(value)
    return table


CHECKSUMS = _table()


def _masked_checksum(content: bytes) -> bytes:
    value = 0xFFFFFFFF
    for byte in content:
        value = CHECKSUMS[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)
