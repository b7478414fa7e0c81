"""The promises of the function library: every key declared and none built, names that carry the text's hash."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import pytest
import redis

from keylane.journal import operations
from keylane.journal.batch import Commit
from keylane.journal.embedded import bundled_binary
from keylane.journal.key import new_invocation_id
from keylane.journal.leases import acquire
from keylane.journal.library import FINISHING, VERBS, Library, library
from keylane.journal.store import Refusal, Store
from keylane.journal.tenure import VACANT, Acquired
from tests.faults.harness import StoreServer, eventually
from tests.journal.lua_text import complaints, functions_of, tokens_of
from tests.journal.owning import read_due
from tests.plain import plain

COMMON = "common"
TEXTS = {
    path.name.removesuffix(".lua"): path.read_text(encoding="utf-8")
    for path in (files("keylane.journal") / "lua").iterdir()
}
READ_ONLY = [verb for verb in VERBS if "'no-writes'" in TEXTS[verb]]


@dataclass
class Commands:
    """What a server says of its commands."""

    url: str
    seen: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def keys(self, name: str) -> slice:
        """Return which arguments behind the name are keys."""
        _, _, _, first, last, *_ = self._of(name)
        if not first:
            return slice(0)
        return slice(first - 1, None if last < 0 else last)

    def writes(self, name: str) -> bool:
        """Return whether it changes anything."""
        return b"write" in self._of(name)[2]

    def _of(self, name: str) -> list[Any]:
        if name not in self.seen:
            (self.seen[name],) = plain(self.url, "COMMAND INFO", name)
        assert self.seen[name], f"{name} is no command"
        return self.seen[name]


@pytest.fixture(scope="module")
def commands(store_url: str) -> Commands:
    return Commands(store_url)


@pytest.mark.parametrize("verb", VERBS)
def test_every_key_that_a_function_touches_is_declared_and_none_is_built(commands: Commands, verb: str) -> None:
    """The key of each command is one of KEYS, by itself or under a local name: of what tag it is, its caller says."""
    assert complaints({COMMON: TEXTS[COMMON], verb: TEXTS[verb]}, commands.keys) == []


def test_the_reader_of_the_functions_finds_their_commands() -> None:
    """It would find nothing wrong either if it saw nothing."""
    seen = {
        name: sum(call.callee in {"redis.call", "redis.pcall"} for each in functions_of(text) for call in each.calls)
        for name, text in TEXTS.items()
    }

    written = {name: len(re.findall(r"redis\.p?call\(", text)) for name, text in TEXTS.items()}
    assert seen == written
    assert all(written.values())


GOOD = """
local function put(keys, argv)
  local stream, list = keys[1], keys[tonumber(argv[1])]
  if wrong_type(stream, 'stream') then return refuse('WRONGKEYTYPE', stream) end
  redis.call('XADD', stream, '*', 'm', argv[2] .. ':' .. argv[3])
  for position = 2, #keys do redis.call('DEL', keys[position]) end
  return redis.call('EXISTS', list, keys[1])
