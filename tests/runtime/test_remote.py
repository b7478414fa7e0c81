"""What stands between a caller and an owner elsewhere, against an owner made by hand."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import anyio
import pytest

from keylane.journal.codec import Undecodable
from keylane.journal.errors import CallError, CallTimeout, Overloaded, ResultExpired, StoreUnavailable
from keylane.journal.inbox import INBOX_LIMIT
from keylane.journal.key import new_invocation_id
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.outcomes import Failure, Outcome, Rejected, Replayed, Succeeded, encode_outcome
from keylane.journal.records import Completed, Paused, PauseReason, Resumed
from keylane.journal.requests import Answer, Request, RequestKind
from keylane.journal.store import Store
from keylane.runtime import answers as answers_module
from keylane.runtime import remote as module
from keylane.runtime.answers import Ended
from keylane.runtime.remote import Patience, Remote
from tests.faults.harness import eventually
from tests.faults.proxy import Proxy
from tests.plain import plain
from tests.runtime.hand_owner import HandOwner, waiting

Result = TypeVar("Result")

DONE = Succeeded(b"\x2a")
LONG = Succeeded(b"x" * 5000)
FAILED = Rejected(Failure("ValueError", "no", "terminal", None, ""))
PAUSED = Paused(PauseReason.RETRIES_SPENT, "the bank is down")


def a_request(handler: str = "refund") -> Request:
    return Request(RequestKind.CALL, new_invocation_id(), handler, "acme/o-1", b"\x01", client=b"client-1")


class Scene:
    """A caller's side and an owner's side of one partition."""

    def __init__(self, remote: Remote, owner: HandOwner, space: PartitionSpace) -> None:
        self.remote = remote
        self.owner = owner
        self.space = space
        self.ended: list[Ended] = []

    async def ask(self, request: Request, seconds: float | None = 10) -> None:
        self.ended.append(await self.remote.ask(self.space, request, Patience(seconds)))

    async def wait_for(self, request: Request) -> None:
        self.ended.append(await self.remote.end_of(self.space, request.invocation, Patience(None)))

    @property
    def waits(self) -> int:
        return self.remote.answers.waiting


@asynccontextmanager
async def scene(store: Store, *, deaf: bool = False) -> AsyncGenerator[Scene]:
    space = store.space("Order", 3)
    async with waiting(store, deaf=deaf) as remote:
        yield Scene(remote, HandOwner(store, space), space)


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncGenerator[Store]:
    async with Store(store_url, namespace=namespace) as store:
        yield store


async def within(seconds: float, awaited: Awaitable[Result]) -> Result:
    with anyio.fail_after(seconds):
        return await awaited


@pytest.mark.anyio
@pytest.mark.parametrize("outcome", [DONE, LONG, FAILED], ids=["short", "long", "failed"])
@pytest.mark.parametrize("deaf", [False, True], ids=["announced", "deaf"])
async def test_outcome_comes_with_or_without_announcement(store: Store, outcome: Outcome, *, deaf: bool) -> None:
    """An announcement, short or with the outcome left in the store, ends the wait; without one a look does."""
    async with scene(store, deaf=deaf) as on, anyio.create_task_group() as tasks:
        tasks.start_soon(on.ask, a_request())
        await on.owner.end(await on.owner.next(), outcome)
        await eventually(lambda: on.ended == [outcome], "the outcome", seconds=3)

        assert on.waits == 0


@pytest.mark.anyio
async def test_announcement_ends_a_wait_without_a_look(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With announcements nothing is looked for: calls in turn end although the first look is far away."""
    monkeypatch.setattr(answers_module, "FIRST_LOOK_SECONDS", 60)
    async with scene(store) as on, anyio.create_task_group() as tasks:

        async def answer() -> None:
            for _ in range(10):
                await on.owner.end(await on.owner.next(), DONE)

        tasks.start_soon(answer)
        for _ in range(10):
            await on.ask(a_request())


