"""Text as the store has it, UTF-8: it carries all but lone surrogates, which Python makes of odd file names."""

from __future__ import annotations

from typing import Final

#: What is said of a text that no bytes can carry.
LONE_SURROGATE: Final = "has a lone surrogate, which UTF-8 can't carry"


def utf8_bytes(text: str) -> int | None:
    """Return how many bytes a text has, None where it has a lone surrogate."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def is_text(given: object) -> bool:
    """Return whether it is text that UTF-8 can carry."""
    return isinstance(given, str) and utf8_bytes(given) is not None
