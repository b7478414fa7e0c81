"""How a client sends signals and completes awakeables, and what it is told."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import TypeForm

from ..journal.errors import UnknownObject
from ..journal.history import read_result
from ..journal.key import InvocationId, new_invocation_id
from ..journal.outcomes import first_of
from ..journal.requests import Request
from ..journal.signals import message_raw_id
from ..objects.verdicts import Expired, UnknownTarget, WaitVerdict
from .bounds import check_own_name
from .handle import Timeout, seconds_of, value_of
from .open_client import OpenClient
from .remote import Patience
from .signal_orders import SOME_KEY, Sending, completion, packed_rejection, packed_value, signal, to_first, verdict_for
from .sizing import partitions_for

if TYPE_CHECKING:
    from ..journal.key import Key
    from ..journal.keyspace import PartitionSpace
    from ..objects.settings import Settings
    from ..objects.virtual_object import VirtualObject

T = TypeVar("T")


class SignalSender(OpenClient):
    """What `Client` says to those who wait.

    Each of its messages has an id. The same id again, for the same target, is answered as the first time, and takes
    nothing in: give one where you may have to ask again. Ids are remembered for the retention of results.
    """

    settings: Settings

    async def resolve_awakeable(
        self,
        awakeable_id: str,
        value: T,
        /,
        type: TypeForm[T] | None = None,
        *,
        message_id: str | None = None,
        by: str | None = None,
        timeout: Timeout = None,
    ) -> WaitVerdict:
        """Complete an awakeable with a value; whoever waits for it goes on, also if no worker is up yet.

        Args:
            awakeable_id: Its id, as its handler has given it out.
            value: What it is completed with. One that does not fit the type that is waited for is accepted, and raises
                `InvalidInput` where it is waited for: only the handler knows the type.
            type: The type by which the value is written; without it, its own.
            message_id: Makes asking again safe.
            by: Who does it, for the record and for those who come too late; without it, an id of this client.
            timeout: How long to wait for the verdict.

        Returns:
            What became of it: `Accepted` once it is durable, `AlreadyCompleted`, `Expired`, `UnknownTarget` or
            `NotPermitted`.

        Raises:
            InvalidKey: The text is no awakeable's id.
            InvalidInput: The value can't be written down.
            PayloadTooLarge: It is larger than the payload limit.
            IdempotencyConflict: The message id was used before, with another content.
            CallTimeout: The time passed; the message stays where it is, and is taken in when there is an owner.
            StoreError: The store was away for too long, or refused.
        """
        packed = packed_value(value, type, self._payload_limit_bytes)
        return await self._deliver(completion(awakeable_id, packed, self._name(by)), message_id, timeout)

    async def reject_awakeable(
        self,
        awakeable_id: str,
        reason: str,
        /,
        *,
        code: str | None = None,
        message_id: str | None = None,
        by: str | None = None,
        timeout: Timeout = None,
    ) -> WaitVerdict:
        """Complete an awakeable with a failure: its wait raises a `TerminalError`.

        Args:
            awakeable_id: Its id.
            reason: The error's message.
            code: The error's code; without it, `awakeable-rejected`.
            message_id: Makes asking again safe.
            by: Who does it.
            timeout: How long to wait for the verdict.

        Raises:
            InvalidKey: The text is no awakeable's id.
            IdempotencyConflict: The message id was used before, with another content.
            CallTimeout: The time passed; the message stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        packed = packed_rejection(reason, code, self._payload_limit_bytes)
        return await self._deliver(completion(awakeable_id, packed, self._name(by)), message_id, timeout)

    async def signal(
        self,
        invocation_id: str,
        name: str,
        value: T,
        /,
        type: TypeForm[T] | None = None,
        *,
        message_id: str | None = None,
        by: str | None = None,
        timeout: Timeout = None,
    ) -> WaitVerdict:
        """Send a signal to an invocation; one that does not wait for it yet gets it when it does.

        Args:
            invocation_id: The invocation.
            name: The signal's name.
            value: What it carries.
            type: The type by which the value is written; without it, its own.
            message_id: Makes asking again safe.
            by: Who sends it, for the record.
            timeout: How long to wait for the verdict.

        Raises:
            InvalidKey: The text is no invocation id.
            Overloaded: 1,000 signals wait for this invocation.
            InvalidInput: The value can't be written down.
            PayloadTooLarge: It is larger than the payload limit, or the name has more than 256 bytes.
            IdempotencyConflict: The message id was used before, with another content.
            CallTimeout: The time passed; the message stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        packed = packed_value(value, type, self._payload_limit_bytes)
        return await self._deliver(signal(invocation_id, name, packed, self._name(by)), message_id, timeout)

    async def signal_object(
        self,
        target: VirtualObject | str,
        key: Key | str,
        name: str,
        value: T,
        /,
        type: TypeForm[T] | None = None,
        *,
        message_id: str | None = None,
        by: str | None = None,
        timeout: Timeout = None,
    ) -> WaitVerdict:
        """Send a signal to whichever invocation of an object waits for it, the earliest first, or is the next to.

        Args:
            target: The object type.
            key: The object.
            name: The signal's name.
            value: What it carries.
            type: The type by which the value is written; without it, its own.
            message_id: Makes asking again safe.
            by: Who sends it, for the record.
            timeout: How long to wait for the verdict.

        Raises:
            UnknownObject: The namespace has no type of this name; a declared one need not be there yet.
            InvalidKey: The text is no key.
            Overloaded: 1,000 signals wait for this object.
            InvalidInput: The value can't be written down.
            PayloadTooLarge: It is larger than the payload limit, or the name has more than 256 bytes.
            IdempotencyConflict: The message id was used before, with another content.
            CallTimeout: The time passed; the message stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        packed = packed_value(value, type, self._payload_limit_bytes)
        return await self._deliver(signal((target, key), name, packed, self._name(by)), message_id, timeout)

    def _name(self, by: str | None) -> str:
        return f"client {self._id.hex()}" if by is None else by

    async def _deliver(self, sending: Sending, message_id: str | None, timeout: Timeout) -> WaitVerdict:
        patience = Patience(seconds_of(timeout))
        space = await self._space_of(sending, patience)
        if space is None:
            return UnknownTarget()
        if message_id is not None:
            check_own_name("message_id", message_id)
        told = await self._ask(space, sending, message_id, patience)
        invocation = sending.order.invocation
        if invocation is None or not isinstance(told, Expired | UnknownTarget):
            return told
        result = partial(read_result, self.store, space, invocation)
        first = first_of(await self.remote.persist(result, patience))
        return told if first is None else await self._ask(space, to_first(sending, first), message_id, patience)

    async def _ask(
        self, space: PartitionSpace, sending: Sending, message_id: str | None, patience: Patience
    ) -> WaitVerdict:
        raw_id = new_invocation_id() if message_id is None else message_raw_id(sending.target, message_id)
        order = sending.order
        request = Request(sending.kind, raw_id, "", sending.key, order.encode(), client=self._id)
        ended = await self.remote.ask(space, request, patience)
        told = value_of(ended, None, str(InvocationId(space.type_name, space.number, raw_id)), "")
        return verdict_for(told, order)

    async def _space_of(self, sending: Sending, patience: Patience) -> PartitionSpace | None:
        """Return the partition of a target; None where an id names one that the namespace does not have."""
        places, type_name = self._places, sending.type_name
        key, count = sending.key or SOME_KEY, None
        if sending.declared is not None:
            count = sending.declared.partitions or partitions_for(self.settings, self.store)
        try:
            space = places.known(type_name, key)
            if space is None:
                space = await self.remote.persist(partial(places.learned, type_name, key, count), patience)
        except UnknownObject:
            if sending.partition is None:
                raise
            return None
        if sending.partition is None:
            return space
        is_there = sending.partition < places.partitions(type_name)
        return self.store.space(type_name, sending.partition) if is_there else None
