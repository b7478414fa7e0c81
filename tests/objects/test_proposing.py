"""What is bound to a decision: fields and their values, in whatever spelling, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane import Approval, Expired, InvalidInput, Proposal
from keylane.journal.codec import pack, unpack
from keylane.journal.effect_orders import DecisionAct, DecisionOrder
from keylane.journal.proposals import Decision, ProposalEntry, ProposalState
from keylane.objects.decisions import Deciding, refusal
from keylane.objects.proposing import approval_of, as_proposed, digest_of, draft, moment, proposal_of, unfit

FIELDS: dict[str, Any] = {"amount": Decimal("40.00"), "recipient": "ada"}
NOW = 1_000_000
YES = True
values = st.recursive(
    st.one_of(
        st.integers(),
        st.text(),
        st.booleans(),
        st.none(),
        st.decimals(allow_nan=False, allow_infinity=False),
        st.binary(),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


def entry(fields: dict[str, Any] | None = None, **changes: Any) -> ProposalEntry:
    """Return an approved proposal."""
    bound = FIELDS if fields is None else fields
    facts: dict[str, Any] = {
        "action": "refund", "version": 3, "state": ProposalState.APPROVED, "bound": pack(bound), "notes": pack({}),
        "digest": digest_of("refund", 3, bound), "quorum": 1, "invocation": bytes(16), "proposed_ms": 0,
        "expires_ms": NOW + 1, "since_ms": 0, "decisions": (Decision("bob", YES, "", 5, b"m", "bob"),),
    }  # fmt: skip
    return ProposalEntry(**{**facts, **changes})


def approval(found: ProposalEntry) -> Approval:
    """Return what it allows, as a handler gets it."""
    return approval_of("Order", "acme/o-1", found)


def why(given_: Approval, found: ProposalEntry | None, params: object = FIELDS, effect: str = "refund") -> str:
    """Return why an approval does not allow an effect, empty where it does."""
    error = unfit(given_, found, effect, params, "refund-3", NOW)
    return "" if error is None else f"{error.why} {error.fields}"


def test_an_approval_fits_what_was_approved_whatever_stands_beside_it() -> None:
    """Parameters that the proposal does not name are the handler's own, and equal numbers are equal."""
    found = entry()

    assert why(approval(found), found) == ""
    assert why(approval(found), found, {**FIELDS, "amount": Decimal(40), "memo": "x"}) == ""


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        ({**FIELDS, "amount": Decimal("40.01")}, ("amount",)),
        ({"amount": Decimal(40)}, ("recipient",)),
        ({"amount": 4, "recipient": "eve"}, ("amount", "recipient")),
        ("not even fields", ("amount", "recipient")),
    ],
)
def test_another_value_of_a_bound_field_voids_it_and_is_named(params: object, fields: tuple[str, ...]) -> None:
    """A field that differs, or is missing, is in the error."""
    found = entry()
    error = unfit(approval(found), found, "refund", params, "refund-3", NOW)

    assert error is not None
    assert error.fields == fields


def test_a_field_within_a_field_is_named_by_its_path() -> None:
    """Of nested data the deepest difference is told."""
    found = entry({"to": {"street": "Elm", "number": 3}})
    error = unfit(approval(found), found, "refund", {"to": {"street": "Oak", "number": 3}}, "refund-3", NOW)

    assert error is not None
    assert error.fields == ("to.street",)


def test_it_allows_the_effect_of_its_action_alone() -> None:
    """An approval of one action is none of another with the same parameters."""
    found = entry()

    assert "it is about 'refund', and the effect is 'payout'" in why(approval(found), found, effect="payout")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (ProposalState.OPEN, "it is not approved"),
        (ProposalState.DECLINED, "it was declined"),
        (ProposalState.EXPIRED, "its time has passed"),
        (ProposalState.SUPERSEDED, "a newer proposal has taken its place"),
        (ProposalState.REVOKED, "the approval was taken back"),
    ],
)
def test_only_what_is_approved_now_allows_anything(state: ProposalState, said: str) -> None:
    """An approval that a handler has kept is worth what its proposal is worth when it is used."""
    kept = approval(entry())

    assert said in why(kept, entry(state=state))


