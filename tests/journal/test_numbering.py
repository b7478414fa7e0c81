"""Numbers of messages: contiguous for each receiver, whatever becomes of the commits that send them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from keylane.journal import numbering as numbering_module
from keylane.journal import operations
from keylane.journal.batch import Operation
from keylane.journal.codec import Undecodable
from keylane.journal.errors import WrongKeyType
from keylane.journal.numbering import Base, Counted, Numbering, Posted
from keylane.journal.outbox import read_kept
from tests.journal.owning import Owner, next_batch, opened, took

pytestmark = pytest.mark.anyio

STOCK, DESK = "Stock.2", "Desk.1"


@pytest.fixture
async def owner(each_store_url: str, namespace: str) -> AsyncIterator[Owner]:
    async with opened(each_store_url, namespace) as store:
        owner = await took(store)
        owner.writer.numbering.history = "1-abcdef01"
        yield owner


def post(owner: Owner, word: str, target: str = STOCK) -> Operation:
    return operations.post(owner.space, target, word.encode())


async def messages(owner: Owner, target: str = STOCK) -> list[tuple[bytes, str]]:
    """Return the entries of an outbox."""
    entries = await owner.store.call("XRANGE", owner.space.outbox(target), "-", "+")
    return [(name, fields[1].decode()) for name, fields in entries]


async def numbers(owner: Owner) -> dict[str, str]:
    """Return what is written of the numbers."""
    flat = await owner.store.call("HGETALL", owner.space.sent)
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


async def test_messages_are_numbered_from_one_for_each_receiver(owner: Owner) -> None:
    """In the order of the commits, and in the commit that sends them."""
    for word in ("a", "b", "c"):
        owner.append(word, "acme/a", post(owner, word))
    owner.append("d", "acme/a", post(owner, "d", DESK), post(owner, "e", DESK))
    await owner.answered()

    assert await messages(owner) == [(b"1-1", "a"), (b"2-1", "b"), (b"3-1", "c")]
    assert await messages(owner, DESK) == [(b"1-1", "d"), (b"2-1", "e")]
    assert await numbers(owner) == {STOCK: "3:0", DESK: "2:0", "history": "1-abcdef01"}


async def test_a_batch_without_messages_writes_no_numbers(owner: Owner) -> None:
    """Handlers that send nothing pay nothing."""
    owner.append("a")
    await owner.answered()

    assert await numbers(owner) == {}


async def test_what_is_durable_is_told_with_its_numbers(owner: Owner) -> None:
    """Batch by batch, after the commits themselves."""
    told: list[Posted] = []
    owner.writer.on_posted = told.extend
    owner.append("a", "acme/a", post(owner, "a"))
    await next_batch(owner)
    owner.append("b", "acme/a", post(owner, "b"))
    await owner.answered()

    outbox = owner.space.outbox(STOCK)
    assert told == [Posted(outbox, 1, b"a"), Posted(outbox, 2, b"b")]


async def test_a_refused_commit_leaves_no_hole(owner: Owner) -> None:
    """One of several commits that send is refused for good, with the next one of its lane: the others close up."""
    await owner.store.call("SET", owner.space.object("acme/bad"), "foreign")
    told: list[Posted] = []
    owner.writer.on_posted = told.extend
    owner.append("before", "acme/a", post(owner, "before"))
    owner.append("bad", "acme/bad", post(owner, "bad"), post(owner, "bad", DESK))
    owner.append("after", "acme/a", post(owner, "after"))
    await next_batch(owner)
    # In a second batch, spelled before the first one's refusal is known: its numbers stand behind those refused.
    owner.append("worse", "acme/bad", post(owner, "worse"))
    owner.append("last", "acme/b", post(owner, "last"), post(owner, "last", DESK))
    await owner.answered()

    assert owner.errors == {"bad": WrongKeyType, "worse": WrongKeyType}
    assert await messages(owner) == [(b"1-1", "before"), (b"2-1", "after"), (b"3-1", "last")]
    assert await messages(owner, DESK) == [(b"1-1", "last")]
    assert await numbers(owner) == {STOCK: "3:0", DESK: "1:0", "history": "1-abcdef01"}
    assert [each.number for each in told if each.outbox == owner.space.outbox(STOCK)] == [1, 2, 3]


async def test_without_taking_numbers_back_that_test_fails(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A safeguard that nobody would miss is no safeguard."""
    monkeypatch.setattr(Numbering, "take_back", _forget_to)

    with pytest.raises(AssertionError):
        await test_a_refused_commit_leaves_no_hole(owner)


