"""Lanes that are read from the store before anything runs in them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from keylane import ObjectContext, Runtime, VirtualObject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.journal.link import Done
    from keylane.journal.topology import Submit

pytestmark = pytest.mark.anyio

account = VirtualObject("Account", owner="tests", partitions=1, state={"balance": int})


@account.handler
async def deposit(ctx: ObjectContext, amount: int) -> int:
    balance = await ctx.get("balance", int, 0) + amount
    ctx.set("balance", balance)
    return balance


def with_late_history(submit: Submit) -> Submit:
    """Hand over what is read of an object's history after all that was asked for behind it."""

    def late(words: tuple[Any, ...], done: Done) -> None:
        def later(reply: Any) -> None:
            asyncio.get_running_loop().call_later(0.02, done, reply)

        submit(words, later if words[0] == "XREVRANGE" else done)

    return late


async def test_a_lane_is_read_whatever_the_order_in_which_the_answers_come(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that is moving key by key answers for a key that it still has before one that it sends elsewhere."""
    async with Runtime(account, store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call(deposit, "acme/1", 5, timeout=10) == 5

    async with Runtime(account, store=store_url, namespace=namespace) as runtime:
        store = runtime.client.store
        late = with_late_history(store.submit)

        def beside(_: Sequence[tuple[Any, ...]]) -> Submit:
            return late

        monkeypatch.setattr(store, "submit", late)
        monkeypatch.setattr(store.topology, "submit_beside", beside)
        assert await runtime.client.call(deposit, "acme/1", 2, timeout=10) == 7
