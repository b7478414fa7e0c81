"""Journals that were written by an earlier release fit the code that wrote them, for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from keylane import App, ObjectContext, VirtualObject
from keylane.journal.exported import Journal, journals_in
from keylane.journal.records import Finished, Record
from keylane.runtime.rehearsal import Fit, Rehearsal
from tests.golden import shop
from tests.golden.make import JOURNALS, SCENARIOS

pytestmark = pytest.mark.anyio

#: The one that has no journal of its own.
LACKING = {Finished}

FILES = sorted(JOURNALS.glob("*.jsonl"))


def read(path: Path) -> Journal:
    with path.open() as lines:
        (journal,) = journals_in(lines)
    return journal


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_a_golden_journal_fits_the_code_that_wrote_it(path: Path) -> None:
    """Nothing of a later release may change what a handler asks for, or how its journal is read."""
    shop.trouble.clear()
    rehearsed = await Rehearsal(shop.app).of(read(path))
    assert (rehearsed.fit, rehearsed.recorded, rehearsed.attempted) == (Fit.FITS, "", "")


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "scheduled"], ids=lambda path: path.stem)
async def test_a_golden_journal_does_not_fit_other_code(path: Path) -> None:
    """So the test above can fail: a handler that asks for something else at once is noticed by each of them."""
    journal = read(path)
    accepted = journal.accepted
    assert accepted is not None
    owner = shop.app.find(journal.type_name)
    other = VirtualObject(owner.name, owner="tests")
    boundary = owner.find(accepted.handler, accepted.version).input

    async def without(ctx: ObjectContext) -> None:
        await ctx.run("something else", str, "x")

    async def with_one(ctx: ObjectContext, argument: object) -> None:
        await ctx.run("something else", str, "x")

    declare = other.handler(name=accepted.handler, version=accepted.version)
    declare(without) if boundary is None else declare(with_one)
    assert (await Rehearsal(App([other])).of(journal)).fit is Fit.DIVERGES


def test_every_golden_journal_has_a_scenario() -> None:
    """What no scenario made can't be explained any more."""
    assert {path.stem for path in FILES} == SCENARIOS.keys()


def test_every_kind_of_record_is_in_a_golden_journal() -> None:
    """A record that is added without one is noticed."""
    found = {type(record) for path in FILES for record in read(path).records}
    assert found == {kind for kind in Record.__args__ if kind not in LACKING}
