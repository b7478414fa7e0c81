"""The child behind `PuppetProcess`: a worker that makes the calls that its stdin tells it to, and notes their history.

Each line of stdin is a kind of call and a key; calls run at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import anyio

from keylane import Runtime
from tests.objects_catalogue import app

from .fault_points import FaultPoints
from .mutants import become_what_is_asked_for
from .recorded_calls import Recorder
from .soak_history import HistoryFile, Kind


async def main(arguments: argparse.Namespace) -> None:
    observer = FaultPoints.from_environment()
    orders = await stdin()
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with (
            Runtime(app, store=arguments.store, namespace=arguments.namespace, observer=observer) as runtime,
            anyio.create_task_group() as calls,
        ):
            recorder = Recorder(runtime.client, HistoryFile(arguments.history), str(os.getpid()))
            calls.start_soon(obey, orders, recorder)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            async for _ in signals:
                calls.cancel_scope.cancel()
                break


async def stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin.buffer)
    return reader


async def obey(orders: asyncio.StreamReader, recorder: Recorder) -> None:
    async with anyio.create_task_group() as calls:
        while line := await orders.readline():
            kind, key = line.decode().split()
            calls.start_soon(recorder.call, Kind(kind), key)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--history", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    become_what_is_asked_for()
    anyio.run(main, parse())