def test_its_time_counts_when_it_is_used() -> None:
    """The very moment of its end is too late."""
    found = entry(expires_ms=NOW)

    assert "its time has passed" in why(approval(found), found)
    forever = entry(expires_ms=None)
    assert why(approval(forever), forever) == ""


@pytest.mark.parametrize("state", [ProposalState.OPEN, ProposalState.APPROVED, ProposalState.EXPIRED])
@pytest.mark.parametrize("act", list(DecisionAct))
def test_who_decides_too_late_is_told_since_when(state: ProposalState, act: DecisionAct) -> None:
    """The end of its time counts, whether anybody has closed the proposal since or not."""
    order = DecisionOrder(act, "refund", 3, "ann", "", "eve" if act is DecisionAct.DELEGATE else "")
    late = Deciding(order, b"another", NOW)

    assert refusal(entry(expires_ms=NOW, state=state, since_ms=5), 3, late) == Expired(moment(NOW))
    assert not isinstance(refusal(entry(expires_ms=NOW + 1, state=ProposalState.OPEN), 3, late), Expired)


def test_one_effect_uses_it_up_and_may_go_on_with_it() -> None:
    """The operation that has consumed it finds it fit, any other one does not."""
    used = entry(state=ProposalState.CONSUMED, operation="refund-3")

    assert why(approval(used), used) == ""
    other = entry(state=ProposalState.CONSUMED, operation="refund-2")
    assert "effect 'refund-2' has used it up" in why(approval(other), other)


def test_an_altered_approval_is_none() -> None:
    """Fields, version and digest have to be those that were approved."""
    found = entry()
    given_ = approval(found)

    assert "altered" in why(replace(given_, fields={**FIELDS, "amount": Decimal(4000)}), found)
    other = digest_of("refund", 3, {"amount": Decimal(4000)}).hex()
    assert "altered" in why(replace(given_, fields={"amount": Decimal(4000)}, digest=other), found)
    assert "altered" in why(replace(given_, version=4), found)
    assert "this object has proposed no such thing" in why(given_, None)


@settings(max_examples=50)
@given(st.dictionaries(st.text(min_size=1), values, min_size=1, max_size=4))
def test_a_digest_survives_the_way_through_the_store(fields: dict[str, Any]) -> None:
    """What comes back is what was proposed, in any order of its fields."""
    proposed = draft("refund", fields, {}, expires_in_ms=None, quorum=1, concurrent=False)
    plain = unpack(proposed.bound)
    shuffled = dict(reversed(list(plain.items())))

    assert as_proposed("refund", 1, shuffled, digest_of("refund", 1, plain).hex())
    assert not as_proposed("refund", 2, plain, digest_of("refund", 1, plain).hex())


@pytest.mark.parametrize("value", [float("nan"), [1.0, {"rate": float("nan")}], (float("nan"),)])
def test_what_equals_nothing_can_not_be_bound(value: object) -> None:
    """A NaN anywhere in a field is refused by the field's name; among the notes it may stand, and infinity anywhere."""
    with pytest.raises(InvalidInput, match="invalid input at field rate: it has a NaN"):
        draft("refund", {"amount": 1, "rate": value}, {}, expires_in_ms=None, quorum=1, concurrent=False)

    draft("refund", {"limit": float("inf")}, {"rate": value}, expires_in_ms=None, quorum=1, concurrent=False)


def test_a_proposal_tells_its_moments_and_reads_its_fields() -> None:
    """Times are aware, and a field is read by its name."""
    told = proposal_of("Order", "acme/o-1", entry())

    assert isinstance(told, Proposal)
    assert told.id == "Order/acme/o-1#refund.3"
    assert told["amount"] == Decimal(40)
    assert told.proposed_at == datetime.fromtimestamp(0, tz=UTC)
