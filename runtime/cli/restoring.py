"""`restored`: says what nothing in the store can tell, that its data are a copy of an earlier time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from ...journal.restored import declare_restored
from ...journal.store import Store
from ...journal.types_registry import read_types
from ...objects.settings import Settings
from .output import moment, write_json, write_line
from .shell import ExitCode, Shell, WrongUse

FORM: Final = "write it as 2026-03-01T12:00:00+01:00, or with Z for UTC"


def time_of(text: str) -> datetime:
    """Return a moment that has passed.

    Raises:
        WrongUse: The text is none, says no zone, or lies ahead.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUse(f"--from {text!r} is no time: {FORM}") from None
    if at.tzinfo is None:
        raise WrongUse(f"--from {text} does not say in which zone: {FORM}")
    if at > datetime.now(UTC):
        raise WrongUse(f"--from {text} lies ahead: name the time of the copy")
    return at


async def restored(shell: Shell, since: str) -> ExitCode:
    """Declare all partitions of the namespace to be in doubt since a time, and print how many there are."""
    at = time_of(since)
    margin_ms = int(Settings().doubt_seconds * 1000)
    async with Store(shell.store_url(), namespace=shell.namespace) as store:
        types = await read_types(store)
        declared = await declare_restored(store, types, int(at.timestamp() * 1000), margin_ms)
    if shell.is_json:
        partitions = [
            {
                "type": each.space.type_name,
                "partition": each.space.number,
                "history": each.history,
                "doubt_from_ms": each.span.from_ms,
                "doubt_until_ms": each.span.until_ms,
            }
            for each in declared
        ]
        write_json({"namespace": shell.namespace, "since": at.isoformat(), "partitions": partitions})
    else:
        write_line(f"{len(declared)} partitions are in doubt since {moment(at)} and begin a new history")
    return ExitCode.DONE if declared else ExitCode.NO
