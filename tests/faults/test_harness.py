"""What waits for servers takes one that is away for not yet, says why it waited in vain, and gives no dead one time."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
import redis

from .harness import OURS, NeverHappenedError, StoreServer, eventually, eventually_aside, wait_for
from .network_server import NetworkServer
from .soak_store import cut_others_off

pytestmark = pytest.mark.anyio


async def test_what_a_server_that_is_away_does_not_say_is_not_true_yet(own_server: StoreServer) -> None:
    """Polls go on over a server's death, in the loop, in a thread and without a loop."""
    own_server.kill()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(eventually_aside, lambda: own_server.ask("PING"), "it answers")
        await anyio.wait_all_tasks_blocked()
        own_server.start()
    await eventually(lambda: own_server.ask("PING"), "it answers")
    own_server.kill()

    with pytest.raises(NeverHappenedError, match=r"it answers: not within 0.05 s: .*ConnectionError"):
        await eventually(lambda: own_server.ask("PING"), "it answers", seconds=0.05)
    with pytest.raises(NeverHappenedError, match=r"it answers: not within 0.05 s: .*ConnectionError"):
        wait_for(lambda: own_server.ask("PING"), "it answers", seconds=0.05)


def test_a_server_that_ends_before_it_answers_is_not_waited_for() -> None:
    """What its log says is in the error."""
    began = time.monotonic()
    with pytest.raises(NeverHappenedError, match="did not start"), StoreServer(None, "--maxmemory", "nonsense"):
        pass
    assert time.monotonic() - began < 30


def test_the_fault_that_cuts_everybody_off_spares_those_who_watch() -> None:
    """Else one fault fails because of another, and not because of what either has shown."""
    with NetworkServer() as server, connected(server, OURS) as ours, connected(server, "another") as other:
        ours.ping()
        other.ping()

        cut_others_off(server, "normal")

        assert {each["name"] for each in ours.client_list()} == {OURS}


def connected(server: NetworkServer, name: str) -> Any:
    return redis.Redis(port=server.port, single_connection_client=True, client_name=name)
