"""`describe` and `inspect`: what is known of an invocation and of an object, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Final, cast

from rich.console import RenderableType
from rich.table import Table

from ...journal.codec import Undecodable, unpack
from ...journal.descriptions import InvocationDescription, PartitionOwner, WaitingSignal
from ...journal.object_description import Event, LaneDescription, ObjectDescription, OpenInvocation, StateValue, What
from ...journal.outcomes import Failure
from ...journal.records import PauseReason
from ...journal.snapshots import FIRST_VERSION
from ...journal.timeline import in_words
from ..client import Client
from .output import Page, ago, clock, day, moment, shown, size, write_json
from .shell import ExitCode, Shell
from .values import as_json, to_json

VALUE_CHARACTERS: Final = 200
#: The columns that may take more than one line.
FOLDED: Final = frozenset({"name", "value", "error", "invocation and detail"})


async def describe(shell: Shell, invocation_id: str) -> ExitCode:
    """Print what is known of one invocation."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        told = await client.describe(invocation_id)
    if shell.is_json:
        write_json({**_plain(told), "is_known": told.is_known})
    else:
        print_invocation(Page(), told)
    return ExitCode.DONE if told.is_known else ExitCode.NO


async def inspect(shell: Shell, object_name: str, key: str, *, entries: int) -> ExitCode:
    """Print an object's state, lane and journal."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        told = await client.inspect(object_name, key, timeline_entries=entries)
    if shell.is_json:
        write_json({**_plain(told), "is_known": told.is_known})
    else:
        print_object(Page(), told)
    return ExitCode.DONE


def _plain(value: object) -> Any:
    """Return a description as JSON can carry it."""
    match value:
        case StateValue():
            told = _value(value.packed) if value.left_out is None else {"left_out": value.left_out}
            return {"name": value.name, "size_bytes": value.size_bytes, **told}
        case Failure():
            details = None if value.details is None else _value(value.details).get("value")
            return {**{each.name: getattr(value, each.name) for each in fields(value)}, "details": details}
        case tuple():
            return [_plain(each) for each in cast("tuple[object, ...]", value)]
        case _ if is_dataclass(value):
            return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
        case _:
            return to_json(value)


def _value(packed: bytes) -> dict[str, Any]:
    try:
        return {"value": to_json(unpack(packed))}
    except Undecodable as error:
        return {"problem": error.message}


def print_invocation(out: Page, told: InvocationDescription) -> None:
    """Print what is known of one invocation, for people."""
    out.put(f"{told.id}  {status_of(told)}")
    _print_pairs(out, _invocation_pairs(told))
    if told.steps:
        out.put(_steps(told))
    if told.signals:
        out.put("signals that it has not waited for yet")
        out.put(_signals(told.signals))
    if told.error is not None and told.error.traceback:
        out.put("\n".join(f"  | {shown(line)}" for line in told.error.traceback.splitlines()))


def status_of(told: InvocationDescription) -> str:
    """Return how an invocation stands, in one word."""
    if told.status is not None:
        return told.status.value
    if told.result is not None:
        return told.result.kind.value
    return "unknown" if not told.is_known else "undecodable"


def _invocation_pairs(told: InvocationDescription) -> list[tuple[str, str]]:
    now = told.read_at
    pairs = [
        ("object", f"{told.object_name} {told.key}" if told.key else told.object_name),
        ("handler", f"{told.handler}, version {told.version}" if told.version else told.handler or ""),
        ("asked", _since(told.asked_at, now)),
        ("accepted", _since(told.accepted_at, now)),
        ("ended", _since(told.ended_at, now)),
        ("attempts", f"{told.failed_attempts} failed" if told.failed_attempts else ""),
        ("waits", told.waits_for or ""),
        ("lane", "" if told.behind is None else str(told.behind)),
        ("due" if told.waits_for else "next try", _since(told.retry_due_at, now)),
        ("error", "" if told.error is None else in_words(told.error)),
        *_pause_pairs(told),
        ("cancel", _cancel(told)),
        ("models", "" if told.models is None else str(told.models)),
        ("undone", "not whole: an undo has failed or was given up" if told.compensation_failed else ""),
        ("result", _result(told)),
        ("garbage", told.undecodable or ""),
        ("records", f"{told.records}{', and more that were not read' if told.is_cut else ''}" if told.records else ""),
        ("note", told.note),
        ("owner", _owner(told.owner)),
        ("in doubt", _doubt(told.owner)),
    ]
    return [(name, text) for name, text in pairs if text]


def _pause_pairs(told: InvocationDescription) -> list[tuple[str, str]]:
    pause = told.pause
    if pause is None:
        return []
    by = f" by {pause.by}" if pause.by else ""
    whom = pause.in_charge or "somebody"
    skip = f", or keylane compensation skip {told.id} …" if pause.reason is PauseReason.COMPENSATION_FAILED else ""
    return [
        ("paused", f"{pause.reason.value}{by}, {_since(pause.since, told.read_at)}: {pause.detail}"),
        ("remedy", f"{whom} has to resume it: keylane resume {told.id} --reason … --by …{skip}"),
    ]


def _cancel(told: InvocationDescription) -> str:
    cancel = told.cancel
    if cancel is None:
        return ""
    by = f" by {cancel.by}" if cancel.by else ""
    why = f": {cancel.reason}" if cancel.reason else ""
    stage = "its handler was told" if cancel.is_delivered else "its handler is told at its next durable point"
    return f"asked for{by}, {_since(cancel.at, told.read_at)}{why}; {stage}"


def _result(told: InvocationDescription) -> str:
    kept = told.result
    if kept is None:
        return ""
    why = f": {kept.message} ({kept.code})" if kept.message else ""
    first = f" of {kept.first}" if kept.first else ""
    until = f", kept until {moment(kept.expires_at)}" if kept.expires_at else ""
    return f"{kept.kind.value}{first}{why}, {size(kept.size_bytes)}{until}"


def _since(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"{moment(at)} ({ago(at, now)})"


def _owner(owner: PartitionOwner) -> str:
    if owner.worker is None:
        return "no worker has held its partition yet"
    if owner.is_released:
        return f"nobody; worker {owner.worker} handed the partition over, epoch {owner.epoch}"
    return f"worker {owner.worker}, epoch {owner.epoch}, lease {owner.lease}"


_DOUBTS: Final = {
    "lost": "the store has lost records that it had confirmed",
    "doubt": "the store was restarted or replaced, and may have lost records that it had confirmed",
    "restored": "the data were put back from a copy",
}


def _doubt(owner: PartitionOwner) -> str:
    if owner.doubt_from is None or owner.doubt_until is None:
        return ""
    why = _DOUBTS.get(owner.doubt_why or "", "records may be missing")
    times = f", {owner.losses} times in all" if owner.losses > 1 else ""
    return f"what happened from {moment(owner.doubt_from)} to {moment(owner.doubt_until)}: {why}{times}"


def _steps(told: InvocationDescription) -> Table:
    rows = [
        (
            str(step.index),
            step.name,
            moment(step.at),
            _step_state(is_settled=step.is_settled, has_failed=step.error is not None),
            str(step.failed_attempts or ""),
            size(step.size_bytes),
            "" if step.error is None else in_words(step.error),
        )
        for step in told.steps
    ]
    return _table(("step", "name", "at", "outcome", "failed", "size", "error"), rows)


def _signals(signals: Sequence[WaitingSignal]) -> Table:
    rows = [(each.name, moment(each.at), each.by, size(each.size_bytes)) for each in signals]
    return _table(("name", "at", "by", "size"), rows)


def _step_state(*, is_settled: bool, has_failed: bool) -> str:
    if not is_settled:
        return "to be tried again" if has_failed else "waited for"
    return "failed" if has_failed else "done"


def print_object(out: Page, told: ObjectDescription) -> None:
    """Print an object's state, lane and journal, for people."""
    out.put(shown(f"{told.object_name} {told.key}"))
    pairs = [
        ("owner", _owner(told.owner)),
        ("partition", str(told.partition)),
        ("in charge", told.in_charge or ""),
        ("in doubt", _doubt(told.owner)),
    ]
    if not told.is_known:
        pairs.append(("note", "nothing is kept of it: it was never called, or its history has passed"))
    _print_pairs(out, [pair for pair in pairs if pair[1]])
    out.put("\nstate" if told.state_version == FIRST_VERSION else f"\nstate, version {told.state_version}")
    out.put(_state(told))
    out.put("\nlane")
    _print_lane(out, told.lane, told.read_at)
    _print_docket(out, told)
    if told.signals:
        out.put("\nsignals that nobody has waited for yet")
        out.put(_signals(told.signals))
    out.put(f"\njournal{', the newest entries of a longer one' if told.is_timeline_cut else ''}")
    out.put(_timeline(told.timeline))


