"""What parked invocations cost: the benchmark's own measurements, on numbers that are small enough for every run."""

from __future__ import annotations

import re

import pytest

from benchmarks.parked import resume, sizes, throughput, timers

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_parked_invocation_takes_a_few_thousand_bytes() -> None:
    """In the store; of what it takes in the worker too much is the process itself with so few."""
    for result in await sizes(500):
        assert 500 <= int(result.value.split(" ", 1)[0].replace(",", "")) <= 4_000, result.value


@pytest.mark.quiet
async def test_short_invocations_go_on_beside_parked_ones() -> None:
    """In at least one pair: what takes a third of the rate does so in all of them."""
    (result,) = await throughput(500)
    highest = re.search(r"–([0-9.]+)\)", result.value)
    assert highest is not None
    assert float(highest[1]) >= 0.7, result.value


@pytest.mark.quiet
async def test_a_handler_goes_on_when_the_reply_that_it_waits_for_is_there() -> None:
    """In memory or replayed; one that is not heard of would be found by a sweep, a minute later."""
    for result in await resume(50):
        assert float(result.value.split()[-2]) <= 5_000, result.value


@pytest.mark.quiet
async def test_timers_of_one_second_fire_at_their_time() -> None:
    """None of them early."""
    (result,) = await timers(500)
    assert not result.value.startswith("earliest -"), result.value
