"""Holds one partition; says when it has it, when it is fenced, and on SIGUSR1 whether its lease is valid."""

from __future__ import annotations

import signal
import sys

import anyio

from keylane.journal.leases import acquire, sync_leases
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT
from keylane.runtime.lease_thread import HeldLease, LeaseThread


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def fenced(lease: HeldLease) -> None:
    del lease
    say("fenced")


async def main(url: str, namespace: str, lease_seconds: float, renewal_seconds: float) -> None:
    async with Store(url, namespace=namespace) as store:
        space = store.space("Order", 0)
        acquired = await acquire(store, space, VACANT, partitions=16, worker="w1", machine="", lease_seconds=1.0)
        if acquired is None:
            raise SystemExit("somebody else holds the partition")
        thread = LeaseThread(
            sync_leases(store, timeout_seconds=lease_seconds),
            lease_seconds=lease_seconds,
            renewal_seconds=renewal_seconds,
            stuck_after_seconds=30,
            on_fenced=fenced,
        )
        async with thread:
            await report(thread.hold(space, acquired.tenure, sent_at=acquired.sent_at))


async def report(lease: HeldLease) -> None:
    with anyio.open_signal_receiver(signal.SIGUSR1) as asked:
        say("valid")
        async for _ in asked:
            say("valid" if lease.is_valid() else "lapsed")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
