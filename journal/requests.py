"""What lies in a partition's inbox, and what its owner announces when a request has been answered.

A request is written by anybody and read by the owner alone. Like records, it is a tagged array whose tag says what is
asked for; the user's values in it are opaque bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

import msgpack

from .codec import Undecodable
from .fields import Layout, a_number, a_text, decode_tagged, optional, pack, some_bytes
from .messages import Caller, a_caller

ID_BYTES: Final = 16
CLIENT_BYTES: Final = 8

#: An outcome above this many bytes is not sent along with its announcement; it is read from the result key.
INLINE_OUTCOME_BYTES: Final = 1024


class RequestKind(StrEnum):
    """What a request asks for."""

    CALL = "call"
    SEND = "send"
    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"
    REPAIR = "repair"
    OBJECT_CALL = "object-call"
    OBJECT_SEND = "object-send"
    REPLY = "reply"
    SIGNAL = "signal"
    OBJECT_SIGNAL = "object-signal"
    ATTACH = "attach"
    PROBE = "probe"
    CANCEL = "cancel"
    KILL = "kill"
    OBJECT_CANCEL = "object-cancel"
    SKIP_COMPENSATION = "skip-compensation"
    DECIDE = "decide"
    RECONCILE = "reconcile"

    @property
    def is_message(self) -> bool:
        """Whether another object asks, so that it came by way of its partition's outbox."""
        return self in _MESSAGES


_MESSAGES: Final = frozenset(
    {
        RequestKind.OBJECT_CALL,
        RequestKind.OBJECT_SEND,
        RequestKind.ATTACH,
        RequestKind.REPLY,
        RequestKind.OBJECT_CANCEL,
    }
)
#: What is asked of an invocation that was taken in before, so that it goes on or ends; or what settles its effects.
_ABOUT_AN_INVOCATION: Final = frozenset(
    {
        RequestKind.PAUSE,
        RequestKind.RESUME,
        RequestKind.RESTART,
        RequestKind.SIGNAL,
        RequestKind.CANCEL,
        RequestKind.KILL,
        RequestKind.SKIP_COMPENSATION,
        RequestKind.DECIDE,
        RequestKind.RECONCILE,
    }
)


@dataclass(frozen=True, slots=True)
class Request:
    """One entry of an inbox.

    Args:
        kind: What is asked for.
        invocation: Raw id of the invocation that is asked for. A request about an invocation that exists has an id of
            its own, under which it is answered; whom it is about stands in its payload.
        handler: Name of the handler; empty for a request that runs none.
        key: The object, as `tenant/key`.
        payload: Packed argument, None where there is none.
        basis: Packed argument without unset fields, for the fingerprint of an idempotency key; None when the sender
            doesn't know the types.
        idempotency_key: The caller's key, if one was given.
        client: Id of the process that waits for the answer, None when nobody does.
        shared: Whether the handler only reads.
        again: Whether the same request may have been put into the inbox before.
        delay_ms: How long the invocation is to wait, from when it is taken in, before it enters its lane.
        caller: Who waits for the reply to a call of another object.
        trace: The context of the trace that it belongs to, None for none.
    """

    kind: RequestKind
    invocation: bytes
    handler: str
    key: str
    payload: bytes | None = None
    basis: bytes | None = None
    idempotency_key: str | None = None
    client: bytes | None = None
    shared: bool = False
    again: bool = False
    delay_ms: int = 0
    caller: Caller | None = None
    trace: bytes | None = None

    @property
    def may_exceed_memory(self) -> bool:
        """Whether it is put into the inbox also while the store's memory is full.

        It lets something go on that was taken in before, or stops it, it only reads, or it may lie there already: a
        refusal would say that nothing was taken in, and that is not known.
        """
        return self.kind in _ABOUT_AN_INVOCATION or self.shared or self.again

    def encode(self) -> bytes:
        """Return the bytes of the request."""
        flags = self.shared * _SHARED | self.again * _AGAIN
        fields = (self.handler, self.key, self.payload, self.basis, self.idempotency_key, self.client, flags)
        if self.trace is not None:
            caller = None if self.caller is None else self.caller.encode()
            fields = (*fields, self.delay_ms, caller, self.trace)
        elif self.caller is not None:
            fields = (*fields, self.delay_ms, self.caller.encode())
        elif self.delay_ms:
            fields = (*fields, self.delay_ms)
        return pack((_TAGS[self.kind], self.invocation, *fields))

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Return the request that bytes hold; what a later version adds behind it is left out.

        Raises:
            Undecodable: They hold none.
        """
        request = decode_tagged(data, _LAYOUTS, "request")
        if len(request.invocation) != ID_BYTES:
            msg = f"an invocation id of {len(request.invocation)} bytes"
            raise Undecodable(msg)
        return request


# Tags of requests are disjoint from those of records and outcomes, so that one is never taken for the other.
_TAGS: Final[Mapping[RequestKind, int]] = {
    RequestKind.CALL: 96,
    RequestKind.SEND: 97,
    RequestKind.PAUSE: 107,
    RequestKind.RESUME: 98,
    RequestKind.RESTART: 110,
    RequestKind.REPAIR: 106,
    RequestKind.OBJECT_CALL: 99,
    RequestKind.OBJECT_SEND: 100,
    RequestKind.REPLY: 101,
    RequestKind.SIGNAL: 126,
    RequestKind.OBJECT_SIGNAL: 127,
    RequestKind.PROBE: 113,
    RequestKind.ATTACH: 115,
    RequestKind.CANCEL: 122,
    RequestKind.KILL: 123,
    RequestKind.OBJECT_CANCEL: 124,
    RequestKind.SKIP_COMPENSATION: 125,
    RequestKind.DECIDE: 130,
    RequestKind.RECONCILE: 131,
}

_SHARED: Final = 1
_AGAIN: Final = 2

_maybe_bytes: Final = optional(some_bytes)
_READERS: Final = (
    some_bytes,
    a_text,
    a_text,
    _maybe_bytes,
    _maybe_bytes,
    optional(a_text),
    _maybe_bytes,
    a_number,
)


def _request(kind: RequestKind, *fields: Any) -> Request:
    facts, flags, later = fields[:_FACTS], fields[_FACTS], dict(zip(_LATER, fields[_FACTS + 1 :], strict=False))
    return Request(kind, *facts, shared=bool(flags & _SHARED), again=bool(flags & _AGAIN), **later)


_FACTS: Final = len(_READERS) - 1
#: Fields that stand behind the others where they say something.
_LATER: Final = ("delay_ms", "caller", "trace")
_LAYOUTS: Final[Mapping[int, Layout[Request]]] = {
    tag: Layout(partial(_request, kind), _READERS, (a_number, a_caller, _maybe_bytes)) for kind, tag in _TAGS.items()
}


@dataclass(frozen=True, slots=True)
class ResumeOrder:
    """The payload of a request to let a parked invocation go on, or what was paused of an object or a type.

    Args:
        invocation: Raw id of the parked invocation; empty where the object is to go on that the request names, or where
            it names none, all objects of the partition.
        by: Who asks for it.
        reason: Why, in words.
    """

    invocation: bytes
    by: str
    reason: str

    def encode(self) -> bytes:
        """Return the bytes of the order."""
        return pack((_RESUME_ORDER, self.invocation, self.by, self.reason))

    @classmethod
    def decode(cls, data: bytes) -> ResumeOrder:
        """Return the order that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _ORDERS, "resume order")