end
register('put', put)
"""


def test_a_function_that_keeps_to_its_keys_is_let_pass(commands: Commands) -> None:
    """The rules leave room for local names, computed positions, and helpers that are given a key."""
    assert complaints({COMMON: TEXTS[COMMON], "put": GOOD}, commands.keys) == []


@pytest.mark.parametrize(
    "line",
    [
        "redis.call('SET', '{other}:key', '1')",
        "redis.call('SET', keys[1] .. ':more', '1')",
        "redis.call('SET', argv[1], '1')",
        "redis.call('SET', string.sub(argv[1], 1, 9), '1')",
        "redis.call('EXISTS', keys[1], argv[1])",
        "redis.call('SPUBLISH', argv[1], '1')",
        "redis.call(argv[1], keys[1])",
        "redis.pcall('SET', argv[1], '1')",
        "redis['call']('SET', argv[1], '1')",
        "local ask = redis.call",
        "local here = redis",
        "local key = argv[1] redis.call('SET', key, '1')",
        "local key = keys[1] key = argv[1] redis.call('SET', key, '1')",
        "local list, key = keys[1], argv[1] redis.call('SET', key, '1')",
        "for _, key in ipairs(argv) do redis.call('SET', key, '1') end",
        "keys = argv redis.call('SET', keys[1], '1')",
        "local keys = argv redis.call('SET', keys[1], '1')",
        "local all = keys redis.call('SET', all[1], '1')",
        "table.insert(keys, argv[1])",
        "helper(argv) redis.call('SET', keys[1], '1')",
        "wrong_type(argv[1], 'hash')",
        "local check = wrong_type check(argv[1], 'hash')",
        "redis.call('SET', KEYS[1], '1')",
        "loadstring(argv[1])()",
    ],
)
def test_a_function_that_reaches_for_another_key_is_found(commands: Commands, line: str) -> None:
    """Whichever way it takes."""
    planted = f"local function helper(keys) return keys[1] end\nlocal function put(keys, argv)\n  {line}\nend\n"

    assert complaints({COMMON: TEXTS[COMMON], "put": planted}, commands.keys) != []


def test_every_file_is_loaded() -> None:
    """A file that nobody loads would be checked for nothing."""
    assert {*VERBS, COMMON} == TEXTS.keys()


@dataclass
class Head:
    """The comment at the head of a file, by its sections."""

    title: str
    sections: dict[str, str]

    def positions(self, name: str) -> tuple[set[int], int | None]:
        """Return the positions that a section describes, and from which on it describes all."""
        described = re.findall(r"(?:^|[\s·])(\d+)(…?) ", self.sections.get(name, ""))
        is_open = [int(number) for number, dots in described if dots]
        return {int(number) for number, _ in described}, is_open[0] if is_open else None


def head_of(verb: str) -> Head:
    lines = [line.removeprefix("--").strip() for line in TEXTS[verb].split("\n\n", 1)[0].splitlines()]
    title, sections, current = lines[0], dict[str, str](), ""
    for line in lines[1:]:
        word, _, rest = line.partition(" ")
        begins = word in {"KEYS", "ARGV", "Answers", "Refuses"}
        current = word if begins else current
        sections[current] = f"{sections.get(current, '')} {rest if begins else line}"
    return Head(title, sections)


@pytest.mark.parametrize("verb", VERBS)
def test_every_function_is_described_at_the_head_of_its_file(verb: str) -> None:
    """What it is for, its keys, its arguments, what it answers and why it refuses: all of it and nothing else."""
    head, tokens = head_of(verb), tokens_of(TEXTS[verb])

    assert re.fullmatch(rf"{verb}: [a-z].+", head.title)
    assert head.sections["Answers"].strip()
    for section, name in (("KEYS", "keys"), ("ARGV", "argv")):
        described, open_from = head.positions(section)
        used = {int(tokens[at + 2]) for at, word in enumerate(tokens) if word == name and tokens[at + 2].isdigit()}
        assert {number for number in used if open_from is None or number < open_from} <= described
        assert bool(described) == (name in tokens)
        if name == "keys":
            assert {number for number in described if open_from is None or number < open_from} <= used
    refused = {tokens[at + 2].strip("'") for at, word in enumerate(tokens) if word == "refuse"}
    assert refused == set(re.findall(r"\b[A-Z][A-Z_]{2,}\b", head.sections.get("Refuses", "")))


def test_functions_that_only_read_contain_no_command_that_writes(commands: Commands) -> None:
    """They are called on replicas some day, and by those who may not write."""
    writing = {
        verb: [
            str(call)
            for function in functions_of(TEXTS[verb])
            for call in function.calls
            if call.callee == "redis.call" and commands.writes(call.arguments[0][0].strip("'"))
        ]
        for verb in READ_ONLY
    }

    assert set(READ_ONLY) == {"due", "recall", "observe", "survey", "examine"}
    assert writing == {verb: [] for verb in READ_ONLY}


def names_of(url: str) -> dict[str, set[str]]:
    """Return the libraries of a server and their functions."""
    found: dict[str, set[str]] = {}
    for each in plain(url, "FUNCTION LIST"):
        said = dict(zip(each[::2], each[1::2], strict=True))
        functions = [dict(zip(one[::2], one[1::2], strict=True)) for one in said[b"functions"]]
        found[said[b"library_name"].decode()] = {one[b"name"].decode() for one in functions}
    return found


@pytest.mark.anyio
async def test_the_library_and_each_of_its_functions_carry_the_hash(each_store_url: str, namespace: str) -> None:
    """Function names are global in a server: two releases must not meet there."""
    async with Store(each_store_url, namespace=namespace) as store:
        pass

    digest = store.library.name.removeprefix("keylane_")
    assert re.fullmatch(r"[0-9a-f]{12}", digest)
    assert names_of(each_store_url)[store.library.name] == {
        f"keylane_{digest}_{verb}" for verb in (*VERBS, *FINISHING.values())
    }


@pytest.mark.parametrize("changed", TEXTS)
def test_a_changed_line_in_any_file_changes_every_name(monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    """Also a line of the shared head: all functions run with it."""
    before = library()
    other = changed_library(monkeypatch, changed, TEXTS[changed] + "\n-- more\n")

    names = {each.function(verb) for each in (before, other) for verb in VERBS}
    assert other.name != before.name
    assert len(names) == 2 * len(VERBS)


def changed_library(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Library:
    """Return the library with another text in one of its files."""
    changed = {**TEXTS, name: text}
    monkeypatch.setattr("keylane.journal.library._text", changed.__getitem__)
    return library.__wrapped__()


@pytest.mark.anyio
async def test_two_releases_live_on_one_server(
    each_store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is loaded later leaves the other's functions alone."""
    other = changed_library(monkeypatch, "renew", TEXTS["renew"] + "\n-- other release\n")
    async with Store(each_store_url, namespace=namespace) as store:
        await store.call("FUNCTION", "LOAD", other.code)

        there = names_of(each_store_url)
        assert there[store.library.name] & there[other.name] == set()
        assert await took(store) is not None
        await store.call("FUNCTION", "DELETE", other.name)


