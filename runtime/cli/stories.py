"""`explain` and `alerts`: what has happened to an object in words, and what people have to hear of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from rich.table import Table

from ...journal.effect_cases import Alert
from ...journal.story import Line, Matter, Story
from ...journal.types_registry import check_used
from ..client import Client
from .output import Page, ago, clock, day, moment, shown, write_json, write_line
from .shell import ExitCode, Shell
from .values import to_json

NOTHING: Final = "nothing is kept of it: it was never called, or its history has passed"


async def explain(shell: Shell, target: str, key: str | None, *, entries: int) -> ExitCode:
    """Print the story of an object."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        named = (target,) if key is None else (target, key)
        story = await client.explain(*named, entries=entries)
    if shell.is_json:
        write_json({**to_json(asdict(story)), "is_known": story.is_known})
    else:
        print_story(Page(), story)
    return ExitCode.DONE if story.is_known else ExitCode.NO


def print_story(out: Page, story: Story) -> None:
    """Print the story of an object, for people."""
    charge = f", in the charge of {story.in_charge}" if story.in_charge else ""
    out.put(shown(f"{story.object_name} {story.key}{charge}, as of {moment(story.read_at)}"))
    if not story.is_known:
        out.put(f"  {NOTHING}")
        return
    if story.is_cut:
        out.put("  the newest part of a longer story")
    out.put("")
    out.put(_lines(story))
    uncertain = [each for each in story.matters if each.is_uncertain]
    others = [each for each in story.matters if not each.is_uncertain]
    out.put("\nwhat is uncertain")
    _print_matters(out, uncertain, story, "  nothing")
    out.put("\nwhat happens next")
    _print_matters(out, others, story, "  nothing: all of it has ended" if not uncertain else "  nothing else")
    for problem in story.problems:
        out.put(shown(f"  can't be read: {problem}"))


def _lines(story: Story) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False, pad_edge=True)
    for name in ("time", "topic"):
        table.add_column(name, no_wrap=True)
    table.add_column("text", overflow="fold")
    today = whose = ""
    for line in story.lines:
        if day(line.at) != today:
            today = day(line.at)
            table.add_row(today, "", "")
        # An invocation is named where the story goes over to it.
        named = line.invocation if line.invocation and line.invocation != whose else ""
        whose = line.invocation or whose
        table.add_row(clock(line.at), line.topic.value, shown(_text(line, named)))
    return table


def _text(line: Line, named: str) -> str:
    by = f" (by {line.by})" if line.by else ""
    return f"{line.text}{by}{f'  [{named}]' if named else ''}"


def _print_matters(out: Page, matters: list[Matter], story: Story, nothing: str) -> None:
    if not matters:
        out.put(nothing)
    for matter in matters:
        since = "" if matter.since is None else f", since {moment(matter.since)} ({ago(matter.since, story.read_at)})"
        due = "" if matter.due is None else f", {moment(matter.due)} ({ago(matter.due, story.read_at)})"
        out.put(shown(f"  {matter.what}"))
        out.put(shown(f"    {matter.why or 'no more is known'}{since}"))
        out.put(shown(f"    next: {matter.next}{due}; {matter.owner} is responsible"))


async def alerts(shell: Shell, type_name: str | None, *, follow: bool, limit: int) -> ExitCode:
    """Print what people have to hear of, and on request go on until interrupted."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        if follow:
            async for alert in client.follow_alerts(type_name):
                _print_alert(shell, alert)
            return ExitCode.DONE
        found = await client.alerts(type_name, limit=limit)
        if not found:
            await check_used(client.store)
    for alert in found:
        _print_alert(shell, alert)
    if not found and not shell.is_json:
        write_line("no alerts are kept")
    return ExitCode.DONE


def _print_alert(shell: Shell, alert: Alert) -> None:
    if shell.is_json:
        write_json(to_json(asdict(alert)))
        return
    where = f" at {alert.receiver}" if alert.receiver else ""
    told = f"{alert.object_name} {alert.key}, {alert.subject}{where}: {alert.kind}, {alert.owner} is responsible"
    write_line(shown(f"{moment(alert.at)}  {told}{f'; {alert.detail}' if alert.detail else ''}"))
