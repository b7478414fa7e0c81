"""The child of a long run: hosts the catalogue or not, and keeps calling it; what it sees stands in its history file.

SIGUSR1 lets it ask for nothing new; it says `finished` once all that it had asked for has an answer. SIGUSR2 lets it
ask for what the process before it has left open. SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import signal
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from keylane import (
    App,
    CallError,
    CallTimeout,
    Client,
    Draining,
    InternalError,
    InvocationFailed,
    InvocationPaused,
    KeylaneError,
    Overloaded,
    Replicated,
    Runtime,
    StoreUnavailable,
)
from keylane.journal.store import Store
from tests import cancel_catalogue, objects_catalogue, signals_catalogue

from .fault_points import FaultPoints
from .soak_history import HistoryFile, Kind, Operation
from .soak_waits import Waits

catalogues = (objects_catalogue.app, signals_catalogue.app, cancel_catalogue.app)
app = App([each for catalogue in catalogues for each in catalogue.objects.values()])
OBJECTS = {Kind.ADD: "Counter", Kind.READ: "Counter", Kind.STEPS: "Steps", Kind.FLAKY: "Trouble"}
WEIGHTS = {Kind.ADD: 50, Kind.READ: 25, Kind.STEPS: 15, Kind.FLAKY: 3, Kind.WAITS: 5, Kind.CANCEL: 3}
WAITING = ("collect", "decide", "race", "together")
ADDS = ("add", "add", "add", "add_blocking", "add_and_hold")
STEPS = ("three_steps", "three_steps", "three_blocking_steps")
COUNTERS = 20
STEP_KEYS = 4
FLAKY_KEYS = 4
#: The state of an object of steps grows with each run, so the runs move on to other keys.
STEP_PERIOD_SECONDS = 5.0
TIMEOUTS_SECONDS = (0.3, 1.0, 3.0)
#: An error that comes at once must not make a loop that does nothing else.
AGAIN_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """What a child does.

    Args:
        slot: Its place in the run; the processes that follow each other there share a history.
        incarnation: The how-manieth process of its slot it is.
        folder: Where histories and trails lie.
        tasks: How many calls it makes at a time.
        pause_seconds: The longest pause between two calls of a task.
    """

    slot: str
    incarnation: int
    folder: Path
    tasks: int
    pause_seconds: float


class Caller:
    """Makes calls until told to stop, and notes what comes of them."""

    def __init__(self, client: Client, plan: Plan, seed: str) -> None:
        self._client = client
        self._plan = plan
        self._seed = seed
        self._history = HistoryFile(plan.folder / f"history-{plan.slot}")
        self._waits = Waits(client, self._history)
        self._is_stopping = False
        self._asking: set[str] = set()
        self._gate = plan.folder / "gate"

    def stop(self) -> None:
        """Begin nothing new."""
        self._is_stopping = True

    async def run(self) -> None:
        """Call until told to stop, then wait for every answer, also for those that others waited for in this place."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.take_over)
            for number in range(self._plan.tasks):
                tasks.start_soon(self._loop, number)
        await self.take_over()
        # What was asked for on an order to take over may still be without an answer.
        while self._asking:
            await anyio.sleep(AGAIN_SECONDS)

    async def take_over(self) -> None:
        """Ask for the answers that a process before this one did not live to see."""
        async with anyio.create_task_group() as tasks:
            for operation in self._history.read():
                if operation.is_open and operation.name not in self._asking:
                    tasks.start_soon(self._perform, operation, random.Random(f"{self._seed} {operation.name}"))

    async def _loop(self, number: int) -> None:
        name = f"{self._plan.slot}-{self._plan.incarnation}-{number}"
        choose = random.Random(f"{self._seed} {name}")
        count = 0
        while not self._is_stopping:
            count += 1
            operation = self._next(f"{name}-{count}", choose)
            self._history.sent(operation)
            await self._perform(operation, choose)
            await anyio.sleep(choose.uniform(0, self._plan.pause_seconds))

    def _next(self, name: str, choose: random.Random) -> Operation:
        now = time.monotonic()
        again = choose.random() < 0.3
        # Half of all counting happens at four keys, so that there is a queue at them.
        counter = f"acme/c{choose.choice([choose.randrange(4), choose.randrange(COUNTERS)])}"
        match choose.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]:
            case Kind.ADD:
                return Operation(name, Kind.ADD, counter, choose.choice(ADDS), now, again)
            case Kind.READ:
                return Operation(name, Kind.READ, counter, "get", now)
            case Kind.STEPS:
                key = f"acme/s{int(now / STEP_PERIOD_SECONDS)}-{choose.randrange(STEP_KEYS)}"
                return Operation(name, Kind.STEPS, key, choose.choice(STEPS), now, again)
            case Kind.FLAKY:
                return Operation(name, Kind.FLAKY, f"acme/f{choose.randrange(FLAKY_KEYS)}", "flaky", now, again)
            case Kind.WAITS:
                return Operation(name, Kind.WAITS, f"acme/{name}", choose.choice(WAITING), now, is_idempotent=True)
            case Kind.CANCEL:
                return Operation(name, Kind.CANCEL, f"acme/{name}", "nap", now, is_idempotent=True)

    def _argument(self, operation: Operation) -> list[Any]:
        match operation.kind:
            case Kind.ADD:
                return [str(self._gate) if operation.handler == "add_and_hold" else 1]
            case Kind.READ:
                return []
            case Kind.STEPS:
                return [str(self._plan.folder / f"trail-{operation.key.replace('/', '-')}")]
            case _:
                return [str(self._plan.folder / f"trail-{operation.name}")]

    async def _perform(self, operation: Operation, choose: random.Random) -> None:
        is_first = operation.invocation is None
        self._asking.add(operation.name)
        while not await self._try(operation, choose, is_first=is_first):
            is_first = False
            await anyio.sleep(AGAIN_SECONDS)
        self._asking.discard(operation.name)

    async def _try(self, operation: Operation, choose: random.Random, *, is_first: bool) -> bool:
        """Try to get an answer; returns whether there is nothing more to be done."""
        try:
            self._history.answered(operation, await self._ask(operation, choose))
        except (Draining, Overloaded) as error:
            if not is_first or operation.invocation is not None:
                return False
            self._history.learned(operation, refused=repr(error))
        except (InvocationFailed, InvocationPaused, InternalError) as error:
            self._history.learned(operation, failed=repr(error))
        except (CallTimeout, StoreUnavailable) as error:
            return self._take_silence(operation, error)
        except CallError as error:
            # This process ends while its call goes on: the next one asks for it.
            if "was closed" not in str(error):
                self._history.learned(operation, failed=repr(error))
            return True
        except KeylaneError as error:
            if "is not open" in str(error):
                # The client of a worker that leaves is closed, and nothing was asked: the next process does that.
                await anyio.sleep_forever()
            self._history.learned(operation, failed=repr(error))
        return True

    def _take_silence(self, operation: Operation, error: CallTimeout | StoreUnavailable) -> bool:
        if operation.kind is Kind.READ:
            self._history.learned(operation, given_up=repr(error))
            return True
        if isinstance(error, CallTimeout) and error.invocation_id and operation.invocation is None:
            self._history.learned(operation, invocation=error.invocation_id)
        if operation.is_open:
            return False
        self._history.learned(operation, given_up=repr(error))
        return True

    async def _ask(self, operation: Operation, choose: random.Random) -> Any:
        timeout = choose.choice(TIMEOUTS_SECONDS)
        if operation.kind is Kind.WAITS:
            return await self._waits.complete(operation, timeout)
        if operation.kind is Kind.CANCEL:
            return await self._waits.cancel(operation, self._argument(operation)[0], timeout)
        if operation.invocation is not None:
            return await self._client.attach(operation.invocation).result(timeout=timeout)
        target = (OBJECTS[operation.kind], operation.key, operation.handler, *self._argument(operation))
        key = operation.name if operation.is_idempotent else None
        if operation.kind is Kind.STEPS and choose.random() < 0.5:
            handle = await self._client.send(*target, idempotency_key=key)
            self._history.learned(operation, invocation=handle.id)
            return await handle.result(timeout=timeout)
        return await self._client.call(*target, idempotency_key=key, timeout=timeout)


