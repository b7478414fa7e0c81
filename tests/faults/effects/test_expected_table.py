from __future__ import annotations

from itertools import product

from .cells import Behaviour, Cell, Hit, Promise
from .covering import all_pairs, covering
from .expected import PAGE, Ending, Money, senseless, table

THIRD = 1 / 3


def test_the_page_says_what_must_follow_for_every_cell_or_why_it_makes_no_sense() -> None:
    """A combination that nobody has thought about can't be left out in silence."""
    every = {Cell(*each) for each in product(Promise, Hit, Behaviour)}

    assert table().keys() | senseless().keys() == every
    assert not table().keys() & senseless().keys()


def test_every_hit_and_behaviour_is_explained_on_the_page() -> None:
    """A row whose name nobody explains says nothing."""
    text = PAGE.read_text()

    assert [each for each in (*Hit, *Behaviour) if f"**{each}**" not in text] == []


def test_nothing_ends_by_a_way_that_the_contract_does_not_offer() -> None:
    """A table that expects a second call of a receiver without dedup would let money move twice."""
    wrong = [
        cell
        for cell, expected in table().items()
        if (expected.ending is Ending.RESEND and cell.promise not in (Promise.DEDUP, Promise.BOTH))
        or (expected.ending is Ending.ATTEMPT and cell.promise is not Promise.PUNCTUAL)
        or (expected.ending is Ending.LOOKUP and cell.promise in (Promise.DEDUP, Promise.NEITHER))
        or (expected.money is Money.NOT_PAID and expected.ending is not Ending.UNRESOLVED)
        or (expected.money is Money.REFUSED and expected.ending is Ending.UNRESOLVED)
    ]

    assert wrong == []


def test_the_part_that_always_runs_has_every_pair_and_is_a_third() -> None:
    """What CI runs meets each contract with each hit, each hit with each behaviour, and so on."""
    part = covering(table(), THIRD)

    assert all_pairs(part) == all_pairs(table())
    assert len(set(part)) == len(part) < len(table()) / 2
