"""What falls due is told more than once: a wait that began meanwhile is not what was meant."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keylane import ObjectContext, Runtime, VirtualObject
from keylane.journal.observer import NoObserver

pytestmark = pytest.mark.anyio

NAP = timedelta(milliseconds=40)
NAPS = 3
sleeper = VirtualObject("Sleeper", owner="tests", partitions=1)


@sleeper.handler
async def nap_again_and_again(ctx: ObjectContext) -> list[float]:
    """Return how long each nap took, in naps."""
    took: list[float] = []
    for _ in range(NAPS):
        began = await ctx.time()
        await ctx.sleep(NAP)
        took.append(((await ctx.time()) - began) / NAP)
    return took


class FindingAgain(NoObserver):
    """Tells the worker of everything that is open that it has fallen due, before each commit is sent."""

    __slots__ = ("runtime",)

    runtime: Runtime

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Tell it."""
        del partition, number
        if what != "commit":
            return
        for each in self.runtime.worker.partitions:
            for raw_id in list(each.open):
                self.runtime.worker.find(each, [raw_id])


async def test_an_old_word_of_what_is_due_does_not_end_the_sleep_that_follows(store_url: str, namespace: str) -> None:
    """An answer about the sleep before it may come while the record of the next one is on its way to the store."""
    observer = FindingAgain()
    async with Runtime(sleeper, store=store_url, namespace=namespace, observer=observer) as runtime:
        observer.runtime = runtime

        took = await runtime.client.call(nap_again_and_again, "acme/s-1", timeout=10)

    assert min(took) >= 1.0