def _forget_to(numbering: Numbering) -> None:
    del numbering


async def test_a_foreign_key_in_an_outboxs_place_refuses_only_what_is_sent_through_it(owner: Owner) -> None:
    """What the lane had built on it goes too; others are numbered as if it had never been."""
    await owner.store.call("SET", owner.space.outbox(STOCK), "foreign")
    owner.append("to stock", "acme/a", post(owner, "to stock"))
    owner.append("to desk", "acme/b", post(owner, "to desk", DESK))
    await owner.answered()

    assert owner.errors == {"to stock": WrongKeyType}
    assert await messages(owner, DESK) == [(b"1-1", "to desk")]
    assert await numbers(owner) == {DESK: "1:0", "history": "1-abcdef01"}


async def test_a_foreign_key_in_the_numbers_place_refuses_only_what_is_sent(owner: Owner) -> None:
    """And the partition goes on with the rest."""
    await owner.store.call("SET", owner.space.sent, "foreign")
    owner.append("sends", "acme/a", post(owner, "sends"))
    owner.append("plain", "acme/b")
    await owner.answered()

    assert owner.errors == {"sends": WrongKeyType}
    assert await owner.words("acme/b") == ["plain"]


async def test_an_outbox_that_has_a_number_already_is_refused_before_anything_is_written(owner: Owner) -> None:
    """An append that failed half-way through a batch would leave the half of it."""
    await owner.store.call("XADD", owner.space.outbox(STOCK), "1-1", "m", "foreign")
    owner.append("plain", "acme/b")
    owner.append("sends", "acme/a", post(owner, "sends"))
    await owner.answered()

    assert owner.errors == {"sends": WrongKeyType}
    assert await owner.words("acme/b") == ["plain"]
    assert await owner.words("acme/a") == []


async def test_what_has_arrived_is_taken_out_and_an_empty_outbox_goes(owner: Owner) -> None:
    """Numbers go on behind it."""
    outbox = owner.space.outbox(STOCK)
    for word in ("a", "b", "c"):
        owner.append(word, "acme/a", post(owner, word))
    owner.append("two", "acme/b", operations.acknowledge(outbox, 2))
    await owner.answered()
    assert await messages(owner) == [(b"3-1", "c")]
    assert await numbers(owner) == {STOCK: "3:2", "history": "1-abcdef01"}

    owner.append("all", "acme/b", operations.acknowledge(outbox, 3))
    await owner.answered()
    assert await owner.store.call("EXISTS", outbox) == 0

    owner.append("d", "acme/a", post(owner, "d"))
    await owner.answered()
    assert await messages(owner) == [(b"4-1", "d")]


async def test_a_later_tenure_goes_on_with_the_numbers(owner: Owner) -> None:
    """It reads two small hashes, whatever lies in the outboxes."""
    owner.append("a", "acme/a", post(owner, "a"), operations.rebase(owner.space, DESK, str(Base(7, 1))))
    await owner.answered()
    kept = await read_kept(owner.store, owner.space)
    assert kept.history == "1-abcdef01"
    assert kept.counted == {owner.space.outbox(STOCK): Counted(1, 0)}
    assert kept.bases == {owner.space.outbox(DESK): Base(7, 1)}
    assert not kept.is_again

    later = await took_over(owner)
    later.writer.numbering.load(kept.counted)
    later.append("b", "acme/a", post(later, "b"))
    await later.answered()

    assert await messages(later) == [(b"1-1", "a"), (b"2-1", "b")]


async def took_over(owner: Owner) -> Owner:
    """Take the partition over from a holder that has renewed nothing."""
    return await took(owner.store, owner.space.number)


@pytest.mark.parametrize("kind", [Counted, Base])
@pytest.mark.parametrize("text", [b"", b"1", b"1:x", b"1:2:3"])
def test_garbage_in_the_place_of_numbers_is_undecodable(kind: type[Counted | Base], text: bytes) -> None:
    """It is not guessed at."""
    with pytest.raises(Undecodable):
        kind.read(text)


def test_what_is_spelled_and_not_durable_can_be_taken_back() -> None:
    """By itself, without a store."""
    space = numbering_module.PartitionSpace("n", "Order", 0)
    numbering = Numbering(space)
    outbox = space.outbox(STOCK)
    assert [numbering.assign(outbox) for _ in range(3)] == [1, 2, 3]
    numbering.applied({outbox: Counted(2, 0)})

    numbering.take_back()

    assert numbering.assign(outbox) == 3
    assert numbering.known(outbox) == Counted(2, 0)
