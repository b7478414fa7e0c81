"""The payment service as a process: `python -m examples.refund_order.payments --ledger FILE`."""

import argparse
import socket
from datetime import timedelta
from pathlib import Path

import uvicorn

from .dropping import DroppableProtocol
from .ledger import Ledger
from .service import PaymentService
from .switches import Switches
from .wire import Behaviour

LOCALHOST = "127.0.0.1"


def main() -> None:
    """Serve until SIGTERM or SIGINT; the first line on stdout is the URL."""
    arguments = _parser().parse_args()
    ledger = Ledger(arguments.ledger, retention=timedelta(seconds=arguments.retention_s))
    listener = socket.create_server((arguments.host, arguments.port), backlog=512)
    host, port = listener.getsockname()[:2]
    # Whoever started this process waits for the line: the socket listens already, so it may connect at once.
    print(f"http://{host}:{port}", flush=True)
    try:
        _server(PaymentService(ledger, Switches(arguments.behaviour))).run(sockets=[listener])
    finally:
        listener.close()
        ledger.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="payments", description="A payment service with a ledger in a SQLite file.")
    parser.add_argument("--ledger", type=Path, required=True, help="the SQLite file")
    parser.add_argument("--host", default=LOCALHOST)
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument("--retention-s", type=float, default=86_400.0, help="how long an operation id is known")
    parser.add_argument(
        "--behaviour",
        type=Behaviour.model_validate_json,
        default=Behaviour(),
        metavar="JSON",
        help="the switches to start with, as for PUT /behaviour",
    )
    return parser


def _server(service: PaymentService) -> uvicorn.Server:
    config = uvicorn.Config(
        service.application(),
        http=DroppableProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)
