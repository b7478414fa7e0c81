"""Calls of models: `ctx.model`, a step that also says what it took, and what its function returns."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, overload

from typing_extensions import TypeForm

from ..journal.utf8 import LONE_SURROGATE, utf8_bytes
from .policies import RetryPolicy

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")


_TOKENS_MAX: Final = 2**63


@dataclass(frozen=True, slots=True)
class ModelAnswer(Generic[T_co]):
    """What a function returns that `ctx.model` calls: the answer, and what it took.

    Args:
        value: What the handler gets.
        model: The model that has answered, in its provider's words; by default the one that was asked.
        input_tokens: How many tokens it was given.
        output_tokens: How many it gave.
        cost: What the call cost; None where that is not known, which is counted and never taken for nothing.
        currency: The currency of the cost.

    Raises:
        ValueError: A number is negative, or larger than can be recorded, the cost is no amount, or a name has a lone
            surrogate.
        TypeError: The cost is a float, which is no exact amount, a number of tokens is no whole number, or a name is no
            text.
    """

    value: T_co
    _: KW_ONLY
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal | None = None
    currency: str = "USD"

    def __post_init__(self) -> None:
        """Refuse what no sum could be made of."""
        for name in ("input_tokens", "output_tokens"):
            _check_tokens(name, getattr(self, name))
        # A provider that names none is taken for the model that was asked.
        _check_text("model", self.model or "")
        _check_text("currency", self.currency)
        if self.cost is not None:
            _check_cost(self.cost)


def _check_tokens(name: str, count: object) -> None:
    if type(count) is not int:
        raise TypeError(f"ModelAnswer: {name} is {count!r}; it is a whole number")
    if count < 0:
        raise ValueError(f"ModelAnswer: {name} is {count}; it can't be negative")
    if count >= _TOKENS_MAX:
        raise ValueError(f"ModelAnswer: {name} has {count.bit_length()} bits; no record takes more than 63")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"ModelAnswer: {name} is {text!r}; it is text")
    if utf8_bytes(text) is None:
        raise ValueError(f"ModelAnswer: {name} is {text!r}; it {LONE_SURROGATE}")


def _check_cost(cost: object) -> None:
    if not isinstance(cost, Decimal):
        raise TypeError(f'ModelAnswer: cost is {cost!r}; it is a Decimal, such as Decimal("0.0021")')
    if not cost.is_finite() or cost < 0:
        raise ValueError(f"ModelAnswer: cost is {cost}; it is an amount that is not negative")


class Modelling(ABC):
    """What an awaiting exclusive handler may ask of models."""

    __slots__ = ()

    @overload
    @abstractmethod
    async def model(
        self,
        name: str,
        function: Callable[[*Ts], object],
        /,
        *arguments: *Ts,
        model: str,
        type: TypeForm[T],
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
    ) -> T: ...
    @overload
    @abstractmethod
    async def model(
        self,
        name: str,
        function: Callable[[*Ts], Coroutine[Any, Any, ModelAnswer[T]]],
        /,
        *arguments: *Ts,
        model: str,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
    ) -> T: ...
    @overload
    @abstractmethod
    async def model(
        self,
        name: str,
        function: Callable[[*Ts], ModelAnswer[T]],
        /,
        *arguments: *Ts,
        model: str,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
    ) -> T: ...
    @abstractmethod
    async def model(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        model: str,
        type: Any = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Ask a model: a step whose answer is recorded with what it took, and never asked for again.

        Each call is recorded before it is made. Where a worker dies between an answer and its record, the next run
        finds a call without an end: it asks again, and the journal, `describe` and the metrics say that the first may
        have been billed too. So does a call that ran into its timeout.

        The handler gets the answer's value alone, so that `ctx.run` and `ctx.model` can stand in for each other; a
        handler that decides by cost or tokens has its function put them into the value.

        Args:
            name: What the step is called in the journal.
            function: Asks the model and returns a `ModelAnswer`; `async def` or plain `def`, which runs in a thread.
            *arguments: Handed to the function, by position only. A digest of them is recorded, not what they are; what
                can't be written down, such as a provider's client, counts with its type alone.
            model: The model that is asked, as it is recorded before the call.
            type: The type of the value; without it, what the function's annotation says is answered.
            retry: How often it is tried again; without it, the default of the deployment.
            timeout: How long one call may take.

        Returns:
            The value as it is read back from the journal, in the first run too.

        Raises:
            TerminalError: The function raised it.
            InvalidOutput: The function returned no `ModelAnswer`, or the value does not fit its type.
        """


class BlockingModelling(ABC):
    """What a plain `def` exclusive handler may ask of models."""

    __slots__ = ()

    @overload
    @abstractmethod
    def model(
        self,
        name: str,
        function: Callable[[*Ts], object],
        /,
        *arguments: *Ts,
        model: str,
        type: TypeForm[T],
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
    ) -> T: ...
    @overload
    @abstractmethod
    def model(
        self,
        name: str,
        function: Callable[[*Ts], ModelAnswer[T]],
        /,
        *arguments: *Ts,
        model: str,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
    ) -> T: ...
    @abstractmethod
    def model(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        model: str,
        type: Any = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Ask a model by a plain function; see `Modelling.model`."""
