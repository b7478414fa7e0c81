"""The commands that settle effects by hand: their arguments and their help."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from ...objects.receiver_checks import SPAN_MAX
from . import reconciling
from .reconciling import Act
from .shell import (
    AsJson,
    By,
    Debug,
    MessageId,
    Namespace,
    ObjectKey,
    ObjectType,
    StoreUrl,
    TimeoutSeconds,
    shell_of,
)

#: Ten years.
HOURS_MAX = SPAN_MAX / timedelta(hours=1)
OperationId = Annotated[str, typer.Argument(metavar="OPERATION", help="The operation id, as its handler wrote it.")]
Evidence = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why, or the evidence; it goes into the record.")
]


def register(reconcile: typer.Typer) -> None:
    """Add the commands to the others about the queue."""
    reconcile.command("lookup")(lookup)
    reconcile.command("succeeded")(succeeded)
    reconcile.command("not-done")(not_done)
    reconcile.command("resend")(resend)
    reconcile.command("hand-over")(hand_over)


def lookup(
    object_type: ObjectType,
    key: ObjectKey,
    operation: OperationId,
    *,
    by: By,
    reason: Evidence,
    message_id: MessageId = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Have the receiver asked now what became of an effect.

    Prints where it stands since. Exit code 0 when the receiver was asked, 1 when the contract does not allow it.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    act = Act((object_type, key, operation), by, reason, message_id, timeout)
    shell.run(partial(reconciling.lookup, shell, act))


def succeeded(
    object_type: ObjectType,
    key: ObjectKey,
    operation: OperationId,
    receipt: Annotated[str, typer.Argument(metavar="JSON", help="The receipt as JSON; - reads it from stdin.")],
    *,
    by: By,
    reason: Evidence,
    message_id: MessageId = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say that an effect was done: its handler gets the receipt and goes on.

    The receipt has to fit the effect's own type. Exit code 0 when it is settled, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    act = Act((object_type, key, operation), by, reason, message_id, timeout)
    shell.run(partial(reconciling.succeeded, shell, act, receipt))


def not_done(
    object_type: ObjectType,
    key: ObjectKey,
    operation: OperationId,
    *,
    by: By,
    reason: Evidence,
    message_id: MessageId = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say that an effect was not done and will not be: its handler gets `EffectRejected`.

    Refused while what was sent may still take effect. Exit code 0 when it is settled, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    act = Act((object_type, key, operation), by, reason, message_id, timeout)
    shell.run(partial(reconciling.not_done, shell, act))


def resend(
    object_type: ObjectType,
    key: ObjectKey,
    operation: OperationId,
    *,
    by: By,
    reason: Evidence,
    message_id: MessageId = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Have the same operation id sent again.

    Refused where that could do twice what it asks for. Exit code 0 when it is sent, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    act = Act((object_type, key, operation), by, reason, message_id, timeout)
    shell.run(partial(reconciling.resend, shell, act))


def hand_over(
    object_type: ObjectType,
    key: ObjectKey,
    operation: OperationId,
    *,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Who settles it from now on.")],
    by: By,
    reason: Evidence,
    within_hours: Annotated[
        float | None,
        typer.Option("--within-hours", metavar="HOURS", min=0.01, max=HOURS_MAX, help="How long they have."),
    ] = None,
    message_id: MessageId = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Have somebody else settle an effect.

    Without --within-hours the deadline stays.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    act = Act((object_type, key, operation), by, reason, message_id, timeout)
    shell.run(partial(reconciling.hand_over, shell, act, to, within_hours))