def _print_docket(out: Page, told: ObjectDescription) -> None:
    if told.effects:
        out.put("\neffects that are not settled")
        for effect in told.effects:
            out.put(shown(f"  {effect}; keylane reconcile show {told.object_name} {told.key} {effect.operation}"))
    if told.proposals:
        out.put("\nproposals that are open, or approved and not used")
        for each in told.proposals:
            until = (
                "" if each.expires is None else f", until {moment(each.expires)} ({ago(each.expires, told.read_at)})"
            )
            out.put(shown(f"  {each.name} is {each.state}, {each.approvals} of {each.quorum} have approved{until}"))
    if told.is_docket_cut:
        out.put("\nit has more effects or proposals than were looked at, so more of them may be open")


def _state(told: ObjectDescription) -> RenderableType:
    if told.state_problem is not None:
        return f"  not known: {shown(told.state_problem)}"
    if not told.state:
        return "  empty"
    return _table(("name", "size", "value"), [(each.name, size(each.size_bytes), _short(each)) for each in told.state])


def _short(value: StateValue) -> str:
    if value.left_out is not None:
        return value.left_out
    try:
        text = as_json(unpack(value.packed))
    except Undecodable as error:
        return error.message
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}…"


def _print_lane(out: Page, lane: LaneDescription, now: datetime) -> None:
    for pause in lane.pauses:
        out.put(f"  {shown(str(pause))}; {pause.in_charge or 'somebody'} has to resume it: keylane resume")
    if not (lane.open or lane.parked or lane.waiting or lane.pauses):
        out.put("  free")
    if lane.open:
        held = f"held since {moment(lane.held_since)} ({ago(lane.held_since, now)})" if lane.held_since else "held"
        more = f"; {lane.length - len(lane.open)} more behind those shown" if lane.length > len(lane.open) else ""
        out.put(f"  {held}, {lane.length} in it{more}")
        out.put(_open_table(lane.open, now))
    if lane.parked:
        out.put("  beside the lane")
        out.put(_open_table(lane.parked, now))
    if lane.waiting:
        out.put("  in the inbox, not taken in yet")
        rows = [
            (each.kind.value, each.handler, moment(each.asked_at), size(each.size_bytes), each.id)
            for each in lane.waiting
        ]
        out.put(_table(("kind", "handler", "asked", "size", "invocation"), rows))
    if lane.inbox_length > lane.inbox_read:
        out.put(f"  the inbox of the partition has {lane.inbox_length} entries, {lane.inbox_read} were looked at")


