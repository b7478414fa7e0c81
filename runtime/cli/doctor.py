"""`doctor`: what is wrong in a namespace, what causes it, and with `--repair` what its owners did about it."""

from __future__ import annotations

import getpass
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ...journal.doctor.checkup import Plan, check_up
from ...journal.doctor.facts import Backlog, LeaseHealth
from ...journal.doctor.findings import Finding, Place
from ...journal.doctor.repairing import repair
from ...journal.doctor.report import (
    FORM,
    BusyKey,
    HeldLane,
    PartitionReport,
    Repaired,
    Report,
    ServerReport,
)
from ...journal.doctor.walking import Progress as WalkProgress
from ...journal.safety import Durability
from ...journal.store import Store
from ...objects.origins import Origin, origins
from ...objects.settings import Settings
from .doctor_views import print_report
from .output import Page, write_json
from .shell import ExitCode, Shell
from .values import to_json

#: A repair may bring to light what was hidden behind it; so often it is looked and repaired again.
ROUNDS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Orders:
    """What the command line asks for.

    Args:
        durability: What the deployment declares.
        type_name: The one type that is looked at, None for all.
        limit: After so many keys the walk stops, None to come to the end.
        repairs: Whether what can be repaired is.
    """

    durability: Durability
    type_name: str | None
    limit: int | None
    repairs: bool


async def doctor(shell: Shell, orders: Orders) -> ExitCode:
    """Look at a namespace, repair it if that is asked for, and say what there is to say."""
    settings = Settings()
    async with Store(shell.store_url(), namespace=shell.namespace) as store:
        places = sum([int(await node.call("DBSIZE")) for node in store.connected])
        with progress_shown(places, is_shown=not shell.is_json) as progress:
            plan = Plan(
                settings.lease_seconds,
                orders.durability,
                settings.memory_limit_ratio,
                orders.type_name,
                orders.limit,
                progress,
            )
            report = await check_up(store, plan)
            repairs: list[Repaired] = []
            for _ in range(ROUNDS_MAX if orders.repairs else 0):
                done = await repair(store, report, _name())
                repairs.extend(each for each in done if each.did or each.refused or each.waits)
                if not any(each.did for each in done):
                    break
                report = await check_up(store, plan)
    found = origins(settings)
    if shell.is_json:
        write_json(as_facts(report, repairs, found, orders))
    else:
        print_report(Page(), report, repairs, found, orders.durability)
    return ExitCode.DONE if report.is_healthy else ExitCode.NO


def _name() -> str:
    """Return who asks, for the log of the owners."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "keylane doctor"


@contextmanager
def progress_shown(places: int, *, is_shown: bool) -> Generator[WalkProgress | None]:
    """Show on a terminal how far the walk is; elsewhere nobody looks."""
    console = Console(stderr=True)
    if not is_shown or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[keys]} keys"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("looking", total=places, keys=0)

        def walked(looked: int, keys: int) -> None:
            # The server's table has more places than keys, so that the end comes later than it seems.
            bar.update(task, completed=min(looked, places), keys=keys)

        yield walked


def as_facts(report: Report, repairs: list[Repaired], settings: tuple[Origin, ...], orders: Orders) -> dict[str, Any]:
    """Return a report as JSON can carry it. Its form is stable; a field is only ever added."""
    looked = report.looked
    return {
        "form": FORM,
        "is_healthy": report.is_healthy,
        "namespace": report.namespace,
        "read_at": to_json(report.read_at),
        "durability": str(orders.durability),
        "server": _server(report.server),
        "servers": [_server(each) for each in report.servers],
        "settings": {each.name: {"value": each.value, "source": each.source} for each in settings},
        "workers": [
            {
                "worker": each.worker,
                "is_live": each.is_live,
                "hosts": list(each.hosts),
                "library": each.library,
                "is_draining": each.is_draining,
            }
            for each in report.workers
        ],
        "types": {name: {"partitions": n, "in_charge": whom} for name, (n, whom) in report.types.items()},
        "partitions": [_partition(each) for each in report.partitions],
        "held_lanes": [_held(each) for each in report.held_lanes],
        "busy_keys": [_busy(each) for each in report.busy_keys],
        "doubtful": [{"invocation": each.invocation, "why": each.why} for each in report.doubtful],
        "findings": [_finding(each) for each in report.findings],
        "left_out": dict(report.left_out),
        "repairs": [
            {"where": each.where, "did": list(each.did), "refused": each.refused, "waits_for_owner": each.waits}
            for each in repairs
        ],
        "looked": {
            "keys": looked.keys,
            "open": dict(looked.open),
            "is_whole": looked.is_whole,
            "notes": list(looked.notes),
            "seconds": looked.seconds,
            "watched_seconds": looked.watched_seconds,
        },
        "notices": list(report.notices),
    }


def _server(server: ServerReport) -> dict[str, Any]:
    return {
        "name": server.name,
        "version": server.version,
        "promise": server.promise,
        "stream_cost": server.stream_cost,
        "advice": list(server.advice),
        "used_memory_bytes": server.used_memory_bytes,
        "max_memory_bytes": server.max_memory_bytes,
        "eviction": server.eviction,
        "appendfsync": server.appendfsync,
        "replicas": server.replicas,
        "libraries": list(server.libraries),
        "address": server.address,
        "memory_ratio": server.memory_ratio,
        "memory_limit_ratio": server.memory_limit_ratio,
    }


def _partition(partition: PartitionReport) -> dict[str, Any]:
    health: LeaseHealth = partition.health
    backlog: Backlog = partition.backlog
    return {
        "type": partition.object_name,
        "partition": partition.number,
        "owner": health.sign.value,
        "worker": health.worker,
        "epoch": health.epoch,
        "renewals": health.renewals,
        "watched_seconds": health.watched_seconds,
        "inbox": backlog.inbox,
        "runnable": backlog.runnable,
        "due": backlog.due,
        "undecodable": backlog.undecodable,
        "open": backlog.open,
        "unsent": backlog.unsent,
        "unsettled": backlog.unsettled,
        "history": partition.owner.get("history"),
        "owner_fields": dict(partition.owner),
    }


def _held(lane: HeldLane) -> dict[str, Any]:
    return {
        "type": lane.object_name,
        "partition": lane.partition,
        "key": lane.key,
        "holder": lane.holder,
        "status": lane.status,
        "why": lane.why,
        "since": to_json(lane.since),
        "behind": lane.behind,
        "first_behind": list(lane.first_behind),
        "in_charge": lane.in_charge,
    }


def _busy(key: BusyKey) -> dict[str, Any]:
    return {
        "type": key.object_name,
        "key": key.key,
        "entries": key.entries,
        "share": key.share,
        "per_second": key.per_second,
        "waiting": key.waiting,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    place: Place = finding.place
    return {
        "kind": finding.kind.value,
        "type": place.object_name,
        "partition": place.partition,
        "key": place.key,
        "invocation": place.invocation,
        "name": place.name,
        "cause": finding.cause,
        "remedy": finding.remedy,
        "is_repairable": finding.repair is not None,
    }
