"""What somebody wants to send, checked and packed: a signal, or the completion of an awakeable."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ..journal.blobs import is_reference
from ..journal.errors import IdempotencyConflict, InvalidInput, InvalidKey, PayloadTooLarge
from ..journal.key import InvocationId, Key, hint, parse_id
from ..journal.outcomes import Failure, Rejected, Succeeded, encode_outcome
from ..journal.requests import RequestKind
from ..journal.signals import NONCE_BYTES, AwakeableId, SignalOrder, parse_awakeable
from ..objects.types import boundary_of
from ..objects.verdicts import Accepted, WaitVerdict, verdict_of
from ..objects.virtual_object import VirtualObject
from .bounds import check_name, check_text, check_unpacked
from .places import name_of

if TYPE_CHECKING:
    from ..objects.waiting import SignalTarget

#: The code of a rejection that names none.
REJECTED: Final = "awakeable-rejected"
#: Any key finds out whether the namespace has a type.
SOME_KEY: Final = "-/-"
#: Where the nonce and the digest of what was accepted stand behind the verdict.
_STAMP: Final = 3
#: An object is named by its type and its key.
_OBJECT: Final = 2


class Sending(NamedTuple):
    """A signal or a completion, with where it goes.

    Args:
        kind: Whether it is for an invocation or for an object.
        type_name: The object type of its target.
        partition: The number of the target's partition; None where the key tells.
        key: The object; empty where the invocation tells.
        target: What the sender called it, by which message ids are kept apart.
        order: What its owner is asked to do.
        declared: The object type, where the sender has its declaration.
    """

    kind: RequestKind
    type_name: str
    partition: int | None
    key: str
    target: str
    order: SignalOrder
    declared: VirtualObject | None = None


def completion(awakeable_id: str, value: bytes, by: str) -> Sending:
    """Return what completes an awakeable.

    Raises:
        InvalidKey: The text is no awakeable's id.
        PayloadTooLarge: `by` has more than 256 bytes.
    """
    parsed = parse_awakeable(awakeable_id)
    invocation = parsed.invocation
    check_text("by", by)
    check_name("by", by)
    order = SignalOrder(invocation.raw, "", parsed.place, value, by, os.urandom(NONCE_BYTES))
    return Sending(RequestKind.SIGNAL, invocation.type_name, invocation.partition, "", str(parsed), order)


def signal(target: SignalTarget, name: str, value: bytes, by: str) -> Sending:
    """Return what sends a signal.

    Raises:
        InvalidKey: The target is no invocation id, or has no key.
        InvalidInput: The name is empty.
        PayloadTooLarge: The name or `by` has more than 256 bytes.
    """
    check_signal_name(name)
    check_text("by", by)
    check_name("by", by)
    nonce = os.urandom(NONCE_BYTES)
    if isinstance(target, str):
        invocation = parse_id(target)
        order = SignalOrder(invocation.raw, name, None, value, by, nonce)
        return Sending(RequestKind.SIGNAL, invocation.type_name, invocation.partition, "", str(invocation), order)
    if not isinstance(target, tuple) or len(target) != _OBJECT:  # pyright: ignore[reportUnnecessaryIsInstance, reportUnnecessaryComparison]
        raise InvalidKey(target, "a signal goes to the id of an invocation, or to (object type, key)" + hint(target))
    object_type, key = target
    declared = object_type if isinstance(object_type, VirtualObject) else None
    type_name = name_of(object_type)
    key_text = str(Key.parse(key))
    order = SignalOrder(None, name, None, value, by, nonce)
    return Sending(RequestKind.OBJECT_SIGNAL, type_name, None, key_text, f"{type_name} {key_text}", order, declared)


def to_first(sending: Sending, raw_id: bytes) -> Sending:
    """Return what goes to the first invocation of the idempotency key that its target has brought again.

    Message ids count for that one, so that whoever knows it by another id sends nothing twice.
    """
    assert sending.partition is not None
    order = replace(sending.order, invocation=raw_id)
    invocation = InvocationId(sending.type_name, sending.partition, raw_id)
    target = invocation if order.awakeable is None else AwakeableId(invocation, order.awakeable)
    return sending._replace(order=order, target=str(target))


def check_signal_name(name: object) -> None:
    """Refuse what can't name a signal.

    Raises:
        TypeError: It is no text.
        InvalidInput: It is empty.
        PayloadTooLarge: It has more than 256 bytes.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a signal is text, not {type(name).__name__}")
    if not name:
        raise InvalidInput("name", "a signal needs a name")
    check_name("signal", name)


def packed_value(value: Any, form: Any, limit_bytes: int) -> bytes:
    """Return a value as a message carries it.

    Args:
        value: The value.
        form: The type by which it is written; None for its own.
        limit_bytes: How large it may be.

    Raises:
        InvalidInput: It does not fit the type, or can't be written down.
        PayloadTooLarge: It is too large.
    """
    return encode_outcome(Succeeded(packed_plainly(value, form, limit_bytes)))


def packed_plainly(value: Any, form: Any, limit_bytes: int) -> bytes:
    """Return the bytes of a value that goes out with a message; takes and raises what `packed_value` does."""
    check_unpacked("value", "", value, limit_bytes)
    packed = boundary_of(_own_form(value) if form is None else form, where="value").dump(value)
    check_packed(packed, limit_bytes)
    return packed


def check_packed(packed: bytes, limit_bytes: int) -> None:
    """Refuse bytes that no message may carry.

    Raises:
        PayloadTooLarge: They are too many.
        InvalidInput: They would be taken for a reference to a large value.
    """
    if len(packed) > limit_bytes:
        raise PayloadTooLarge("value", len(packed), limit_bytes)
    if is_reference(packed):
        raise InvalidInput("value", "its extension type is reserved")


def packed_rejection(reason: str, code: str | None, limit_bytes: int) -> bytes:
    """Return a rejection as a message carries it.

    Raises:
        TypeError: The reason or the code is no text.
        PayloadTooLarge: The reason is too large, or the code has more than 256 bytes.
    """
    check_text("reason", reason)
    if code is not None:
        check_text("code", code)
    check_unpacked("reason", "", reason, limit_bytes)
    check_name("code", code or "")
    return encode_outcome(Rejected(Failure("keylane.TerminalError", reason, code or REJECTED, None, "")))


def _own_form(value: object) -> Any:
    """Return the type by which a value is written that declares none: plain data for what holds others."""
    return Any if isinstance(value, dict | list | tuple | set | frozenset) else type(value)


def verdict_for(plain: object, order: SignalOrder) -> WaitVerdict:
    """Return the verdict on a message, as whoever asked is told it.

    Raises:
        IdempotencyConflict: The message id belongs to another content.
        Undecodable: The answer is none.
    """
    verdict = verdict_of(plain)
    stamp = cast("list[object]", plain)[_STAMP:] if isinstance(plain, list) else []
    match verdict, stamp:
        case Accepted(), [bytes() as nonce, bytes() as digest, *_] if nonce != order.nonce:
            if digest != order.digest:
                raise IdempotencyConflict(None)
            return Accepted(replayed=True, at=verdict.at)
        case _:
            return verdict
