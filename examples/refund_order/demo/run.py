"""One run of the demo, from the first process to the verdict."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from keylane import Client
from keylane.journal.embedded import EmbeddedStore

from ..approvers import Approvers
from ..orders import OrderStore
from ..payments.client import PaymentClient
from ..payments.wire import Behaviour
from ..policy import PolicyLog
from . import scenes
from .crowd import Crowd
from .finale import kill_at_the_worst_moment, verdict
from .processes import Child, ProcessDied, Processes
from .stage import Failed, Stage
from .workload import Workload, make_workload

ORDERS_AT_ONCE = 24
TIME_LIMIT_S = 150.0
UNKNOWN_TO_CARDS_EVERY = 35
FAILED = 1
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the crowd is, and the seed that decides everything but time."""

    orders: int
    contested: int
    seed: int


def main() -> None:
    """Run the demo; the exit code is 0 if all books agree, 1 if not, 130 after Ctrl-C."""
    plan = _plan()
    folder = Path(tempfile.mkdtemp(prefix="keylane-demo-"))
    status = FAILED
    try:
        status = anyio.run(_guarded, folder, plan)
    finally:
        if status == FAILED:
            print(f"Logs, orders and ledgers are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status)


def _plan() -> Plan:
    parser = argparse.ArgumentParser(prog="refund_order", description="Refunds, and all that can go wrong with them.")
    parser.add_argument("--orders", type=int, default=100, help="how many orders the crowd wants refunds of")
    parser.add_argument("--contested", type=int, default=20, help="how many of them get conflicting refunds")
    parser.add_argument("--seed", type=int, default=42, help="decides orders, refunds and lost answers")
    arguments = parser.parse_args()
    return Plan(arguments.orders, min(arguments.contested, arguments.orders), arguments.seed)


async def _guarded(folder: Path, plan: Plan) -> int:
    """Run until done, until the time limit, until a process dies unexpectedly, or until a signal asks to stop."""
    status = INTERRUPTED
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_at_signal, group.cancel_scope)
            with anyio.fail_after(TIME_LIMIT_S):
                status = await _run(folder, plan)
            group.cancel_scope.cancel()
    except ExceptionGroup as errors:
        expected, others = errors.split((ProcessDied, TimeoutError, Failed))
        if others is not None or expected is None:
            raise
        print(_first_message(expected))
        return FAILED
    return status


async def _stop_at_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            print(f"{signal.Signals(number).name}: ending the processes")
            scope.cancel()


async def _run(folder: Path, plan: Plan) -> int:
    """Start everything, play the scenes, let the crowd in, kill a worker, and compare the books."""
    began_at_s = time.monotonic()
    workload = make_workload(orders=plan.orders, contested=plan.contested, seed=plan.seed)
    _prepare(folder, workload)
    async with _staged(folder) as (stage, workers, processes), processes.watched():
        for scene in (scenes.approvals, scenes.lost_answer, scenes.twins, scenes.operator):
            await scene(stage)
        await stage.cards.set_behaviour(_behaviour(workload, plan.seed))
        crowd = Crowd(stage.client, workload)
        async with crowd.asking(orders_at_once=ORDERS_AT_ONCE):
            await kill_at_the_worst_moment(stage, crowd, workers)
        await verdict(stage, crowd, scenes.ORDERS)
    print(f"\n{_ending(stage)} ({time.monotonic() - began_at_s:.0f} s)")
    return FAILED if stage.failures else 0


def _prepare(folder: Path, workload: Workload) -> None:
    OrderStore(folder / "orders.sqlite").add([*workload.orders, *scenes.ORDERS])
    Approvers(folder / "approvers.sqlite").set(scenes.APPROVERS)
    PolicyLog(folder / "policy.sqlite").create()


@asynccontextmanager
async def _staged(folder: Path) -> AsyncGenerator[tuple[Stage, list[Child], Processes]]:
    """Start a store, two receivers and two workers."""
    async with EmbeddedStore(folder / "store") as store, Processes(folder) as processes:
        cards_url = await processes.payments(folder / "cards.sqlite")
        transfers_url = await processes.payments(
            folder / "transfers.sqlite", Behaviour(deduplicates=False, can_look_up=False)
        )
        environment = {
            "REFUND_ORDER_CARDS_URL": cards_url,
            "REFUND_ORDER_TRANSFERS_URL": transfers_url,
            "REFUND_ORDER_FILES": str(folder),
            "REFUND_ORDER_APPROVAL_ABOVE": "500.00",
        }
        workers = [await processes.worker(number, store.url, environment) for number in (1, 2)]
        async with (
            PaymentClient(cards_url) as cards,
            PaymentClient(transfers_url) as transfers,
            Client(store.url) as client,
        ):
            yield Stage(folder, store.url, client, cards, transfers), workers, processes


def _behaviour(workload: Workload, seed: int) -> Behaviour:
    """Make the card service slow and unreliable, and let it not know some of the orders."""
    unknown = frozenset(order.key for order in workload.orders[::UNKNOWN_TO_CARDS_EVERY])
    return Behaviour(latency_ms=50, latency_spread_ms=150, drop_probability=0.08, unknown_orders=unknown, seed=seed)


def _ending(stage: Stage) -> str:
    if not stage.failures:
        return "The books agree: nothing was paid twice, nothing was lost, and nothing is left open."
    return "\n".join(["NOT AS IT MUST BE:", *(f"  {failure}" for failure in stage.failures)])


def _first_message(errors: ExceptionGroup[ProcessDied | TimeoutError | Failed]) -> str:
    """Find what to tell of errors that may lie several task groups deep."""
    told = errors.subgroup((ProcessDied, Failed))
    if told is None:
        return f"Not done within {TIME_LIMIT_S:.0f} s."
    error: Exception = told
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error)
