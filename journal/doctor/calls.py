"""Calls between objects whose reply is waited for: each has to be somewhere on its way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ..command_records import CallStarted
from ..key import format_id
from ..keyspace import PartitionSpace
from ..store import Store
from ..tracing import traceless
from .examining import Question, examine
from .facts import InvocationFacts
from .findings import Finding, Kind, NamedRepair
from .invocation_checks import place_of
from .reach import Reach

#: So many calls are kept for the end of the walk: those of which their callee's partition had nothing yet.
TRACED_MAX: Final = 20_000

_Route = tuple[PartitionSpace, PartitionSpace]


@dataclass(slots=True)
class Calls:
    """The calls of which the called partition had nothing when the walk came by: most of them are under way.

    Args:
        store: The open store.
        reach: Knows which partitions can be read: of what is called in another one, nothing can be said.
    """

    store: Store
    reach: Reach
    left_out: int = 0
    _count: int = 0
    _by_route: dict[_Route, dict[bytes, InvocationFacts]] = field(
        default_factory=lambda: defaultdict(dict[bytes, InvocationFacts])
    )

    async def note(self, callers: Iterable[InvocationFacts]) -> None:
        """Take the calls of some invocations into account.

        Raises:
            StoreUnavailable: The store is away.
        """
        waiting = [(facts, call) for facts in callers if (call := _call_of(facts)) is not None]
        called = [self.store.space(call.type_name, call.partition) for _, call in waiting]
        there = set(await self.reach.readable(called))
        waiting = [each for each, target in zip(waiting, called, strict=True) if target in there]
        targets = [target for target in called if target in there]
        words = [
            ("EXISTS", target.result(call.invocation), target.invocation(call.invocation))
            for target, (_, call) in zip(targets, waiting, strict=True)
        ]
        replies = await self.store.together(words)
        for (facts, call), target, is_there in zip(waiting, targets, replies, strict=True):
            if is_there:
                continue
            if self._count >= TRACED_MAX:
                self.left_out += 1
                continue
            self._count += 1
            self._by_route[facts.space, target][call.invocation] = facts

    async def lost(self) -> list[Finding]:
        """Return the calls that are nowhere, and whose callers wait still.

        Raises:
            StoreUnavailable: The store is away.
        """
        found: list[Finding] = []
        for (source, target), callers in self._by_route.items():
            callees = await traceless(self.store, source, target, callers)
            found.extend(
                [_lost(callers[each], target, each) for each in callees if await self._waits(callers[each], each)]
            )
        return found

    async def _waits(self, facts: InvocationFacts, callee: bytes) -> bool:
        """Return whether a caller waits still: had its reply come meanwhile, its newest record would say so."""
        (lane,) = await examine(self.store, [Question(facts.space, facts.key, (facts.raw_id,))])
        newest = None if lane is None else lane.invocations[0].newest
        return newest is not None and isinstance(newest.record, CallStarted) and newest.record.invocation == callee


def _call_of(facts: InvocationFacts) -> CallStarted | None:
    """Return the call that an invocation waits for by its newest record."""
    standing = facts.standing
    is_at_it = standing is not None and standing.retry_after_ms is None and standing.paused is None
    waiting = standing.waiting if standing is not None and is_at_it else None
    return waiting if isinstance(waiting, CallStarted) else None


def _lost(facts: InvocationFacts, target: PartitionSpace, callee: bytes) -> Finding:
    name = format_id(target.type_name, target.number, callee)
    cause = (
        f"it waits for the reply to {name}, of which nothing is left: in no outbox, in no inbox, no records, no result"
    )
    remedy = "its owner looks once more and ends the call with MessageLost, which the handler can catch"
    repair = NamedRepair(facts.space.type_name, facts.space.number, "calls", facts.raw_id)
    return Finding(Kind.CALL_LOST, place_of(facts), cause, remedy, repair)
