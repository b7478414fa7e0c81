"""A checkup for people: the verdict first, then what is wrong, then what is worth knowing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from ...journal.doctor.facts import Sign
from ...journal.doctor.findings import Finding
from ...journal.doctor.report import HeldLane, PartitionReport, Repaired, Report, ServerReport
from ...journal.safety import Durability
from ...objects.origins import Origin
from .output import Page, ago, moment, shown, size

#: So many findings of one kind are printed; JSON has them all.
FINDINGS_EACH: Final = 10
#: So many partitions of one type are printed in full; with more, those that have something to tell.
PARTITIONS_EACH: Final = 16
REPAIRS_SHOWN: Final = 50


def print_report(
    out: Page, report: Report, repairs: Sequence[Repaired], settings: Sequence[Origin], durability: Durability
) -> None:
    """Print a report."""
    _print_verdict(out, report)
    _print_findings(out, report)
    _print_repairs(out, repairs)
    _print_doubtful(out, report)
    _print_held(out, report)
    _print_busy(out, report)
    _print_partitions(out, report)
    _print_workers(out, report)
    _print_servers(out, report, durability)
    _print_settings(out, settings)
    for notice in (*report.notices, *report.looked.notes):
        out.put(f"note: {shown(notice)}")


def _print_verdict(out: Page, report: Report) -> None:
    looked = report.looked
    count = sum(report.kinds.values())
    verdict = "healthy: nothing was found" if report.is_healthy else f"{count} findings" if count > 1 else "1 finding"
    how = f"{looked.keys} keys looked at in {looked.seconds:.1f} s, owners watched for {looked.watched_seconds:.1f} s"
    out.put(f"{shown(report.namespace)}: {verdict} ({how}{'' if looked.is_whole else '; not all of it'})")
    out.put(f"  {shown(report.server.promise)}")


def _print_findings(out: Page, report: Report) -> None:
    by_kind: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_kind.setdefault(finding.kind.value, []).append(finding)
    for kind, findings in by_kind.items():
        out.put(f"\n{kind}, {report.kinds[kind]}")
        for finding in findings[:FINDINGS_EACH]:
            out.put(f"  {shown(str(finding.place))}")
            out.put(f"    {shown(finding.cause)}")
        left_out = report.kinds[kind] - min(len(findings), FINDINGS_EACH)
        if left_out:
            out.put(f"  and {left_out} more; --json lists {len(findings)}")
        how = "--repair does it: " if findings[0].repair is not None else "remedy: "
        out.put(f"  {how}{shown(findings[0].remedy)}")


def _print_repairs(out: Page, repairs: Sequence[Repaired]) -> None:
    if not repairs:
        return
    out.put("\nrepairs")
    for each in repairs[:REPAIRS_SHOWN]:
        lines = list(each.did)
        if each.refused is not None:
            lines.append(f"not repaired: {each.refused}")
        if each.waits:
            lines.append("asked for in its inbox: its next owner does it when it takes the partition over")
        out.put(f"  {shown(each.where)}")
        for line in lines:
            out.put(f"    {shown(line)}")
    if len(repairs) > REPAIRS_SHOWN:
        out.put(f"  and {len(repairs) - REPAIRS_SHOWN} more; --json lists them")


def _print_doubtful(out: Page, report: Report) -> None:
    if not report.doubtful:
        return
    out.put("\nattempts that only their owners can tell about; --repair asks them")
    for each in report.doubtful:
        out.put(f"  {each.invocation}\n    {shown(each.why)}")


def _print_held(out: Page, report: Report) -> None:
    if not report.held_lanes:
        return
    out.put("\nlanes held by invocations that wait")
    for lane in report.held_lanes:
        out.put(f"  {shown(f'{lane.object_name} {lane.key}')}, {_held_for(lane, report)}")
        out.put(f"    {lane.holder} {lane.status}: {shown(lane.why)}")
        if lane.behind:
            more = "" if lane.behind <= len(lane.first_behind) else ", …"
            out.put(f"    behind it {lane.behind}: {', '.join(lane.first_behind)}{more}")


def _held_for(lane: HeldLane, report: Report) -> str:
    whom = lane.in_charge or "nobody by name"
    return f"since {moment(lane.since)} ({ago(lane.since, report.read_at)}), in charge: {whom}"


def _print_busy(out: Page, report: Report) -> None:
    if not report.busy_keys:
        return
    out.put("\nbusiest objects: their part of the history that is kept of their type, and what they get just now")
    rows = [
        (
            key.object_name,
            key.key,
            f"{100 * key.share:.0f} %",
            str(key.entries),
            "" if key.per_second is None else f"{key.per_second:.0f}/s",
            str(key.waiting or ""),
        )
        for key in report.busy_keys
    ]
    out.put(_table(("type", "key", "share", "entries", "added", "in the inbox"), rows))


def _print_partitions(out: Page, report: Report) -> None:
    told = _worth_a_line(report.partitions)
    if not told:
        return
    left_out = len(report.partitions) - len(told)
    more = f"; {left_out} more are owned and have nothing to do" if left_out else ""
    out.put(f"\npartitions{more}")
    rows = [
        (
            f"{each.object_name}:{each.number}",
            each.health.sign.value,
            each.health.worker or "",
            "" if each.health.epoch is None else str(each.health.epoch),
            str(each.health.renewals),
            *(str(count or "") for count in _counts(each)),
        )
        for each in told
    ]
    counted = ("inbox", "open", "runnable", "due", "unsent", "undecodable")
    columns = ("partition", "owner", "worker", "epoch", "renewals", *counted)
    out.put(_table(columns, rows))


def _counts(partition: PartitionReport) -> tuple[int, ...]:
    backlog = partition.backlog
    return (backlog.inbox, backlog.open, backlog.runnable, backlog.due, backlog.unsent, backlog.undecodable)


def _worth_a_line(partitions: Sequence[PartitionReport]) -> list[PartitionReport]:
    if len(partitions) <= PARTITIONS_EACH:
        return list(partitions)
    return [each for each in partitions if each.health.sign is not Sign.LIVE or any(_counts(each))]


def _print_workers(out: Page, report: Report) -> None:
    out.put("\nworkers")
    if not report.workers:
        out.put("  none is announced")
        return
    rows = [
        (
            each.worker,
            "draining" if each.is_draining else "live" if each.is_live else "silent",
            each.library,
            ", ".join(each.hosts),
        )
        for each in report.workers
    ]
    out.put(_table(("worker", "sign", "functions", "hosts"), rows))


def _print_servers(out: Page, report: Report, durability: Durability) -> None:
    out.put("\nstore")
    out.put(f"  judged for durability {durability}")
    for server in report.servers:
        _print_server(out, server)


def _print_server(out: Page, server: ServerReport) -> None:
    where = "" if server.address is None else f"{shown(server.address)}: "
    out.put(f"  {where}{server.name} {server.version}, eviction {server.eviction}, {server.replicas} replicas")
    out.put(f"  memory {size(server.used_memory_bytes)}{_limit(server)}")
    out.put(f"  {server.stream_cost}")
    for remark in server.advice:
        out.put(f"  {remark}")


def _limit(server: ServerReport) -> str:
    if not server.max_memory_bytes:
        return ", no limit"
    used, refused = 100 * server.memory_ratio, 100 * server.memory_limit_ratio
    return f" of {size(server.max_memory_bytes)}, {used:.0f} %; at {refused:.0f} % nothing new is taken in"


def _print_settings(out: Page, settings: Sequence[Origin]) -> None:
    out.put("\nsettings of this shell; a worker has those of its own environment")
    rows = [
        (each.name, _value(each.value), each.variable if each.source == "variable" else each.source)
        for each in settings
    ]
    out.put(_table(("setting", "value", "from"), rows))


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "none" if value is None else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2), show_edge=False, pad_edge=True)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    return table
