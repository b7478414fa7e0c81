"""A receiver that offers nothing by which an unknown outcome could be settled needs a store that loses nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keylane.journal.errors import UnsafeStore
from keylane.journal.safety import Durability, Replicated, facts_of
from keylane.objects.app import App
from keylane.objects.receivers import Receiver
from keylane.objects.virtual_object import VirtualObject
from keylane.runtime.runtime import Runtime
from keylane.runtime.unsettled import refuse_unsettled

SYNCED = replace(
    facts_of({"server_name": "valkey", "valkey_version": "9.1.2", "aof_enabled": "1"}, None),
    appendfsync="always",
    replicas=2,
)


def app_at(receiver: Receiver) -> App:
    """An app with an effect at a receiver."""

    @receiver.effect("note")
    async def note(operation_id: str, params: str) -> str:
        return operation_id + params

    return App(VirtualObject("Order", owner="me", effects=[note]))


async def find(operation_id: str, params: str) -> str | None: ...


BARE = app_at(Receiver("printer", owner="me"))
ASKED = app_at(Receiver("payments", owner="me", lookup=find))


@pytest.mark.parametrize("durability", ["fsync", Replicated(1), Replicated(2)])
def test_a_store_that_keeps_what_it_confirms_takes_any_receiver(durability: Durability) -> None:
    """Every intent is there after a crash, so that people can be asked."""
    refuse_unsettled(BARE, [SYNCED], durability)


@pytest.mark.parametrize(
    ("durability", "change"),
    [("server", {}), ("fsync", {"appendfsync": "everysec"}), (Replicated(3), {}), (Replicated(2), {"replicas": 1})],
)
def test_a_store_that_may_lose_an_intent_refuses_receivers_that_offer_nothing(
    durability: Durability, change: dict[str, object]
) -> None:
    """By what is declared and by what the servers say; others may be there."""
    facts = replace(SYNCED, **change)  # pyright: ignore[reportArgumentType]

    refuse_unsettled(ASKED, [facts], durability)
    with pytest.raises(UnsafeStore, match=r"printer can't be asked .* done twice unnoticed; use durability 'fsync'"):
        refuse_unsettled(BARE, [SYNCED, facts], durability)


@pytest.mark.anyio
async def test_a_runtime_does_not_start_with_such_a_receiver(store_url: str, namespace: str) -> None:
    """Nor where unsafe settings are accepted: after a loss, nothing could tell."""
    async with Runtime(BARE, store=store_url, namespace=namespace):
        pass
    async with Runtime(ASKED, store=store_url, namespace=namespace, durability="server"):
        pass

    with pytest.raises(UnsafeStore, match="would be done twice unnoticed"):
        async with Runtime(BARE, store=store_url, namespace=namespace, durability="server", allow_unsafe=True):
            pass
