"""The kit checks itself: with a safeguard taken out, the test that guards it must fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from keylane.journal import store
from keylane.journal.operations import Delta, StateChange
from keylane.runtime import reads
from keylane.runtime.lane import Lane, apply

from .harness import StoreServer
from .mutants import FENCE, GAP, REPEAT, answer_at_once, without
from .proxy import Proxy
from .test_batches import (
    Owner,
    owning,
)
from .test_batches import (
    test_a_batch_built_on_a_refused_one_is_refused_however_late_it_arrives as late_batch,
)
from .test_batches import (
    test_a_writer_whose_tenure_has_ended_writes_nothing as ended_tenure,
)
from .test_batches import (
    test_two_applied_batches_whose_answers_are_lost_are_not_applied_again as lost_answers,
)
from .test_gate import hosting
from .test_gate import test_a_call_is_not_answered_before_it_is_durable as early_answer
from .test_gate import test_a_shared_read_never_goes_behind_an_answer_that_its_owner_has_not_heard_of as late_reply
from .test_gate import test_a_shared_read_sees_nothing_that_is_not_durable as early_read

pytestmark = pytest.mark.anyio

Guarded = Callable[..., Awaitable[None]]


@pytest.mark.parametrize(
    ("conditions", "guarded", "needs_proxy"),
    [
        pytest.param((FENCE,), ended_tenure, False, id="fence"),
        pytest.param((REPEAT, GAP), lost_answers, True, id="batch number"),
        pytest.param((GAP,), late_batch, False, id="what a batch is built on"),
    ],
)
async def test_without_a_safeguard_its_test_fails(
    own_server: StoreServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    conditions: tuple[str, ...],
    guarded: Guarded,
    *,
    needs_proxy: bool,
) -> None:
    """A safeguard that nobody would miss is no safeguard."""
    monkeypatch.setattr(store, "library", lambda: without(*conditions))
    with Proxy(own_server.socket, own_server.directory / "p") as proxy:
        async with owning(own_server, proxy.url, namespace) as owner:
            await first_commit(owner)

            with pytest.raises((AssertionError, pytest.fail.Exception)):
                await guarded(owner, *([proxy] if needs_proxy else []))


async def first_commit(owner: Owner) -> None:
    owner.append("zero")
    await owner.answered("zero")


async def test_without_the_gate_before_shared_reads_its_test_fails(
    proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that see what is merely queued are noticed; an owner that asks the store in time would hide them."""
    change = Lane.change

    def change_at_once(lane: Lane, delta: Delta) -> StateChange:
        apply(lane.durable, delta)
        return change(lane, delta)

    monkeypatch.setattr(Lane, "change", change_at_once)
    monkeypatch.setattr(reads, "_is_settled", always)
    async with hosting(proxy, namespace) as runtime:
        with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
            await early_read(runtime, proxy)


async def always(lane: Lane) -> bool:
    del lane
    return True


async def test_without_the_wait_for_late_replies_its_test_fails(
    shared_server: StoreServer, proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads from the memory of an owner that has not heard of its own commit are noticed."""
    monkeypatch.setattr(reads, "_is_settled", always)
    async with hosting(proxy, namespace) as runtime:
        with pytest.raises(AssertionError):
            await late_reply(runtime, shared_server, proxy, namespace)


async def test_without_the_gate_before_answers_its_test_fails(
    proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that don't wait for their commit are noticed."""
    monkeypatch.setattr(Lane, "commit", answer_at_once)
    async with hosting(proxy, namespace) as runtime:
        with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
            await early_answer(runtime, proxy)
