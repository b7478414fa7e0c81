"""A worker of the grid: says `loaded`, waits for the line `start`, hosts the app, and says `ready`.

SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import importlib
import signal

import anyio

from keylane import Runtime
from tests.faults.puppet_main import stdin

from .mutants import lose_what_is_asked_for
from .points import Striker, say


async def main(arguments: argparse.Namespace) -> None:
    module, _, attribute = arguments.app.partition(":")
    app = getattr(importlib.import_module(module), attribute)
    orders = await stdin()
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        say("loaded")
        if await orders.readline() != b"start\n":
            return
        async with Runtime(
            app, store=arguments.store, namespace=arguments.namespace, observer=Striker.from_environment()
        ):
            say("ready")
            async for _ in signals:
                break


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--app", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    lose_what_is_asked_for()
    anyio.run(main, parse())
