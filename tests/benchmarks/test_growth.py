"""What grows with use: the benchmark's own measurements, on numbers that are small enough for every run."""

from __future__ import annotations

import re

import pytest

from benchmarks.growth import Terms, cold, memory, past

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_objects_that_are_touched_later_take_the_place_of_those_before() -> None:
    """The process stays as large as it was."""
    (result,) = await memory(Terms(20))
    assert result.is_met, result.value


@pytest.mark.quiet
async def test_a_long_history_makes_a_call_no_dearer() -> None:
    """Thousands of past invocations of an object are not looked at: what does cost more, costs more in every pair."""
    (result,) = await past(Terms(20))
    lowest = re.search(r"\(([0-9.]+)–", result.value)
    assert lowest is not None
    assert float(lowest[1]) <= 1.15, result.value


async def test_cold_objects_of_a_turn_are_read_together() -> None:
    """Two reads for each, and one turn for all that came together."""
    turns, _ = await cold(Terms(10))
    assert turns.is_met, turns.value