@contextlib.asynccontextmanager
async def connected(arguments: argparse.Namespace) -> AsyncGenerator[Client]:
    observer = FaultPoints.from_environment()
    if arguments.hosts:
        durability = Replicated(arguments.replicas) if arguments.replicas else "fsync"
        async with Runtime(
            app, store=arguments.store, namespace=arguments.namespace, durability=durability, observer=observer
        ) as runtime:
            yield runtime.client
    else:
        async with (
            Store(
                arguments.store, namespace=arguments.namespace, observer=observer, replicas=arguments.replicas
            ) as store,
            Client(store, namespace=arguments.namespace) as client,
        ):
            yield client


class MonotonicFormatter(logging.Formatter):
    """Puts the clock of the histories before each line."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{time.monotonic():.6f} {super().format(record)}"


def log_everything() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(MonotonicFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


async def main(arguments: argparse.Namespace) -> None:
    log_everything()
    plan = Plan(
        arguments.slot, arguments.incarnation, arguments.folder, arguments.tasks, arguments.pause_seconds
    )  # fmt: skip
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) as signals:
        async with anyio.create_task_group() as tasks:
            async with connected(arguments) as client:
                say("ready")
                caller = Caller(client, plan, arguments.seed)
                tasks.start_soon(call_until_finished, caller)
                async for signal_number in signals:
                    match signal_number:
                        case signal.SIGTERM:
                            break
                        case signal.SIGUSR1:
                            caller.stop()
                        case _:
                            tasks.start_soon(caller.take_over)
            # Until here the callers go on, while the worker drains, as those of a service do.
            tasks.cancel_scope.cancel()


async def call_until_finished(caller: Caller) -> None:
    await caller.run()
    say("finished")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("store", "namespace", "slot", "seed"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--pause-seconds", type=float, required=True)
    parser.add_argument("--replicas", type=int, default=0)
    parser.add_argument("--hosts", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    anyio.run(main, parse())
