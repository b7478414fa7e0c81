"""The workers of the grid, as children of a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.harness import eventually
from tests.faults.mutants import VARIABLE as MUTANT
from tests.faults.worker_process import ChildProcess, environment_of

from .cells import LEASE_MS, SEND_WITHIN_MS
from .points import HOLD, STRIKE, Hold, Strike
from .receiver import VARIABLE as RECEIVER

START_SECONDS: Final = 30.0
GRID_APP: Final = "tests.faults.effects.grid_app:app"
#: A hand-over waits for calls in flight, and the test decides how long these take.
SETTINGS: Final[Mapping[str, object]] = {
    "lease_seconds": LEASE_MS / 1000,
    "renewal_seconds": 0.07,
    "sweep_seconds": 0.1,
    "drain_limit_seconds": 30,
    "send_within_seconds": SEND_WITHIN_MS / 1000,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where workers work.

    Args:
        store_url: The store.
        namespace: The namespace.
        receiver: The receiver's socket.
        folder: For their temporary files.
    """

    store_url: str
    namespace: str
    receiver: str
    folder: Path


class GridWorker(ChildProcess):
    """A worker that hosts an app once it is told to start.

    Args:
        place: Where it works.
        name: Names its folder for temporary files: with one of its own, others take it for a worker of another
            machine, and wait for its lease when it dies.
        app: What it hosts, as `module:attribute`.
        hold: Where its calls are held.
        strike: What happens to it at the store.
        mutant: Which safeguard it lacks.
        settings: Settings by name, over those of the grid.
    """

    def __init__(
        self,
        place: Place,
        name: str,
        *,
        app: str = GRID_APP,
        hold: Hold | None = None,
        strike: Strike | None = None,
        mutant: str = "",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        temporary = place.folder / name
        temporary.mkdir()
        environment = environment_of({**SETTINGS, **(settings or {})}, "") | {
            "TMPDIR": str(temporary),
            RECEIVER: place.receiver,
            HOLD: str(hold or ""),
            STRIKE: str(strike or ""),
            MUTANT: mutant,
        }
        arguments = ["--store", place.store_url, "--namespace", place.namespace, "--app", app]
        super().__init__("tests.faults.effects.worker_main", arguments, environment, is_told=True)

    async def start(self) -> None:
        """Have it host the app, and wait until it does."""
        await self.says("loaded")
        self.tell("start")
        await self.says("ready")

    async def says(self, *lines: str) -> None:
        """Wait until it has said all of these lines."""
        wanted = set(lines)
        await eventually(
            lambda: wanted <= set(self.lines) or self.returncode is not None, f"{lines}", seconds=START_SECONDS
        )
        missing = wanted - set(self.lines)
        assert not missing, f"ended with {self.returncode} and never said {missing}\n{self.stderr}"
