"""What an owner hash gets back, and when its tenure ends with that."""

from __future__ import annotations

import pytest

from keylane.journal.store import Refusal, Store
from tests.journal.owning import Owner, took

pytestmark = pytest.mark.anyio

PARTITIONS = 64


async def mended(owner: Owner) -> list[bytes]:
    return await owner.store.fcall("mend", [owner.space.owner], [PARTITIONS])


@pytest.mark.parametrize(
    ("field", "ends"),
    [("lease", False), ("schema", False), ("partitions", False), ("batch", True), ("serial", True), ("token", True)],
)
async def test_a_lost_field_is_given_back(store_url: str, namespace: str, field: str, *, ends: bool) -> None:
    """Where writes can't be told apart without it, the tenure ends as at a hand-over."""
    async with Store(store_url, namespace=namespace) as store:
        owner = await took(store)
        await store.call("HDEL", owner.space.owner, field)

        assert await mended(owner) == [field.encode()]

        released, token = await store.call("HMGET", owner.space.owner, "released", "token")
        assert ((released, token) == (b"1", None)) is ends
        assert await mended(owner) == []


async def test_what_is_sound_or_not_there_is_left_as_it_is(store_url: str, namespace: str) -> None:
    """Byte by byte."""
    async with Store(store_url, namespace=namespace) as store:
        owner = await took(store)
        before = await owner.everything()

        assert await mended(owner) == []
        assert await owner.everything() == before
        assert await store.fcall("mend", [store.space("Order", 1).owner], [PARTITIONS]) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (("schema", "0"), "SCHEMA"),
        (("partitions", "3"), "SCHEMA"),
    ],
)
async def test_what_another_release_wrote_is_refused(
    store_url: str, namespace: str, fields: tuple[str, ...], code: str
) -> None:
    """And left as it is."""
    async with Store(store_url, namespace=namespace) as store:
        owner = await took(store)
        await store.call("HSET", owner.space.owner, *fields)
        await store.call("HDEL", owner.space.owner, "lease")
        before = await owner.everything()

        with pytest.raises(Refusal, match=code):
            await mended(owner)
        assert await owner.everything() == before


async def test_what_is_nobodys_of_ours_is_refused(store_url: str, namespace: str) -> None:
    """Hashes of other programs, and other types."""
    async with Store(store_url, namespace=namespace) as store:
        space = store.space("Order", 0)
        await store.call("HSET", space.owner, "name", "theirs")
        with pytest.raises(Refusal, match="WRONGKEYTYPE"):
            await store.fcall("mend", [space.owner], [PARTITIONS])
        await store.call("DEL", space.owner)
        await store.call("SET", space.owner, "x")
        with pytest.raises(Refusal, match="WRONGKEYTYPE"):
            await store.fcall("mend", [space.owner], [PARTITIONS])
