from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.harness import StoreServer

from .chaos import Audit, Chaos
from .mutants import Safeguard

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

ONLY_THEIRS = "only in the receiver's books: "


async def audit_of(server: StoreServer, count: int, seed: str, mutant: str = "") -> Audit:
    with tempfile.TemporaryDirectory(prefix="kl-grid-") as folder:
        return await Chaos(server.url, f"grid-{secrets.token_hex(6)}", Path(folder), count, seed, mutant=mutant).run()


@pytest.mark.quiet
@pytest.mark.slow
async def test_sixty_orders_under_chaos_leave_books_that_match(shared_server: StoreServer) -> None:
    """With workers killed and payments away, each refund is paid once, refused, or known to be unknown."""
    audit = await audit_of(shared_server, 60, "sixty")

    assert audit.problems == []
    assert min(audit.faults["workers killed"], audit.faults["payment outages"]) > 1
    assert audit.endings["succeeded"] > 0


@pytest.mark.nightly
async def test_a_thousand_orders_under_chaos_leave_books_that_match(shared_server: StoreServer) -> None:
    """The same at length, with other faults each time."""
    seed = secrets.token_hex(4)
    audit = await audit_of(shared_server, 1_000, seed)

    assert audit.problems == [], f"seed {seed}, {audit.faults}"
    assert min(audit.faults["workers killed"], audit.faults["payment outages"]) > 10
    assert audit.endings["unresolved"] > 0, "nothing was left to people, so nothing was shown about the queue"


@pytest.mark.nightly
async def test_without_a_safeguard_the_books_do_not_match(shared_server: StoreServer) -> None:
    """Chaos in which nothing could go wrong would show nothing."""
    audit = await audit_of(shared_server, 60, "without", Safeguard.SAME_ID)

    # Each attempt has an id of its own then, which is that of the effect and something behind it.
    theirs = [problem.partition(ONLY_THEIRS)[2] for problem in audit.problems if ONLY_THEIRS in problem]
    asked_for = Counter(name.rpartition(".")[0] for name in theirs)
    assert max(asked_for.values(), default=0) > 1, "no effect was asked for twice"
