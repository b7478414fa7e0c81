"""The order in which ready work is handed out: each tenant's as it came, the tenants in turn."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.runtime.turns import Turns


def tenant_of(work: str) -> str:
    return work.partition("/")[0]


def taken(turns: Turns[str]) -> list[str]:
    return [turns.take() for _ in range(len(turns))]


def test_one_tenants_work_comes_as_it_was_put() -> None:
    """First in, first out."""
    turns = Turns(tenant_of)
    for number in range(5):
        turns.put(f"a/{number}")

    assert taken(turns) == [f"a/{number}" for number in range(5)]


def test_a_tenant_that_comes_late_is_next_however_much_another_has() -> None:
    """It waits for one piece of each of the others and no more."""
    turns = Turns(tenant_of)
    for number in range(1_000):
        turns.put(f"large/{number}")
    turns.put("small/0")
    turns.put("third/0")

    assert taken(turns)[:5] == ["large/0", "small/0", "third/0", "large/1", "large/2"]


def test_nothing_ready_is_nothing_to_take() -> None:
    """And nothing of the tenants that had something stays."""
    turns = Turns(tenant_of)
    turns.put("a/0")
    turns.take()

    assert len(turns) == 0
    with pytest.raises(IndexError):
        turns.take()


@given(st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=60))
def test_nobody_is_passed_over_nor_served_out_of_turn(drawn: list[str | None]) -> None:
    """However puts and takes follow each other: nobody gets two in a row while somebody else waits."""
    turns = Turns(tenant_of)
    waiting: dict[str, list[str]] = {}
    served: list[tuple[str, set[str]]] = []
    for number, tenant in enumerate(drawn):
        if tenant is not None:
            turns.put(f"{tenant}/{number}")
            waiting.setdefault(tenant, []).append(f"{tenant}/{number}")
        elif waiting:
            work = turns.take()
            assert work == waiting[tenant_of(work)].pop(0)
            served.append((tenant_of(work), set(waiting)))
            waiting = {name: left for name, left in waiting.items() if left}
        assert len(turns) == sum(map(len, waiting.values()))
    for (before, others), (after, _) in pairwise(served):
        assert before != after or not others - {before}
