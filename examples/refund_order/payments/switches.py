"""The switches of the payment service at work: what the present behaviour means for one request."""

import random
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import anyio

from .ledger import Promise
from .wire import Behaviour, RefundTerms, Rejection, Statistics

_SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class Fate:
    """What the switches decided for one arrival of one operation."""

    latency_s: float
    answer_delay_s: float
    drops_by_chance: bool
    outcome: Literal["handled", "busy", "lost"] = "handled"


class Switches:
    """The present behaviour, what is used up of it, and the counts of what happened.

    Requests are decided in the event loop and rejections in the ledger's thread, so the counts have a lock.
    """

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self._lock = threading.Lock()
        self._arrivals: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._changed = anyio.Event()
        self.set(behaviour or Behaviour())

    @property
    def behaviour(self) -> Behaviour:
        return self._behaviour

    @property
    def promise(self) -> Promise:
        """What the service promises just now."""
        behaviour = self._behaviour
        return Promise(
            deduplicates=behaviour.deduplicates,
            retention_ms=behaviour.dedup_retention_ms,
            lookup_lag_ms=behaviour.lookup_lag_ms,
            lookup_retention_ms=behaviour.lookup_retention_ms,
        )

    @property
    def statistics(self) -> Statistics:
        with self._lock:
            return Statistics.model_validate(dict(self._counts))

    def set(self, behaviour: Behaviour) -> None:
        """Behave like this from now on; what the last ones had left over is forgotten, and who was held goes on."""
        with self._lock:
            self._behaviour = behaviour
            self._drops_left = behaviour.drop_next
            self._losses_left = behaviour.lose_next
            self._busy_left = behaviour.busy_next
        self._changed.set()
        self._changed = anyio.Event()

    async def hold(self, point: Literal["before_commit", "before_answer"]) -> None:
        """Return once the switches hold nobody at this point."""
        if self._behaviour.hold == point:
            self.count("held")
        while self._behaviour.hold == point:
            await self._changed.wait()

    def count(self, event: str) -> None:
        """Count one event, named as a field of `Statistics`."""
        with self._lock:
            self._counts[event] += 1

    def arrive(self, operation_id: str) -> Fate:
        """Decide what happens to this arrival of an operation.

        The draw depends on seed, operation id and how often that id came before, not on which other
        requests came in between: two runs with the same seed drop the same answers.
        """
        with self._lock:
            self._counts["requests"] += 1
            self._arrivals[operation_id] += 1
            arrival, behaviour = self._arrivals[operation_id], self._behaviour
            self._counts["sent_again"] += arrival > 1
            outcome = self._take_outcome()
        draw = random.Random(f"{behaviour.seed}:{operation_id}:{arrival}")
        return Fate(
            latency_s=(behaviour.latency_ms + draw.random() * behaviour.latency_spread_ms) / _SECOND_MS,
            answer_delay_s=behaviour.answer_delay_ms / _SECOND_MS,
            drops_by_chance=draw.random() < behaviour.drop_probability,
            outcome=outcome,
        )

    def takes_answer(self, fate: Fate) -> bool:
        """Say whether the answer that is due now is lost with its connection."""
        with self._lock:
            counted = self._drops_left > 0
            self._drops_left -= counted
            lost = counted or fate.drops_by_chance
            self._counts["dropped"] += lost
        return lost

    def judge(self, operation_id: str, terms: RefundTerms) -> Rejection | None:
        """Reject a new operation where the switches say so."""
        behaviour = self._behaviour
        if behaviour.refuse:
            return Rejection(operation_id=operation_id, reason="refused", message="no refunds today")
        if terms.order in behaviour.unknown_orders:
            message = f"there is no payment for order {terms.order}"
            return Rejection(operation_id=operation_id, reason="order_unknown", message=message)
        if behaviour.reject_above is not None and terms.amount > behaviour.reject_above:
            message = f"{terms.amount} is above the limit of {behaviour.reject_above}"
            return Rejection(operation_id=operation_id, reason="amount_above_limit", message=message)
        return None

    def _take_outcome(self) -> Literal["handled", "busy", "lost"]:
        if self._busy_left:
            self._busy_left -= 1
            self._counts["busy"] += 1
            return "busy"
        if self._losses_left:
            self._losses_left -= 1
            self._counts["lost"] += 1
            return "lost"
        return "handled"
