"""What probes know of circles: nothing is refused before all of a circle was met twice, and all agree on what is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keylane.journal.codec import Undecodable, pack
from keylane.journal.probes import EDGES_MAX, Edge, Probe


def edge(number: int, target: int, *, may_be_refused: bool = True) -> Edge:
    """Return the wait of the holder of one object for a call of another."""
    return Edge(
        "Node", f"acme/{number}", "work", bytes([number]) * 16, (2, 0, 1), "Node", target % 4, f"acme/{target}",
        bytes([100 + target]) * 16, may_be_refused,
    )  # fmt: skip


def ring(size: int) -> list[Edge]:
    return [edge(number, (number + 1) % size) for number in range(size)]


def walk(edges: list[Edge], start: int, steps: int = 1_000) -> Probe | None:
    """Have a probe walk along waits, each of which leads to the next, until a call is to be refused."""
    probe: Probe | None = Probe((replace(edges[start], may_be_refused=False),))
    for step in range(1, steps + 1):
        assert probe is not None
        at = (start + step - 1) % len(edges) if probe.proven is None else edges.index(probe.edge)
        following = edges[(at + 1) % len(edges)]
        onward = probe.seen(replace(following, may_be_refused=False), may_be_refused=edges[at].may_be_refused)
        if onward is not None and onward.is_proven and onward.at == probe.at:
            return onward
        probe = onward
    return probe


@pytest.mark.parametrize("size", [1, 2, 3, 10, 90])
def test_probes_from_wherever_they_start_choose_the_same_call(size: int) -> None:
    """The one with the youngest id: no second call of the circle is refused."""
    chosen = {probe.edge.target for start in range(size) if (probe := walk(ring(size), start)) is not None}

    assert chosen == {max(each.target for each in ring(size))}


def test_a_circle_is_met_twice_before_anything_is_refused() -> None:
    """What one round has seen need not have been true at one moment."""
    probe = walk(ring(3), 0, steps=3)
    assert probe is not None
    assert probe.proven == 0
    probe = walk(ring(3), 0, steps=5)
    assert probe is not None
    assert not probe.is_proven


@pytest.mark.parametrize("changed", [{"place": 7}, {"invocation": b"x" * 16}, {"target": b"x" * 16}])
def test_a_wait_that_has_ended_between_the_rounds_ends_the_probe(changed: dict[str, Any]) -> None:
    """Its holder waits for something else by then, or another one holds the lane: there was no circle."""
    probe = walk(ring(2), 0, steps=2)
    assert probe is not None

    assert probe.seen(ring(2)[1], may_be_refused=True) is not None
    assert probe.seen(replace(ring(2)[1], **changed), may_be_refused=True) is None


def test_a_call_that_has_begun_between_the_rounds_ends_the_probe() -> None:
    """So did whoever had held its lane end: there is no circle."""
    probe = walk(ring(2), 0, steps=2)
    assert probe is not None

    assert probe.seen(ring(2)[1], may_be_refused=False) is None


def test_only_calls_that_have_not_begun_are_chosen() -> None:
    """Among calls that only pass a call on, which have begun."""
    edges = [edge(0, 1), edge(1, 2, may_be_refused=False), edge(2, 0, may_be_refused=False)]
    assert {probe.edge.target for start in range(3) if (probe := walk(edges, start)) is not None} == {edges[0].target}


def test_what_leads_into_a_circle_is_no_part_of_it() -> None:
    """The path in the error is that of the circle, from the refused caller round to itself."""
    probe: Probe | None = Probe((edge(9, 8, may_be_refused=False),))
    for following in [edge(8, 0), edge(0, 1), edge(1, 0), edge(0, 1)]:
        assert probe is not None
        probe = probe.seen(following, may_be_refused=True)

    assert probe is not None
    assert [each.key for each in probe.edges] == ["acme/0", "acme/1"]
    assert probe.path == ("Node.work at acme/0", "Node.work at acme/1", "Node.work at acme/0")


def test_a_chain_without_end_ends_its_probe() -> None:
    """What is kept of a chain has a bound."""
    probe: Probe | None = Probe((edge(0, 1),))
    for number in range(EDGES_MAX + 1):
        if probe is None:
            break
        probe = probe.seen(replace(edge(1, 2), place=number), may_be_refused=True)
    assert probe is None


def test_probes_are_read_as_they_were_written() -> None:
    """At each stage of their way."""
    for steps in (1, 2, 3, 4):
        probe = walk(ring(3), 0, steps=steps)
        assert probe is not None
        assert Probe.decode(probe.encode()) == probe


@pytest.mark.parametrize("data", [b"", pack(1), Probe((), 0).encode(), replace(Probe((edge(0, 1),)), at=1).encode()])
def test_what_is_no_probe_is_not_read_as_one(data: bytes) -> None:
    """Anybody may write into an inbox."""
    with pytest.raises(Undecodable):
        Probe.decode(data)
