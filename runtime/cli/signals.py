"""`resolve`, `reject`, `signal`: what the shell says to those who wait, and what it is told."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple, assert_never

from ...journal.errors import InvalidKey
from ...journal.key import parse_id
from ...objects.verdicts import Accepted, AlreadyCompleted, Expired, NotPermitted, UnknownTarget
from ..client import Client
from .calls import argument_of
from .output import moment, shown, write_json, write_line
from .shell import ExitCode, Shell, WrongUse
from .values import to_json

if TYPE_CHECKING:
    from ...objects.verdicts import WaitVerdict


class Message(NamedTuple):
    """What is said beside a message.

    Args:
        message_id: Makes asking again safe.
        by: Who sends it.
        timeout: How many seconds its verdict is waited for.
    """

    message_id: str | None
    by: str | None
    timeout: float | None


async def resolve(shell: Shell, awakeable_id: str, value: str, message: Message) -> ExitCode:
    """Complete an awakeable with a value."""
    (packed,) = argument_of(value)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        return _print(shell, await client.resolve_awakeable(awakeable_id, packed, **message._asdict()))


async def reject(shell: Shell, awakeable_id: str, reason: str, code: str | None, message: Message) -> ExitCode:
    """Complete an awakeable with a failure."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        return _print(shell, await client.reject_awakeable(awakeable_id, reason, code=code, **message._asdict()))


async def signal(shell: Shell, target: str, key: str | None, name: str, value: str, message: Message) -> ExitCode:
    """Send a signal to an invocation; with a key, to an object of a type."""
    (packed,) = argument_of(value)
    if key is None:
        _check_invocation(target)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        if key is None:
            verdict = await client.signal(target, name, packed, **message._asdict())
        else:
            verdict = await client.signal_object(target, key, name, packed, **message._asdict())
    return _print(shell, verdict)


def _check_invocation(target: str) -> None:
    try:
        parse_id(target)
    except InvalidKey as error:
        raise WrongUse(f"{error}; with an object type, --key names the object that the signal goes to") from error


def _print(shell: Shell, verdict: WaitVerdict) -> ExitCode:
    if shell.is_json:
        facts = {name: to_json(value) for name, value in asdict(verdict).items()}
        write_json({"verdict": _words(verdict)[0], **facts})
    else:
        write_line(shown("".join(_words(verdict))))
    return ExitCode.DONE if isinstance(verdict, Accepted) else ExitCode.NO


def _words(verdict: WaitVerdict) -> tuple[str, str]:
    """Return a verdict as a word for programs, and what there is to say beside it."""
    match verdict:
        case Accepted(replayed=True):
            return "accepted", f" before, at {moment(verdict.at)}"
        case Accepted():
            return "accepted", ""
        case AlreadyCompleted():
            return "already-completed", f" by {verdict.by} at {moment(verdict.at)}"
        case Expired():
            return "expired", "" if verdict.at is None else f" at {moment(verdict.at)}"
        case UnknownTarget():
            return "unknown", ": it was never given out, or its records have outlived their retention"
        case NotPermitted():
            return "not-permitted", f": {verdict.why}"
        case _:
            assert_never(verdict)