@dataclass(frozen=True, slots=True)
class RestartOrder:
    """The payload of a request to begin a parked invocation again from an earlier command.

    Args:
        invocation: Raw id of the parked invocation.
        kept: How many commands of its main branch stay.
        by: Who asks for it.
        reason: Why, in words.
        version: The version of the handler that it is to go on with, None for the one that it has.
    """

    invocation: bytes
    kept: int
    by: str
    reason: str
    version: int | None = None

    def encode(self) -> bytes:
        """Return the bytes of the order."""
        return pack((_RESTART_ORDER, self.invocation, self.kept, self.by, self.reason, self.version))

    @classmethod
    def decode(cls, data: bytes) -> RestartOrder:
        """Return the order that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _RESTART_ORDERS, "restart order")


_RESTART_ORDER: Final = 111
_RESTART_ORDERS: Final[Mapping[int, Layout[RestartOrder]]] = {
    _RESTART_ORDER: Layout(RestartOrder, (some_bytes, a_number, a_text, a_text, optional(a_number)))
}
_RESUME_ORDER: Final = 120
_ORDERS: Final[Mapping[int, Layout[ResumeOrder]]] = {_RESUME_ORDER: Layout(ResumeOrder, (some_bytes, a_text, a_text))}


@dataclass(frozen=True, slots=True)
class Answer:
    """The announcement that there is news of an invocation: it was taken in, paused, or ended.

    Args:
        client: Id of the process that asked; empty when nobody waits for it by name.
        invocation: Raw id of the request.
        outcome: The encoded outcome when it is short, else None: look at the store.
    """

    client: bytes
    invocation: bytes
    outcome: bytes | None = None

    def encode(self) -> bytes:
        """Return the bytes of the announcement, without an outcome that is too long to be sent along."""
        outcome = self.outcome
        if outcome is not None and len(outcome) > INLINE_OUTCOME_BYTES:
            outcome = None
        return pack((self.client or _NOBODY, self.invocation, outcome))

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        """Return the announcement that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        match _unpacked(data):
            case [bytes() as client, bytes() as invocation, bytes() | None as outcome]:
                return cls(client, invocation, outcome)
            case _:
                raise Undecodable("not an announcement of an answer")


def _unpacked(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Undecodable("an announcement is not msgpack") from error


# With a client id of 8 bytes the raw id stands at a fixed place: [client, raw id, outcome] begins with the header of
# three items, eight bytes behind their header, and the header of sixteen bytes.
_HEAD: Final = b"\x93\xc4\x08"
_ID_HEADER: Final = b"\xc4\x10"
_NOBODY: Final = bytes(CLIENT_BYTES)
_ID_AT: Final = len(_HEAD) + CLIENT_BYTES + len(_ID_HEADER)


def announced_invocation(data: bytes) -> bytes | None:
    """Return the raw id of an announcement without decoding it: most are other clients' and are dropped at once.

    Returns:
        The id, or None when the bytes are no announcement of the usual form.
    """
    if data[:3] == _HEAD and data[_ID_AT - 2 : _ID_AT] == _ID_HEADER:
        return data[_ID_AT : _ID_AT + ID_BYTES]
    return None
