"""`reconcile …`: shows the effects of which nobody knows whether they were done, and settles them by hand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from rich.table import Table

from ...journal.effect_cases import EffectCase
from ...journal.noted import moment as moment_of
from ...journal.types_registry import check_used
from ...objects.reconcile_verdicts import AlreadySettled, NotAllowed, Reconciled, ReconcileVerdict
from ...objects.verdicts import UnknownTarget
from ..client import Client
from .calls import argument_of
from .output import Page, ago, moment, shown, write_json, write_line
from .shell import ExitCode, Shell, check_words
from .values import to_json


async def show_list(shell: Shell, type_name: str | None, receiver: str | None, *, limit: int) -> ExitCode:
    """Print the queue, the most urgent effects first; the exit code says whether anything is overdue."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        cases = await client.reconcile_list(type_name, receiver=receiver, limit=limit)
        if not cases:
            await check_used(client.store)
    if shell.is_json:
        write_json([_facts(case) for case in cases])
    elif not cases:
        write_line("nothing lies with people")
    else:
        Page().put(_table(cases))
    return ExitCode.NO if any(case.is_overdue for case in cases) else ExitCode.DONE


def _facts(case: EffectCase) -> dict[str, Any]:
    return to_json(asdict(case))


def _table(cases: tuple[EffectCase, ...]) -> Table:
    table = Table(box=None, padding=(0, 2), show_edge=False, pad_edge=True)
    for name in ("settle by", "owner", "object", "operation", "effect"):
        table.add_column(name, no_wrap=True)
    table.add_column("parameters and what is known", overflow="fold")
    for case in cases:
        late = "overdue, " if case.is_overdue else ""
        due = "" if case.deadline is None else f"{moment(case.deadline)} ({late}{ago(case.deadline, case.read_at)})"
        where, what = f"{case.object_name} {case.key}", f"{case.receiver}.{case.effect}"
        told = f"{case.params_text}  {case.why}"
        table.add_row(*(shown(each) for each in (due, case.owner, where, case.operation_id, what, told)))
    return table


async def show(shell: Shell, object_name: str, key: str, operation_id: str) -> ExitCode:
    """Print all that is known of one effect, and what a person may do about it."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        case = await client.reconcile_show(object_name, key, operation_id)
    if shell.is_json:
        write_json(_facts(case))
    else:
        print_case(Page(), case)
    return ExitCode.DONE


def print_case(out: Page, case: EffectCase) -> None:
    """Print an effect, for people."""
    out.put(shown(f"{case.object_name} {case.key} {case.operation_id}: {case.state.value}"))
    grid = Table.grid(padding=(0, 2))
    for name, text in _pairs(case):
        if text:
            grid.add_row(f"  {name}", shown(text))
    out.put(grid)
    out.put("\nwhat has happened")
    table = Table(box=None, padding=(0, 2), show_header=False, pad_edge=True)
    for each in case.tried:
        attempt = f"attempt {each.attempt}" if each.attempt else ""
        by = f"by {each.by}: " if each.by else ""
        row = (moment(moment_of(each.at_ms)), each.kind.value, attempt, f"{by}{each.detail}")
        table.add_row(*(shown(cell) for cell in row))
    out.put(table)
    if case.runbook:
        out.put("\nwhat the receiver's owner wants you to know")
        out.put("\n".join(f"  {shown(line)}" for line in case.runbook.splitlines()))


def _pairs(case: EffectCase) -> list[tuple[str, str]]:
    late = "overdue, " if case.is_overdue else ""
    due = "" if case.deadline is None else f"{moment(case.deadline)} ({late}{ago(case.deadline, case.read_at)})"
    words = f"keylane reconcile ACT {case.object_name} {case.key} {case.operation_id} --by … --reason …"
    return [
        ("effect", f"{case.effect} at {case.receiver}, sent as {case.sent_as}"),
        ("parameters", case.params_text),
        ("owner", case.owner),
        ("settle by", due),
        ("known", f"{case.why}, since {moment(case.since)} ({ago(case.since, case.read_at)})"),
        ("last answer", case.last_answer),
        ("receipt", case.receipt_text),
        ("approval", case.approval),
        ("attempts", f"{case.attempts}, and {case.lookups} look-up{'' if case.lookups == 1 else 's'} since"),
        ("waiting", ", ".join(case.waiting)),
        ("you may", ", ".join(case.allowed) and f"{', '.join(case.allowed)}: {words}"),
        ("you may not", "; ".join(f"{act}: {why}" for act, why in case.forbidden.items())),
    ]


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody does about an effect.

    Args:
        target: The object type, the object, and the operation id.
        by: Who does it.
        reason: Why.
        message_id: Makes asking again safe.
        timeout: How many seconds the verdict is waited for.
    """

    target: tuple[str, str, str]
    by: str
    reason: str
    message_id: str | None
    timeout: float | None

    def said(self) -> dict[str, Any]:
        """Return what is said beside each act.

        Raises:
            WrongUse: Nobody says who does it, or why.
        """
        check_words(self.by, self.reason)
        return {"by": self.by, "reason": self.reason, "message_id": self.message_id, "timeout": self.timeout}


async def lookup(shell: Shell, act: Act) -> ExitCode:
    """Have the receiver asked now."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        return _print_verdict(shell, await client.reconcile_lookup(*act.target, **act.said()))


async def succeeded(shell: Shell, act: Act, receipt: str) -> ExitCode:
    """Say that it was done, with the receipt."""
    (value,) = argument_of(receipt)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        return _print_verdict(shell, await client.reconcile_succeeded(*act.target, value, **act.said()))


async def not_done(shell: Shell, act: Act) -> ExitCode:
    """Say that it was not done, with the evidence."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        return _print_verdict(shell, await client.reconcile_not_done(*act.target, **act.said()))


async def resend(shell: Shell, act: Act) -> ExitCode:
    """Have the same operation id sent again."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        return _print_verdict(shell, await client.reconcile_resend(*act.target, **act.said()))


async def hand_over(shell: Shell, act: Act, to: str, within_hours: float | None) -> ExitCode:
    """Have somebody else settle it."""
    within = None if within_hours is None else timedelta(hours=within_hours)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        verdict = await client.reconcile_hand_over(*act.target, to=to, within=within, **act.said())
    return _print_verdict(shell, verdict)


def _print_verdict(shell: Shell, verdict: ReconcileVerdict) -> ExitCode:
    word, told = _words(verdict)
    if shell.is_json:
        write_json({"verdict": word, **to_json(asdict(verdict))})
    else:
        write_line(shown(f"{word}{told}"))
    return ExitCode.DONE if isinstance(verdict, Reconciled) else ExitCode.NO


def _words(verdict: ReconcileVerdict) -> tuple[str, str]:
    """Return a verdict as a word for programs, and what there is to say beside it."""
    match verdict:
        case Reconciled():
            return "done", f": it is {verdict.state}"
        case AlreadySettled():
            by = f" by {verdict.by}" if verdict.by else ""
            return "already-settled", f": {verdict.state}{by} at {moment(verdict.at)}"
        case NotAllowed():
            instead = f"; allowed: {', '.join(verdict.allowed)}" if verdict.allowed else ""
            return "not-allowed", f": {verdict.why}{instead}"
        case UnknownTarget():
            return "unknown", ": the object has no such effect; `keylane explain TENANT/KEY` tells which it has"
