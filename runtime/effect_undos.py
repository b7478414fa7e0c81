"""An effect as an undo: asked for, recorded and settled as any other, and asked for anew only where it was not done.

Each time that it is asked for has a place of its own in the journal: that a receiver has rejected it settles one place,
and what a person then says stands at the next: another attempt, or that it was given up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ..journal.command_records import CompensationSkipped, StepAttemptFailed
from ..journal.effects import OPERATION_MAX
from ..journal.errors import (
    EffectConflict,
    EffectRejected,
    InternalError,
    KeylaneError,
    TerminalError,
)
from ..journal.outcomes import Rejected, Succeeded
from ..journal.records import PauseReason
from ..objects.reservations import RESERVATIONS, RESERVE, reservation_key
from .bounds import check_name
from .commands import park
from .effect_checks import check_asked, check_operation
from .failures import failure_of, terminal_error

if TYPE_CHECKING:
    from ..objects.receivers import Effect
    from .context import ExclusiveContext
    from .effect_wishes import Wish
    from .effects import Effects
    from .invocation import Invocation
    from .lane import Lane
    from .steps import Steps

REQUIRED: Final = frozenset({"operation_id", "params"})
OPTIONS: Final = frozenset({*REQUIRED, "approval"})
#: The last of the ids under which one undo is asked for.
NUMBER_MAX: Final = 999


@dataclass(frozen=True, slots=True)
class EffectUndo:
    """An effect that undoes something, as a handler has registered it.

    Args:
        name: What is undone.
        wish: What is asked for.
    """

    name: str
    wish: Wish

    @property
    def step_name(self) -> str:
        """What undoes it, as it is called where a function would be a step."""
        return f"undo {self.name}"

    def asked_as(self, number: int) -> Wish:
        """Return what is asked for after so many rejections and one."""
        return self.wish if number == 1 else replace(self.wish, operation=numbered(self.wish.operation, number))


def numbered(operation: str, number: int) -> str:
    """Return the operation id under which an undo is asked for once more."""
    return f"{operation}~{number}"


def effect_undo(
    effects: Effects,
    lane: Lane,
    name: str,
    effect: Effect[Any, Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> EffectUndo:
    """Return an undo, checked as far as that can be done before it is needed.

    Raises:
        TypeError: Operation id or parameters are missing, the approval is none, or there is more than those.
        RegistrationError: The object type does not list the effect.
        InvalidInput: The parameters do not fit their type.
        PayloadTooLarge: The name, the operation id or the parameters are too large.
    """
    if arguments or not REQUIRED <= options.keys() <= OPTIONS:
        raise TypeError("ctx.compensate: an effect takes operation_id= and params=, both, and approval= beside them")
    approval: Any = options.get("approval")
    check_asked("compensate", effect, approval)
    check_name("compensation", name)
    check_name("step", f"undo {name}")
    operation: Any = options["operation_id"]
    if type(operation) is str and operation:
        room = len(numbered("", NUMBER_MAX))
        limit = effect.receiver.id_limit if effect.receiver.ids == "verbatim" else OPERATION_MAX
        check_operation(operation, min(limit, OPERATION_MAX) - room)
    return EffectUndo(name, effects.wish(lane, effect, operation, options["params"], approval, takes_unknown=False))


async def undo_by_effect(
    ctx: ExclusiveContext, lane: Lane, invocation: Invocation, steps: Steps, effects: Effects, undone: EffectUndo
) -> None:
    """Have an effect undo something, unless it is recorded that it has or was given up; one that is refused parks.

    Raises:
        Suspended: It is parked, its handler leaves memory, or this run is not the current one any more.
    """
    number, reserved = 1, ""
    while not is_given_up(ctx, undone):
        wish = undone.asked_as(number)
        try:
            if wish.operation != reserved:
                await _reserved(ctx, lane, invocation, effects, wish)
                reserved = wish.operation
                continue
            outcome = await effects.effect(ctx, lane, invocation, wish)
        except TerminalError as error:
            refusal = error
        except Exception as error:  # noqa: BLE001, what looks at the facts before the intent is user code
            await steps.undo_later(ctx, lane, invocation, undone.step_name, error)
            continue
        else:
            if isinstance(outcome, Succeeded):
                return
            refusal = _refusal(wish, outcome)
        if ctx.next_recorded() is None and not _is_tried_again(invocation):
            await _park(ctx, lane, invocation, undone, refusal)
        if isinstance(refusal, EffectRejected):
            # The receiver says that it was not done, and would say so of this id for ever.
            number = min(number + 1, NUMBER_MAX)


def is_given_up(ctx: ExclusiveContext, undone: EffectUndo) -> bool:
    """Return whether somebody gave an undo up at the place that is next; attempts that came to nothing are passed."""
    while True:
        match ctx.next_recorded():
            case StepAttemptFailed(name=name) if name == undone.step_name:
                ctx.pass_recorded()
            case CompensationSkipped(index=ctx.index):
                ctx.pass_recorded()
                ctx.index += 1
                return True
            case _:
                return False


def _is_tried_again(invocation: Invocation) -> bool:
    standing = invocation.standing
    return standing is not None and standing.extras.tries_undo_again


def _refusal(wish: Wish, outcome: object) -> TerminalError:
    if isinstance(outcome, Rejected):
        return terminal_error(outcome.failure)
    raise InternalError(f"the wait for effect {wish.operation} has ended with {type(outcome).__name__}")


async def _park(
    ctx: ExclusiveContext, lane: Lane, invocation: Invocation, undone: EffectUndo, refusal: TerminalError
) -> NoReturn:
    """Park an invocation whose undo was refused: a person has it asked for again, or gives it up."""
    detail = f"{undone.step_name!r} failed for good with {type(refusal).__name__}: {refusal.message}"
    await park(ctx, lane, invocation, PauseReason.COMPENSATION_FAILED, detail, failure_of(refusal))


async def _reserved(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, effects: Effects, wish: Wish) -> None:
    """Have an operation id for this object alone where the receiver sees it as it is.

    Raises:
        EffectConflict: Another object has it.
    """
    receiver = wish.effect.receiver
    if receiver.ids != "verbatim":
        return
    claim = f"{lane.partition.space.type_name} {lane.key_text}"
    order = effects.order(RESERVATIONS, reservation_key(receiver.name, wish.operation), (RESERVE, claim))
    try:
        holder = await effects.call(ctx, lane, invocation, order)
    except KeylaneError as error:
        # What was answered is recorded: asking again is for a person.
        raise TerminalError(error.message, code=error.code) from error
    if holder != claim:
        raise EffectConflict(wish.operation, holder=holder)
