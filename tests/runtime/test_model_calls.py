"""`ctx.model`: an answer is paid for once, and where it may have been paid for twice, the journal says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    InvalidOutput,
    ModelAnswer,
    ObjectContext,
    RegistrationError,
    RetryPolicy,
    VirtualObject,
)
from keylane.journal.command_records import ModelCallBegun, StepCompleted
from keylane.journal.key import parse_id
from keylane.journal.model_calls import ModelSpending
from keylane.journal.open_journals import read_journal
from keylane.journal.records import Accepted, Completed, Record
from keylane.runtime.models import answer_form, prompt_digest
from keylane.runtime.rehearsal import Fit, Rehearsal
from keylane.testing import Harness, crashes, harness

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=3)
CENT = Decimal("0.0100")
#: What a worker asks the store on its own account moves the calls that a pass hits: seldom, one misses what it is for.
PASSES = 5

#: How often each prompt was asked; and what may go wrong with it.
asked: Counter[str] = Counter()
trouble: Counter[str] = Counter()
agent = VirtualObject("Agent", owner="tests", partitions=1, state={"notes": list[str]})


@pytest.fixture(autouse=True)
def fresh() -> None:
    asked.clear()
    trouble.clear()


@dataclass
class Verdict:
    allowed: bool
    reason: str


async def ask(prompt: str) -> ModelAnswer[Verdict]:
    asked[prompt] += 1
    if trouble[prompt]:
        trouble[prompt] -= 1
        raise ValueError("overloaded")
    return ModelAnswer(
        Verdict(allowed=True, reason=prompt), model="m-1-0925", input_tokens=120, output_tokens=8, cost=CENT
    )


def ask_plainly(prompt: str) -> ModelAnswer[str]:
    asked[prompt] += 1
    return ModelAnswer(prompt.upper(), input_tokens=3)


def untyped(prompt: str):  # noqa: ANN201  # pyright: ignore[reportUnknownParameterType]
    return ModelAnswer([prompt], input_tokens=1)


def no_answer(prompt: str) -> Any:
    return prompt


async def too_slow(prompt: str) -> ModelAnswer[str]:
    asked[prompt] += 1
    if asked[prompt] == 1:
        await anyio.sleep_forever()
    return ModelAnswer(prompt, cost=CENT)


@agent.handler
async def decide(ctx: ObjectContext, prompt: str) -> Verdict:
    notes = await ctx.get("notes", list[str], [])
    ctx.set("notes", [*notes, prompt])
    return await ctx.model("decide", ask, prompt, model="m-1", retry=QUICK)


@agent.handler
def decide_plainly(ctx: BlockingObjectContext, prompt: str) -> str:
    return ctx.model("decide", ask_plainly, prompt, model="m-0")


@agent.handler
async def decide_by_any(ctx: ObjectContext, prompt: str) -> list[str]:
    return await ctx.model("decide", untyped, prompt, model="m-0", type=list[str])  # pyright: ignore[reportUnknownArgumentType]


@agent.handler
async def decide_twice(ctx: ObjectContext, prompt: str) -> list[str]:
    """Two models beside each other, a step, and one more behind them."""
    first, second = await ctx.gather(
        ctx.model("one", ask, f"{prompt} one", model="m-1", retry=QUICK),
        ctx.model("other", ask, f"{prompt} other", model="m-2"),
    )
    await ctx.run("note", str, prompt)
    last = await ctx.model("last", ask, f"{prompt} last", model="m-1")
    return [first.reason, second.reason, last.reason]


@agent.handler(checkpoint="exit")
async def decide_in_the_end(ctx: ObjectContext, prompt: str) -> str:
    await ctx.run("read", str, prompt)
    verdict = await ctx.model("decide", ask, prompt, model="m-1")
    await ctx.run("note", str, prompt)
    return verdict.reason


@agent.handler(checkpoint="async")
async def decide_meanwhile(ctx: ObjectContext, prompt: str) -> str:
    await ctx.run("read", str, prompt)
    verdict = await ctx.model("decide", ask, prompt, model="m-1")
    return verdict.reason


@agent.handler
async def get_no_answer(ctx: ObjectContext, prompt: str) -> Any:
    return await ctx.model("decide", no_answer, prompt, model="m-1")


@agent.handler
async def wait_too_long(ctx: ObjectContext, prompt: str) -> str:
    limit = timedelta(milliseconds=20)
    return await ctx.model("decide", too_slow, prompt, model="m-1", retry=QUICK, timeout=limit)


@agent.handler
async def name_no_model(ctx: ObjectContext, prompt: str) -> str:
    return await ctx.model("decide", ask_plainly, prompt, model="")


async def records_of(h: Harness, invocation_id: str) -> list[Record]:
    accepted, journal = await _journal(h, invocation_id)
    return [accepted, *journal]


async def _journal(h: Harness, invocation_id: str) -> tuple[Record, list[Record]]:
    journal, _ = await read_journal(h.client.store, parse_id(invocation_id))
    assert journal.accepted is not None
    return journal.records[0], list(journal.records[1:])


async def run(h: Harness, handler: Any, prompt: str) -> tuple[Any, str]:
    handle = await h.send(handler, "acme/a", prompt)
    return await handle.result(timeout=20), handle.id


async def test_the_handler_gets_the_value_and_the_journal_what_it_took(store_url: str) -> None:
    """The call is recorded before it is made, with the model and a digest; the answer with tokens and cost."""
    async with harness(agent, store=store_url) as h:
        verdict, invocation_id = await run(h, decide, "hello")
        assert verdict == Verdict(allowed=True, reason="hello")
        accepted, begun, answered, completed = await records_of(h, invocation_id)
        told = await h.describe(invocation_id)
    assert isinstance(accepted, Accepted)
    assert isinstance(completed, Completed)
    assert isinstance(begun, ModelCallBegun)
    assert (begun.call, begun.model, begun.digest, begun.lost) == (1, "m-1", prompt_digest(("hello",)), 0)
    assert isinstance(answered, StepCompleted)
    assert answered.usage is not None
    assert (answered.usage.model, answered.usage.cost, answered.usage.currency) == ("m-1-0925", CENT, "USD")
    assert told.models == ModelSpending(1, 1, 120, 8, {"USD": CENT})
    assert asked == {"hello": 1}


async def test_a_plain_handler_asks_models_too(store_url: str) -> None:
    """A plain function is asked in a thread, and an answer without a cost is counted as one of unknown price."""
    async with harness(agent, store=store_url) as h:
        answer, invocation_id = await run(h, decide_plainly, "hello")
        told = await h.describe(invocation_id)
    assert answer == "HELLO"
    assert told.models == ModelSpending(1, 1, 3, 0, {}, unpriced=1)


async def test_a_function_without_an_annotation_is_told_the_type(store_url: str) -> None:
    """`type=` stands for the value, and not for the answer around it."""
    async with harness(agent, store=store_url) as h:
        assert (await run(h, decide_by_any, "hello"))[0] == ["hello"]


async def test_a_replay_never_asks_again(store_url: str) -> None:
    """An answer that is recorded is not paid for again, wherever the handler is replayed from."""
    async with harness(agent, store=store_url, force="replay") as h:
        assert (await run(h, decide_twice, "hello"))[0] == ["hello one", "hello other", "hello last"]
    assert asked["hello last"] == 1


@pytest.mark.parametrize("handler", [decide, decide_plainly, decide_in_the_end, decide_meanwhile])
async def test_wherever_the_worker_dies_each_call_is_known(store_url: str, handler: Any) -> None:
    """What was asked twice is counted as maybe billed twice: the journal knows of each call that was made."""
    seen: set[int] = set()

    async def scenario(h: Harness) -> ModelSpending:
        asked.clear()
        _, invocation_id = await run(h, handler, "hello")
        spent = (await h.describe(invocation_id)).models
        assert spent is not None
        return spent

    async def crash_everywhere() -> None:
        async for crash in crashes(agent, scenario, store=store_url):
            spent = crash.result()
            assert spent is not None
            assert (spent.answers, spent.unanswered) == (1, 0)
            # One that was recorded and not made, because the worker died between, is suspected without need.
            assert asked["hello"] <= spent.calls == 1 + spent.maybe_billed_twice
            if asked["hello"] == 2:
                seen.add(spent.maybe_billed_twice)

    for _ in range(5):
        # Which calls of the store there are hangs on how fast the machine is.
        if not seen:
            await crash_everywhere()
    assert seen == {1}, "no crash fell between an answer and its record"


@pytest.mark.counts_runs
async def test_branches_count_their_calls_each(store_url: str) -> None:
    """Calls that run beside each other are told apart by their places, also where the worker dies."""

    async def scenario(h: Harness) -> ModelSpending:
        asked.clear()
        _, invocation_id = await run(h, decide_twice, "hello")
        spent = (await h.describe(invocation_id)).models
        assert spent is not None
        return spent

    async for crash in crashes(agent, scenario, store=store_url, moments=("before",)):
        spent = crash.result()
        assert spent is not None
        assert (spent.answers, spent.unanswered) == (3, 0)
        assert asked.total() <= spent.calls == 3 + spent.maybe_billed_twice
        if crash.point is None:
            assert spent.maybe_billed_twice == 0


async def test_the_second_call_says_that_the_first_has_no_end(store_url: str) -> None:
    """The record of the call, that of the answer and the description all say it."""
    for _ in range(PASSES):
        if await _answers_lost(store_url):
            return
    pytest.fail("no crash has hit the time between the call and the record of its answer")


async def _answers_lost(store_url: str) -> int:
    """Crash before each call of the store, and return how often that was between a call and its answer."""

    async def scenario(h: Harness) -> tuple[list[Record], str]:
        asked.clear()
        _, invocation_id = await run(h, decide, "hello")
        return await records_of(h, invocation_id), str((await h.describe(invocation_id)).models)

    lost = 0
    async for crash in crashes(agent, scenario, store=store_url, moments=("before",)):
        records, words = crash.result() or ([], "")
        calls = [(each.call, each.lost) for each in records if isinstance(each, ModelCallBegun)]
        if len(calls) == 1:
            assert "maybe" not in words
            continue
        lost += 1
        assert calls == [(1, 0), (2, 1)]
        (answered,) = [each for each in records if isinstance(each, StepCompleted)]
        assert answered.usage is not None
        assert answered.usage.lost == 1
        assert words == "2 calls, 120 tokens in, 8 out, 0.0100 USD, 1 maybe billed twice"
    return lost


async def test_a_call_that_failed_has_an_end(store_url: str) -> None:
    """A retry after an error of the provider is no suspicion: its failure is recorded."""
    trouble["hello"] = 2
    async with harness(agent, store=store_url) as h:
        _, invocation_id = await run(h, decide, "hello")
        told = await h.describe(invocation_id)
    assert told.models == ModelSpending(3, 1, 120, 8, {"USD": CENT})


async def test_a_call_that_ran_into_its_timeout_may_have_been_billed(store_url: str) -> None:
    """Its answer may have been on the way."""
    async with harness(agent, store=store_url) as h:
        _, invocation_id = await run(h, wait_too_long, "hello")
        told = await h.describe(invocation_id)
    assert told.models == ModelSpending(2, 1, 0, 0, {"USD": CENT}, maybe_billed_twice=1)


async def test_what_is_no_answer_fails_for_good(store_url: str) -> None:
    """It is not asked again: another call would return the same kind of thing, and cost again."""
    async with harness(agent, store=store_url) as h:
        with pytest.raises(InvalidOutput, match=r"returned str; it returns ModelAnswer\(value, …\)"):
            await run(h, get_no_answer, "hello")


async def test_a_call_names_its_model(store_url: str) -> None:
    """Without one, a journal could not say who was asked."""
    async with harness(agent, store=store_url) as h:
        handle = await h.send(name_no_model, "acme/a", "hello")
        with anyio.fail_after(20):
            while (error := (await handle.describe()).error) is None:
                await anyio.sleep(0.01)
    assert "it names the model that is asked" in error.message
    assert not asked


async def test_a_rehearsal_asks_nobody(store_url: str) -> None:
    """A journal with model calls is held against code without a call."""
    async with harness(agent, store=store_url) as h:
        _, invocation_id = await run(h, decide_twice, "hello")
        journal, large = await read_journal(h.client.store, parse_id(invocation_id))
    del large
    asked.clear()
    assert (await Rehearsal(App([agent])).of(journal)).fit is Fit.FITS
    assert not asked


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"cost": 0.1}, TypeError),
        ({"cost": Decimal("NaN")}, ValueError),
        ({"cost": Decimal(-1)}, ValueError),
        ({"input_tokens": -1}, ValueError),
        ({"input_tokens": 2**63}, ValueError),
        ({"currency": None}, TypeError),
        ({"model": 7}, TypeError),
        ({"currency": "\ud800"}, ValueError),
        ({"output_tokens": 1.5}, TypeError),
    ],
)
def test_an_answer_that_no_sum_could_be_made_of_is_refused(values: dict[str, Any], error: type[Exception]) -> None:
    """A float is no amount, and nothing is negative."""
    with pytest.raises(error, match="ModelAnswer"):
        ModelAnswer("x", **values)


def test_a_function_that_promises_no_answer_is_refused() -> None:
    """The annotation is looked at before the call is paid for."""

    def says_text(prompt: str) -> str:
        return prompt

    with pytest.raises(RegistrationError, match="have it return ModelAnswer"):
        answer_form(says_text, "decide")


def test_equal_prompts_have_equal_digests() -> None:
    """The order of fields does not matter; what can't be written down counts with its type."""
    assert prompt_digest(({"a": 1, "b": 2},)) == prompt_digest(({"b": 2, "a": 1},))
    assert prompt_digest(("a", "b")) != prompt_digest(("ab",))
    assert prompt_digest((object(), "a")) == prompt_digest((object(), "a"))
