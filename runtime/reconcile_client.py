"""How a client settles effects by hand, and what it is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from typing_extensions import TypeForm

from ..journal.effect_orders import ReconcileAct, ReconcileOrder
from ..journal.effects import EffectEntry
from ..journal.errors import IdempotencyConflict
from ..journal.key import InvocationId, Key, new_invocation_id
from ..journal.lane_reading import ask
from ..journal.requests import Request, RequestKind
from ..journal.signals import message_raw_id
from ..objects.receiver_checks import SPAN_MAX
from ..objects.reconcile_verdicts import Reconciled, ReconcileVerdict, reconcile_verdict_of
from ..objects.verdicts import UnknownTarget
from .bounds import check_operation_id, check_own_name
from .handle import Timeout, seconds_of, value_of
from .open_client import OpenClient
from .places import name_of, place_if_any
from .reconciling import check_order
from .remote import Patience
from .signal_orders import packed_plainly

if TYPE_CHECKING:
    from ..journal.keyspace import PartitionSpace
    from ..objects.virtual_object import VirtualObject

T = TypeVar("T")


class ReconcileClient(OpenClient):
    """What `Client` does about effects whose outcome nobody knows.

    Each act has an id. The same id again, for the same effect, is answered as the first time, and does nothing: give
    one where you may have to ask again. Ids are remembered for the retention of results.
    """

    async def reconcile_lookup(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        /,
        *,
        by: str,
        reason: str,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Have the receiver asked now what became of an effect.

        Args:
            object_type: The object type, itself or by its name.
            key: The object.
            operation_id: The operation id, as its handler wrote it.
            by: Who does it, for the record.
            reason: Why, for the record.
            message_id: Makes asking again safe.
            timeout: How long to wait for the verdict.

        Returns:
            `Reconciled` with where the effect stands since, `AlreadySettled`, `NotAllowed` or `UnknownTarget`.

        Raises:
            InvalidInput: `by` or `reason` is empty.
            IdempotencyConflict: The message id was used before, for something else.
            CallTimeout: The time passed; the request stays where it is, and is taken in when there is an owner.
            StoreError: The store was away for too long, or refused.
        """
        order = ReconcileOrder(ReconcileAct.LOOK_UP, operation_id, by, reason)
        return await self._reconcile((object_type, key), order, message_id, timeout)

    async def reconcile_succeeded(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        receipt: T,
        /,
        type: TypeForm[T] | None = None,
        *,
        by: str,
        reason: str,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Say that an effect was done, with its receipt, which its handler gets.

        Args:
            object_type: The object type, itself or by its name.
            key: The object.
            operation_id: The operation id, as its handler wrote it.
            receipt: The receipt; the effect's own type has to take it.
            type: The type by which the receipt is written; without it, its own.
            by: Who says so, for the record.
            reason: From where they know, for the record.
            message_id: Makes asking again safe.
            timeout: How long to wait for the verdict.

        Raises:
            InvalidInput: The receipt is none of this effect, or `by` or `reason` is empty.
            PayloadTooLarge: The receipt is larger than 64 KiB.
            IdempotencyConflict: The message id was used before, for something else.
            CallTimeout: The time passed; the request stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        packed = packed_plainly(receipt, type, self._payload_limit_bytes)
        order = ReconcileOrder(ReconcileAct.SUCCEEDED, operation_id, by, reason, packed)
        return await self._reconcile((object_type, key), order, message_id, timeout)

    async def reconcile_not_done(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        /,
        *,
        by: str,
        reason: str,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Say that an effect was not done and will not be: its handler gets `EffectRejected`.

        Allowed from when nothing that was sent can take effect any more.

        Args:
            object_type: The object type, itself or by its name.
            key: The object.
            operation_id: The operation id, as its handler wrote it.
            by: Who says so, for the record.
            reason: The evidence, for the record.
            message_id: Makes asking again safe.
            timeout: How long to wait for the verdict.

        Raises:
            InvalidInput: `by` or `reason` is empty.
            IdempotencyConflict: The message id was used before, for something else.
            CallTimeout: The time passed; the request stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        order = ReconcileOrder(ReconcileAct.NOT_DONE, operation_id, by, reason)
        return await self._reconcile((object_type, key), order, message_id, timeout)

    async def reconcile_resend(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        /,
        *,
        by: str,
        reason: str,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Have the same operation id sent again; allowed only where that can't do twice what it asks for.

        Args:
            object_type: The object type, itself or by its name.
            key: The object.
            operation_id: The operation id, as its handler wrote it.
            by: Who does it, for the record.
            reason: Why, for the record.
            message_id: Makes asking again safe.
            timeout: How long to wait until the intent of that is durable.

        Raises:
            InvalidInput: `by` or `reason` is empty.
            IdempotencyConflict: The message id was used before, for something else.
            CallTimeout: The time passed; the request stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        order = ReconcileOrder(ReconcileAct.RESEND, operation_id, by, reason)
        return await self._reconcile((object_type, key), order, message_id, timeout)

    async def reconcile_hand_over(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        /,
        *,
        to: str,
        by: str,
        reason: str,
        within: timedelta | None = None,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Have somebody else settle an effect.

        Args:
            object_type: The object type, itself or by its name.
            key: The object.
            operation_id: The operation id, as its handler wrote it.
            to: Who settles it from now on.
            by: Who decides that, for the record.
            reason: Why, for the record.
            within: Within what time they have to, from now on, also where it does not lie with people yet; without it,
                the deadline stays, and what comes to them later has the time that its receiver gives.
            message_id: Makes asking again safe.
            timeout: How long to wait for the verdict.

        Raises:
            InvalidInput: `to`, `by` or `reason` is empty.
            ValueError: `within` is no time that lies ahead, or more than ten years.
            IdempotencyConflict: The message id was used before, for something else.
            CallTimeout: The time passed; the request stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        if not isinstance(within, timedelta | None):  # pyright: ignore[reportUnnecessaryIsInstance] - a user gives it
            raise TypeError(f"within is {within!r}; it takes a timedelta, such as timedelta(hours=24)")
        within_ms = None if within is None else within // timedelta(milliseconds=1)
        if within is not None and not timedelta(milliseconds=1) <= within <= SPAN_MAX:
            raise ValueError(
                f"within is {within}: it has to be a time that lies ahead, and at most {SPAN_MAX.days:,} days"
            )
        order = ReconcileOrder(ReconcileAct.HAND_OVER, operation_id, by, reason, None, to, within_ms)
        return await self._reconcile((object_type, key), order, message_id, timeout)

    async def _reconcile(
        self,
        target: tuple[VirtualObject | str, Key | str],
        order: ReconcileOrder,
        message_id: str | None,
        timeout: Timeout,
    ) -> ReconcileVerdict:
        name, key_text, patience = name_of(target[0]), str(Key.parse(target[1])), Patience(seconds_of(timeout))
        check_operation_id(order.operation)
        check_order(order)
        space = await place_if_any(self._places, self.remote, name, key_text, patience)
        if space is None:
            return UnknownTarget()
        if message_id is not None:
            check_own_name("message_id", message_id)
        what = f"reconcile {name} {key_text} {order.operation}"
        raw_id = new_invocation_id() if message_id is None else message_raw_id(what, message_id)
        request = Request(RequestKind.RECONCILE, raw_id, "", key_text, order.encode(), client=self._id)
        ended = await self.remote.ask(space, request, patience)
        told = value_of(ended, None, str(InvocationId(space.type_name, space.number, raw_id)), "")
        plain, digest = cast("list[Any]", told)[:2]
        if digest != order.digest:
            raise IdempotencyConflict(None)
        verdict = reconcile_verdict_of(plain)
        if not isinstance(verdict, Reconciled):
            return verdict
        state = await self.remote.persist(partial(self._state_of, space, key_text, order.operation), patience)
        return replace(verdict, state=state)

    async def _state_of(self, space: PartitionSpace, key_text: str, operation: str) -> str:
        """Return where an effect stands now."""
        effects = space.effects(key_text)
        (data,) = await ask(self.store, [("HGET", effects, operation)], [effects])
        return "" if data is None else EffectEntry.decode(data).state.value
