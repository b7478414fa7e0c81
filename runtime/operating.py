"""What operators ask for: that an invocation, an object or all of a type stop, go on, or begin again from earlier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import anyio

from ..journal.errors import CallError, InvalidKey, KeylaneError
from ..journal.history import read_acceptance
from ..journal.key import InvocationId, Key, new_invocation_id, parse_id
from ..journal.ledger_reading import spaces_of
from ..journal.pauses import PauseOrder
from ..journal.requests import Request, RequestKind, RestartOrder, ResumeOrder
from ..objects.virtual_object import VirtualObject
from .bounds import check_decision, check_number
from .handle import Timeout, seconds_of, value_of
from .open_client import OpenClient
from .places import name_of
from .remote import Patience

if TYPE_CHECKING:
    from ..journal.keyspace import PartitionSpace


class Operating(OpenClient):
    """The part of `Client` that stops work and lets it go on."""

    @overload
    async def pause(self, target: VirtualObject | str, /, *, reason: str, by: str, timeout: Timeout = None) -> None: ...
    @overload
    async def pause(
        self, object_type: VirtualObject | str, key: Key | str, /, *, reason: str, by: str, timeout: Timeout = None
    ) -> None: ...
    async def pause(
        self,
        target: VirtualObject | str,
        key: Key | str | None = None,
        /,
        *,
        reason: str,
        by: str,
        timeout: Timeout = None,
    ) -> None:
        """Stop the exclusive work of an object or of a whole type, or an invocation, until somebody resumes it.

        What runs goes on up to its next durable point, or its end. Shared handlers read on. Calls, messages, replies
        and due times are taken in meanwhile, and go on in their order afterwards. A pause outlives workers; pausing
        what is paused changes nothing.

        Args:
            target: An invocation's id; or an object type, itself or by its name.
            key: The object, where only that is to be paused.
            reason: Why, for the record.
            by: Who decides it, for the record.
            timeout: How long to wait: for the owner's word, of a type for that of each partition's owner; of an
                invocation that runs, until it has come to its next durable point.

        Raises:
            InvalidInput: `by` or `reason` is empty.
            CallError: The invocation has ended, or is not known; or it is to begin later.
            CallTimeout: The time passed; the request stays where it is.
            UnknownObject: The namespace has no such type.
        """
        check_decision(by, reason)
        order = PauseOrder(b"", by, reason)
        invocation = _invocation_of(target, key)
        if invocation is None:
            await self._order_all(RequestKind.PAUSE, name_of(target), key, order.encode(), timeout)
            return
        order = PauseOrder(invocation.raw, by, reason)
        await self._order_one(RequestKind.PAUSE, invocation, order.encode(), timeout)

    @overload
    async def resume(
        self, target: VirtualObject | str, /, *, reason: str, by: str, timeout: Timeout = None
    ) -> None: ...
    @overload
    async def resume(
        self, object_type: VirtualObject | str, key: Key | str, /, *, reason: str, by: str, timeout: Timeout = None
    ) -> None: ...
    async def resume(
        self,
        target: VirtualObject | str,
        key: Key | str | None = None,
        /,
        *,
        reason: str,
        by: str,
        timeout: Timeout = None,
    ) -> None:
        """Let a parked invocation go on, with its retries counted anew; or an object or a type that was paused.

        An object that was paused by itself stays so when its type goes on, and the other way round.

        Args:
            target: An invocation's id; or an object type, itself or by its name.
            key: The object, where only that was paused.
            reason: Why, for the record.
            by: Who decides it, for the record.
            timeout: How long to wait for the owner's verdict.

        Raises:
            InvalidInput: `by` or `reason` is empty.
            CallError: It is not paused, or not known.
            CallTimeout: The time passed; the request stays where it is.
            UnknownObject: The namespace has no such type.
        """
        check_decision(by, reason)
        invocation = _invocation_of(target, key)
        if invocation is not None:
            order = ResumeOrder(invocation.raw, by, reason)
            await self._order_one(RequestKind.RESUME, invocation, order.encode(), timeout)
            return
        payload = ResumeOrder(b"", by, reason).encode()
        were_paused = await self._order_all(RequestKind.RESUME, name_of(target), key, payload, timeout)
        if not any(were_paused):
            raise CallError(f"{name_of(target)}{'' if key is None else f' {key}'} is not paused")

    async def restart(
        self,
        invocation_id: str,
        *,
        keep: int,
        reason: str,
        by: str,
        version: int | None = None,
        timeout: Timeout = None,
    ) -> None:
        """Let a parked invocation go on from an earlier command: what it did from there on is done anew.

        What stays gives the same results, random numbers and ids as before; what is drawn behind it is the same, too.
        Other objects are called and sent to anew, under new ids; calls whose reply was waited for are not cancelled.
        What was written to the state stays written.

        Args:
            invocation_id: The invocation.
            keep: How many commands stay, counted as `describe` shows them; the one of this index is the first to run
                again, and so does all that branches did behind the one before it.
            reason: Why, for the record.
            by: Who decides it, for the record.
            version: The version of its handler that it goes on with; without it, the one that it has.
            timeout: How long to wait for the owner's verdict.

        Raises:
            InvalidInput: `by` or `reason` is empty.
            CallError: It is not paused, not known, or has not so many commands; or the version is not there.
            CallTimeout: The time passed; the request stays where it is.
        """
        check_number("keep", keep)
        if version is not None:
            check_number("version", version)
        invocation = parse_id(invocation_id)
        check_decision(by, reason)
        order = RestartOrder(invocation.raw, keep, by, reason, version)
        await self._order_one(RequestKind.RESTART, invocation, order.encode(), timeout)

    async def _order_one(self, kind: RequestKind, invocation: InvocationId, payload: bytes, timeout: Timeout) -> None:
        space = self.store.space(invocation.type_name, invocation.partition)
        key_text = await self._key_of(space, invocation)
        request = Request(kind, new_invocation_id(), "", key_text, payload, client=self._id)
        await self._answer_to(space, request, str(invocation), Patience(seconds_of(timeout)))

    async def _order_all(
        self, kind: RequestKind, object_name: str, key: Key | str | None, payload: bytes, timeout: Timeout
    ) -> Sequence[Any]:
        """Ask the owner of an object, or those of all partitions of a type; returns what each has answered."""
        patience = Patience(seconds_of(timeout))
        spaces = await self._spaces(object_name, key)
        key_text = "" if key is None else str(Key.parse(key))
        answers: list[Any] = []
        failed: list[KeylaneError] = []

        async def ask(space: PartitionSpace) -> None:
            request = Request(kind, new_invocation_id(), "", key_text, payload, client=self._id)
            try:
                answers.append(await self._answer_to(space, request, "", patience))
            except KeylaneError as error:
                # The others are asked all the same.
                failed.append(error)

        async with anyio.create_task_group() as tasks:
            for space in spaces:
                tasks.start_soon(ask, space)
        if failed:
            raise failed[0]
        return answers

    async def _spaces(self, object_name: str, key: Key | str | None) -> list[PartitionSpace]:
        """Return the partition of an object, or all of a type.

        Raises:
            UnknownObject: The namespace has no such type.
        """
        if key is not None:
            return [await self._places.place(object_name, str(Key.parse(key)))]
        return await spaces_of(self.store, object_name)

    async def _answer_to(self, space: PartitionSpace, request: Request, invocation_id: str, patience: Patience) -> Any:
        return value_of(await self.remote.ask(space, request, patience), None, invocation_id, "")

    async def _key_of(self, space: PartitionSpace, invocation: InvocationId) -> str:
        """Return the key of an invocation that has a stream.

        Raises:
            CallError: It has none: it was never parked, or it is not known any more.
        """
        accepted = await read_acceptance(self.store, space, invocation.raw)
        if accepted is None:
            raise CallError("it is not paused", invocation_id=str(invocation))
        return accepted.key


def _invocation_of(target: VirtualObject | str, key: Key | str | None) -> InvocationId | None:
    """Return the invocation that a text names; None for an object type, whose names look otherwise."""
    if isinstance(target, VirtualObject) or key is not None:
        return None
    try:
        return parse_id(target)
    except InvalidKey:
        return None
