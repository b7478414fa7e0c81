"""The six answers that a team owes before it runs an app, from what is declared and from what its store says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ..journal.safety import Replicated
from ..objects.recovery import Contract, contract_under
from ..objects.recovery_plan import in_words

if TYPE_CHECKING:
    from ..journal.safety import Durability
    from ..objects.app import App
    from ..objects.handler import Handler
    from ..objects.receivers import Effect, Receiver
    from ..objects.virtual_object import VirtualObject
    from .contract_facts import LiveFacts


@dataclass(frozen=True, slots=True)
class Answer:
    """One of the six.

    Args:
        name: What programs know it by.
        question: What was asked.
        sentences: What is so.
    """

    name: str
    question: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContractSheet:
    """What an app promises, and what stands against it.

    Args:
        types: The object types.
        store: What the store keeps safe; None where none was looked at.
        answers: The six answers.
        doubts: What the store can't keep of what is declared.
    """

    types: tuple[str, ...]
    store: str | None
    answers: tuple[Answer, ...]
    doubts: tuple[str, ...]


def sheet_of(app: App, live: LiveFacts | None) -> ContractSheet:
    """Return the contract sheet of an app.

    Args:
        app: What is declared.
        live: What the store says; None where none is looked at.
    """
    answers = (
        Answer(
            "loss", "How much acknowledged progress can be lost, and how long does recovery take?", (*_loss(app, live),)
        ),
        Answer("repeating", "What is safe to repeat, and what needs the receiver?", (*_repeating(app),)),
        Answer("validity", "How long are operation ids, approvals and results valid?", (*_validity(app),)),
        Answer("fencing", "How are concurrent workers fenced?", (*_fencing(app),)),
        Answer("change", "How does pending work survive a change of code or schema?", (*_change(app, live),)),
        Answer("unknown", "Who settles unknown outcomes, and what watches the queue?", (*_unknown(app, live),)),
    )
    doubts = () if live is None else live.doubts
    return ContractSheet(tuple(sorted(app.objects)), None if live is None else live.promise, answers, doubts)


def _loss(app: App, live: LiveFacts | None) -> Iterator[str]:
    yield _UNKNOWN_STORE if live is None else f"the store: {live.promise}"
    yield _answered(None if live is None else live.durability)
    for handler in _handlers(app):
        if handler.checkpoint != "sync":
            what = _WRITTEN_LATER[handler.checkpoint]
            yield f"{handler}, checkpoint {handler.checkpoint!r}: {what}, and what a crash takes back runs again"
    settings = app.settings
    yield (
        f"a worker that is gone is replaced after {_seconds(settings.lease_seconds)}, its lease, and at once by one on "
        "the same machine; then its open work is replayed from the journal"
    )
    yield f"a worker that is stopped has {_seconds(settings.drain_limit_seconds)} to end what runs, then it hands over"


def _answered(durability: Durability | None) -> str:
    match durability:
        case Replicated(replicas=count):
            return f"what was answered had reached {count} {'replica' if count == 1 else 'replicas'}"
        case "server":
            return _SERVER
        case "fsync":
            return _SYNCED
        case None:
            return f"with durability 'fsync', which a runtime has unless it is told otherwise, {_SYNCED}"


def _repeating(app: App) -> Iterator[str]:
    yield "every call is safe to repeat under the same idempotency key: it gives the first result"
    yield "steps (ctx.run) run at least once: what they do has to be safe to repeat"
    yield "effects (ctx.effect) are safe to ask for again under the same operation id: what became of it is returned"
    for effect in app.effects:
        yield f"{effect.receiver.name}.{effect.name}: {_repeats(_contract(app, effect))}"


def _repeats(contract: Contract) -> str:
    if contract.dedup_ms is not None:
        return (
            f"sent again under the same id for up to {in_words(contract.dedup_ms)}, since the receiver takes an id once"
        )
    if contract.can_look_up and contract.absent_means_not_done and not contract.may_be_late:
        return "attempted again only when the receiver says that nothing was done"
    if contract.can_look_up:
        return "never sent a second time by itself; the receiver is asked what became of it"
    return "never sent a second time by itself, and the receiver can't be asked: people settle it"


def _validity(app: App) -> Iterator[str]:
    settings = app.settings
    yield f"results and histories: {_seconds(settings.result_retention_seconds)} after the end"
    days = timedelta(days=settings.tombstone_retention_days)
    yield f"idempotency keys: {in_words(days)}; a retry after the result is gone is told so, and runs nothing"
    for handler in _handlers(app):
        if handler.idempotency_retention is not None:
            yield f"idempotency keys of {handler}: {in_words(handler.idempotency_retention)}"
    if app.effects:
        ledger = in_words(timedelta(days=settings.ledger_retention_days))
        yield f"operation ids: known to their object for {ledger} after the outcome, longer if the receiver knows them"
    for receiver in app.receivers.values():
        yield from _windows(receiver)
    if app.effects:
        yield "approvals: until the expires_in= of their proposal, and for one effect"


def _windows(receiver: Receiver) -> Iterator[str]:
    if receiver.deduplicates is not None:
        yield f"operation ids at {receiver.name}: it knows one for {in_words(receiver.deduplicates.retention)}"
    if receiver.lookup is not None:
        kept = "for ever" if receiver.lookup_retention is None else f"for {in_words(receiver.lookup_retention)}"
        lag = f", {in_words(receiver.lookup_lag)} after it was done" if receiver.lookup_lag else ""
        yield f"look-ups at {receiver.name}: find what was done {kept}{lag}"


def _fencing(app: App) -> Iterator[str]:
    settings = app.settings
    yield (
        "each partition has one owner at a time; every write carries the owner's number and token, and the store "
        "refuses those of an owner that was replaced"
    )
    yield (
        f"an owner renews its lease every {_seconds(settings.renewal_seconds)}; past "
        f"{_seconds(settings.lease_seconds)} without, it sends no effect and answers no read"
    )
    if app.effects:
        yield "the fence guards our records, not the receiver: a process stopped before the first byte may send late"
    for receiver in app.receivers.values():
        yield f"late calls at {receiver.name}: {_late(receiver)}"


def _late(receiver: Receiver) -> str:
    if receiver.late_calls == "impossible":
        return "impossible, by its contract"
    if receiver.deduplicates is not None:
        return f"recognised for {in_words(receiver.deduplicates.retention)}, since it takes an operation id once"
    return "not recognised; therefore nothing is sent a second time by itself"


def _change(app: App, live: LiveFacts | None) -> Iterator[str]:
    yield "an invocation ends with the version of its handler that it began with; without that version it waits, paused"
    for handler in _handlers(app):
        versions = app.objects[handler.object_name].versions(handler.name)
        if len(versions) > 1:
            yield f"{handler}: versions {', '.join(map(str, versions))}"
    for each in app.objects.values():
        if each.state_version > 1:
            yield f"state of {each.name}: version {each.state_version}; older state is migrated when it is used"
    yield "`keylane deploy check` runs this code against every open journal before it is deployed"
    if live is not None:
        yield from _registered(app, live.partitions)


def _registered(app: App, partitions: Mapping[str, int]) -> Iterator[str]:
    for name in sorted(set(partitions) - set(app.objects)):
        yield f"the store has object type {name}, which this app does not host: its work waits for one that does"
    for each in app.objects.values():
        found = partitions.get(each.name)
        if found is not None and each.partitions is not None and each.partitions != found:
            yield f"{each.name} has {found} partitions in the store and {each.partitions} here: it will not start"


def _unknown(app: App, live: LiveFacts | None) -> Iterator[str]:
    for receiver in app.receivers.values():
        within = in_words(receiver.reconcile_within)
        runbook = "" if receiver.runbook else "; it has no runbook"
        yield f"{receiver.name}: {receiver.owner} within {within}{_waiting(receiver.name, live)}{runbook}"
    for each in app.objects.values():
        yield f"stuck work and approvals of {each.name}: {each.owner}; {_approvers(each)}"
    if app.receivers:
        yield "what nobody has settled in time is told once, in the stream of alerts"
    else:
        yield "the app has no effects, so no outcome can stay unknown"


def _waiting(receiver: str, live: LiveFacts | None) -> str:
    if live is None:
        return ""
    queued = live.queued.get(receiver)
    return ", nothing waits" if queued is None else f", {queued.count} wait, {queued.overdue} of them for too long"


def _approvers(virtual_object: VirtualObject) -> str:
    if virtual_object.may_approve is None:
        return "anybody may approve"
    return "may_approve says who may approve"


def _handlers(app: App) -> Iterator[Handler[Any, Any]]:
    for each in app.objects.values():
        yield from each.handlers.values()


def _contract(app: App, effect: Effect[Any, Any]) -> Contract:
    return contract_under(effect, app.settings)


def _seconds(seconds: float) -> str:
    return in_words(int(seconds * 1000))


_UNKNOWN_STORE: Final = "no store was looked at: name one with --store to learn what it keeps"
_SYNCED: Final = "what was answered was synced to disk before; what was not answered may or may not have happened"
_SERVER: Final = (
    "what was answered is as safe as the server's own settings make it: a restart or a failover may take it back"
)
_WRITTEN_LATER: Final = {
    "async": "results of steps are written while the code goes on",
    "exit": "results of steps are written with what has to be durable next, or with the end",
}
