"""State that older code wrote: brought to the new version where it is used, whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, ConfigDict

from keylane import (
    InvocationPaused,
    MigrationFailed,
    ObjectContext,
    RegistrationError,
    Runtime,
    Settings,
    SharedContext,
    TerminalError,
    VirtualObject,
)
from keylane.journal import operations
from keylane.journal.codec import pack, unpack
from keylane.journal.lane_reading import read_state
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KEY = "acme/a-1"
calls: list[int] = []


class Owner(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


Migrate = Callable[[dict[str, Any], int], dict[str, Any]]


@pytest.fixture(autouse=True)
def _afresh() -> None:
    calls.clear()


def account(version: int, migrate: Migrate | None = None, **more: Any) -> VirtualObject:
    """Return a type in one version of its state: the first keeps `name`, the second `owner` with a name."""
    declared = {1: {"name": str}, 2: {"owner": Owner}}.get(version, {})
    made = VirtualObject(
        "Account", owner="tests", partitions=1, state=declared, state_version=version, migrate=migrate, **more
    )

    @made.handler
    async def put(ctx: ObjectContext, values: dict[str, Any]) -> None:  # pyright: ignore[reportUnusedFunction]
        for name, value in values.items():
            ctx.set(name, value, Any)

    @made.handler
    async def seen(ctx: ObjectContext) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        return {name: await ctx.get(name, Any) for name in await ctx.state_keys()}

    @made.handler
    async def fail(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        raise TerminalError("no")

    @made.handler
    async def wipe(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        ctx.clear_all()

    @made.shared
    async def read(ctx: SharedContext) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        return {name: await ctx.get(name, Any) for name in await ctx.state_keys()}

    return made


def to_owner(state: dict[str, Any], from_version: int) -> dict[str, Any]:
    """Bring the first version to the second."""
    calls.append(from_version)
    return {**{name: value for name, value in state.items() if name != "name"}, "owner": {"name": state["name"]}}


def opened(store_url: str, namespace: str, hosted: VirtualObject, **numbers: Any) -> Runtime:
    return Runtime([hosted], store=store_url, namespace=namespace, settings=Settings(**numbers))


async def written(store_url: str, namespace: str, values: dict[str, Any], version: int = 1, **numbers: Any) -> None:
    """Have the code of a version write state."""
    async with opened(store_url, namespace, account(version, to_owner if version > 1 else None), **numbers) as runtime:
        await runtime.client.call("Account", KEY, "put", values, timeout=10)


async def stored(runtime: Runtime) -> tuple[dict[str, Any], int]:
    """Return what the store has."""
    store = runtime.client.store
    state = await read_state(store, store.space("Account", 0), KEY)
    return {name: unpack(packed) for name, packed in state.values.items()}, state.version


async def test_state_of_an_older_version_is_migrated_when_it_is_used(store_url: str, namespace: str) -> None:
    """Once, whatever the handler itself does; what the migration does not touch is kept as it is."""
    await written(store_url, namespace, {"name": "ada", "unknown": {"a": [1, 2]}})
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        expected = {"owner": {"name": "ada"}, "unknown": {"a": [1, 2]}}
        assert await runtime.client.call("Account", KEY, "seen", timeout=10) == expected
        assert await stored(runtime) == (expected, 2)
        told = await runtime.client.inspect("Account", KEY)
        assert [(event.what, event.detail) for event in told.timeline if event.what == "migrated"] == [
            ("migrated", "from version 1 to version 2")
        ]
        assert told.state_version == 2
        assert sorted(value.name for value in told.state) == ["owner", "unknown"]
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        assert await runtime.client.call("Account", KEY, "seen", timeout=10) == expected
    assert calls == [1]


async def test_fields_that_a_declared_type_lacks_are_kept(store_url: str, namespace: str) -> None:
    """A migrated value is checked against its type, and written as it came."""
    await written(store_url, namespace, {"name": "ada"})

    def with_more(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        return {"owner": {"name": state["name"], "since": 1843}}

    async with opened(store_url, namespace, account(2, with_more)) as runtime:
        await runtime.client.call("Account", KEY, "seen", timeout=10)
        assert (await stored(runtime))[0] == {"owner": {"name": "ada", "since": 1843}}


async def test_a_migration_holds_also_where_the_invocation_fails(store_url: str, namespace: str) -> None:
    """It belongs to the object, and to no invocation."""
    await written(store_url, namespace, {"name": "ada"})
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        with pytest.raises(Exception, match="no"):
            await runtime.client.call("Account", KEY, "fail", timeout=10)
        assert await stored(runtime) == ({"owner": {"name": "ada"}}, 2)
    assert calls == [1]


async def test_shared_handlers_see_migrated_state_and_write_nothing(store_url: str, namespace: str) -> None:
    """Before any exclusive handler has used the object, and after one has."""
    await written(store_url, namespace, {"name": "ada"})
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        expected = {"owner": {"name": "ada"}}
        assert await runtime.client.call("Account", KEY, "read", timeout=10) == expected
        assert await stored(runtime) == ({"name": "ada"}, 1)
        await runtime.client.call("Account", KEY, "seen", timeout=10)
        assert await runtime.client.call("Account", KEY, "read", timeout=10) == expected
    assert calls == [1, 1]


async def test_a_reader_sees_no_old_state_as_if_it_were_new(store_url: str, namespace: str) -> None:
    """While a migration is on its way, what is durable is of the version before, and is brought up for a reader."""
    await written(store_url, namespace, {"name": "ada"})
    expected = {"owner": {"name": "ada"}}
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        assert await runtime.client.call("Account", KEY, "read", timeout=10) == expected
        lane = runtime.worker.partitions[0].lanes[KEY]

        def begin(now_ms: int, error: BaseException | None) -> None:
            lane.migrate({"name": None, "owner": pack(expected["owner"])})

        # The reader waits for this one, and the next is queued before it goes on.
        lane.commit([operations.unpark(KEY)], None, begin)
        assert await runtime.client.call("Account", KEY, "read", timeout=10) == expected
        assert await runtime.client.call("Account", KEY, "seen", timeout=10) == expected


class Wordless(Exception):
    """An error of which no text can be made."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), Wordless()])
