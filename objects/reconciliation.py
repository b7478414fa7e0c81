"""What people may do about an effect in question, and why not the rest: as its contract and the time say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from ..journal.code_registry import TypeCard
from ..journal.effects import EffectEntry, EffectState
from ..journal.receivers_registry import Promises, ReceiverCard
from .receivers import qualified_id
from .recovery import AllowedAct, Contract, allowed_acts, contract_under, question_of, quiet_from

if TYPE_CHECKING:
    from .app import App
    from .receivers import Receiver
    from .settings import Settings

ACTS: Final[tuple[AllowedAct, ...]] = ("lookup", "succeeded", "not-done", "resend", "hand-over")
SETTLED: Final = "it is settled"
IN_FLIGHT: Final = "it is being sent, or was a moment ago: its worker tells what came of it"
NOTHING_SENT: Final = "nothing of it has left: it is sent, or sent again, without anybody's help"
NO_CONTRACT: Final = (
    "the code that has this object declares no such effect, so its contract is not known: host code that does"
)


def card_of(receiver: Receiver, promises: Mapping[str, Contract]) -> ReceiverCard:
    """Return what is written down of a receiver for those who don't have the code.

    Args:
        receiver: The receiver.
        promises: What it promises about each of its effects.
    """
    return ReceiverCard(
        receiver.name,
        receiver.owner,
        receiver.runbook,
        receiver.ids == "verbatim",
        receiver.id_limit,
        {name: cast("Promises", asdict(contract)) for name, contract in promises.items()},
    )


def cards_of(app: App, settings: Settings) -> list[ReceiverCard]:
    """Return what is written down of the receivers of an app under the settings of a deployment."""
    effects = app.effects
    return [
        card_of(receiver, {each.name: contract_under(each, settings) for each in effects if each.receiver is receiver})
        for receiver in app.receivers.values()
    ]


def code_of(app: App) -> list[TypeCard]:
    """Return what is written down of the code of an app's object types."""
    return [
        TypeCard(
            each.name,
            tuple(sorted(f"{receiver}.{effect}" for receiver, effect in each.effects)),
            each.may_approve is not None,
        )
        for each in app.objects.values()
    ]


def contract_in(card: ReceiverCard | None, effect: str) -> Contract | None:
    """Return the contract that a card has of an effect; None where it has none that this code can read."""
    promises = None if card is None else card.effects.get(effect)
    if promises is None:
        return None
    known = {each.name: promises[each.name] for each in fields(Contract) if each.name in promises}
    try:
        return Contract(**cast("dict[str, Any]", known))
    except TypeError:
        return None


def sent_as(card: ReceiverCard | None, namespace: str, type_name: str, key_text: str, operation: str) -> str:
    """Return the operation id that a receiver sees; of one that nobody has declared, as most see it.

    Args:
        card: What is known of the receiver.
        namespace: The namespace of the deployment.
        type_name: The object type.
        key_text: The object.
        operation: The operation id, as its handler wrote it.
    """
    if card is not None and card.is_verbatim:
        return operation
    limit = ReceiverCard("", "").id_limit if card is None else card.id_limit
    return qualified_id(namespace, type_name, key_text, operation, limit)


def acts_of(
    entry: EffectEntry, contract: Contract | None, now_ms: int
) -> tuple[tuple[AllowedAct, ...], Mapping[str, str]]:
    """Return what a person may do about an effect now, and for each other act why not.

    Args:
        entry: The effect.
        contract: What its receiver promises; None where that is not known.
        now_ms: The partition's time.
    """
    closed = _closed(entry)
    if closed is not None:
        return (), dict.fromkeys(ACTS, closed)
    if contract is None:
        # Whose it is asks nothing of the receiver; otherwise nobody could take it over from who is gone with the code.
        return ("hand-over",), {act: NO_CONTRACT for act in ACTS if act != "hand-over"}
    found = allowed_acts(contract, question_of(entry), now_ms)
    allowed: tuple[AllowedAct, ...] = tuple(act for act in ACTS if act in found)
    return allowed, {act: _why_not(act, entry, contract) for act in ACTS if act not in found}


def _closed(entry: EffectEntry) -> str | None:
    """Return why nothing is to be done by people about an effect, None where something is."""
    match entry.state:
        case EffectState.SUCCEEDED | EffectState.REJECTED:
            return SETTLED
        case EffectState.INTENDED:
            return IN_FLIGHT
        case EffectState.NOT_SENT | EffectState.BLOCKED:
            return NOTHING_SENT
        case EffectState.UNKNOWN | EffectState.UNRESOLVED:
            return None


def _why_not(act: AllowedAct, entry: EffectEntry, contract: Contract) -> str:
    question = question_of(entry)
    match act:
        case "not-done":
            return f"what was sent may still take effect until {_moment(quiet_from(contract, question))}"
        case "lookup" if not contract.can_look_up:
            return f"{entry.receiver} offers no look-up"
        case "lookup":
            return f"{entry.receiver} may have forgotten what it did: that nothing is found means nothing any more"
        case "resend" if contract.dedup_ms is None:
            return f"{entry.receiver} does not take an operation id once: sent again, it could be done twice"
        case "resend":
            return f"{entry.receiver} may have forgotten the operation id: sent again, it could be done twice"
        case _:
            return "its contract does not allow it"


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
