"""A payment service for each test: in this process with a clock of its own, or as a real process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from examples.refund_order.payments.client import PaymentClient
from examples.refund_order.payments.ledger import Ledger
from examples.refund_order.payments.service import PaymentService
from examples.refund_order.payments.wire import Behaviour, RefundTerms

ROOT = Path(__file__).parents[2]
RETENTION = timedelta(hours=24)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class SteppedClock:
    """A clock that stands still until a test moves it."""

    now_ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, by: timedelta) -> None:
        self.now_ms += by // timedelta(milliseconds=1)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: SteppedClock) -> Generator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite", retention=RETENTION, now_ms=clock)
    yield ledger
    ledger.close()


@pytest.fixture
async def payments(ledger: Ledger) -> AsyncGenerator[PaymentClient]:
    """A client of a payment service that runs in this process, without a network."""
    transport = httpx.ASGITransport(PaymentService(ledger).application())
    async with PaymentClient("http://payments", transport=transport) as client:
        yield client


@pytest.fixture
def terms() -> Callable[..., RefundTerms]:
    """Make terms, with a default for what a test does not care about."""

    def make(amount: str = "40.00", order: str = "acme/o-1", recipient: str = "customer-7") -> RefundTerms:
        return RefundTerms(order=order, recipient=recipient, amount=Decimal(amount))

    return make


@dataclass
class PaymentProcess:
    """The payment service as a process that can be killed and started again at the same address."""

    ledger: Path
    port: int
    retention_s: float = 86_400.0
    behaviour: Behaviour = field(default_factory=Behaviour)
    _process: "subprocess.Popen[str] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and return once it listens."""
        command = [sys.executable, "-m", "examples.refund_order.payments", "--ledger", str(self.ledger)]
        command += ["--port", str(self.port), "--retention-s", str(self.retention_s)]
        command += ["--behaviour", self.behaviour.model_dump_json()]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == self.url

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal and wait until it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdout is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, how)
        process.wait(timeout=10)
        process.stdout.close()


@pytest.fixture
def payment_process(tmp_path: Path) -> Generator[PaymentProcess]:
    process = PaymentProcess(tmp_path / "ledger.sqlite", _free_port())
    process.start()
    yield process
    process.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
