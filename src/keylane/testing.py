"""For tests of your own handlers: time that passes when you say so.

```python
async with Runtime(app, store=store_url, namespace="test-1") as runtime:
    handle = await runtime.client.send(remind, "acme/o-1", request)  # fails, and asks for a retry in a day
    await shift_clock(runtime, timedelta(days=1))
    await handle.result(timeout=10)
```

Use a namespace that nobody else uses: its clock stays shifted for as long as its keys exist.
"""

from __future__ import annotations

from datetime import timedelta

from .journal import clock
from .runtime.client import Client
from .runtime.runtime import Runtime

__all__ = ["shift_clock"]


async def shift_clock(runtime: Runtime | Client, by: timedelta) -> None:
    """Put the clock of the namespace forward, as if that much time had passed.

    What has become due by then runs: retries of steps and of invocations. What would be gone by then is gone: results
    and histories after their retention, idempotency keys after theirs. `ctx.time()` gives the shifted time.

    A runtime's own partitions know of it when this returns. Workers in other processes notice at their next sweep,
    within `sweep_seconds`.

    Leases, timeouts of callers, and how long a step may take are measured by real clocks and don't move. Object types
    that no worker has hosted yet begin with the real time.

    Args:
        runtime: An open runtime, or a client of the namespace.
        by: How far; shifts add up.

    Raises:
        ValueError: `by` is negative; time never goes back.
        StoreUnavailable: The store is away.
    """
    client = runtime.client if isinstance(runtime, Runtime) else runtime
    await clock.shift_clock(client.store, by)
    if isinstance(runtime, Runtime):
        await runtime.worker.look_for_due()