def _open_table(invocations: Sequence[OpenInvocation], now: datetime) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    for each in invocations:
        status = each.status.value if each.status else "?"
        accepted = f"accepted {ago(each.accepted_at, now)}" if each.accepted_at else "not known"
        line = shown(f"{each.handler or '?'}, {accepted}, {each.id}")
        table.add_row(status, f"{line}\n{shown(each.why)}")
    return table


def _timeline(events: Sequence[Event]) -> RenderableType:
    if not events:
        return "  empty"
    rows: list[tuple[str, ...]] = []
    today = whose = ""
    for event in events:
        if day(event.at) != today:
            today = day(event.at)
            rows.append((today, "", "", "", ""))
        # An id is said once for a run of its events.
        unknown = "" if event.what in (What.SHRUNK, What.MIGRATED) else "?"
        parts = [event.invocation or unknown] if event.invocation != whose else []
        whose = event.invocation
        detail = "  ".join([*parts, *_told(event)])
        rows.append((clock(event.at), event.what.value, event.name, size(event.size_bytes), detail))
    return _table(("time", "what", "name", "size", "invocation and detail"), rows)


def _told(event: Event) -> list[str]:
    parts = [event.detail] if event.detail else []
    if event.wrote:
        parts.append(f"{'snapshot of' if event.is_snapshot else 'wrote'} {', '.join(event.wrote)}")
    if event.cleared:
        parts.append(f"cleared {', '.join(event.cleared)}")
    return parts


def _print_pairs(out: Page, pairs: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for name, text in pairs:
        grid.add_row(f"  {name}", shown(text))
    out.put(grid)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2), show_edge=False, pad_edge=True)
    for name in columns:
        table.add_column(
            name,
            overflow="fold",
            justify="right" if name == "size" else "left",
            # What is short is never broken, so that the last column bears the want of room.
            no_wrap=name not in FOLDED,
        )
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    return table
