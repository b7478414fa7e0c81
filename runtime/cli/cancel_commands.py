"""The commands that end invocations: their arguments and their help."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from . import cancels
from .shell import AsJson, By, Debug, InvocationText, Namespace, Reason, StoreUrl, TimeoutSeconds, shell_of


def register(app: typer.Typer) -> None:
    """Add the commands to the others."""
    app.command()(cancel)
    app.command()(kill)
    compensation = typer.Typer(no_args_is_help=True, help="What to do about undos that have failed.")
    compensation.callback()(_compensation)
    compensation.command()(skip)
    app.add_typer(compensation, name="compensation")


def _compensation() -> None:
    """Decide what becomes of undos that have failed."""


def cancel(
    invocation: InvocationText,
    *,
    cascade_to_sends: Annotated[
        bool, typer.Option("--cascade-to-sends", help="Cancel what it has sent too, and what that has sent.")
    ] = False,
    reason: Reason = "",
    by: By = "",
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Cancel an invocation, wait until it has ended, and print what became of it.

    Its handler is told at its next durable point, and cleans up. What it calls is cancelled with it.
    Exit code 0 when it is cancelled, 1 when it had ended otherwise or could not be undone whole.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    work = partial(cancels.cancel, shell, invocation, cascade_to_sends=cascade_to_sends, reason=reason, by=by)
    shell.run(partial(work, timeout=timeout))


def kill(
    invocation: InvocationText,
    *,
    reason: Reason,
    by: By,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """End an invocation at once, without letting it clean up.

    Nothing of it is undone, and its lane is free. What it calls is cancelled.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(cancels.kill, shell, invocation, reason=reason, by=by, timeout=timeout))


def skip(
    invocation: InvocationText,
    *,
    reason: Reason,
    by: By,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Give up the undo that has failed.

    Those before it are undone still, and the end says that one was not. `keylane resume` tries it again instead.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(cancels.skip, shell, invocation, reason=reason, by=by, timeout=timeout))
