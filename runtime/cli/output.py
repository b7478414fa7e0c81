"""Where the shell's words go: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from rich.console import Console, RenderableType

#: Where nobody looks at a terminal, lines are as long as their text needs.
PIPED_COLUMNS: Final = 240
KILO: Final = 1_000


class Page:
    """Where results for people go; what it is given is never taken for markup."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else PIPED_COLUMNS
        self._console = Console(width=width, markup=False, emoji=False, highlight=False)

    def put(self, what: RenderableType) -> None:
        """Print something; the blanks with which rich fills its lines stay out of pipes."""
        if self._console.is_terminal:
            self._console.print(what)
            return
        with self._console.capture() as held:
            self._console.print(what)
        write_line("\n".join(line.rstrip() for line in held.get().splitlines()))


def write_json(value: Any, stream: TextIO | None = None) -> None:
    """Write one JSON document on a line of its own."""
    out = stream or sys.stdout
    out.write(json.dumps(value) + "\n")
    out.flush()


def write_line(text: str, stream: TextIO | None = None) -> None:
    """Write one line, at once."""
    out = stream or sys.stdout
    out.write(text + "\n")
    out.flush()


def say_error(sentence: str) -> None:
    """Say what went wrong, in one line."""
    write_line(f"Error: {shown(sentence)}", sys.stderr)


def shown(text: str) -> str:
    """Return text on one line without what would steer a terminal: names and messages may come from anybody."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return " " if character == "\n" else character.encode("unicode_escape").decode()


def survive_any_text() -> None:
    """Let a terminal that lacks a character show its escape, where writing it would end the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def size(size_bytes: int | None) -> str:
    """Return a size for people."""
    if size_bytes is None:
        return ""
    if size_bytes < KILO:
        return f"{size_bytes} B"
    if size_bytes < KILO * KILO:
        return f"{size_bytes / KILO:.1f} kB"
    return f"{size_bytes / KILO / KILO:.1f} MB"


def moment(at: datetime | None) -> str:
    """Return a time for people, to the millisecond."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def clock(at: datetime) -> str:
    """Return the time of day of a moment, for columns whose day is said above them."""
    return moment(at).partition(" ")[2]


def day(at: datetime) -> str:
    """Return the day of a moment."""
    return moment(at).partition(" ")[0]


def ago(at: datetime | None, now: datetime) -> str:
    """Return how long ago something was, or how soon it will be."""
    if at is None:
        return ""
    seconds = (now - at).total_seconds()
    return f"{_span(seconds)} ago" if seconds >= 0 else f"in {_span(-seconds)}"


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def leave_now(code: int) -> None:
    """End the process without waiting for anything, what was said included."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
