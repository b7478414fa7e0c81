"""What lies in the store of effects, proposals and those who settle them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest

from keylane.journal.agenda import AgendaItem, AgendaKind
from keylane.journal.codec import Undecodable
from keylane.journal.effect_orders import DecisionAct, DecisionOrder, ReconcileAct, ReconcileOrder
from keylane.journal.effects import (
    EffectEntry,
    EffectState,
    Unknown,
    Waiter,
    decode_effect_outcome,
    encode_effect_outcome,
)
from keylane.journal.errors import InvalidKey
from keylane.journal.ledger import EventKind, Happened, LedgerEvent
from keylane.journal.outcomes import Succeeded
from keylane.journal.proposals import (
    Decision,
    Delegation,
    ProposalEntry,
    ProposalId,
    ProposalState,
    parse_proposal_id,
)

GOLDEN: Final = Path(__file__).parent / "golden" / "effects"
RAW_ID: Final = bytes(range(16))
DIGEST: Final = bytes(range(16, 32))
HAPPENED: Final = Happened(1_700_000_000_000, EventKind.LOOKUP_FAILED, 2, "timed out", "ada")

FACTS: Final[dict[str, Any]] = {
    "effect": EffectEntry(
        operation="refund-1",
        effect="refund",
        receiver="payments",
        state=EffectState.UNRESOLVED,
        params=b"\x80",
        digest=DIGEST,
        attempt=2,
        invocation=RAW_ID,
        first_ms=1,
        intended_ms=2,
        send_before_ms=3,
        since_ms=4,
        why="the connection was lost",
        outcome=b"\x01",
        by="ada",
        facts=b"\x02",
        approval="refund.3",
        lookups=5,
        next_ms=6,
        reconcile_by_ms=7,
        is_overdue=True,
        assigned="bob",
        waiters=(Waiter(RAW_ID, (0, 1, 2), takes_unknown=True), Waiter(RAW_ID, 3)),
        life=(HAPPENED,),
    ),
    "proposal": ProposalEntry(
        action="refund",
        version=3,
        state=ProposalState.APPROVED,
        bound=b"\x80",
        notes=b"\x80",
        digest=DIGEST,
        quorum=2,
        invocation=RAW_ID,
        proposed_ms=1,
        expires_ms=2,
        since_ms=3,
        operation="refund-1",
        is_concurrent=True,
        is_overdue=True,
        decisions=(Decision("ada", approves=True, reason="fine", at_ms=4, message=RAW_ID, by="bob"),),
        delegations=(Delegation("ada", "bob"),),
        waiters=(Waiter(RAW_ID, 3),),
        life=(HAPPENED,),
    ),
    "event": LedgerEvent("acme/o-1001", "refund-1", "payments", "refund", "payments-oncall", HAPPENED),
    "agenda_item": AgendaItem(AgendaKind.PROPOSAL, "acme/o-1001", "refund.3"),
    "decision": DecisionOrder(DecisionAct.DELEGATE, "refund", 3, "ada", "on leave", "bob"),
    "reconcile": ReconcileOrder(ReconcileAct.SUCCEEDED, "refund-1", "ada", "seen in the books", b"\x01", "bob"),
}
DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "effect": EffectEntry.decode,
    "proposal": ProposalEntry.decode,
    "event": LedgerEvent.decode,
    "agenda_item": AgendaItem.decode,
    "decision": DecisionOrder.decode,
    "reconcile": ReconcileOrder.decode,
}
every_fact = pytest.mark.parametrize("name", FACTS)


@every_fact
def test_a_fact_is_equal_after_the_round_trip(name: str) -> None:
    """Nothing of it is lost in its bytes."""
    assert DECODERS[name](FACTS[name].encode()) == FACTS[name]


@every_fact
def test_golden_bytes_decode_for_ever(name: str) -> None:
    """What an earlier release has written is read by every later one."""
    assert DECODERS[name]((GOLDEN / f"{name}.msgpack").read_bytes()) == FACTS[name]


@every_fact
def test_what_a_later_version_adds_is_let_be(name: str) -> None:
    """Fields are only ever added at the end."""
    fields: list[Any] = msgpack.unpackb(FACTS[name].encode())

    assert DECODERS[name](msgpack.packb([*fields, None, {"new": 1}])) == FACTS[name]


@every_fact
def test_bytes_that_are_cut_short_are_undecodable(name: str) -> None:
    """No prefix is taken for the whole."""
    data = FACTS[name].encode()

    for length in range(len(data)):
        with pytest.raises(Undecodable):
            DECODERS[name](data[:length])


def test_an_unknown_outcome_is_no_outcome_of_an_invocation() -> None:
    """Only the wait for an effect ends with it; the others are what they are elsewhere."""
    unknown = Unknown(7, "the connection was lost")

    assert decode_effect_outcome(encode_effect_outcome(unknown)) == unknown
    assert decode_effect_outcome(encode_effect_outcome(Succeeded(b"\x01"))) == Succeeded(b"\x01")


@pytest.mark.parametrize("key", ["acme/o-1001", "acme/a#b.1", "a/b/c#d"])
def test_a_proposal_id_is_read_as_it_is_written(key: str) -> None:
    """Keys may have any characters; what stands behind the last mark is the action and the version."""
    proposal = ProposalId("Order", key, "refund.part", 12)

    assert parse_proposal_id(str(proposal)) == proposal


@pytest.mark.parametrize("text", ["", "Order/acme/o-1001", "Order/acme/o-1001#refund", "Order/acme/o-1001#refund.0"])
def test_what_is_no_proposal_id_is_refused(text: str) -> None:
    """The message shows what one looks like."""
    with pytest.raises(InvalidKey, match=r"Order/acme/o-1001#refund\.3"):
        parse_proposal_id(text)


def test_an_entry_with_other_values_is_an_entry_of_its_own() -> None:
    """All that is not changed stays, the entry before stays as it was, and what is no field is refused."""
    entry: EffectEntry = FACTS["effect"]

    changed = entry.but(attempt=entry.attempt + 1, life=(), outcome=None)

    assert changed == replace(entry, attempt=entry.attempt + 1, life=(), outcome=None)
    assert EffectEntry.decode(entry.encode()) == entry
    assert type(changed) is EffectEntry
    with pytest.raises(AttributeError):
        entry.but(attempts=1)
    with pytest.raises(FrozenInstanceError):
        changed.attempt = 1  # pyright: ignore[reportAttributeAccessIssue]
