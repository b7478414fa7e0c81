"""`cancel`, `kill`, `compensation skip`: ends invocations, and says what became of them and of those they called."""

from __future__ import annotations

from dataclasses import asdict

from ...journal.cancel_report import CancelOutcome, CancelReport
from ..client import Client
from .output import shown, write_json, write_line
from .shell import ExitCode, Shell, check_words


async def cancel(
    shell: Shell, invocation_id: str, *, cascade_to_sends: bool, reason: str, by: str, timeout: float | None
) -> ExitCode:
    """Cancel an invocation and print the report."""
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        report = await client.cancel(
            invocation_id, cascade_to_sends=cascade_to_sends, reason=reason, by=by, timeout=timeout
        )
    return _told(shell, report, CancelOutcome.CANCELLED)


async def kill(shell: Shell, invocation_id: str, *, reason: str, by: str, timeout: float | None) -> ExitCode:
    """Kill an invocation and print the report."""
    check_words(by, reason)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        report = await client.kill(invocation_id, reason=reason, by=by, timeout=timeout)
    return _told(shell, report, CancelOutcome.KILLED)


async def skip(shell: Shell, invocation_id: str, *, reason: str, by: str, timeout: float | None) -> ExitCode:
    """Give up the undo of an invocation that has failed."""
    check_words(by, reason)
    async with Client(shell.store_url(), namespace=shell.namespace) as client:
        await client.skip_compensation(invocation_id, reason=reason, by=by, timeout=timeout)
    if shell.is_json:
        write_json({"skipped": invocation_id})
    else:
        write_line(f"{invocation_id} goes on without that undo")
    return ExitCode.DONE


def _told(shell: Shell, report: CancelReport, wanted: CancelOutcome) -> ExitCode:
    """Print a report; the answer is no where the invocation has ended otherwise, or was not undone whole."""
    if shell.is_json:
        write_json(asdict(report))
    else:
        for line in lines_of(report):
            write_line(shown(line))
    return ExitCode.DONE if report.outcome is wanted and not report.compensation_failed else ExitCode.NO


def lines_of(report: CancelReport) -> list[str]:
    """Return a report as people read it."""
    late = {
        CancelOutcome.COMPLETED: ": it had ended before it was told",
        CancelOutcome.FAILED: ": it had ended before it was told",
        CancelOutcome.PAUSED: ": a person has to look at it, see keylane describe",
    }
    lines = [f"{report.id} {report.outcome.value}{late.get(report.outcome, '')}"]
    parts = {
        "stopped": report.stopped,
        "committed": report.committed,
        "undone": report.undone,
        "unknown": report.unknown,
        "left running": report.left_running,
    }
    lines.extend(f"  {name}: {each}" for name, several in parts.items() for each in several)
    if report.compensation_failed:
        lines.append("  not undone whole: an undo has failed or was given up")
    return lines
