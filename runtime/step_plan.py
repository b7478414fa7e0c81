"""One call of `ctx.run`, checked: what runs, how its result is written, and how patiently it is tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from ..journal.errors import InvalidOutput
from ..objects.signature import result_boundary
from ..objects.types import boundary_of

if TYPE_CHECKING:
    from ..journal.place import Place
    from ..objects.policies import RetryPolicy
    from ..objects.types import Boundary

#: How many actions' boundaries are remembered; a program has far fewer steps.
REMEMBERED_ACTIONS: Final = 4096


@dataclass(slots=True)
class StepPlan:
    """What one step is to do. Made once per step, so it is not frozen: that would triple its cost.

    Args:
        name: What the step is called in the journal.
        index: Its place in the invocation.
        action: What runs.
        arguments: What it is called with.
        boundary: How its result is written and read.
        is_coroutine: Whether the action is an `async def`.
        retry: How often and how patiently it is tried again.
        timeout: How long one attempt may take.
        on_exhausted: What happens when the attempts are spent; an undo is parked, also when it fails for good.
    """

    name: str
    index: Place
    action: Callable[..., Any]
    arguments: tuple[Any, ...]
    boundary: Boundary[Any]
    is_coroutine: bool
    retry: RetryPolicy
    timeout: timedelta | None
    on_exhausted: Literal["pause", "raise", "park"]


class StepPlans:
    """Makes plans, and remembers what an action's annotations said: reading them costs more than the step itself.

    Args:
        retry: The policy of steps that declare none.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._kept: dict[tuple[str, Callable[..., Any]], tuple[Boundary[Any], bool]] = {}

    def make(
        self, name: str, index: Place, action: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> StepPlan:
        """Return the plan of one step.

        Raises:
            RegistrationError: The action's annotation is no type that can be written down.
        """
        if not options:
            boundary, is_coroutine = self._facts(name, action)
            return StepPlan(name, index, action, arguments, boundary, is_coroutine, self._retry, None, "pause")
        boundary, is_coroutine = self._with_type(name, action, options.get("type"))
        retry = options.get("retry") or self._retry
        on_exhausted = options.get("on_exhausted", "pause")
        return StepPlan(
            name, index, action, arguments, boundary, is_coroutine, retry, options.get("timeout"), on_exhausted
        )

    def _with_type(self, name: str, action: Callable[..., Any], form: Any) -> tuple[Boundary[Any], bool]:
        if form is None:
            return self._facts(name, action)
        boundary = boundary_of(form, where=f"result of step {name}", refusal=InvalidOutput)
        return boundary, inspect.iscoroutinefunction(action)

    def _facts(self, name: str, action: Callable[..., Any]) -> tuple[Boundary[Any], bool]:
        # Only functions of a module are kept: others are made anew each time and would keep alive what they refer to.
        is_lasting = getattr(action, "__closure__", self) is None and "<locals>" not in action.__qualname__
        if not is_lasting:
            return result_boundary(action, name), inspect.iscoroutinefunction(action)
        kept = self._kept.get((name, action))
        if kept is None:
            if len(self._kept) >= REMEMBERED_ACTIONS:
                self._kept.clear()
            kept = self._kept[name, action] = (result_boundary(action, name), inspect.iscoroutinefunction(action))
        return kept
