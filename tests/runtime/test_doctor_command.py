"""`keylane doctor` as its users run it: what it prints, the form of its JSON, and its exit codes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from keylane import Client
from keylane.journal.key import new_invocation_id, parse_id
from tests.faults.harness import eventually_answers
from tests.runtime.shell_command import Command, Done, run
from tests.runtime.ward import KEY, OWNER, Ward, opened

pytestmark = pytest.mark.anyio

WARD = "tests.runtime.ward:app"


class Hospital:
    """A namespace with a worker in a process of its own."""

    def __init__(self, store_url: str, namespace: str) -> None:
        self.store_url = store_url
        self.namespace = namespace
        self.where = ("--store", store_url, "--namespace", namespace)

    def doctor(self, *arguments: str, **options: Any) -> Done:
        return run("doctor", *arguments, *self.where, **options)


@pytest.fixture(scope="module")
def hospital(store_url: str) -> Iterator[Hospital]:
    where = Hospital(store_url, f"test-{secrets.token_hex(6)}")
    with Command("worker", WARD, *where.where) as worker:
        anyio.run(worker.says, "ready ")
        yield where


@pytest.fixture
async def ward(hospital: Hospital) -> Any:
    async with opened(hospital.store_url, hospital.namespace) as ward:
        yield ward


async def held(hospital: Hospital, ward: Ward, gate: Path) -> str:
    """Have an object's lane held until a file exists."""
    async with Client(hospital.store_url, namespace=hospital.namespace) as client:
        handle = await client.send("Job", KEY, "hold", str(gate))
        await ward.began(handle)
        return handle.id


#: The form of the report: each field and what it holds. A field may be added; none goes or changes.
FORM: dict[str, Any] = {
    "form": int,
    "is_healthy": bool,
    "namespace": str,
    "read_at": str,
    "durability": str,
    "server": {
        "name": str,
        "version": str,
        "promise": str,
        "stream_cost": str,
        "advice": [str],
        "used_memory_bytes": int,
        "max_memory_bytes": int,
        "eviction": str,
        "appendfsync": (str, None),
        "replicas": int,
        "libraries": [str],
        "address": (str, None),
        "memory_ratio": float,
        "memory_limit_ratio": float,
    },
    "servers": [{"promise": str, "address": (str, None), "memory_ratio": float}],
    "settings": {"lease_seconds": {"value": float, "source": str}},
    "workers": [{"worker": str, "is_live": bool, "hosts": [str], "library": str, "is_draining": bool}],
    "types": {"Job": {"partitions": int, "in_charge": (str, None)}},
    "partitions": [
        {
            "type": str,
            "partition": int,
            "owner": str,
            "worker": (str, None),
            "epoch": (int, None),
            "renewals": int,
            "watched_seconds": float,
            "inbox": int,
            "runnable": int,
            "due": int,
            "undecodable": int,
            "open": int,
            "unsent": int,
            "history": (str, None),
            "owner_fields": {},
        }
    ],
    "held_lanes": [
        {
            "type": str,
            "partition": int,
            "key": str,
            "holder": str,
            "status": str,
            "why": str,
            "since": str,
            "behind": int,
            "first_behind": [str],
            "in_charge": (str, None),
        }
    ],
    "busy_keys": [
        {"type": str, "key": str, "entries": int, "share": float, "per_second": (float, None), "waiting": int}
    ],
    "doubtful": [{"invocation": str, "why": str}],
    "findings": [
        {
            "kind": str,
            "type": (str, None),
            "partition": (int, None),
            "key": (str, None),
            "invocation": (str, None),
            "name": (str, None),
            "cause": str,
            "remedy": str,
            "is_repairable": bool,
        }
    ],
    "left_out": {},
    "repairs": [{"where": str, "did": [str], "refused": (str, None), "waits_for_owner": bool}],
    "looked": {
        "keys": int,
        "open": {},
        "is_whole": bool,
        "notes": [str],
        "seconds": float,
        "watched_seconds": float,
    },
    "notices": [str],
}


def misfits(value: Any, form: Any, path: str = "") -> list[str]:
    """Return where a value is not of its form."""
    match form:
        case dict():
            fields = cast("dict[str, Any]", form)
            missing = [f"{path}.{name} is missing" for name in fields if name not in value]
            there = {name: value[name] for name in fields if name in value}
            deeper = [each for name in there for each in misfits(there[name], fields[name], f"{path}.{name}")]
            return missing + deeper
        case [of_each]:
            return [each for item in value for each in misfits(item, of_each, f"{path}[]")]
        case (kind, None):
            return [] if value is None else misfits(value, kind, path)
        case _:
            return [] if type(value) is form else [f"{path} is {value!r}"]


