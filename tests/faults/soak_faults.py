"""What goes wrong in a long run: workers, connections and the store itself, at times that one seed decides."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import anyio

from .harness import NeverHappenedError, StoreServer
from .soak_slots import Slot
from .soak_store import LEASE_SECONDS, ServerFaults, Servers, StoreFaults, StoreHurt


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked for.

    Args:
        workers: Processes that host the objects, and call them too.
        callers: Processes that only call.
        tasks: Calls that each of them makes at a time.
        pause_seconds: The longest pause between two calls of a task.
    """

    workers: int = 3
    callers: int = 2
    tasks: int = 6
    pause_seconds: float = 0.03


#: Something that goes wrong for one slot; what is left to chance in it comes from its own source.
Hurt: TypeAlias = Callable[[Slot, random.Random], Awaitable[None]]


async def _of_store(hurt: StoreHurt, slot: Slot, choose: random.Random) -> None:
    del slot
    await hurt(choose)


def _name(hurt: Hurt) -> str:
    named: Any = hurt.args[0] if isinstance(hurt, partial) else hurt
    return named.__name__


class Faults:
    """Hurts slots and the store until the time is up.

    Args:
        seed: Decides what happens, to whom, and how long it is until the next.
        store: What can go wrong with the store itself.
        slots: Everybody who may be hurt.
        only: The names of what may happen; everything where none are given.
    """

    def __init__(self, seed: str, store: StoreFaults, slots: list[Slot], only: Collection[str] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self._seed = seed
        self._slots = slots
        self._hurts: dict[Hurt, int] = {
            self.kill: 4,
            self.stop: 4,
            self.drain: 2,
            self.replace: 2,
            **({} if store.socket is None else self._of_wires),
            **{partial(_of_store, hurt): weight for hurt, weight in store.hurts.items()},
        }
        if only:
            self._hurts = {hurt: weight for hurt, weight in self._hurts.items() if _name(hurt) in only}

    @property
    def _of_wires(self) -> dict[Hurt, int]:
        return {
            self.cut: 4,
            self.cut_commits: 4,
            self.cut_in_a_reply: 5,
            self.stall: 3,
            self.hold_replies: 3,
            self.lose_replies: 4,
        }

    async def run(self, seconds: float, *, pause_seconds: float = 0.5) -> None:
        """Cause faults, several at a time, and end when all of them are over."""
        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(seconds):
                for number in itertools.count():
                    # One source of chance for each: what it decides does not depend on what the others do meanwhile.
                    choose = random.Random(f"{self._seed} fault {number}")
                    [hurt] = choose.choices(list(self._hurts), weights=list(self._hurts.values()))
                    tasks.start_soon(self._hurt, hurt, choose.choice(self._slots), choose)
                    await anyio.sleep(choose.uniform(0, 2 * pause_seconds))

    async def _hurt(self, hurt: Hurt, slot: Slot, choose: random.Random) -> None:
        if slot.is_busy:
            return
        slot.is_busy = True
        try:
            await slot.revive()
            begun = time.monotonic()
            await hurt(slot, choose)
            self.log.append(f"{begun:.6f} to {time.monotonic():.6f} {_name(hurt)} {slot.name}")
            self.counts[_name(hurt)] += 1
        finally:
            slot.is_busy = False

    async def kill(self, slot: Slot, choose: random.Random) -> None:
        """Kill a process; the next one comes at once or after a while."""
        await slot.kill()
        await anyio.sleep(choose.choice([0, 1.5 * LEASE_SECONDS]))
        await slot.start()

    async def stop(self, slot: Slot, choose: random.Random) -> None:
        """Stop a process for a part of its lease, or until others have taken over."""
        seconds = choose.choice([0.5, 1.0, 2.0, 4.0]) * LEASE_SECONDS
        await slot.process.stop()
        await anyio.sleep(seconds)
        slot.process.go_on()

    async def drain(self, slot: Slot, choose: random.Random) -> None:
        """Let a process drain and end, then start another."""
        del choose
        await slot.drain()
        await slot.start()

    async def replace(self, slot: Slot, choose: random.Random) -> None:
        """Start another process, then let the first one drain and end."""
        del choose
        await slot.replace()

    async def cut(self, slot: Slot, choose: random.Random) -> None:
        """Cut all connections of a process."""
        del choose
        slot.wire.cut()

    async def cut_commits(self, slot: Slot, choose: random.Random) -> None:
        """Cut the connection that carries the commits."""
        del choose
        slot.wire.cut(only="commit")

    async def cut_in_a_reply(self, slot: Slot, choose: random.Random) -> None:
        """Cut a connection in the middle of what comes back over it."""
        only = choose.choice([None, "commit"])
        slot.wire.cut_after(choose.choice([0, 1, 5, 40, 400, 4000]), only=only)

    async def stall(self, slot: Slot, choose: random.Random) -> None:
        """Let nothing through for a while."""
        slot.wire.stall(only=choose.choice([None, "commit"]))
        await anyio.sleep(choose.choice([0.2, 1.0, 3.0]) * LEASE_SECONDS)
        slot.wire.heal()

    async def hold_replies(self, slot: Slot, choose: random.Random) -> None:
        """Let requests through and keep what is answered, then let it go or cut it off."""
        slot.wire.hold_replies(only=choose.choice([None, "commit"]))
        await anyio.sleep(choose.choice([0.2, 1.0, 3.0]) * LEASE_SECONDS)
        if choose.random() < 0.5:
            slot.wire.refuse()
        slot.wire.heal()

    async def lose_replies(self, slot: Slot, choose: random.Random) -> None:
        """Let requests through whose answers are lost with their connection."""
        slot.wire.drop_replies(only=choose.choice([None, "commit"]))
        await anyio.sleep(choose.choice([0.05, 0.5]) * LEASE_SECONDS)
        # Nothing may follow on a connection over which something was swallowed.
        slot.wire.refuse()
        slot.wire.heal()


class Deployment:
    """The store, and all processes of a run.

    Args:
        folder: Where histories, trails and logs are kept.
        seed: Decides everything that is decided by chance.
        namespace: The run's namespace.
        load: How much is asked for.
        only: The names of what may go wrong; everything where none are given.
        store: The store and what goes wrong with it; one server by default.
    """

    def __init__(
        self,
        folder: Path,
        seed: str,
        namespace: str,
        load: Load,
        *,
        only: Collection[str] = (),
        store: StoreFaults | None = None,
    ) -> None:
        self.folder = folder
        self.store = store = store or ServerFaults(StoreServer())
        self.server = store.servers
        common = [
            *("--namespace", namespace, "--folder", str(folder), "--seed", seed, "--tasks", str(load.tasks)),
            *("--pause-seconds", str(load.pause_seconds), "--replicas", str(store.replicas)),
        ]
        names = [f"w{number}" for number in range(load.workers)] + [f"c{number}" for number in range(load.callers)]
        self.slots = [Slot(name, store, common, random.Random(f"{seed} {name}"), folder) for name in names]
        self.faults = Faults(seed, store, self.slots, only)
        self._stack = ExitStack()

    async def __aenter__(self) -> Self:
        """Start everything."""
        (self.folder / "gate").touch()
        try:
            self._stack.enter_context(self.server)
            for slot in self.slots:
                self._stack.enter_context(slot)
            await self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    async def _start(self) -> None:
        # A call to a type that no worker has announced yet would be refused.
        for hosts in (True, False):
            async with anyio.create_task_group() as starts:
                for slot in self.slots:
                    if slot.hosts is hosts:
                        starts.start_soon(slot.start)
        if wrong := [each for slot in self.slots for each in slot.wrong]:
            raise NeverHappenedError(f"not everybody has started: {wrong}")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill everything that still runs."""
        (self.folder / "faults").write_text("\n".join(self.faults.log) + "\n")
        self._stack.close()

    async def finish(self) -> None:
        """Let all callers come to an end, without any fault."""
        for slot in self.slots:
            slot.heal()
            slot.process.send(signal.SIGUSR1)

    @property
    def is_finished(self) -> bool:
        """Whether every call that can have an answer has it."""
        return all("finished" in slot.process.lines for slot in self.slots)

    async def drain(self) -> None:
        """Let all processes end."""
        async with anyio.create_task_group() as ends:
            for slot in self.slots:
                ends.start_soon(slot.drain)

    @property
    def unexpected_ends(self) -> list[str]:
        """The processes that ended by themselves."""
        ended = [slot for slot in self.slots if slot.process.returncode is not None]
        return [f"{slot.name}-{slot.process.pid} ended with {slot.process.returncode}" for slot in ended]

    def logs(self) -> dict[str, str]:
        """Return what each process that is over has said on stderr."""
        return {path.name: path.read_text() for path in sorted(self.folder.glob("log-*"))}


def remaining(server: Servers, namespace: str) -> list[str]:
    """Return what stands in the store that only open work needs, and what nobody could read."""
    needed = (b"}:q:", b"}:run", b"}:due", b"}:bad", b"}:g:")
    keys = [key for key in server.keys(f"{{{namespace}:*") if any(kind in key for kind in needed)]
    keys += [key for key in server.keys(f"{{{namespace}:*}}:inbox") if server.ask("XLEN", key)]
    return [key.decode(errors="replace") for key in keys]