async def test_whatever_a_migration_raises_costs_no_other_object_its_worker(
    store_url: str, namespace: str, raised: BaseException
) -> None:
    """An exclusive handler is parked, a shared one gets an error, and the others go on."""
    await written(store_url, namespace, {"name": "ada"})

    def broken(state: dict[str, Any], from_version: int) -> Any:
        raise raised

    async with opened(store_url, namespace, account(2, broken)) as runtime:
        with pytest.raises(MigrationFailed, match=type(raised).__name__):
            await runtime.client.call("Account", KEY, "read", timeout=10)
        with pytest.raises(InvocationPaused, match=type(raised).__name__) as caught:
            await runtime.client.call("Account", KEY, "seen", timeout=10)
        assert caught.value.reason == "migration_failed"
        assert await runtime.client.call("Account", "acme/a-2", "seen", timeout=10) == {}
        assert await stored(runtime) == ({"name": "ada"}, 1)


@pytest.mark.parametrize("kind", ["raises", "no dict", "bad name", "does not fit", "no value", "too large"])
async def test_a_failed_migration_parks_and_wipes_nothing(store_url: str, namespace: str, kind: str) -> None:
    """The invocation that would use the state waits for a person; resumed on better code it goes on."""
    await written(store_url, namespace, {"name": "ada"})

    def broken(state: dict[str, Any], from_version: int) -> Any:
        match kind:
            case "raises":
                raise ZeroDivisionError("broken")
            case "no dict":
                return None
            case "bad name":
                return {1: "x"}
            case "does not fit":
                return {"owner": {"called": "ada"}}
            case "no value":
                return {"other": object()}
            case _:
                return {"other": b"x" * 3_000_000}

    async with opened(store_url, namespace, account(2, broken)) as runtime:
        handle = await runtime.client.send("Account", KEY, "seen")
        with pytest.raises(InvocationPaused) as caught:
            await handle.result(timeout=10)
        assert caught.value.reason == "migration_failed"
        assert "version 1 can't be brought to version 2" in str(caught.value)
        assert await stored(runtime) == ({"name": "ada"}, 1)
        with pytest.raises(MigrationFailed) as refused:
            await runtime.client.call("Account", KEY, "read", timeout=10)
        assert (refused.value.from_version, refused.value.to_version) == (1, 2)
        # Once more on the same code comes to the same.
        await runtime.client.resume(handle.id, reason="try", by="tests", timeout=10)

        async def is_paused_again() -> bool:
            told = await handle.describe()
            return told.status == "paused" and told.records >= 4

        await eventually(is_paused_again)
        assert await stored(runtime) == ({"name": "ada"}, 1)
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        await runtime.client.resume(handle.id, reason="repaired", by="tests", timeout=10)
        assert await runtime.client.attach(handle.id).result(timeout=10) == {"owner": {"name": "ada"}}


async def test_state_that_is_newer_than_the_code_is_left_alone(store_url: str, namespace: str) -> None:
    """An old worker in a rolling deploy does not touch it; the next new one goes on by itself."""
    await written(store_url, namespace, {"owner": {"name": "ada"}}, version=2)
    async with opened(store_url, namespace, account(1)) as runtime:
        handle = await runtime.client.send("Account", KEY, "seen")
        with pytest.raises(InvocationPaused) as caught:
            await handle.result(timeout=10)
        assert caught.value.reason == "needs_version"
        with pytest.raises(MigrationFailed, match="newer than this code"):
            await runtime.client.call("Account", KEY, "read", timeout=10)
        assert await stored(runtime) == ({"owner": {"name": "ada"}}, 2)
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        handle = runtime.client.attach(handle.id)

        async def has_gone_on() -> bool:
            return (await handle.describe()).status == "completed"

        await eventually(has_gone_on)
        assert await handle.result(timeout=10) == {"owner": {"name": "ada"}}
    assert calls == []


