"""JSON at the edge: what a shell can write and read of values that are exact inside.

Out: Decimal, UUID, dates and times as strings, timedelta as ISO 8601, bytes as base64, sets and tuples as arrays, the
floats that JSON lacks as strings. In: the owner of the object validates, and takes the same strings back for the types
that it declares. Only bytes need a mark, because any text is valid for them: `{"$base64": "aGk="}`.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic import TypeAdapter

_ANY: Final = TypeAdapter[Any](Any)
_BYTES: Final = "$base64"


class NotJson(ValueError):
    """A text that is no JSON value."""


def from_json(text: str) -> Any:
    """Read a value that was written on a command line.

    Raises:
        NotJson: It is none.
    """
    try:
        return json.loads(text, object_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise NotJson(f"{error.msg} at {place}") from error
    except RecursionError as error:
        raise NotJson("it is nested too deeply") from error


def _object(found: dict[str, Any]) -> Any:
    if found.keys() != {_BYTES}:
        return found
    try:
        return base64.b64decode(found[_BYTES], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise NotJson(f"what stands behind {_BYTES!r} is no base64: {error}") from error


def _constant(name: str) -> None:
    raise NotJson(f"JSON has no {name}")


def to_json(value: object) -> Any:
    """Return a value as JSON can carry it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {_name(key): to_json(item) for key, item in items}
        case list() | tuple() | set() | frozenset():
            return [to_json(item) for item in cast("list[object]", value)]
        case _:
            return _ANY.dump_python(value, mode="json")


def _name(key: object) -> str:
    plain = to_json(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def as_json(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON text for people: letters of all languages stay as they are."""
    return json.dumps(to_json(value), ensure_ascii=False, indent=indent)
