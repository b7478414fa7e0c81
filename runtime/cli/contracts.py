"""`effects plan` and `contract`: what an app promises, and what is done when an outcome is unknown."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from ...journal.errors import StoreUnavailable
from ...journal.store import Store
from ...objects.app import App
from ...objects.recovery_plan import RecoveryPlan, in_words, plan_of
from ..contract_facts import LiveFacts, read_live
from ..contract_sheet import ContractSheet, sheet_of
from .hosting import load
from .output import Page, shown, write_json
from .shell import ExitCode, Shell, WrongUse


async def effects_plan(shell: Shell, reference: str, receiver: str | None) -> ExitCode:
    """Print the recovery plan of each effect of an app."""
    app = load(reference)
    plans = [plan_of(each, app.settings) for each in app.effects if receiver in (None, each.receiver.name)]
    if receiver is not None and not plans:
        raise WrongUse(f"the app has no effect at {receiver!r}; its receivers are {_listed(app)}")
    if shell.is_json:
        write_json([_facts(each) for each in plans])
        return ExitCode.DONE
    out = Page()
    if not plans:
        out.put("the app has no effects: list them in VirtualObject(effects=[…])")
    for each in plans:
        _print_plan(out, each)
    return ExitCode.DONE


def _listed(app: App) -> str:
    return ", ".join(sorted(app.receivers)) or "none"


def _facts(plan: RecoveryPlan) -> dict[str, Any]:
    facts = asdict(plan)
    facts["lines"] = [
        {
            "kind": each.kind,
            "from_seconds": each.from_ms / 1000,
            "until_seconds": each.until_ms / 1000,
            "times": each.times,
            "sentence": each.sentence,
        }
        for each in plan.lines
    ]
    return facts


def _print_plan(out: Page, plan: RecoveryPlan) -> None:
    out.put(f"{shown(plan.receiver)}.{shown(plan.effect)}, settled by {shown(plan.owner)}")
    out.put("  the receiver")
    for promise in plan.promises:
        out.put(f"    {promise}")
    out.put("  after the intent, without an answer")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=14)
    table.add_column()
    for line in plan.lines:
        span = in_words(line.from_ms)
        if line.until_ms != line.from_ms:
            span = f"{span} … {in_words(line.until_ms)}"
        table.add_row(f"    {span}", shown(line.sentence))
    out.put(table)
    later = f"; not-done from {in_words(plan.not_done_from_ms)} after the newest intent on"
    out.put(f"  people may: {', '.join(plan.acts)}{'' if 'not-done' in plan.acts else later}")
    out.put(f"  late calls: {plan.late_calls}\n")


async def contract(shell: Shell, reference: str) -> ExitCode:
    """Print what a team owes before it runs an app: from its declarations, and from the store if there is one."""
    app = load(reference)
    sheet = sheet_of(app, await _live(shell, app))
    if shell.is_json:
        write_json(_sheet_facts(sheet))
    else:
        _print_sheet(Page(), sheet)
    return ExitCode.NO if sheet.doubts else ExitCode.DONE


async def _live(shell: Shell, app: App) -> LiveFacts | None:
    try:
        url = shell.store_url()
    except StoreUnavailable:
        # Nothing runs in this folder, and no other store was named.
        return None
    async with Store(url, namespace=shell.namespace) as store:
        return await read_live(store, app)


def _sheet_facts(sheet: ContractSheet) -> dict[str, Any]:
    return {
        "form": 1,
        "app": list(sheet.types),
        "store": sheet.store,
        "answers": {each.name: {"question": each.question, "answer": list(each.sentences)} for each in sheet.answers},
        "doubts": list(sheet.doubts),
    }


def _print_sheet(out: Page, sheet: ContractSheet) -> None:
    out.put(f"{', '.join(map(shown, sheet.types))}")
    out.put(f"  {shown(sheet.store or 'no store was looked at: what it keeps is not known')}")
    for number, answer in enumerate(sheet.answers, 1):
        out.put(f"\n{number}. {answer.question}")
        for sentence in answer.sentences:
            grid = Table.grid(padding=(0, 1))
            grid.add_row("  -", shown(sentence))
            out.put(grid)
    for doubt in sheet.doubts:
        out.put(f"\nnot kept: {shown(doubt)}")
