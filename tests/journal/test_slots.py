"""Slots of keys, and the keys of commands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from keylane.journal.keyspace import PartitionSpace, registry_key
from keylane.journal.library import VERBS, library
from keylane.journal.slots import SLOTS, key_of, slot_of, view_of
from keylane.journal.urls import Host


@given(st.binary(max_size=40) | st.text(alphabet="{}ab", max_size=12).map(str.encode))
@example(b"{}a")
@example(b"{a}{b}")
@example(b"a{b")
@example(b"{{a}}")
def test_a_key_has_the_slot_that_the_client_library_gives_it(key: bytes) -> None:
    """Whatever braces it has: the first pair that holds something is the tag."""
    assert slot_of(key) == key_slot(key)


@given(st.text("ab-:.é ", min_size=1, max_size=20), st.binary(max_size=20))
def test_all_keys_of_a_partition_have_one_slot(namespace: str, raw_id: bytes) -> None:
    """Also those that hold bytes of ids."""
    space = PartitionSpace(namespace, "Order", 3)
    keys = [space.owner, space.due, space.witness, space.inbox_channel, space.result(raw_id), space.object("acme/{x}")]
    assert len({slot_of(key) for key in keys}) == 1


SPACE = PartitionSpace("n", "Order", 0)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("FCALL", "f", 2, SPACE.owner, SPACE.due, 5), SPACE.owner),
        (("FCALL_RO", "f", "1", SPACE.owner), SPACE.owner),
        (("FCALL", "f", 0, "argument"), None),
        (("XRANGE", SPACE.inbox, "-", "+"), SPACE.inbox),
        (("EXISTS", SPACE.owner, SPACE.due), SPACE.owner),
        (("HGETALL", "text"), b"text"),
        (("MEMORY", "USAGE", SPACE.owner), SPACE.owner),
        (("OBJECT", "ENCODING", SPACE.owner), SPACE.owner),
        (("KEYS", SPACE.tag + b"*"), SPACE.tag + b"*"),
        (("FUNCTION", "LOAD", "code"), None),
        (("TIME",), None),
        (("INFO",), None),
        (("WAIT", 1, 500), None),
        (("DBSIZE",), None),
    ],
)
def test_a_command_is_routed_by_its_first_key(words: tuple[Any, ...], key: bytes | None) -> None:
    """What is about a server as a whole has none."""
    assert key_of(words) == key


def test_every_function_of_the_library_is_routed_by_its_first_key() -> None:
    """None of them is called without keys."""
    for verb in VERBS:
        key = registry_key("n") if verb in {"announce", "withdraw"} else SPACE.owner
        assert key_of(("FCALL", library().function(verb), 1, key)) == key


def test_a_view_names_primaries_by_range_and_replicas_besides() -> None:
    """A node that does not know its own name is the one that was asked."""
    slots: list[Any] = [
        [0, 99, [b"10.0.0.1", 7000, b"a", []], [b"10.0.0.2", 7001, b"b", []]],
        [100, SLOTS - 1, [None, 7002, b"c", []], [b"?", 7003, b"d", []]],
    ]

    view = view_of(b"cluster_state:ok\r\ncluster_current_epoch:7\r\n", slots, Host("asked", 6379))

    assert view.epoch == 7
    assert view.ranges == ((0, 99, Host("10.0.0.1", 7000)), (100, SLOTS - 1, Host("asked", 7002)))
    assert view.others == (Host("10.0.0.2", 7001), Host("asked", 7003))
