"""The child behind `CallerProcess`: calls one handler many times at once when told, and prints the answers as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Any

import anyio

from keylane import Client, KeylaneError, Runtime
from keylane.journal.store import Store
from tests.objects_catalogue import app

from .fault_points import FaultPoints


@contextlib.asynccontextmanager
async def connected(arguments: argparse.Namespace) -> AsyncGenerator[Client]:
    observer = FaultPoints.from_environment()
    if arguments.hosts:
        async with Runtime(app, store=arguments.store, namespace=arguments.namespace, observer=observer) as runtime:
            yield runtime.client
    else:
        async with (
            Store(arguments.store, namespace=arguments.namespace, observer=observer) as store,
            Client(store, namespace=arguments.namespace) as client,
        ):
            yield client


async def main(arguments: argparse.Namespace) -> None:
    answers: list[Any] = []
    rest = json.loads(arguments.arguments)

    async def call(client: Client) -> None:
        target = (arguments.object, arguments.key, arguments.handler)
        try:
            answers.append(await client.call(*target, *rest, timeout=arguments.timeout))
        except KeylaneError as error:
            answers.append({"error": error.code, "message": str(error)})

    with anyio.open_signal_receiver(signal.SIGUSR1) as signals:
        async with connected(arguments) as client:
            say("ready")
            async for _ in signals:
                break
            async with anyio.create_task_group() as calls:
                for _ in range(arguments.times):
                    calls.start_soon(call, client)
    say(json.dumps(answers))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("store", "namespace", "object", "key", "handler", "arguments"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--hosts", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    anyio.run(main, parse())
