import os
import signal
from pathlib import Path

import anyio
import pytest

from examples.refund_order.demo.processes import ProcessDied, Processes
from examples.refund_order.payments.client import PaymentClient

pytestmark = pytest.mark.anyio


async def test_no_process_outlives_the_block(tmp_path: Path) -> None:
    """Processes are ended however the block ends, also when it is cancelled."""
    processes, cancelled = Processes(tmp_path), Processes(tmp_path)

    async with processes:
        url = await processes.payments(tmp_path / "first.sqlite")
        async with PaymentClient(url) as payments:
            assert await payments.ledger() == ()
    with anyio.CancelScope() as scope:
        async with cancelled:
            await cancelled.payments(tmp_path / "second.sqlite")
            scope.cancel()
            await anyio.sleep_forever()

    assert _alive([*processes.process_ids, *cancelled.process_ids]) == []


async def test_a_process_that_ends_by_itself_ends_the_watched_block(tmp_path: Path) -> None:
    """The error names the process; one that was killed on purpose is no error."""
    async with Processes(tmp_path) as processes:
        await processes.payments(tmp_path / "ledger.sqlite")

        with pytest.RaisesGroup(pytest.RaisesExc(ProcessDied, match="ledger ended with status -9")):
            async with processes.watched():
                os.kill(processes.process_ids[0], signal.SIGKILL)
                await anyio.sleep_forever()


async def test_a_process_that_never_gets_ready_is_reported_with_its_log(tmp_path: Path) -> None:
    """A start that fails shows the last lines that the process wrote."""
    async with Processes(tmp_path) as processes:
        with pytest.raises(ProcessDied, match="unable to open database file"):
            await processes.payments(tmp_path / "no-such-folder" / "ledger.sqlite")


def _alive(process_ids: list[int]) -> list[int]:
    return [process_id for process_id in process_ids if _answers(process_id)]


def _answers(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True
