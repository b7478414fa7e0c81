"""Packed values for people: short, readable, and never an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any, Final, cast

from .blobs import is_reference, size_of
from .codec import Undecodable, unpack

#: How many characters of a value a line shows.
SHORT_CHARACTERS: Final = 160


def short(packed: bytes | None, characters: int = SHORT_CHARACTERS) -> str:
    """Return a packed value as text of some length."""
    text = plain_text(packed)
    return text if len(text) <= characters else f"{text[:characters]}…"


def plain_text(packed: bytes | None) -> str:
    """Return a packed value as text, such as JSON has it; of one that is kept elsewhere, how large it is."""
    if packed is None:
        return ""
    if is_reference(packed):
        return f"a value of {size_of(packed)} bytes"
    try:
        return as_text(unpack(packed))
    except Undecodable as error:
        return f"(can't be read: {error.message})"


def as_text(value: object) -> str:
    """Return a value as text, such as JSON has it."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return f"{len(value)} bytes"
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {name if isinstance(name, str) else str(name): _plain(each) for name, each in items}
        case list() | tuple():
            return [_plain(each) for each in cast("list[object]", value)]
        case set() | frozenset():
            return sorted((_plain(each) for each in cast("set[object]", value)), key=repr)
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return str(value)
