"""Generated programs: what comes of them with workers that die is what a plain model says that may come of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from keylane import KeylaneError
from keylane.runtime.conductor import Conductor
from keylane.runtime.context import ExclusiveContext

from .generating import Program, drawn
from .running import checked

pytestmark = pytest.mark.anyio

#: One program: `KEYLANE_PROGRAMS_SEED=17`; another number of them: `KEYLANE_PROGRAMS_COUNT=500`.
SEED: Final = os.environ.get("KEYLANE_PROGRAMS_SEED")
COUNT: Final = os.environ.get("KEYLANE_PROGRAMS_COUNT")
IN_CI: Final = 100
IN_THE_NIGHT: Final = 2_000
#: So many make one test of the night, so that several processes can share them.
TOGETHER: Final = 100
#: So many are looked at by the doctor, too, who watches owners for a while.
EXAMINED_EVERY: Final = 20
#: How a program ends that does not come to what it may come to.
FAILURES: Final = (AssertionError, TimeoutError, KeylaneError, ExceptionGroup)
#: How many schedules are searched where a wrong alarm does no harm.
FEW: Final = 60


def seeds(count: int) -> range:
    """Return the seeds that the environment asks for, or so many."""
    if SEED is not None:
        return range(int(SEED), int(SEED) + int(COUNT or 1))
    return range(int(COUNT or count))


def spans(chosen: range) -> list[range]:
    """Return the same seeds in parts."""
    return [chosen[at : at + TOGETHER] for at in range(0, len(chosen), TOGETHER)]


async def run_all(chosen: range, store_url: str) -> int:
    """Run programs; those that disagree are made smaller and told of with their seeds. Returns how many were killed."""
    killed = 0
    wrong: list[str] = []
    for seed in chosen:
        program = drawn(seed)
        try:
            killed += len(await checked(program, store_url, is_examined=seed % EXAMINED_EVERY == 0))
        except FAILURES as error:
            wrong.append(
                f"KEYLANE_PROGRAMS_SEED={seed}: {error}\nactions that it takes: {await smaller(program, store_url)}"
            )
    assert not wrong, f"{len(wrong)} of {len(chosen)} programs disagree with the model\n" + "\n".join(wrong)
    return killed


async def smaller(program: Program, store_url: str, seconds: float = 20.0) -> list[str]:
    """Leave out actions and kills for as long as the program still disagrees; returns what is left in words."""
    until = time.monotonic() + seconds
    for part in ("actions", "kills"):
        for at in reversed(range(len(getattr(program, part)))):
            kept = getattr(program, part)
            tried = replace(program, **{part: (*kept[:at], *kept[at + 1 :])})
            if time.monotonic() < until and tried.actions and await disagrees(tried, store_url):
                program = tried
    return [*(f"{each['at']}: {each['do']}" for each in program.actions), *map(str, program.kills)]


async def disagrees(program: Program, store_url: str) -> bool:
    """Return whether a program comes to what it may not come to."""
    try:
        await checked(program, store_url, tries=FEW)
    except FAILURES:
        return True
    return False


@pytest.mark.slow
async def test_programs_come_to_what_the_model_says(store_url: str) -> None:
    """Results, ends, undos, states and what every run saw agree, wherever workers are killed."""
    killed = await run_all(seeds(IN_CI), store_url)
    assert SEED is not None or killed


@pytest.mark.nightly
@pytest.mark.parametrize("span", spans(seeds(IN_THE_NIGHT)), ids=lambda span: f"from {span.start}")
async def test_many_programs_come_to_what_the_model_says(store_url: str, span: range) -> None:
    """The same, for a night."""
    killed = await run_all(span, store_url)
    assert SEED is not None or killed


def no_reads(_ctx: ExclusiveContext) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Stand for what a record carries of what was read before it."""
    return {}, ()


async def no_turn(_conductor: Conductor) -> None:
    """Stand for the wait until all branches have come to rest."""


@pytest.mark.slow
@pytest.mark.counts_runs
@pytest.mark.parametrize(
    ("owner", "name", "without", "chosen"),
    [
        pytest.param(ExclusiveContext, "carried", no_reads, (0, 2, 3, 5), id="what records carry"),
        pytest.param(Conductor, "turn", no_turn, (123, 128, 155, 167), id="commands in turn"),
    ],
)
async def test_without_a_safeguard_programs_disagree(
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: type[Any],
    name: str,
    without: Callable[..., Any],
    chosen: tuple[int, ...],
) -> None:
    """Programs that agree only where the engine keeps its order and its reads are told from others."""
    agreeing = [seed for seed in chosen if not await disagrees(drawn(seed), store_url)]
    assert agreeing
    monkeypatch.setattr(owner, name, without)
    assert await any_disagrees(agreeing, store_url)


async def any_disagrees(chosen: Sequence[int], store_url: str) -> bool:
    """Run programs until one of them disagrees."""
    for seed in chosen:
        if await disagrees(drawn(seed), store_url):
            return True
    return False
