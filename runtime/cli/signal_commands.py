"""The commands that complete awakeables and send signals: their arguments and their help."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from . import signals
from .shell import VALUES, AsJson, Debug, MessageId, Namespace, StoreUrl, TimeoutSeconds, shell_of

AwakeableText = Annotated[str, typer.Argument(metavar="ID", help="The awakeable, e.g. Order.3.019a….7.")]
JsonValue = Annotated[str, typer.Argument(metavar="JSON", help="The value as JSON; - reads it from stdin.")]
SentBy = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who sends it; it goes into the record.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the others."""
    app.command(epilog=VALUES)(resolve)
    app.command()(reject)
    app.command(epilog=VALUES)(signal)


def resolve(
    awakeable: AwakeableText,
    value: JsonValue,
    *,
    message_id: MessageId = None,
    by: SentBy = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Complete an awakeable with a value.

    Prints what became of it. Exit code 0 when it was accepted, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(signals.resolve, shell, awakeable, value, signals.Message(message_id, by, timeout)))


def reject(
    awakeable: AwakeableText,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="What its handler is told.")],
    *,
    code: Annotated[str | None, typer.Option("--code", metavar="CODE", help="The code of the error.")] = None,
    message_id: MessageId = None,
    by: SentBy = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Complete an awakeable with a failure.

    Prints what became of it. Exit code 0 when it was accepted, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(signals.reject, shell, awakeable, reason, code, signals.Message(message_id, by, timeout)))


def signal(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="An invocation id; with --key, an object type.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.")],
    value: JsonValue,
    *,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="TENANT/KEY", help="Send it to whoever waits for it in this object."),
    ] = None,
    message_id: MessageId = None,
    by: SentBy = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Send a signal to an invocation, or to an object.

    Who does not wait for it yet gets it later. Prints what became of it. Exit code 0 when it was accepted, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(signals.signal, shell, target, key, name, value, signals.Message(message_id, by, timeout)))
