"""A process that opens an embedded store, says what it has to do with it, and stays until its input ends."""

import sys

import anyio
import anyio.to_thread

from keylane.journal.embedded import EmbeddedStore


async def main(folder: str) -> None:
    """Hold the store; the parent closes our input or kills us."""
    async with EmbeddedStore(folder) as store:
        print(store.part, store.url, flush=True)  # noqa: T201 - the parent reads it
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
