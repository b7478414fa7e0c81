"""Work under way between two reads of a checkup never looks like damage of effects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from keylane.journal.agenda import AgendaItem, AgendaKind
from keylane.journal.doctor.docket_checks import check_effects, check_index
from keylane.journal.effects import EffectState
from keylane.journal.store import Store

from .ledgers import START_MS, effect, put_effect, put_on

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"


class BusyStore(Store):
    """A store in which something happens once, right after a kind of read."""

    behind: tuple[str, Callable[[], Awaitable[Any]]] | None = None

    async def together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Read, and then let happen what was told."""
        replies = await super().together(commands)
        if self.behind is not None and any(words[0] == self.behind[0] for words in commands):
            _, happen = self.behind
            self.behind = None
            await happen()
        return replies


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncGenerator[BusyStore]:
    """Give an open store."""
    async with BusyStore(store_url, namespace=namespace) as store:
        yield store


@pytest.mark.parametrize("is_moving", [False, True])
async def test_an_effect_that_goes_on_meanwhile_is_no_finding(store: BusyStore, *, is_moving: bool) -> None:
    """Its index is read after it: what lacks it there may have been settled in between."""
    space = store.space("Order", 0)
    waiting = effect("op", {}, EffectState.UNKNOWN, next_ms=START_MS)
    await put_effect(store, space, KEY, waiting)
    if is_moving:
        store.behind = ("ZSCORE", lambda: put_effect(store, space, KEY, effect("op", {})))
    kinds = [each.kind.value for each in (await check_effects(store, space, KEY, START_MS, None))[0]]
    assert kinds == ([] if is_moving else ["agenda-missing"])


@pytest.mark.parametrize("is_moving", [False, True])
async def test_an_item_that_is_taken_off_meanwhile_is_no_finding(store: BusyStore, *, is_moving: bool) -> None:
    """What it names is read after it: both may have gone in one commit in between."""
    space = store.space("Order", 0)
    item = AgendaItem(AgendaKind.EFFECT, KEY, "op")
    await put_on(store, space.agenda, item, START_MS)
    if is_moving:
        store.behind = ("HEXISTS", lambda: store.call("ZREM", space.agenda, item.encode()))
    kinds = [each.kind.value for each in await check_index(store, space, space.agenda)]
    assert kinds == ([] if is_moving else ["agenda-orphaned"])