@pytest.mark.anyio
async def test_news_during_a_look_are_looked_for_after_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An announcement that comes while an older look is on its way is not lost."""
    monkeypatch.setattr(answers_module, "FIRST_LOOK_SECONDS", 60)
    async with scene(store) as on:
        answers, request = on.remote.answers, a_request()
        future = answers.expect(on.space, request.invocation)
        answers.look(request.invocation)
        # This is sent behind the look, which has found nothing yet when the announcement arrives.
        store.submit(("SET", on.space.result(request.invocation), encode_outcome(DONE)), lambda _: None)
        answers.announced(on.space.answer_channel, Answer(b"client-1", request.invocation).encode())

        assert await within(5, future) == DONE


@pytest.mark.anyio
@pytest.mark.parametrize("announced", [True, False])
async def test_pause_ends_the_wait(store: Store, *, announced: bool) -> None:
    """A paused invocation ends the wait at once when it is announced, and with a look when it is not."""
    async with scene(store) as on, anyio.create_task_group() as tasks:
        tasks.start_soon(on.ask, a_request())
        request = await on.owner.next()
        await on.owner.accept(request)
        await on.owner.write(request, PAUSED)
        if announced:
            await on.owner.announce(request, None)

        await eventually(lambda: on.ended == [PAUSED], "the pause", seconds=3)


@pytest.mark.anyio
async def test_accepted_and_resumed_invocations_are_waited_for(store: Store) -> None:
    """Only the last record counts: one that was accepted or resumed goes on, and its end is heard."""
    async with scene(store) as on, anyio.create_task_group() as tasks:
        tasks.start_soon(on.ask, a_request())
        request = await on.owner.next()
        await on.owner.write(request, PAUSED)
        await on.owner.write(request, Resumed("ann", "bank is back"))
        await on.owner.announce(request, None)
        await anyio.wait_all_tasks_blocked()
        assert on.ended == []

        await on.owner.end(request, DONE)
        await eventually(lambda: on.ended == [DONE], "the end")


@pytest.mark.anyio
@pytest.mark.parametrize("first_has_ended", [True, False])
async def test_replayed_call_gets_the_first_result(store: Store, *, first_has_ended: bool) -> None:
    """The alias of an idempotency key is followed to the first invocation, ended or still running."""
    async with scene(store) as on, anyio.create_task_group() as tasks:
        first = a_request()
        if first_has_ended:
            await on.owner.end(first, DONE)
        tasks.start_soon(on.ask, a_request())
        await on.owner.end(await on.owner.next(), Replayed(first.invocation, 1_700_000_000_000))
        if not first_has_ended:
            await on.owner.end(first, DONE)

        await eventually(lambda: on.ended == [DONE], "the first result", seconds=3)


@pytest.mark.anyio
async def test_many_calls_wait_at_once_and_each_gets_its_own(store: Store) -> None:
    """Two hundred calls in flight are answered in any order, each with its own outcome."""
    requests = [a_request() for _ in range(200)]
    ended: dict[bytes, Ended] = {}
    async with scene(store) as on, anyio.create_task_group() as tasks:

        async def ask(request: Request) -> None:
            ended[request.invocation] = await on.remote.ask(on.space, request, Patience(20))

        for request in requests:
            tasks.start_soon(ask, request)
        taken = [await on.owner.next() for _ in requests]
        for request in reversed(taken):
            await on.owner.end(request, Succeeded(request.invocation))
        await eventually(lambda: len(ended) == len(requests), "all of them")

    assert all(outcome == Succeeded(raw_id) for raw_id, outcome in ended.items())


@pytest.mark.anyio
async def test_timeout_carries_the_id_and_the_invocation_goes_on(store: Store) -> None:
    """After the timeout the request is still there, under the id that the error names."""
    async with scene(store) as on:
        request = a_request()

        with pytest.raises(CallTimeout) as caught:
            await within(5, on.remote.ask(on.space, request, Patience(0.15)))

        assert caught.value.invocation_id == f"Order.3.{request.invocation.hex()}"
        assert (await on.owner.next()).invocation == request.invocation
        assert on.waits == 0


@pytest.mark.anyio
async def test_end_of_an_id_is_found_again(store: Store) -> None:
    """Who attaches later gets the end that came before, several at once, and a wait that begins before it too."""
    request = a_request()
    ended: list[Ended] = []
    async with scene(store) as on, anyio.create_task_group() as tasks:

        async def wait() -> None:
            ended.append(await on.remote.end_of(on.space, request.invocation, Patience(10)))

        tasks.start_soon(wait)
        tasks.start_soon(wait)
        await eventually(lambda: on.waits == 1, "both wait for the same")
        await on.owner.end(request, DONE)
        await eventually(lambda: ended == [DONE, DONE], "both have it", seconds=3)
        await within(1, wait())

    assert ended == [DONE] * 3


@pytest.mark.anyio
async def test_expired_result_is_an_error(store: Store) -> None:
    """An invocation whose records say that it ended, and whose result is gone, is not waited for."""
    async with scene(store) as on:
        request = a_request()
        await on.owner.accept(request)
        await on.owner.write(request, Completed())

        with pytest.raises(ResultExpired) as caught:
            await within(5, on.remote.end_of(on.space, request.invocation, Patience(None)))

        assert caught.value.outcome == "completed"


@pytest.mark.anyio
async def test_outcome_that_cannot_be_read_is_an_error(store: Store, store_url: str) -> None:
    """Foreign bytes in the result key end the wait with an error rather than never."""
    async with scene(store) as on:
        request = a_request()
        plain(store_url, "SET", on.space.result(request.invocation), b"\xc1")

        with pytest.raises(Undecodable):
            await within(5, on.remote.end_of(on.space, request.invocation, Patience(None)))


@pytest.mark.anyio
async def test_id_of_which_nothing_is_known_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait without a limit ends when there can be no answer; one for a request in the inbox goes on."""
    monkeypatch.setattr(module, "FIRST_CHECK_SECONDS", 0.05)
    async with scene(store) as on, anyio.create_task_group() as tasks:
        with pytest.raises(CallError, match="nothing is known"):
            await within(5, on.remote.end_of(on.space, bytes(16), Patience(None)))

        request = a_request()
        await on.remote.put(on.space, request, Patience(10))
        tasks.start_soon(on.wait_for, request)
        with pytest.raises(CallTimeout):
            await within(5, on.remote.acceptance_of(on.space, request.invocation, Patience(0.4)))
        await on.owner.end(await on.owner.next(), DONE)
        await eventually(lambda: on.ended == [DONE], "the end")


