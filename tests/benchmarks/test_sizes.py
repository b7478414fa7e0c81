"""What things take in the store stays within the stated bounds: the benchmark's measurements, on smaller numbers."""

from __future__ import annotations

import pytest

from benchmarks.sizes import (
    FINISHED_TARGET_BYTES,
    IDLE_TARGET_BYTES,
    LEFT_OVER_TARGET,
    STEP_TARGET_BYTES,
    finished_add,
    idle_object,
    left_over,
    open_bench,
    recorded_step,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.quiet]


async def test_an_idle_object_takes_less_than_a_kilobyte() -> None:
    """Three values of 16 bytes under a key of 24, after its retention, all indexes included."""
    async with open_bench() as bench:
        assert await idle_object(bench, 3_000) <= IDLE_TARGET_BYTES


async def test_a_finished_add_takes_less_than_four_hundred_bytes_during_its_retention() -> None:
    """History, result and idempotency key together."""
    async with open_bench() as bench:
        assert await finished_add(bench, 100, 20, 120) <= FINISHED_TARGET_BYTES


async def test_a_recorded_step_takes_less_than_eighty_bytes_over_its_payload() -> None:
    """In the stream of its invocation."""
    async with open_bench() as bench:
        assert await recorded_step(bench, 100, 25, 125) <= STEP_TARGET_BYTES


async def test_memory_comes_back_after_the_retention() -> None:
    """Within a few percent of what it was, once everything that was called has passed its retention."""
    async with open_bench() as bench:
        assert await left_over(bench, 20_000, 2_000) <= LEFT_OVER_TARGET


@pytest.mark.nightly
async def test_memory_comes_back_after_the_retention_of_a_million_invocations() -> None:
    """The same for very many, of which the histories are long."""
    async with open_bench() as bench:
        assert await left_over(bench, 1_000_000, 10_000) <= LEFT_OVER_TARGET
