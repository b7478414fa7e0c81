"""For tests of your own handlers: the real thing in a line or two, time that jumps, and crashes at every point.

```python
async def test_a_proposal_expires_after_thirty_days() -> None:
    async with harness([order, customer]) as h:
        answer = await h.call(refund, "acme/o-1", request)  # sleeps thirty days, and takes a few milliseconds
        assert answer.expired
```

The store is an embedded one of the test's own, the worker is the one of production. While every handler waits and the
test waits for an answer, the clock jumps to whatever is due next: sleeps, retries, delayed sends, deadlines. Retention
follows it; leases, and how long callers wait, don't. `h.advance(timedelta(days=1))` lets time pass in a test that waits
for nothing.

Under pytest, the fixture `keylane_harness` gives the same on a store that all tests of a run share, and
`KEYLANE_TEST_FORCE=suspend` runs a whole suite with every wait suspending its handler at once, `=replay` with every
handler replayed at each of its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from .journal import clock
from .objects.app import App
from .objects.settings import Settings
from .objects.virtual_object import VirtualObject
from .runtime.client import Client
from .runtime.crashes import Crash, CrashPoint, crashes
from .runtime.harness import Force, Harness
from .runtime.runtime import Runtime
from .runtime.virtual_time import NotSettled

__all__ = ["Crash", "CrashPoint", "Force", "Harness", "NotSettled", "crashes", "harness", "shift_clock"]


def harness(
    app: App | VirtualObject | Sequence[VirtualObject],
    *,
    store: str | None = None,
    force: Force | None = None,
    settings: Settings | None = None,
    auto_advance: bool = True,
) -> Harness:
    """Return a worker, a client and a clock for one test; use it as an async context manager.

    Args:
        app: What to host: an `App`, an object type, or a list of them.
        store: The URL of a store to share with other tests, in a namespace of its own; by default an embedded store
            that lasts as long as the harness.
        force: `"suspend"` drops every handler at every wait and replays it afterwards; `"replay"` replays it at every
            await on `ctx` that records something. By default what `KEYLANE_TEST_FORCE` says, else neither.
        settings: The effective settings; by default the app's, with two partitions for each object type.
        auto_advance: Whether the clock jumps by itself while everything waits and somebody waits for an answer.

    Raises:
        RegistrationError: The app or what is forced can't be used.
    """
    return Harness(app, store=store, force=force, settings=settings, auto_advance=auto_advance)


async def shift_clock(runtime: Runtime | Client, by: timedelta) -> None:
    """Put the clock of the namespace forward, as if that much time had passed.

    What has become due by then runs: retries of steps and of invocations. What would be gone by then is gone: results
    and histories after their retention, idempotency keys after theirs. `ctx.time()` gives the shifted time.

    A runtime's own partitions know of it when this returns. Workers in other processes notice at their next sweep,
    within `sweep_seconds`. The clock of a namespace stays shifted for as long as its keys exist.

    A wait that is written down in the same moment may count from the shifted time: shift while all handlers wait.

    Leases, timeouts of callers, and how long a step may take are measured by real clocks and don't move. Object types
    that no worker has hosted yet begin with the real time.

    Args:
        runtime: An open runtime, or a client of the namespace.
        by: How far; shifts add up.

    Raises:
        TypeError: `by` is no timedelta.
        ValueError: `by` is negative, since time never goes back, or more than 40,000 days.
        StoreUnavailable: The store is away.
    """
    client = runtime.client if isinstance(runtime, Runtime) else runtime
    await clock.shift_clock(client.store, by)
    if isinstance(runtime, Runtime):
        await runtime.worker.look_for_due()
