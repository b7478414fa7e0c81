"""One run of the demo, from the first process to the verdict."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from keylane import Client
from keylane.journal.embedded import EmbeddedStore

from ..orders import OrderStore
from ..payments.client import PaymentClient
from ..payments.wire import Behaviour
from ..policy import PolicyLog
from .audit import Books, faults
from .driver import Driver
from .processes import Child, ProcessDied, Processes
from .report import Kill, Run, show
from .workload import Ask, Workload, make_workload

ORDERS_AT_ONCE = 24
TIME_LIMIT_S = 55.0
UNKNOWN_TO_PAYMENTS_EVERY = 70
FAILED = 1
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Files:
    """Where the demo keeps what it needs, in one folder."""

    folder: Path

    @property
    def orders(self) -> Path:
        return self.folder / "orders.sqlite"

    @property
    def policy(self) -> Path:
        return self.folder / "policy.sqlite"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.sqlite"


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the run is, and the seed that decides everything but time."""

    orders: int
    contested: int
    seed: int


def main() -> None:
    """Run the demo; the exit code is 0 if the ledger is exactly right, 1 if not, 130 after Ctrl-C."""
    plan = _plan()
    console = Console(highlight=False)
    files = Files(Path(tempfile.mkdtemp(prefix="keylane-demo-")))
    status = FAILED
    try:
        status = anyio.run(_guarded, console, files, plan)
    finally:
        if status == FAILED:
            console.print(f"Logs, orders and ledger are kept in {files.folder}")
        else:
            shutil.rmtree(files.folder, ignore_errors=True)
    sys.exit(status)


def _plan() -> Plan:
    parser = argparse.ArgumentParser(prog="refund_order", description="Refunds on two workers, one of which is killed.")
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--contested", type=int, default=40, help="how many orders get conflicting refunds")
    parser.add_argument("--seed", type=int, default=42, help="decides orders, refunds and lost answers")
    arguments = parser.parse_args()
    return Plan(arguments.orders, min(arguments.contested, arguments.orders), arguments.seed)


async def _guarded(console: Console, files: Files, plan: Plan) -> int:
    """Run until done, until the time limit, until a process dies unexpectedly, or until a signal asks to stop."""
    status = INTERRUPTED
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_at_signal, console, group.cancel_scope)
            with anyio.fail_after(TIME_LIMIT_S):
                status = await _run(console, files, plan)
            group.cancel_scope.cancel()
    except ExceptionGroup as errors:
        expected, others = errors.split((ProcessDied, TimeoutError))
        if others is not None or expected is None:
            raise
        console.print(_first_message(expected), style="red", markup=False, soft_wrap=True)
        return FAILED
    return status


async def _stop_at_signal(console: Console, scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            console.print(f"{signal.Signals(number).name}: ending the processes")
            scope.cancel()


async def _run(console: Console, files: Files, plan: Plan) -> int:
    """Start everything, ask for the refunds, kill a worker half-way, and compare the books."""
    workload = make_workload(orders=plan.orders, contested=plan.contested, seed=plan.seed)
    OrderStore(files.orders).add(workload.orders)
    PolicyLog(files.policy).create()
    async with EmbeddedStore(files.folder / "store") as store, Processes(files.folder) as processes:
        payments_url = await processes.payments(files.ledger)
        environment = {
            "REFUND_ORDER_PAYMENTS_URL": payments_url,
            "REFUND_ORDER_ORDERS_PATH": str(files.orders),
            "REFUND_ORDER_POLICY_PATH": str(files.policy),
        }
        workers = [await processes.worker(number, store.url, environment) for number in (1, 2)]
        async with PaymentClient(payments_url) as payments, Client(store.url) as client, processes.watched():
            await payments.set_behaviour(_behaviour(workload, plan.seed))
            driver = Driver(client, workload)
            began_at_s = time.monotonic()
            kill = await _ask_and_kill(console, driver, workers, PolicyLog(files.policy))
            took_s = time.monotonic() - began_at_s
            statuses = await driver.statuses(at_once=ORDERS_AT_ONCE)
            books = Books(workload.orders, workload.asks, driver.answers, statuses, await payments.ledger())
            statistics = await payments.statistics()
    run = Run(books, PolicyLog(files.policy).questions(), statistics, kill, took_s, faults(books))
    show(console, run)
    return FAILED if run.faults else 0


async def _ask_and_kill(console: Console, driver: Driver, workers: list[Child], log: PolicyLog) -> Kill:
    note = TextColumn("{task.fields[note]}")
    columns = (TextColumn("refunds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), note)
    total = len(driver.workload.asks)
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("refunds", total=total, note="two workers")
        async with driver.asking(orders_at_once=ORDERS_AT_ONCE, on_answer=lambda: progress.advance(bar)):
            kill = await _kill_half_way(driver, workers, total // 2, log)
            progress.update(bar, note=f"{kill.worker} killed, {len(kill.open)} open")
    return kill


async def _kill_half_way(driver: Driver, workers: list[Child], answers: int, log: PolicyLog) -> Kill:
    """Kill the worker that has more in hand."""
    await driver.answered(answers)
    victim = max(workers, key=lambda worker: len(_in_hand(worker, driver.open, log)))
    at_s, open_asks = time.monotonic(), driver.open
    victim.kill()
    await victim.process.wait()
    return Kill(victim.name, at_s, open_asks, _in_hand(victim, open_asks, log))


def _in_hand(worker: Child, open_asks: frozenset[Ask], log: PolicyLog) -> frozenset[Ask]:
    """Return the open refunds on orders about which this worker asked the policy check."""
    ids = [question.operation_id for question in log.questions() if question.process_id == worker.process.pid]
    keys = {unquote(operation_id.rpartition("/")[0]) for operation_id in ids}
    return frozenset(ask for ask in open_asks if ask.key in keys)


def _behaviour(workload: Workload, seed: int) -> Behaviour:
    """Make the payment service slow and unreliable, and let it not know some of the orders."""
    unknown = frozenset(order.key for order in workload.orders[::UNKNOWN_TO_PAYMENTS_EVERY])
    return Behaviour(latency_ms=150, latency_spread_ms=300, drop_probability=0.08, unknown_orders=unknown, seed=seed)


def _first_message(errors: ExceptionGroup[ProcessDied | TimeoutError]) -> str:
    """Find what to tell of errors that may lie several task groups deep."""
    died = errors.subgroup(ProcessDied)
    if died is None:
        return f"Not done within {TIME_LIMIT_S:.0f} s."
    error: Exception = died
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error)
