"""`approvals`: what waits for a decision, what was decided, and the decisions that a shell takes part in."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, assert_never

from rich.table import Table

from ...journal.types_registry import check_used
from ...objects.verdicts import AlreadyDecided, Decided, Expired, NotPermitted, SupersededBy, UnknownTarget
from ..client import Client
from .output import Page, moment, shown, write_json, write_line
from .shell import ExitCode, Shell, WrongUse, check_words
from .values import as_json, to_json

if TYPE_CHECKING:
    from ...objects.approvals import ProposalStatus
    from ...objects.verdicts import DecisionVerdict

Act: TypeAlias = Literal["approve", "decline", "revoke"]
UNKNOWN: Final = ": no such proposal, or none any more; `keylane approvals list TYPE TENANT/KEY` shows all of an object"
#: Of what is decided on so much stands in a line of the list.
_SHOWN_CHARACTERS = 80


class How(NamedTuple):
    """What is said beside a decision.

    Args:
        by: Who decides.
        reason: Why.
        message_id: Makes asking again safe.
        timeout: How many seconds its verdict is waited for.
    """

    by: str
    reason: str
    message_id: str | None
    timeout: float | None


async def show_all(shell: Shell, object_type: str | None, key: str | None, type_name: str | None) -> ExitCode:
    """Print what waits for a decision, or all proposals of one object."""
    if type_name is not None:
        if key is not None:
            raise WrongUse("name the object type once: as TYPE, or with --type")
        object_type, key = type_name, object_type
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        found = await client.approvals(object_type, key)
        if not found:
            await check_used(client.store)
    if shell.is_json:
        write_json([_facts(each) for each in found])
    elif not found:
        write_line("nothing waits for a decision" if key is None else "nothing was proposed")
    else:
        _print_all(found)
    return ExitCode.DONE


def _print_all(found: list[ProposalStatus]) -> None:
    table = Table(box=None, padding=(0, 2), show_edge=False)
    for name in ("proposal", "standing", "approved by", "expires", "what"):
        table.add_column(name, no_wrap=name == "proposal")
    for each in found:
        approvers = ", ".join(decision.approver for decision in each.decisions if decision.approves)
        table.add_row(
            shown(each.id), each.standing, shown(_of(approvers, each.quorum)), moment(each.proposal.expires_at),
            shown(_short(as_json(each.proposal.fields))),
        )  # fmt: skip
    Page().put(table)


def _of(approvers: str, quorum: int) -> str:
    return approvers if quorum == 1 else f"{approvers or 'nobody'} (of {quorum})"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


async def show(shell: Shell, proposal_id: str) -> ExitCode:
    """Print where a proposal stands, and how it came to that."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        found = await client.approval_status(proposal_id)
    if found is None:
        _say(shell, "unknown", {}, UNKNOWN)
        return ExitCode.NO
    if shell.is_json:
        write_json(_facts(found))
    else:
        _print_one(found)
    return ExitCode.DONE


def _print_one(found: ProposalStatus) -> None:
    proposal, out = found.proposal, Page()
    table = Table(box=None, padding=(0, 2), show_edge=False, show_header=False)
    pairs = [
        ("standing", f"{found.standing}, since {moment(found.since)}"),
        *((name, as_json(value)) for name, value in proposal.fields.items()),
        *((f"note {name}", as_json(value)) for name, value in proposal.notes.items()),
        ("needs", "" if found.quorum == 1 else f"{found.quorum} people"),
        ("expires", moment(proposal.expires_at)),
        ("used by", found.operation_id),
        ("waits", str(found.waiting) if found.waiting else ""),
        ("digest", proposal.digest),
    ]
    for name, text in pairs:
        if text:
            table.add_row(shown(name), shown(text))
    out.put(shown(found.id))
    out.put(table)
    for event in found.history:
        words = " ".join(filter(None, (event.what, event.by and f"by {event.by}")))
        out.put(shown(f"{moment(event.at)}  {words}{event.detail and f': {event.detail}'}"))


def _facts(found: ProposalStatus) -> dict[str, Any]:
    return {"id": found.id, **{name: to_json(value) for name, value in asdict(found).items()}}


async def decide(shell: Shell, act: Act, proposal_id: str, on_behalf_of: str | None, how: How) -> ExitCode:
    """Decide on a proposal, and print what became of it."""
    check_words(how.by, None if act == "approve" else how.reason)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        ask = {"approve": client.approve, "decline": client.decline, "revoke": client.revoke}[act]
        return _print(shell, await ask(proposal_id, on_behalf_of=on_behalf_of, **how._asdict()))


async def delegate(shell: Shell, proposal_id: str, to: str, how: How) -> ExitCode:
    """Let somebody else decide in one's place, and print what became of it."""
    check_words(how.by, None)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        return _print(shell, await client.delegate(proposal_id, to=to, **how._asdict()))


def _print(shell: Shell, verdict: DecisionVerdict) -> ExitCode:
    word, beside = _words(verdict)
    _say(shell, word, {name: to_json(value) for name, value in asdict(verdict).items()}, beside)
    return ExitCode.DONE if isinstance(verdict, Decided) else ExitCode.NO


def _say(shell: Shell, word: str, facts: dict[str, Any], beside: str = "") -> None:
    if shell.is_json:
        write_json({"verdict": word, **facts})
    else:
        write_line(shown(f"{word}{beside}"))


def _words(verdict: DecisionVerdict) -> tuple[str, str]:
    """Return a verdict as a word for programs, and what there is to say beside it."""
    match verdict:
        case Decided(standing="open"):
            return "accepted", ": the proposal is open still"
        case Decided():
            return "accepted", f": the proposal is {verdict.standing}"
        case AlreadyDecided():
            return "already-decided", f" by {verdict.by} at {moment(verdict.at)}"
        case Expired():
            return "expired", "" if verdict.at is None else f" at {moment(verdict.at)}"
        case SupersededBy():
            return "superseded", f" by version {verdict.version}"
        case NotPermitted():
            return "not-permitted", f": {verdict.why}"
        case UnknownTarget():
            return "unknown", UNKNOWN
        case _:
            assert_never(verdict)