@pytest.mark.anyio
async def test_a_short_wait_for_an_id_of_which_nothing_is_known_says_so(store: Store) -> None:
    """Who asks again and again, with little patience each time, would never come to the check of a long wait."""
    async with scene(store) as on:
        for wait in (on.remote.end_of, on.remote.acceptance_of):
            with pytest.raises(CallError, match="nothing is known") as caught:
                await within(5, wait(on.space, bytes(16), Patience(0.1)))

            assert not isinstance(caught.value, CallTimeout)


@pytest.mark.anyio
async def test_closing_ends_all_waits(store: Store) -> None:
    """Whoever waits on a client that is closed gets an error, not a cancellation that nobody asked for."""
    async with scene(store) as on:
        request = a_request()
        future = on.remote.answers.expect(on.space, request.invocation)

        on.remote.answers.close()

        with pytest.raises(CallError, match="closed"):
            await future
        with pytest.raises(CallError, match="closed"):
            await on.remote.end_of(on.space, request.invocation, Patience(None))


@pytest.mark.anyio
async def test_acceptance_is_told(store: Store) -> None:
    """The verdict comes when the owner has begun the invocation's stream, before its end."""
    async with scene(store) as on, anyio.create_task_group() as tasks:
        request = a_request()
        verdicts: list[Ended | None] = []

        async def wait() -> None:
            verdicts.append(await on.remote.acceptance_of(on.space, request.invocation, Patience(10)))

        tasks.start_soon(wait)
        await eventually(lambda: on.waits == 1, "the wait")
        await on.owner.accept(request)
        await eventually(lambda: verdicts == [None], "the acceptance", seconds=3)

        assert on.waits == 0


