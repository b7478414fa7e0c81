"""What is open of effects and proposals, compared with the code that was started last: it may lack what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..effects import EffectEntry
from ..noted import moment
from ..proposals import CLOSED, ProposalEntry, ProposalState
from .findings import Finding, Kind, Place

if TYPE_CHECKING:
    from ..code_registry import TypeCard
    from ..keyspace import PartitionSpace


def its_effect_is_declared(
    space: PartitionSpace, key: str, entry: EffectEntry, card: TypeCard | None
) -> Finding | None:
    """An effect that is not settled needs code that declares it: its contract is known nowhere else.

    Args:
        space: The partition.
        key: The object.
        entry: The effect.
        card: What the code of the type does, None where nobody has said so.
    """
    if card is None or entry.is_settled or card.has(entry.receiver, entry.effect):
        return None
    name, type_name = f"{entry.receiver}.{entry.effect}", space.type_name
    cause = (
        f"its effect {name} {entry.operation} is {entry.state.value} since {moment(entry.since_ms):%Y-%m-%d %H:%M:%S} "
        f"UTC, and the code of {type_name} that was started last has no {name}: it is neither sent nor looked up, and "
        "what people decide about it is refused but for a hand-over"
    )
    remedy = (
        f"host {type_name} with {name} among its effects until it is settled; then `keylane reconcile show "
        f"{type_name} {key} {entry.operation}` says what may be done"
    )
    return Finding(
        Kind.EFFECT_WITHOUT_CODE, Place(type_name, space.number, key, name=f"e {entry.operation}"), cause, remedy
    )


def its_proposal_is_guarded(
    space: PartitionSpace, key: str, entry: ProposalEntry, card: TypeCard | None
) -> Finding | None:
    """A proposal that was made where the code says who may approve it needs code that says so still.

    Args:
        space: The partition.
        key: The object.
        entry: The proposal.
        card: What the code of the type does, None where nobody has said so.
    """
    if card is None or card.asks_authority or not entry.is_guarded or entry.state in CLOSED:
        return None
    type_name = space.type_name
    cause = (
        f"its proposal {entry.field} is {entry.state.value}, and the code of {type_name} that was started last has no "
        "may_approve, which it had when this was proposed: anybody may decide on it, and nobody is asked again before "
        "its approval is used"
    )
    end = "decline" if entry.state is ProposalState.OPEN else "revoke"
    remedy = (
        f"host {type_name} with may_approve, or take the proposal back: `keylane approvals {end} "
        f"{type_name}/{key}#{entry.field}`"
    )
    return Finding(Kind.PROPOSAL_UNGUARDED, Place(type_name, space.number, key, name=f"v {entry.field}"), cause, remedy)
