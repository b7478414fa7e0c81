"""Commits while the store's memory is full: what finishes goes in, what takes in is refused, none is half-written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from keylane.journal import store as store_module
from keylane.journal.batch import Batch, Commit
from keylane.journal.errors import StoreFull
from keylane.journal.library import Library

from .harness import StoreServer, eventually
from .mutants import changed
from .proxy import Proxy
from .test_batches import Owner, owning

pytestmark = pytest.mark.anyio


@pytest.fixture
async def owner(own_server: StoreServer, namespace: str) -> AsyncIterator[Owner]:
    async with owning(own_server, own_server.url, namespace) as owner:
        append(owner, "zero")
        await owner.answered("zero")
        yield owner


def append(owner: Owner, word: str, lane: str = "acme/a", *, takes_in: bool = False) -> None:
    """Queue a commit that appends a word to the stream of a lane's object."""
    operation = (b"a", owner.writer.space.object(lane), 2, b"w", word.encode())
    owner.writer.commit(Commit([operation], partial(note, owner, word), lane, takes_in=takes_in))


def note(owner: Owner, word: str, now: int, error: BaseException | None) -> None:
    del now
    assert word not in owner.done, f"{word} was answered twice"
    owner.done[word] = error


def refused(owner: Owner) -> list[str]:
    return [word for word, error in owner.done.items() if isinstance(error, StoreFull)]


async def test_what_finishes_goes_in_and_what_takes_in_is_refused(owner: Owner) -> None:
    """With what takes in goes what was built on it in its lane; what stands before it, and other lanes, go on."""
    owner.server.ask("CONFIG", "SET", "maxmemory", 1)
    append(owner, "a finishes")
    append(owner, "b finishes", "acme/b")
    append(owner, "a takes in", takes_in=True)
    append(owner, "a built on it")
    append(owner, "c takes in", "acme/c", takes_in=True)
    append(owner, "b finishes too", "acme/b")
    await eventually(lambda: owner.writer.is_idle, "every commit is answered")

    assert refused(owner) == ["a takes in", "a built on it", "c takes in"]
    assert owner.words() == ["zero", "a finishes"]
    assert owner.words("acme/b") == ["b finishes", "b finishes too"]
    assert owner.words("acme/c") == []
    assert owner.writer.lost is None


async def test_an_acceptance_that_is_refused_costs_only_what_is_about_it(owner: Owner) -> None:
    """What runs in the lane is not built on those that wait behind it."""
    ids, stream = (b"i" * 16,), owner.writer.space.object("acme/a")
    owner.server.ask("CONFIG", "SET", "maxmemory", 1)
    operations = {word: [(b"a", stream, 2, b"w", word.encode())] for word in ("accepts", "runs", "about it", "on it")}
    done = {word: partial(note, owner, word) for word in operations}
    for commit in (
        Commit(operations["accepts"], done["accepts"], "acme/a", takes_in=True, accepts=ids),
        Commit(operations["runs"], done["runs"], "acme/a"),
        Commit(operations["about it"], done["about it"], "acme/a", about=ids[0]),
        Commit(operations["on it"], done["on it"], "acme/a"),
    ):
        owner.writer.commit(commit)
    await eventually(lambda: owner.writer.is_idle, "every commit is answered")

    assert refused(owner) == ["accepts", "about it", "on it"]
    assert owner.words() == ["zero", "runs"]


async def test_what_only_finishes_needs_one_attempt_once_memory_is_known_to_be_full(owner: Owner) -> None:
    """The server refuses a batch for want of memory once, and not each that comes after it."""
    owner.server.ask("CONFIG", "SET", "maxmemory", 1)
    for number in range(10):
        append(owner, f"word {number}")
        await owner.answered(f"word {number}")

    assert b"FCALL:calls" not in owner.server.ask("INFO", "commandstats")
    assert b"errorstat_OOM:count=1\r" in owner.server.ask("INFO", "errorstats")
    assert owner.words() == ["zero", *(f"word {number}" for number in range(10))]


async def test_work_is_taken_in_again_when_there_is_room(owner: Owner) -> None:
    """By the same writer, with the next number."""
    owner.server.ask("CONFIG", "SET", "maxmemory", 1)
    append(owner, "too early", takes_in=True)
    await owner.answered("too early")
    owner.server.ask("CONFIG", "SET", "maxmemory", 0)
    append(owner, "later", takes_in=True)
    await owner.answered("later")

    assert refused(owner) == ["too early"]
    assert owner.words() == ["zero", "later"]
    assert not owner.store.committer.is_full


async def test_a_batch_whose_answer_was_lost_is_not_refused_afterwards(own_server: StoreServer, namespace: str) -> None:
    """The store had applied it before its memory was full: its caller must not be told that nothing was taken in."""
    with Proxy(own_server.socket, own_server.directory / "p") as proxy:
        async with owning(own_server, proxy.url, namespace) as owner:
            append(owner, "zero")
            await owner.answered("zero")
            await applied_unheard(owner, proxy)


async def applied_unheard(owner: Owner, proxy: Proxy) -> None:
    proxy.hold_replies(only="commit")
    append(owner, "taken in", takes_in=True)
    await eventually(lambda: proxy.calls["commit"] == 2, "the store has it")
    await eventually(lambda: owner.words() == ["zero", "taken in"], "the store has applied it")
    owner.server.ask("CONFIG", "SET", "maxmemory", 1)
    proxy.cut(only="commit")
    proxy.heal()
    await owner.answered("taken in")
    append(owner, "refused", "acme/b", takes_in=True)
    await owner.answered("refused")

    assert owner.done["taken in"] is None
    assert refused(owner) == ["refused"]
    assert owner.words() == ["zero", "taken in"]
    assert owner.writer.lost is None


def never(batch: Batch) -> bool:
    del batch
    return False


def ignore_value(batch: Batch, value: object) -> None:
    del batch, value


async def test_without_the_doubt_of_a_lost_answer_its_test_fails(
    own_server: StoreServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is taken apart although it may be in the store is noticed."""
    monkeypatch.setattr(Batch, "in_doubt", property(never, ignore_value), raising=False)
    with Proxy(own_server.socket, own_server.directory / "p") as proxy:
        async with owning(own_server, proxy.url, namespace) as owner:
            append(owner, "zero")
            await owner.answered("zero")
            with pytest.raises(AssertionError):
                await applied_unheard(owner, proxy)


def without_finishing() -> Library:
    return changed(("register('finish', commit, {'allow-oom'})", "register('finish', commit)"))


async def test_without_the_function_that_finishes_its_test_fails(
    own_server: StoreServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that can't end at full memory is noticed."""
    monkeypatch.setattr(store_module, "library", without_finishing)
    async with owning(own_server, own_server.url, namespace) as owner:
        append(owner, "zero")
        await owner.answered("zero")
        with pytest.raises(AssertionError):
            await test_what_finishes_goes_in_and_what_takes_in_is_refused(owner)
