"""Replays of handlers with branches: whatever ends a run, the next one sees all that it saw, in the same order."""

from __future__ import annotations

import secrets
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from keylane import Runtime
from tests.branch_programs import app, chance, check_runs, play, programs, seen

pytestmark = pytest.mark.anyio

EXAMPLES = 60
given_programs = given(program=programs, seed=st.integers(0, 1 << 16))
often = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


@pytest.fixture(params=["as is", "suspend", "replay"])
async def forced(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store_url: str, namespace: str
) -> Any:
    """Give a runtime in which runs end for nothing, and how often."""
    monkeypatch.setenv("KEYLANE_TEST_FORCE", "" if request.param == "as is" else request.param)
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime, request.param


@often
@given_programs
async def test_each_run_of_a_generated_handler_sees_what_the_one_before_it_saw(
    forced: tuple[Runtime, str], program: list[Any], seed: int
) -> None:
    """As it is there is one run; with suspension or replay at each durable point there are many."""
    runtime, mode = forced
    chance.seed(seed)
    key = secrets.token_hex(4)
    result = await runtime.client.call(play, f"acme/{key}", program, timeout=5)
    assert result == [list(each) for each in as_plain(seen[key][-1])]
    runs = check_runs(key)
    if mode == "as is":
        assert runs == 1


def as_plain(saw: list[Any]) -> list[Any]:
    """Return what a run saw as it is once it has been written down and read."""
    return [list(map(plain, each)) for each in saw]


def plain(value: Any) -> Any:
    """Return a value as it is once it has been written down and read."""
    return [plain(each) for each in cast("list[Any]", value)] if isinstance(value, list | tuple) else value
