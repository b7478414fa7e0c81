"""`call`, `send`, `attach`, `pause`, `resume`, `restart`: what the shell asks of objects."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio

from ...journal.errors import KeylaneError
from ...journal.object_description import ObjectDescription
from ..client import Client
from .output import shown, write_json, write_line
from .shell import ExitCode, Shell, WrongUse, check_words
from .values import NotJson, as_json, from_json, to_json

#: After so long the shell looks at what a call waits for, and says so a lease later.
PATIENCE_SECONDS: Final = 1.0
STDIN: Final = "-"


def argument_of(text: str | None) -> tuple[Any, ...]:
    """Return what was written behind the handler's name, as the rest of a call.

    Raises:
        WrongUse: It is no JSON.
    """
    if text is None:
        return ()
    try:
        return (from_json(sys.stdin.read() if text == STDIN else text),)
    except NotJson as error:
        quoted = 'quote it for your shell, e.g. \'{"amount": "40.00"}\' or \'"text"\''
        raise WrongUse(f"the argument is not JSON: {error}; {quoted}") from error


async def call(
    shell: Shell,
    target: tuple[str, str, str],
    argument: str | None,
    *,
    idempotency_key: str | None,
    timeout: float | None,
) -> ExitCode:
    """Call a handler and print its output."""
    object_name, key, handler = target
    rest = argument_of(argument)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:

        async def answer() -> Any:
            return await client.call(object_name, key, handler, *rest, idempotency_key=idempotency_key, timeout=timeout)

        result = await _explained(shell, client, lambda: client.inspect(object_name, key), answer)
    return _print_result(shell, result)


async def send(
    shell: Shell,
    target: tuple[str, str, str],
    argument: str | None,
    *,
    idempotency_key: str | None,
    delay: float | None = None,
) -> ExitCode:
    """Have a handler run, and print the invocation's id once the request is durable."""
    object_name, key, handler = target
    rest = argument_of(argument)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        handle = await client.send(object_name, key, handler, *rest, idempotency_key=idempotency_key, delay=delay)
    if shell.is_json:
        write_json({"id": handle.id})
    else:
        write_line(handle.id)
    return ExitCode.DONE


async def attach(shell: Shell, invocation_id: str, *, timeout: float | None) -> ExitCode:
    """Wait for an invocation and print its output."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        handle = client.attach(invocation_id)
        result = await handle.result(timeout)
    return _print_result(shell, result)


async def pause(shell: Shell, target: tuple[str, ...], *, reason: str, by: str, timeout: float | None) -> ExitCode:
    """Stop an invocation, an object or a type."""
    check_words(by, reason)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        await client.pause(target[0], *target[1:], reason=reason, by=by, timeout=timeout)
    return _done(shell, "paused", target, "is paused")


async def resume(shell: Shell, target: tuple[str, ...], *, reason: str, by: str, timeout: float | None) -> ExitCode:
    """Let an invocation, an object or a type go on."""
    check_words(by, reason)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        await client.resume(target[0], *target[1:], reason=reason, by=by, timeout=timeout)
    return _done(shell, "resumed", target, "goes on")


def _done(shell: Shell, word: str, target: tuple[str, ...], sentence: str) -> ExitCode:
    if shell.is_json:
        write_json({word: " ".join(target)})
    else:
        write_line(f"{' '.join(target)} {sentence}")
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class Restart:
    """How an invocation is begun again: how much stays, in which version, why, and who decides it."""

    keep: int
    version: int | None
    reason: str
    by: str


async def restart(shell: Shell, invocation_id: str, how: Restart, *, timeout: float | None) -> ExitCode:
    """Let a parked invocation go on from an earlier command."""
    check_words(how.by, how.reason)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        await client.restart(
            invocation_id, keep=how.keep, reason=how.reason, by=how.by, version=how.version, timeout=timeout
        )
    if shell.is_json:
        write_json({"restarted": invocation_id, "kept": how.keep})
    else:
        write_line(f"{invocation_id} goes on from command {how.keep}")
    return ExitCode.DONE


def _print_result(shell: Shell, result: Any) -> ExitCode:
    if shell.is_json:
        write_json({"result": to_json(result)})
    else:
        write_line(as_json(result, indent=2))
    return ExitCode.DONE


async def _explained(
    shell: Shell, client: Client, look: Callable[[], Awaitable[ObjectDescription]], answer: Callable[[], Awaitable[Any]]
) -> Any:
    """Wait for an answer; where it does not come soon, say once what it waits for."""
    if shell.is_json:
        return await answer()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_explain, client.settings.lease_seconds, look)
        try:
            return await answer()
        finally:
            tasks.cancel_scope.cancel()


async def _explain(lease_seconds: float, look: Callable[[], Awaitable[ObjectDescription]]) -> None:
    await anyio.sleep(PATIENCE_SECONDS)
    # The explanation must not end a call that outlasts what ails the store.
    with contextlib.suppress(KeylaneError):
        before = await look()
        await anyio.sleep(lease_seconds)
        write_line(shown(what_it_waits_for(before, await look())), sys.stderr)


def what_it_waits_for(before: ObjectDescription, now: ObjectDescription) -> str:
    """Say why a call has no answer yet.

    Args:
        before: The object as it was a lease ago.
        now: The object now.
    """
    worker, lane = now.owner.holder, now.lane
    if worker is None:
        return "still waiting: no worker holds this object's partition; start one with `keylane worker module:app`"
    if (before.owner.epoch, before.owner.lease) == (now.owner.epoch, now.owner.lease):
        return f"still waiting: worker {worker} holds this object's partition and gives no sign of life"
    if lane.pauses:
        return f"still waiting: {'; '.join(map(str, lane.pauses))}"
    if lane.holder is not None:
        return f"still waiting: {lane.holder.id} holds the lane and {lane.holder.why}"
    return f"still waiting for worker {worker}"
