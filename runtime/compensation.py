"""`ctx.compensate`: what a handler did is undone, last thing first, when it fails for good or is cancelled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from ..journal import operations
from ..journal.command_records import CompensationStarted
from ..journal.outcomes import Rejected, Stopped
from ..journal.records import PauseReason
from ..objects.handler import Handler
from .bounds import check_name
from .cancel_delivery import stopped
from .commands import park
from .declared_undos import DeclaredUndo, undo_if_done
from .effect_undos import EffectUndo, undo_by_effect
from .step_plan import check_options
from .step_records import make_durable

if TYPE_CHECKING:
    from .context import ExclusiveContext
    from .effects import Effects
    from .invocation import Invocation
    from .lane import Lane
    from .steps import Steps

#: How an invocation ends that has something to undo.
Undone: TypeAlias = Rejected | Stopped

OPTIONS: Final = frozenset({"retry", "timeout", "type"})


@dataclass(frozen=True, slots=True)
class Compensation:
    """An undo as a handler has registered it.

    Args:
        name: What is undone.
        action: Undoes it.
        arguments: What it is called with.
        options: How often and how patiently it is tried.
    """

    name: str
    action: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def step_name(self) -> str:
        """The name of the step that undoes it."""
        return f"undo {self.name}"


def compensation(
    name: str, action: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Compensation:
    """Return an undo, checked as far as that can be done before it is needed.

    Raises:
        TypeError: Something is no function, is called with what it does not take, or is no option.
        PayloadTooLarge: The name is too long.
    """
    if isinstance(action, Handler):
        remedy = "another object undoes by a call of yours: catch the failure, await ctx.call(…) there, and raise it on"
        raise TypeError(f"ctx.compensate: {action!r} is no function and no effect; {remedy}")
    if not callable(action):
        raise TypeError(f"ctx.compensate: {action!r} can't be called; it takes a function and its arguments")
    check_options("compensate", options, OPTIONS)
    check_name("compensation", name)
    check_name("step", f"undo {name}")
    _check_arguments(action, arguments)
    return Compensation(name, action, arguments, options)


def _check_arguments(action: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Find out now and not when it is needed that an undo can't be called so."""
    try:
        signature = inspect.signature(action)
    except (TypeError, ValueError):
        return
    signature.bind(*arguments)


def is_begun(invocation: Invocation) -> bool:
    """Return whether a run had come to an end from which it is being undone: nothing else of it counts then."""
    return invocation.standing is not None and invocation.standing.extras.compensation is not None


async def undo(
    ctx: ExclusiveContext,
    lane: Lane,
    invocation: Invocation,
    steps: Steps,
    effects: Effects,
    outcome: Undone | None,
) -> Undone:
    """Undo what a handler has registered, last thing first; each undo is a step, or an effect.

    Args:
        ctx: The context of its run.
        lane: The lane of the invocation.
        invocation: The invocation.
        steps: Runs the undos that are functions.
        effects: Asks for those that are effects.
        outcome: How the handler has ended; None where only the journal knows.

    Returns:
        How the invocation ends.

    Raises:
        Suspended: An undo has failed and the invocation is parked, or this run is not the current one any more.
    """
    begun = None if invocation.standing is None else invocation.standing.extras.compensation
    if begun is None:
        assert outcome is not None
        ctx.leave_branches(())
        begun = await _begin(ctx, lane, invocation, outcome)
    else:
        at = next(at for at, each in enumerate(invocation.records) if isinstance(each, CompensationStarted))
        ctx.leave_branches(invocation.records[at + 1 :])
        ctx.pass_durable_point()
        await _check_registered(ctx, lane, invocation, begun)
    ctx.index = cast("int", begun.index)
    for each in reversed(ctx.compensations[: len(begun.undos)]):
        match each:
            case DeclaredUndo():
                await undo_if_done(ctx, lane, invocation, steps, effects, each)
            case EffectUndo():
                await undo_by_effect(ctx, lane, invocation, steps, effects, each)
            case Compensation():
                await steps.undo(ctx, lane, invocation, each)
    return _outcome(invocation, begun)


async def _check_registered(
    ctx: ExclusiveContext, lane: Lane, invocation: Invocation, begun: CompensationStarted
) -> None:
    """Park an invocation whose code does not register what has to be undone: none of that may be left out."""
    found = [each.name for each in ctx.compensations[: len(begun.undos)]]
    for at, name in enumerate(begun.undos):
        if found[at : at + 1] != [name]:
            now = f"registers {found[at]!r}" if at < len(found) else "registers nothing"
            detail = f"recorded undo {at + 1} of {len(begun.undos)}, {name!r}, the code now {now} in its place"
            await park(ctx, lane, invocation, PauseReason.DIVERGED, detail, None)


async def _begin(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, outcome: Undone) -> CompensationStarted:
    undos = tuple(each.name for each in ctx.compensations)
    if invocation.kept_back is not None:
        # What is undone is what the journal has, also for who takes it over.
        if isinstance(outcome, Rejected):
            ctx.writes = dict(invocation.kept_back.writes)
        await make_durable(ctx, lane, invocation, None, [])
    standing = invocation.standing
    index = 0 if standing is None else standing.steps
    fact = CompensationStarted(index, undos, outcome.failure if isinstance(outcome, Rejected) else None)
    if isinstance(outcome, Rejected):
        # One that fails discards what it has written since its last durable point.
        ctx.pass_durable_point()
    more = [operations.unschedule(invocation.raw_id)] if invocation.dues else []
    invocation.dues = None
    await make_durable(ctx, lane, invocation, fact, more)
    return fact


def _outcome(invocation: Invocation, begun: CompensationStarted) -> Undone:
    standing = invocation.standing
    if begun.error is not None:
        return Rejected(begun.error)
    return stopped(invocation, compensation_failed=standing is not None and standing.extras.has_failed_undo)
