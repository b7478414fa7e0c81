"""From when on the windows of a receiver are counted: from the first attempt that may have reached it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keylane.journal.effects import LIFE_MAX, EffectEntry, EffectState
from keylane.journal.ledger import EventKind, Happened
from keylane.runtime.effect_facts import intent

FIRST, LATER = 1_000, 90_000

ENTRY = EffectEntry(
    operation="refund-1", effect="refund", receiver="payments", state=EffectState.BLOCKED, params=b"", digest=b"",
    attempt=0, invocation=b"", first_ms=500, intended_ms=500, send_before_ms=500, since_ms=500,
)  # fmt: skip


def intended(entry: EffectEntry, at_ms: int) -> EffectEntry:
    """The entry with one more intent."""
    return intent(entry, at_ms, 3_000, EventKind.INTENDED).entry


def test_what_was_certainly_not_sent_begins_no_window() -> None:
    """Neither the wait behind another effect, nor attempts of which nothing has left."""
    first = intended(ENTRY, FIRST)
    second = intended(replace(first, state=EffectState.NOT_SENT), LATER)

    assert (first.first_ms, second.first_ms, second.attempt) == (FIRST, LATER, 2)


@pytest.mark.parametrize("state", [EffectState.UNKNOWN, EffectState.UNRESOLVED])
def test_what_may_have_been_sent_keeps_its_time(state: EffectState) -> None:
    """However much has happened since, of which only the newest part is kept."""
    asked = tuple(Happened(2_000 + number, EventKind.ABSENT, 1) for number in range(LIFE_MAX))
    again = intended(replace(intended(ENTRY, FIRST), state=state, life=asked), LATER)
    not_sent = intended(replace(again, state=EffectState.NOT_SENT, life=asked), LATER + 1)

    assert (again.first_ms, not_sent.first_ms) == (FIRST, FIRST)
