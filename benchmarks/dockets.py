"""What the settled effects of one object cost with its docket: `python -m benchmarks.dockets`.

They are kept for `ledger_retention_days` after their outcome, and an owner reads all effects of an object when it first
needs one of them, a page at a time; commits after that read nothing of it. The time is that of the worker's own
processor, the median of five readings.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Final

import anyio
from rich.console import Console
from rich.table import Table

from keylane.journal.codec import pack
from keylane.journal.effects import EffectEntry, EffectState, digest_of
from keylane.journal.embedded import EmbeddedStore
from keylane.journal.key import new_invocation_id
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.ledger import EventKind, Happened
from keylane.journal.outcomes import Succeeded, encode_outcome
from keylane.journal.store import Store
from keylane.runtime.docket import Docket, read_docket

KEY: Final = "acme/o-1"
COUNTS: Final = (100, 1_000, 10_000)
READINGS: Final = 5
WRITTEN_AT_ONCE: Final = 500
#: 2027-01-01, for what needs a time.
AT_MS: Final = 1_798_761_600_000


def settled_effect(number: int) -> EffectEntry:
    """Return an effect that was done at its first attempt, with parameters and a receipt of ordinary size."""
    params = pack({"order": f"o-{number}", "amount": 4_000 + number, "currency": "EUR", "to": "acct-00012345"})
    receipt = pack({"id": f"r-{number}", "amount": 4_000 + number, "status": "succeeded"})
    life = (Happened(AT_MS, EventKind.INTENDED, 1), Happened(AT_MS + 40, EventKind.SUCCEEDED, 1))
    return EffectEntry(
        operation=f"refund-{number}",
        effect="refund",
        receiver="payments",
        state=EffectState.SUCCEEDED,
        params=params,
        digest=digest_of("refund", params),
        attempt=1,
        invocation=new_invocation_id(),
        first_ms=AT_MS,
        intended_ms=AT_MS,
        send_before_ms=AT_MS + 30_000,
        since_ms=AT_MS + 40,
        outcome=encode_outcome(Succeeded(receipt)),
        life=life,
    )


async def fill(store: Store, space: PartitionSpace, begin: int, end: int) -> None:
    """Write settled effects of the object, as commits leave them."""
    for start in range(begin, end, WRITTEN_AT_ONCE):
        effects = [settled_effect(number) for number in range(start, min(start + WRITTEN_AT_ONCE, end))]
        flat = [word for each in effects for word in (each.operation, each.encode())]
        await store.call("HSET", space.effects(KEY), *flat)


async def first_touch(store: Store, space: PartitionSpace) -> tuple[Docket, float]:
    """Return the docket, and the median of how many milliseconds reading it has taken."""
    took: list[float] = []
    docket = await read_docket(store, space, KEY)
    for _ in range(READINGS):
        began = time.process_time()
        docket = await read_docket(store, space, KEY)
        took.append((time.process_time() - began) * 1000)
    return docket, statistics.median(took)


async def measure() -> Table:
    """Return the table."""
    table = Table(box=None, padding=(0, 2), show_edge=False)
    for name in ("settled effects", "bytes read", "worker's own ms for it"):
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedStore(folder) as server, Store(server.url, namespace="dockets") as store:
            space, there = store.space("Order", 0), 0
            for count in COUNTS:
                await fill(store, space, there, count)
                there = count
                docket, took_ms = await first_touch(store, space)
                size = sum(len(each.encode()) + len(each.operation) for each in docket.effects.values())
                table.add_row(f"{count:,}", f"{size:,}", f"{took_ms:.1f}")
    return table


if __name__ == "__main__":
    Console().print(anyio.run(measure))
