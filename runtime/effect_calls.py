"""Calls of effects and look-ups: user code, run by long-lived tasks of the worker and not by the handler's.

So nothing that happens to a handler breaks off a call: neither a cancel nor a kill, neither a branch that lost nor a
coroutine that left memory. What a call has come to is said in one of four words; settling writes it down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from ..journal.errors import NotSent, PayloadTooLarge, Rejected
from .effect_facts import VALUE_LIMIT_BYTES, cut, in_words, unreadable
from .own_context import in_own_context
from .slots import Slots

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..objects.receivers import Effect
    from .partition import Partition

logger = logging.getLogger("keylane.effects")


@dataclass(frozen=True, slots=True)
class Done:
    """The receiver did it; with the packed receipt."""

    receipt: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The receiver said that it did not and will not do it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsent:
    """Nothing has left; another attempt may follow after a pause, in seconds."""

    reason: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nobody can say what the receiver did; of a look-up, that it brought no answer."""

    why: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The receiver knows nothing of it; only a look-up says so."""


Answer: TypeAlias = Done | Refused | Unsent | Unclear | Absent


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Something that takes user code, for one effect.

    Args:
        partition: The partition.
        key_text: The object.
        operation: The operation id.
        do: Does it; must not raise.
    """

    partition: Partition
    key_text: str
    operation: str
    do: Callable[[Work], Awaitable[None]]


class EffectCalls:
    """The calls of one worker."""

    def __init__(self) -> None:
        self.slots: Slots[Work]
        self._in_hand: set[tuple[Partition, str, str]] = set()
        self._counts: Counter[Partition] = Counter()

    def start(self, slots: int, tasks: TaskGroup) -> None:
        """Begin to make calls.

        Args:
            slots: How many are made at a time.
            tasks: Where the tasks live that make them.
        """
        self.slots = Slots(slots, self._turn, _tenant_of, tasks)

    def has(self, partition: Partition, key_text: str, operation: str) -> bool:
        """Return whether something is under way with an effect, or about to be."""
        return (partition, key_text, operation) in self._in_hand

    def count(self, partition: Partition) -> int:
        """Return with how many effects of a partition something is under way."""
        return self._counts[partition]

    def hold(self, partition: Partition, key_text: str, operation: str) -> bool:
        """Take an effect in hand, so that nobody else does; return whether nobody had."""
        name = (partition, key_text, operation)
        if name in self._in_hand:
            return False
        self._in_hand.add(name)
        self._counts[partition] += 1
        return True

    def let_go(self, partition: Partition, key_text: str, operation: str) -> None:
        """Take note that nothing is under way with an effect any more."""
        name = (partition, key_text, operation)
        if name not in self._in_hand:
            return
        self._in_hand.remove(name)
        self._counts[partition] -= 1
        if not self._counts[partition]:
            del self._counts[partition]

    def give(self, work: Work) -> None:
        """Have something done soon with an effect that is in hand; it is let go of afterwards."""
        self.slots.give(work)

    async def _turn(self, work: Work) -> None:
        lane = work.partition.lanes.get(work.key_text)
        if lane is not None:
            lane.pins += 1
        try:
            await work.do(work)
        finally:
            if lane is not None:
                lane.pins -= 1
            self.let_go(work.partition, work.key_text, work.operation)

    async def call(self, effect: Effect[Any, Any], operation_id: str, params: bytes, may_send: MaySend) -> Answer:
        """Call the function of an effect, unless it must not be sent any more.

        Args:
            effect: The effect.
            operation_id: The id that the receiver sees.
            params: The packed parameters.
            may_send: Returns why it must not be, None where it may; asked as the last thing before the call.
        """
        try:
            given = effect.params.load(params)
        except Exception as error:  # noqa: BLE001, a type of the user may raise anything
            return Unsent(unreadable(error))
        why = may_send()
        if why is not None:
            return Unsent(why)
        return await self._answer(effect, lambda: effect.function(operation_id, given), is_call=True)

    async def look_up(self, effect: Effect[Any, Any], operation_id: str, params: bytes) -> Answer:
        """Ask a receiver what became of an operation id."""
        lookup = effect.receiver.lookup
        if lookup is None:
            return Unclear("the receiver can't be asked")
        try:
            given = effect.params.load(params)
        except Exception as error:  # noqa: BLE001, likewise
            return Unclear(unreadable(error))
        return await self._answer(effect, lambda: lookup(operation_id, given), is_call=False)

    async def _answer(self, effect: Effect[Any, Any], call: Callable[[], Any], *, is_call: bool) -> Answer:
        seconds = effect.timeout.total_seconds()
        value: object = None
        try:
            with anyio.move_on_after(seconds) as time:
                value = await in_own_context(call())
            if time.cancelled_caught:
                return Unclear(f"no answer within {seconds:g} s")
        except Rejected as rejected:
            return Refused(cut(rejected.reason))
        except NotSent as unsent:
            return Unsent(cut(unsent.reason), unsent.retry_after) if is_call else Unclear(in_words(unsent))
        except TimeoutError as error:
            return Unclear(f"no answer within {seconds:g} s" if not str(error) else in_words(error))
        except asyncio.CancelledError:
            if self.slots.is_closing:
                raise
            return Unclear("it was broken off")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001, whatever it is, it does not say what the receiver did
            return Unclear(in_words(error))
        return _done(effect, value, is_call=is_call)


def _done(effect: Effect[Any, Any], value: object, *, is_call: bool) -> Answer:
    if value is None and not is_call:
        return Absent()
    try:
        packed = effect.receipt.dump(value)
        check_value(effect, "receipt", packed)
    except Exception as error:  # noqa: BLE001, a type of the user may raise anything
        # It was done, for all that is known; a person has to say with what receipt. A look-up is made again and again,
        # and what it says stands with the effect.
        level = logging.ERROR if is_call else logging.INFO
        logger.log(level, "%r: its receipt can't be recorded: %s", effect, error)
        return Unclear(f"it was done, but its receipt can't be recorded: {in_words(error)}")
    return Done(packed)


REMEDY: Final = "keep the data elsewhere and pass a reference"


def check_value(effect: Effect[Any, Any], what: str, packed: bytes) -> None:
    """Refuse parameters and receipts that are too large to lie with their object.

    Raises:
        PayloadTooLarge: They are.
    """
    if len(packed) > VALUE_LIMIT_BYTES:
        raise PayloadTooLarge(f"{what} of effect {effect.name}", len(packed), VALUE_LIMIT_BYTES, remedy=REMEDY)


MaySend: TypeAlias = Callable[[], str | None]


def _tenant_of(work: Work) -> str:
    return work.key_text.partition("/")[0]
