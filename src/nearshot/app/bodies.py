"""What a request of the page may hold: its JSON is checked once, before anything uses it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nearshot.errors import InputError
from nearshot.io import readable

MAX_LEVEL = 1000  # of folders


@dataclass(frozen=True)
class Field:
    """A field of a request: what it must be, in words and as a check."""

    words: str
    is_valid: Callable[[Any], bool]
    is_required: bool = True


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _are_ids(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _are_labels(value: Any) -> bool:
    return type(value) is dict and all(map(_is_text, value.values()))


def _are_labels_or_null(value: Any) -> bool:
    if type(value) is not dict:
        return False
    return all(label is None or _is_text(label) for label in value.values())


def _is_level(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_LEVEL


IDS = Field("a list of identifiers", _are_ids)
NAME = Field("a text", _is_text)
FLAG = Field("true or false", _is_flag)
FIELDS: dict[str, dict[str, Field]] = {
    "label": {
        "labels": Field("names, or null, by identifiers", _are_labels_or_null),
    },
    "accept": {"labels": Field("names by identifiers", _are_labels), "is_seen": FLAG},
    "confirm": {"ids": IDS},
    "remove": {"ids": IDS, "removed": FLAG},
    "same-thing": {"ids": IDS, "same": FLAG},
    "add-class": {
        "name": NAME,
        "ids": Field(IDS.words, IDS.is_valid, is_required=False),
    },
    "rename-class": {
        "name": NAME,
        "new_name": NAME,
        "merge": Field(FLAG.words, FLAG.is_valid, is_required=False),
    },
    "remove-class": {"name": NAME},
    "label-by-folders": {
        "level": Field(f"an integer from 0 to {MAX_LEVEL - 1}", _is_level, is_required=False)
    },
    "undo": {},
    "redo": {},
    "copy": {"predicted": FLAG},
}
"""The fields of each request, by the last part of its address."""


def checked_body(data: bytes, name: str) -> dict[str, Any]:
    """Return the JSON of a request; an error if a field is missing, unknown or of another type."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"The request {name} must be JSON ({type(error).__name__}).") from error
    if type(body) is not dict:
        raise InputError(f"The request {name} must be an object of JSON.")
    _check_fields(body, FIELDS[name], name)
    return body


def _check_fields(body: Mapping[str, Any], fields: Mapping[str, Field], name: str) -> None:
    unknown = sorted(body.keys() - fields.keys())
    if unknown:
        example = readable(unknown[0][:100])
        raise InputError(f"The request {name} has a field {example!r}, which it does not know.")
    for key, field in fields.items():
        if key not in body and field.is_required:
            raise InputError(f"The request {name} needs the field {key}: {field.words}.")
        if key in body and not field.is_valid(body[key]):
            raise InputError(f"The field {key} of the request {name} must be {field.words}.")
