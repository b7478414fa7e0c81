"""`compensate=True` of `ctx.effect`: what an effect declares as its undo, asked for only where the effect was done.

It is registered as `ctx.compensate` would, ahead of the effect. When it is to run, it is first recorded what became of
the effect: while nobody knows, the undo waits, and one that was not done is not undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..journal.errors import RegistrationError
from ..journal.outcomes import Succeeded
from ..journal.records import PauseReason
from .commands import park
from .effect_undos import EffectUndo, effect_undo, is_given_up, undo_by_effect

if TYPE_CHECKING:
    from ..objects.receivers import Effect
    from .context import ExclusiveContext
    from .effect_wishes import Wish
    from .effects import Effects
    from .invocation import Invocation
    from .lane import Lane
    from .steps import Steps

#: What follows the operation id of an effect in that of its undo.
SUFFIX: Final = "-undo"


@dataclass(frozen=True, slots=True)
class DeclaredUndo:
    """The declared undo of an effect, as a handler has registered it.

    Args:
        of: The effect that it undoes.
        undo: What undoes it.
    """

    of: Wish
    undo: EffectUndo

    @property
    def name(self) -> str:
        """What is undone."""
        return self.undo.name


def declared_undo(effects: Effects, lane: Lane, effect: Effect[Any, Any], operation: str, params: Any) -> DeclaredUndo:
    """Return the declared undo of an effect, checked as far as that can be done before it is needed.

    Raises:
        RegistrationError: The effect declares none, or the object type does not list it.
        TypeError: The operation id is no text, or is empty.
        InvalidInput: The parameters do not fit their type.
        PayloadTooLarge: The operation id leaves no room for that of the undo, or the parameters are too large.
    """
    undone_by = effect.compensate_with
    if undone_by is None:
        remedy = (
            'declare what undoes it: @receiver.effect("name", compensate_with=…), or register it: ctx.compensate(…)'
        )
        raise RegistrationError(f"{effect!r} declares no compensate_with", parameter="compensate", remedy=remedy)
    of = effects.wish(lane, effect, operation, params, None, takes_unknown=False)
    name = f"{effect.receiver.name}.{effect.name} {operation}"
    options = {"operation_id": f"{operation}{SUFFIX}", "params": params}
    return DeclaredUndo(of, effect_undo(effects, lane, name, undone_by, (), options))


async def undo_if_done(
    ctx: ExclusiveContext, lane: Lane, invocation: Invocation, steps: Steps, effects: Effects, declared: DeclaredUndo
) -> None:
    """Undo an effect once it is known that it was done, unless it is recorded that this was or was given up.

    Raises:
        Suspended: It is parked, its handler leaves memory, or this run is not the current one any more.
    """
    if is_given_up(ctx, declared.undo):
        return
    outcome = await effects.what_became(ctx, lane, invocation, declared.of)
    if outcome is None:
        detail = (
            f"{declared.undo.step_name!r} can't begin: nothing is known any more of {declared.of.operation!r}, which "
            "was to be undone if it was done"
        )
        await park(ctx, lane, invocation, PauseReason.COMPENSATION_FAILED, detail, None)
    if isinstance(outcome, Succeeded):
        await undo_by_effect(ctx, lane, invocation, steps, effects, declared.undo)