async def test_an_object_without_state_needs_no_migration(store_url: str, namespace: str) -> None:
    """Nothing is of any version; what is written first is of the newest, and is read as that."""
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        assert await runtime.client.call("Account", KEY, "seen", timeout=10) == {}
        assert await runtime.client.call("Account", KEY, "read", timeout=10) == {}
        await runtime.client.call("Account", KEY, "put", {"owner": {"name": "ada"}}, timeout=10)
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        assert await runtime.client.call("Account", KEY, "seen", timeout=10) == {"owner": {"name": "ada"}}
    assert calls == []


async def test_state_that_was_wiped_begins_anew_in_the_version_of_whoever_writes(
    store_url: str, namespace: str
) -> None:
    """Also under code that is older than what had been there."""
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        await runtime.client.call("Account", KEY, "put", {"owner": {"name": "ada"}}, timeout=10)
        await runtime.client.call("Account", KEY, "wipe", timeout=10)
    await written(store_url, namespace, {"name": "eve"})
    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        assert await runtime.client.call("Account", KEY, "seen", timeout=10) == {"owner": {"name": "eve"}}
    assert calls == [1]


@pytest.mark.parametrize("writes", [1, 40])
async def test_the_version_outlives_snapshots_and_the_history_retention(
    store_url: str, namespace: str, writes: int
) -> None:
    """However the state lies in the store, it says of which version it is."""
    hosted = account(2, to_owner)
    async with opened(store_url, namespace, hosted, result_retention_seconds=60, sweep_seconds=0.05) as runtime:
        for number in range(writes):
            await runtime.client.call("Account", KEY, "put", {"owner": {"name": f"n{number}"}}, timeout=10)
        assert await stored(runtime) == ({"owner": {"name": f"n{writes - 1}"}}, 2)
        await shift_clock(runtime, timedelta(minutes=3))

        async def is_shrunk() -> bool:
            return [event.what for event in (await runtime.client.inspect("Account", KEY)).timeline] == ["shrunk"]

        await eventually(is_shrunk)
        assert await stored(runtime) == ({"owner": {"name": f"n{writes - 1}"}}, 2)
        # The lane is in memory still, and a delta on the shrunk one is of the same version.
        await runtime.client.call("Account", KEY, "put", {"more": 1}, timeout=10)
        assert (await stored(runtime))[1] == 2
    assert calls == []


async def test_the_version_is_said_again_after_nothing_was_left_of_an_object(store_url: str, namespace: str) -> None:
    """With the last value the version goes, too; what is written afterwards is not taken for an old one."""
    hosted = account(2, to_owner)
    async with opened(store_url, namespace, hosted, result_retention_seconds=60, sweep_seconds=0.05) as runtime:
        await runtime.client.call("Account", KEY, "put", {"owner": {"name": "ada"}}, timeout=10)
        await runtime.client.call("Account", KEY, "wipe", timeout=10)
        await shift_clock(runtime, timedelta(minutes=3))

        async def is_gone() -> bool:
            return not (await runtime.client.inspect("Account", KEY)).timeline

        await eventually(is_gone)
        await runtime.client.call("Account", KEY, "put", {"owner": {"name": "eve"}}, timeout=10)
        assert await stored(runtime) == ({"owner": {"name": "eve"}}, 2)


async def test_large_values_are_migrated_too(store_url: str, namespace: str) -> None:
    """What is kept beside the state is fetched for it; what is not changed is not written again."""
    text, same = "x" * 50_000, "y" * 60_000
    await written(store_url, namespace, {"name": text, "unknown": same})

    async with opened(store_url, namespace, account(2, to_owner)) as runtime:
        expected = {"owner": {"name": text}, "unknown": same}
        assert await runtime.client.call("Account", KEY, "read", timeout=10) == expected
        assert await runtime.client.call("Account", KEY, "seen", timeout=10) == expected
        assert await runtime.client.call("Account", KEY, "read", timeout=10) == expected


@pytest.mark.parametrize(
    ("declared", "parameter"),
    [
        ({"state_version": 0}, "state_version"),
        ({"state_version": 2}, "migrate"),
        ({"migrate": to_owner}, "state_version"),
        ({"state_version": 2, "migrate": anyio.sleep}, "migrate"),
    ],
)
def test_a_version_without_a_migration_is_refused(declared: dict[str, Any], parameter: str) -> None:
    """And a migration that would never be called, or would have to be awaited."""
    with pytest.raises(RegistrationError) as refused:
        VirtualObject("Account", owner="tests", **declared)
    assert refused.value.parameter == parameter