@pytest.mark.anyio
@pytest.mark.parametrize("outcome", [DONE, Replayed(bytes(16), 5)])
async def test_end_is_a_verdict_too(store: Store, outcome: Outcome) -> None:
    """One that ended before anybody asked whether it was accepted has been."""
    async with scene(store) as on:
        request = a_request()
        await on.owner.end(request, outcome)

        assert await within(5, on.remote.acceptance_of(on.space, request.invocation, Patience(5))) == outcome


@pytest.mark.anyio
async def test_refusal_of_the_store_reaches_the_caller(store: Store, store_url: str) -> None:
    """A full inbox is told at once; the caller does not wait for an answer that can't come."""
    async with scene(store) as on:
        fill = f"for i = 1, {INBOX_LIMIT} do redis.call('XADD', KEYS[1], '*', 'm', '') end"
        plain(store_url, "EVAL", fill, 1, on.space.inbox)

        with pytest.raises(Overloaded):
            await within(5, on.remote.ask(on.space, a_request(), Patience(None)))
        assert on.waits == 0


@pytest.mark.anyio
async def test_cancelled_caller_leaves_nothing_behind(store: Store) -> None:
    """A caller that goes away takes its wait with it; the request stays."""
    async with scene(store) as on, anyio.create_task_group() as tasks:
        tasks.start_soon(on.ask, a_request("cancelled"), None)
        assert (await on.owner.next()).handler == "cancelled"
        tasks.cancel_scope.cancel()

    assert on.waits == 0


@pytest.mark.one_server
@pytest.mark.anyio
async def test_store_that_goes_away_is_unavailable_after_the_timeout(
    store_url: str, namespace: str, tmp_path: Path
) -> None:
    """Before the request is durable the timeout means that its fate is unknown, and the error says so."""
    with Proxy(Path(urlsplit(store_url).path), tmp_path / "p") as proxy:
        async with Store(proxy.url, namespace=namespace) as store, scene(store) as on:
            proxy.refuse()

            with pytest.raises(StoreUnavailable, match="unknown"):
                await within(5, on.remote.ask(on.space, a_request(), Patience(0.3)))


@pytest.mark.one_server
@pytest.mark.anyio
async def test_answer_is_found_after_the_store_was_away(store_url: str, namespace: str, tmp_path: Path) -> None:
    """A call outlives a cut of all connections: it is sent again, or its answer is looked for."""
    with Proxy(Path(urlsplit(store_url).path), tmp_path / "p") as proxy:
        async with Store(store_url, namespace=namespace) as near, Store(proxy.url, namespace=namespace) as far:
            owner = HandOwner(near, near.space("Order", 3))
            async with scene(far) as on, anyio.create_task_group() as tasks:
                tasks.start_soon(on.ask, a_request(), None)
                request = await owner.next()
                proxy.cut()
                await owner.end(request, DONE)

                await eventually(lambda: on.ended == [DONE], "the outcome", seconds=5)


@pytest.mark.anyio
async def test_unused_channels_are_given_up(store: Store) -> None:
    """A channel on which nobody waits any more is unsubscribed at the second sweep after its use."""
    async with scene(store, deaf=False) as on:
        answers = on.remote.answers
        future = answers.expect(on.space, bytes(16))
        answers.sweep_channels("channels")
        answers.sweep_channels("channels")
        assert answers.subscription.wanted == {on.space.answer_channel}

        answers.forget(bytes(16), future)
        answers.sweep_channels("channels")
        assert answers.subscription.wanted == frozenset()
