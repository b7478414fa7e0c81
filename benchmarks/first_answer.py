"""The process whose start is measured: `python -m benchmarks.first_answer FOLDER` makes one call and prints when.

It prints one line of JSON with the times, on the clock that all processes share, at which the library was imported,
the runtime was open and the answer was there.
"""

import json
import sys
import time

import anyio
from pydantic import BaseModel

from keylane import ObjectContext, Runtime, VirtualObject

IMPORTED = time.monotonic()


class Add(BaseModel):
    """The argument."""

    n: int


counter = VirtualObject("Counter", owner="benchmarks")


@counter.handler
async def add(ctx: ObjectContext, request: Add) -> int:
    """Add to the key's count."""
    count = await ctx.get("count", int, 0) + request.n
    ctx.set("count", count)
    return count


async def answer(folder: str) -> None:
    """Start a store and a worker, make one call, and say when."""
    async with Runtime([counter], store=f"embedded:{folder}") as runtime:
        opened = time.monotonic()
        count = await runtime.client.call(add, "acme/k1", Add(n=1))
        print(
            json.dumps({"imported": IMPORTED, "opened": opened, "answered": time.monotonic(), "count": count}),
            flush=True,
        )


if __name__ == "__main__":
    anyio.run(answer, sys.argv[1])
