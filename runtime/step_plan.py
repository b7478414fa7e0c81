"""One call of `ctx.run`, checked: what runs, how its result is written, and how patiently it is tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from ..journal.errors import InvalidOutput
from ..objects.policies import RetryPolicy
from ..objects.signature import result_boundary
from ..objects.types import boundary_of
from .models import ModelAsk, answer_form, check_model, prompt_digest

if TYPE_CHECKING:
    from ..journal.place import Place
    from ..objects.types import Boundary

#: How many actions' boundaries are remembered; a program has far fewer steps.
REMEMBERED_ACTIONS: Final = 4096
ON_EXHAUSTED: Final = ("pause", "raise")
OPTIONS: Final = frozenset({"type", "retry", "timeout", "on_exhausted"})
MODEL_OPTIONS: Final = frozenset({"type", "retry", "timeout", "model"})


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
        asks: What it asks of a model, where it does.
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
    asks: ModelAsk | None = None


def check_options(call: str, options: dict[str, Any], known: frozenset[str]) -> None:
    """Refuse options of a step that would do nothing, or fail in each attempt of it.

    Raises:
        TypeError: One is unknown, or of another type than it may have.
        ValueError: The timeout is no time that can pass, or `on_exhausted` is none of its words.
    """
    unknown = options.keys() - known
    if unknown:
        raise TypeError(f"ctx.{call} has no option {min(unknown)!r}; it has {', '.join(sorted(known))}")
    retry, timeout = options.get("retry"), options.get("timeout")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise TypeError(f"ctx.{call}: retry is {retry!r}; it takes a RetryPolicy, such as RetryPolicy(attempts=3)")
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"ctx.{call}: timeout is {timeout!r}; it takes a timedelta, such as timedelta(seconds=5)")
    if timeout is not None and timeout <= timedelta(0):
        raise ValueError(f"ctx.{call}: timeout is {timeout.total_seconds()} s; it has to be more than 0")
    if options.get("on_exhausted", "pause") not in ON_EXHAUSTED:
        raise ValueError(f"ctx.{call}: on_exhausted is {options['on_exhausted']!r}; it is one of {ON_EXHAUSTED}")


def _check_callable(call: str, name: str, action: object) -> None:
    """Refuse what is no function, such as the coroutine that one has returned, before it is tried again and again.

    Raises:
        TypeError: It is none.
    """
    if callable(action):
        return
    if inspect.iscoroutine(action):
        action.close()
    raise TypeError(
        f"ctx.{call}: step {name!r} is {type(action).__name__}, which can't be called: "
        f"give it the function and its arguments, ctx.{call}(name, function, argument)"
    )


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
        if not callable(action):
            _check_callable("run", name, action)
        if not options:
            boundary, is_coroutine = self._facts(name, action)
            return StepPlan(name, index, action, arguments, boundary, is_coroutine, self._retry, None, "pause")
        check_options("run", options, OPTIONS)
        boundary, is_coroutine = self._with_type(name, action, options.get("type"))
        retry = options.get("retry") or self._retry
        on_exhausted = options.get("on_exhausted", "pause")
        return StepPlan(
            name, index, action, arguments, boundary, is_coroutine, retry, options.get("timeout"), on_exhausted
        )

    def make_asking(
        self, name: str, index: Place, action: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> StepPlan:
        """Return the plan of one step that asks a model.

        Raises:
            RegistrationError: The action is annotated to return no answer, or none that can be written down.
        """
        if not callable(action):
            _check_callable("model", name, action)
        check_options("model", options, MODEL_OPTIONS)
        asks = ModelAsk(check_model(options.get("model")), prompt_digest(arguments))
        form = options.get("type")
        form = answer_form(action, name) if form is None else form
        boundary = boundary_of(form, where=f"answer of model call {name}", refusal=InvalidOutput)
        is_coroutine, retry = inspect.iscoroutinefunction(action), options.get("retry") or self._retry
        timeout = options.get("timeout")
        return StepPlan(name, index, action, arguments, boundary, is_coroutine, retry, timeout, "pause", asks)

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
