"""Load of which every call is accounted for: counters that many callers raise, each time under an id of its own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter as Multiset
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from keylane import CallTimeout, Client, KeylaneError

from .harness import eventually

#: How long one try may take; a caller tries until it has an answer.
TRY_SECONDS = 3.0
#: Callers for each counter, and so the most requests for it that are under way at a time.
AT_ONCE = 3


@dataclass
class Adding:
    """What became of the calls.

    Args:
        client: Who calls.
        keys: The counters.
        acknowledged: By key, the value that each answered call was told.
        identities: By key, the ids that were used.
        troubles: The errors that callers saw on the way, by their code.
    """

    client: Client
    keys: Sequence[str]
    acknowledged: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    identities: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    answered_at: dict[str, float] = field(default_factory=dict[str, float])
    longest_pause: dict[str, float] = field(default_factory=dict[str, float])
    troubles: Multiset[str] = field(default_factory=Multiset[str])
    whys: list[str] = field(default_factory=list[str])
    is_over: bool = False
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def count(self) -> int:
        """How many calls were answered."""
        return sum(map(len, self.acknowledged.values()))

    async def add(self, key: str) -> None:
        """Raise one counter again and again, each time until that is acknowledged."""
        self.answered_at[key] = time.monotonic()
        values = self.acknowledged.setdefault(key, [])
        identities = self.identities.setdefault(key, [])
        while not self.is_over:
            identities.append(f"add-{next(self._ids)}")
            values.append(await self._once(self.client, key, identities[-1]))
            now = time.monotonic()
            self.longest_pause[key] = max(self.longest_pause.get(key, 0.0), now - self.answered_at[key])
            self.answered_at[key] = now

    async def ask_again(self, client: Client) -> None:
        """Make every call once more under its id: one that is known is not made again, one that was lost is."""
        for key, identities in self.identities.items():
            await asyncio.gather(*(self._once(client, key, identity) for identity in identities))

    async def _once(self, client: Client, key: str, identity: str) -> int:
        while True:
            try:
                return await client.call("Counter", key, "add", 1, idempotency_key=identity, timeout=TRY_SECONDS)
            except KeylaneError as error:
                self.troubles[error.code] += 1
                self.whys.append(str(error))
                if not isinstance(error, CallTimeout):
                    await asyncio.sleep(0.05)

    async def goes_on(self, *keys: str, seconds: float = 30.0, calls: int = 3) -> None:
        """Wait until each of these counters, by default all, has been raised a few times more."""
        watched = keys or tuple(self.keys)
        before = {key: len(self.acknowledged.setdefault(key, [])) for key in watched}

        def has_gone_on() -> bool:
            return all(len(self.acknowledged[key]) >= before[key] + calls for key in watched)

        await eventually(has_gone_on, f"{', '.join(watched)} go on", seconds=seconds)

    async def values(self, client: Client) -> dict[str, int]:
        """Read what the counters are at."""
        return {key: await client.call("Counter", key, "get", timeout=20) for key in self.keys}

    def lost_or_doubled(self, values: dict[str, int]) -> dict[str, str]:
        """Return the counters whose value is not the number of acknowledged calls, or that gave an answer twice."""
        return {
            key: f"{values[key]} after {len(told)} acknowledged calls that were told {sorted(told)[-5:]}"
            for key, told in self.acknowledged.items()
            if sorted(told) != list(range(1, values[key] + 1))
        }


@asynccontextmanager
async def adding(*clients: Client, keys: Sequence[str], at_once: int = AT_ONCE) -> AsyncGenerator[list[Adding]]:
    """Have clients raise counters until the block ends, and let what is under way end after it.

    Args:
        clients: Who calls; each has counters of its own, named after it.
        keys: The counters of each.
        at_once: Callers for each counter.
    """
    loads = [Adding(client, [f"{key}-{number}" for key in keys]) for number, client in enumerate(clients)]
    tasks = [asyncio.ensure_future(load.add(key)) for load in loads for key in load.keys for _ in range(at_once)]
    try:
        yield loads
        for load in loads:
            load.is_over = True
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