async def test_a_healthy_namespace_ends_with_zero_and_says_what_it_promises(hospital: Hospital) -> None:
    """For people in sentences, for programs as JSON."""
    done = hospital.doctor()
    told = hospital.doctor("--json", env={"KEYLANE_LEASE_SECONDS": "0.7"}).json

    assert (done.code, done.err) == (0, "")
    for text in ("healthy: nothing was found", "AOF fsync always", "a small stream costs about", "Job"):
        assert text in done.out, done.out
    assert told["is_healthy"]
    assert told["settings"]["lease_seconds"] == {"value": 0.7, "source": "variable"}
    assert told["settings"]["lane_slots"] == {"value": 256, "source": "default"}
    assert told["types"] == {"Job": {"partitions": 1, "in_charge": OWNER}}


async def test_damage_is_named_repaired_and_gone(hospital: Hospital, ward: Ward, tmp_path: Path) -> None:
    """Exit code 1 while something is found, 0 once the repair has been looked at."""
    gate = tmp_path / "gate"
    invocation = await held(hospital, ward, gate)
    raw_id = parse_id(invocation).raw
    await ward.redis("DEL", ward.space.lane(KEY))
    await ward.redis("ZADD", ward.space.due, 9e15, new_invocation_id())

    found = hospital.doctor("--json")
    for_people = hospital.doctor()
    repaired = hospital.doctor("--repair", "--json")
    after = hospital.doctor()

    assert found.code == for_people.code == 1
    assert [each["kind"] for each in found.json["findings"]] == [
        "due-time-orphaned",
        "invocation-without-lane",
        "runnable-without-work",
    ]
    assert misfits(found.json, FORM) == []
    assert f"{invocation} (Job {KEY})" in for_people.out
    assert "--repair does it: its owner enters it into its lane" in for_people.out
    assert repaired.code == 0, repaired.out
    assert misfits(repaired.json, FORM) == []
    assert {each["where"] for each in repaired.json["repairs"]} == {f"Job {KEY}", "Job:0"}
    assert after.code == 0
    assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == [raw_id]
    gate.touch()
    async with Client(hospital.store_url, namespace=hospital.namespace) as client:
        assert await client.attach(invocation).result(timeout=10) == "went on"


async def test_held_lanes_are_told_with_their_holder_and_who_has_to_act(hospital: Hospital, ward: Ward) -> None:
    """In the words of `inspect`; a paused invocation with a named owner is no damage."""
    async with Client(hospital.store_url, namespace=hospital.namespace) as client:
        parked = await client.send("Job", "acme/parked", "park")

        async def is_paused() -> bool:
            return (await client.describe(parked.id)).status == "paused"

        await eventually_answers(is_paused, "it is paused")
        behind = await client.send("Job", "acme/parked", "add")
        await ward.began(behind)

    done, told = hospital.doctor(), hospital.doctor("--json").json

    assert done.code == 0
    for text in ("Job acme/parked", f"in charge: {OWNER}", f"{OWNER} has to resume it", f"behind it 1: {behind.id}"):
        assert text in done.out, done.out
    assert misfits(told, FORM) == []
    assert [lane["holder"] for lane in told["held_lanes"]] == [parked.id]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("doctor", "--limit", "0"), 2, "--limit"),
        (("doctor", "--loud"), 2, "--loud"),
        (("doctor", "--store", "unix:///nowhere/at/all"), 3, "can't be reached"),
        (("doctor", "--store", "embedded:/nowhere/at/all"), 3, "keylane dev"),
    ],
)
def test_a_wrong_use_and_an_absent_store_have_codes_of_their_own(
    arguments: tuple[str, ...], code: int, text: str
) -> None:
    """And one sentence each."""
    done = run(*arguments)

    assert done.code == code, done.err
    assert text in done.err


async def test_a_type_that_the_namespace_does_not_have_is_said(hospital: Hospital) -> None:
    """As by the other commands: nothing was looked at, so nothing is called healthy, least of all to a program."""
    for done in (hospital.doctor("--type", "Nothing"), hospital.doctor("--type", "Nothing", "--json")):
        assert done.code == 1
        assert "healthy" not in done.out
        assert "no object type 'Nothing'; known object types: " in done.err + done.out


def test_a_namespace_that_nobody_works_in_is_said_to_be_one(store_url: str, namespace: str) -> None:
    """Nothing is wrong in it, and it may not be the one that was meant."""
    done = run("doctor", "--store", store_url, "--namespace", namespace)

    assert "the namespace has no object types: no worker has run in it" in done.out
