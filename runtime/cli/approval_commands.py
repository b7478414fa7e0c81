"""The commands about proposals: their arguments and their help."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from . import approvals
from .shell import AsJson, By, Debug, MessageId, Namespace, OneType, Reason, StoreUrl, TimeoutSeconds, shell_of

ProposalText = Annotated[str, typer.Argument(metavar="PROPOSAL", help="The proposal, e.g. Order/acme/o-1001#refund.3.")]
ListedType = Annotated[
    str | None, typer.Argument(metavar="TYPE", help="The object type, unless --type names it; without it, all.")
]
ListedKey = Annotated[
    str | None,
    typer.Argument(metavar="TENANT/KEY", help="The object: what was decided of it is listed too."),
]
OnBehalfOf = Annotated[
    str | None, typer.Option("--on-behalf-of", metavar="NAME", help="Whose decision it is, who has delegated it.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the others."""
    group = typer.Typer(no_args_is_help=True, help="What people have to decide, and what they have decided.")
    group.callback()(_approvals)
    group.command("list")(show_all)
    for command in (show, approve, decline, revoke, delegate):
        group.command()(command)
    app.add_typer(group, name="approvals")


def _approvals() -> None:
    """See and decide what handlers have proposed."""


def show_all(
    object_type: ListedType = None,
    key: ListedKey = None,
    *,
    type_name: OneType = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List what waits for a decision, what expires first at the top; of one object, all of its proposals."""
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(approvals.show_all, shell, object_type, key, type_name))


def show(
    proposal: ProposalText,
    *,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a proposal: what it is about, who has said what, and what became of it.

    Exit code 1 where nothing is known of it.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(approvals.show, shell, proposal))


def approve(
    proposal: ProposalText,
    *,
    by: By,
    reason: Reason = "",
    on_behalf_of: OnBehalfOf = None,
    message_id: MessageId = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Approve a proposal.

    Prints what became of it. Exit code 0 when it was accepted, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    how = approvals.How(by, reason, message_id, timeout)
    shell.run(partial(approvals.decide, shell, "approve", proposal, on_behalf_of, how))


def decline(
    proposal: ProposalText,
    *,
    by: By,
    reason: Reason,
    on_behalf_of: OnBehalfOf = None,
    message_id: MessageId = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Decline a proposal; its handler is told who has, and why.

    Prints what became of it. Exit code 0 when it was accepted, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    how = approvals.How(by, reason, message_id, timeout)
    shell.run(partial(approvals.decide, shell, "decline", proposal, on_behalf_of, how))


def revoke(
    proposal: ProposalText,
    *,
    by: By,
    reason: Reason,
    on_behalf_of: OnBehalfOf = None,
    message_id: MessageId = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take an approval back that no effect has used yet.

    Prints what became of it. Exit code 0 when it was accepted, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    how = approvals.How(by, reason, message_id, timeout)
    shell.run(partial(approvals.decide, shell, "revoke", proposal, on_behalf_of, how))


def delegate(
    proposal: ProposalText,
    *,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Who may decide in the place of --by.")],
    by: By,
    reason: Reason = "",
    message_id: MessageId = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let somebody else decide on one proposal in one's place; they say so with --on-behalf-of.

    Prints what became of it. Exit code 0 when it was accepted, 1 otherwise.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(approvals.delegate, shell, proposal, to, approvals.How(by, reason, message_id, timeout)))
