"""The commands about effects and their ledger: their arguments and their help."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ...journal.story_reading import STORY_ENTRIES
from ..effect_desk import ALERTS_MAX, QUEUE_MAX
from . import auditing, reconcile_commands, reconciling, stories
from .reconcile_commands import OperationId
from .shell import COUNT_MAX, AsJson, Debug, Namespace, ObjectKey, ObjectType, OneType, StoreUrl, shell_of


def register(app: typer.Typer) -> None:
    """Add the commands to the others."""
    app.command()(explain)
    app.command()(audit)
    app.command()(alerts)
    reconcile = typer.Typer(no_args_is_help=True, help="Effects of which nobody knows whether they were done.")
    reconcile.callback()(_reconcile)
    reconcile.command("list")(reconcile_list)
    reconcile.command("show")(reconcile_show)
    reconcile_commands.register(reconcile)
    app.add_typer(reconcile, name="reconcile")


def _reconcile() -> None:
    """Look at effects whose outcome nobody knows, and settle them."""


def explain(
    target: Annotated[
        str, typer.Argument(metavar="TYPE|TENANT/KEY", help="The object type; or the object, if one type has it.")
    ],
    key: Annotated[str | None, typer.Argument(metavar="TENANT/KEY", help="The object, e.g. acme/o-1001.")] = None,
    *,
    entries: Annotated[
        int, typer.Option("--entries", metavar="N", min=1, max=10_000, help="How much of its history to tell.")
    ] = STORY_ENTRIES,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Tell the story of an object, over all of its invocations.

    Who asked for what, what was decided on which facts, who approved it, what was sent and what came back; what is
    uncertain and why, what happens next and when, and whose it is.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(stories.explain, shell, target, key, entries=entries))


def audit(
    *,
    receiver: Annotated[str, typer.Option("--receiver", metavar="NAME", help="The receiver, e.g. payments.")],
    against: Annotated[Path, typer.Option("--against", metavar="CSV", help="Its books, with a line of column names.")],
    id_column: Annotated[
        str, typer.Option("--id-column", metavar="COLUMN", help="The column with the operation ids.")
    ] = "operation_id",
    amount_column: Annotated[
        str | None, typer.Option("--amount-column", metavar="COLUMN", help="Compare amounts: the column of the books.")
    ] = None,
    amount_field: Annotated[
        str | None,
        typer.Option("--amount-field", metavar="FIELD", help="Compare amounts: the field of the effect's parameters."),
    ] = None,
    scale: Annotated[
        int, typer.Option("--scale", metavar="N", min=0, max=9, help="Decimal places of the column: 2 if it has cents.")
    ] = 0,
    time_column: Annotated[
        str | None, typer.Option("--time-column", metavar="COLUMN", help="The column that says when it was booked.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="COLUMN=VALUE", help="Leave out all other rows.")
    ] = None,
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Compare from here on.")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Compare up to here.")] = None,
    allow_queued: Annotated[
        bool, typer.Option("--allow-queued", help="What lies with people, and is not overdue, is no finding.")
    ] = False,
    reference: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:APP", help="The code that declares the receiver.")
    ] = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare our ledger of effects with the books of their receiver.

    Matched are operations that both have, once. Everything else is named: ours only, theirs only, duplicates, other
    amounts, and what is in question. Exit code 0 when nothing of that was found, 1 when something was.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    books = auditing.Books(against, id_column, amount_column, time_column, only or (), scale)
    orders = auditing.Orders(receiver, books, amount_field, since, until, reference, allow_queued)
    shell.run(partial(auditing.audit, shell, orders))


def alerts(
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on, and print each that is raised.")] = False,
    type_name: OneType = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=COUNT_MAX, help="How many of the newest.")
    ] = ALERTS_MAX,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what people have to hear of: times that have passed, and approvals about to expire.

    Each was raised once. With --json, one line of JSON for each.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(stories.alerts, shell, type_name, follow=follow, limit=limit))


def reconcile_list(
    *,
    type_name: OneType = None,
    receiver: Annotated[str | None, typer.Option("--receiver", metavar="NAME", help="Of one receiver only.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=COUNT_MAX, help="How many of the most urgent.")
    ] = QUEUE_MAX,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the effects that people have to settle, the most urgent first.

    Exit code 1 when one of them is overdue.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(reconciling.show_list, shell, type_name, receiver, limit=limit))


def reconcile_show(
    object_type: ObjectType,
    key: ObjectKey,
    operation: OperationId,
    *,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show all that is known of one effect, and what may be done about it.

    Owner, deadline and parameters, everything that was tried, the receiver's last answer, and its runbook.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(reconciling.show, shell, object_type, key, operation))
