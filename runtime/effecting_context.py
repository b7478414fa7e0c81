"""The part of an exclusive handler's context that has things done outside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..journal.effects import Unknown as NotKnown
from ..journal.errors import EffectConflict, EffectRejected, InternalError
from ..journal.outcomes import Rejected
from ..journal.outcomes import Succeeded as Done
from ..objects.effecting import Succeeded, Unknown
from ..objects.reservations import RESERVATIONS, RESERVE, reservation_key
from .approving_context import ApprovingContext
from .commands import loaded
from .declared_undos import DeclaredUndo, declared_undo
from .effect_checks import check_asked, check_operation
from .failures import terminal_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..objects.approvals import Approval
    from ..objects.receivers import Effect, Receiver


class EffectingContext(ApprovingContext):
    """What `ExclusiveContext` does for effects."""

    __slots__ = ()

    async def effect(
        self,
        effect: Effect[Any, Any],
        /,
        *,
        operation_id: str,
        params: Any,
        approval: Approval | None = None,
        compensate: bool = False,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Any:
        """Have something done outside, or return what came of it in the recorded run."""
        undo = self._registered("effect", effect, operation_id, params, approval, compensate=compensate)
        outcome = await self._outcome(
            "effect", effect, operation_id, params, approval, undo, release_lane=release_lane, expects=expects
        )
        if isinstance(outcome, Succeeded):
            return outcome.receipt
        if isinstance(outcome, EffectRejected):
            raise outcome
        raise InternalError(f"the wait for effect {operation_id} has ended without an outcome")

    async def effect_outcome(
        self,
        effect: Effect[Any, Any],
        /,
        *,
        operation_id: str,
        params: Any,
        approval: Approval | None = None,
        compensate: bool = False,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Any:
        """Have something done outside, or return what was known of it in the recorded run."""
        undo = self._registered("effect_outcome", effect, operation_id, params, approval, compensate=compensate)
        return await self._outcome(
            "effect_outcome", effect, operation_id, params, approval, undo, release_lane=release_lane, expects=expects
        )

    def _registered(
        self, call: str, effect: Effect[Any, Any], operation: str, params: Any, approval: Approval | None, *,
        compensate: bool,
    ) -> DeclaredUndo | None:  # fmt: skip
        """Register the declared undo of an effect that is about to be asked for; asking again registers none beside it.

        Raises:
            RegistrationError: The effect declares none.
        """
        self._check_command(call)
        check_asked(call, effect, approval)
        if type(compensate) is not bool:
            raise TypeError(f"compensate= of ctx.{call} is True or False; another undo is registered by ctx.compensate")
        if not compensate:
            return None
        undo, own = declared_undo(self._messages, self._lane, effect, operation, params), self.own
        if undo not in own.compensations:
            own.compensations.append(undo)
        return undo

    async def _outcome(
        self,
        call: str,
        effect: Effect[Any, Any],
        operation_id: str,
        params: Any,
        approval: Approval | None,
        undo: DeclaredUndo | None,
        *,
        release_lane: bool,
        expects: Iterable[str],
    ) -> Succeeded[Any] | EffectRejected | Unknown:
        if self.own.releases(expects, release_lane=release_lane):
            async with self.own.release_lane(expects=expects):
                return await self._outcome(
                    call, effect, operation_id, params, approval, undo, release_lane=False, expects=()
                )
        if effect.receiver.ids == "verbatim":
            await self._reserve(effect.receiver, operation_id)
        wish = self._messages.wish(
            self._lane, effect, operation_id, params, approval, takes_unknown=call == "effect_outcome"
        )
        asking = self._messages.effect(self.own, self._lane, self._invocation, wish)
        match await self.unbroken(call, asking):
            case Done(result=packed):
                what = f"receipt of {operation_id!r}"
                return Succeeded(await loaded(self.own, self._lane, self._invocation, effect.receipt, packed, what))
            case NotKnown(since_ms, why):
                return Unknown(datetime.fromtimestamp(since_ms / 1000, tz=UTC), why)
            case Rejected(failure=failure):
                if undo is not None and undo in self.own.compensations:
                    # It was not done, and will not be.
                    self.own.compensations.remove(undo)
                error = terminal_error(failure)
                if isinstance(error, EffectRejected):
                    return error
                raise error
            case other:
                raise InternalError(f"effect {operation_id} has ended with {type(other).__name__}")

    async def _reserve(self, receiver: Receiver, operation_id: str) -> None:
        """Have an operation id for this object alone, as the receiver sees it without saying whose it is.

        Raises:
            EffectConflict: Another object has it.
            PayloadTooLarge: The receiver takes no id as long as this one.
        """
        check_operation(operation_id, receiver.id_limit)
        claim = f"{self._lane.partition.space.type_name} {self._lane.key_text}"
        holder = await self.own.call(RESERVATIONS, reservation_key(receiver.name, operation_id), RESERVE, claim)
        if holder != claim:
            raise EffectConflict(operation_id, holder=holder)