@pytest.mark.anyio
async def test_loading_what_is_loaded_changes_nothing(each_store_url: str, namespace: str) -> None:
    """Every connection of every worker makes sure of it."""
    async with Store(each_store_url, namespace=namespace) as store:
        await store.load_library()
        await store.load_library()

    async with Store(each_store_url, namespace=namespace):
        assert store.library.name in names_of(each_store_url)


@pytest.mark.anyio
@pytest.mark.parametrize("verb", VERBS)
async def test_only_functions_that_read_may_be_called_as_such(each_store_url: str, namespace: str, verb: str) -> None:
    """The server itself refuses to call the others in a way in which nothing may be written."""
    async with Store(each_store_url, namespace=namespace) as store:
        space = store.space("Order", 0)
        await took(store)
        keys = [space.owner, space.due, space.runnable, space.lane("acme/a"), space.set_aside("acme/a")]
        words = (*store.words(verb, keys, read_only=True), 1)
        if verb in READ_ONLY:
            await store.call(*words)
            return

        with pytest.raises(redis.ResponseError, match="write flag"):
            await store.call(*words)


@pytest.mark.anyio
@pytest.mark.one_server  # it is planted in the one that answers first
async def test_a_function_that_says_that_it_reads_is_kept_from_writing(
    each_store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flag is not a comment."""
    text = TEXTS["observe"].replace("  return redis", "  redis.call('HSET', owner, 'lease', 0)\n  return redis")
    planted = changed_library(monkeypatch, "observe", text)
    async with Store(each_store_url, namespace=namespace) as store:
        await store.call("FUNCTION", "LOAD", planted.code)
        owner = store.space("Order", 0).owner
        try:
            with pytest.raises(redis.ResponseError, match=r"(?i)write commands are not allowed"):
                await store.call("FCALL_RO", planted.function("observe"), 1, owner)
        finally:
            await store.call("FUNCTION", "DELETE", planted.name)


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.second_store)])
def own_server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """A server whose functions the test may flush."""
    binary = str(bundled_binary()) if request.param == "valkey" else shutil.which("redis-server")
    with StoreServer(binary) as server:
        yield server


@asynccontextmanager
async def opened(server: StoreServer, namespace: str) -> AsyncGenerator[Store]:
    async with Store(server.url, namespace=namespace) as store:
        yield store


async def took(store: Store) -> Acquired:
    space = store.space("Order", 0)
    acquired = await acquire(store, space, VACANT, partitions=1, worker="w", machine="m", lease_seconds=1)
    assert acquired is not None
    return acquired


@pytest.mark.anyio
async def test_a_flushed_library_is_loaded_again_by_a_call(own_server: StoreServer, namespace: str) -> None:
    """Whichever function is called first, and what it does is done once."""
    async with opened(own_server, namespace) as store:
        await took(store)
        for _ in range(2):
            own_server.ask("FUNCTION", "FLUSH")
            assert (await read_due(store, store.space("Order", 0), 1)).ids == []
        own_server.ask("FUNCTION", "FLUSH")

        with pytest.raises(Refusal, match="MOVED_ON 1"):
            await store.fcall("acquire", [store.space("Order", 0).owner], [1, "", 0, b"other", "w", "m"])


@pytest.mark.anyio
async def test_a_flushed_library_is_loaded_again_by_a_commit_which_is_applied_once(
    own_server: StoreServer, namespace: str
) -> None:
    """The batch is not applied where its function is missing, and its bytes are sent again behind the library."""
    async with opened(own_server, namespace) as store:
        space = store.space("Order", 0)
        writer = store.writer(space, (await took(store)).tenure)
        ended: list[BaseException | None] = []
        ids = [new_invocation_id() for _ in range(4)]
        for raw_id in ids:
            own_server.ask("FUNCTION", "FLUSH")
            writer.commit(Commit([operations.keep_undecodable(raw_id)], lambda _, error: ended.append(error)))
            await eventually(lambda: writer.is_idle, "the commit is answered")

        kept = [kept for _, (_, kept) in own_server.ask("XRANGE", space.undecodable, "-", "+")]
        assert kept == ids
        assert ended == [None] * len(ids)
        assert own_server.ask("HGET", space.owner, "batch") == b"4"
