"""The commands that hold journals against code: their arguments and their help."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from . import deploying
from .shell import AppReference, AsJson, Debug, InvocationText, Namespace, OneType, StoreUrl, shell_of


def register(app: typer.Typer) -> None:
    """Add the commands to the others."""
    deploy = typer.Typer(
        help="What a deploy does to the work in flight.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    deploy.command("check")(deploy_check)
    app.add_typer(deploy, name="deploy")
    app.command()(export)
    app.command()(replay)


def deploy_check(
    reference: AppReference,
    *,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="FILE", help="Journals that `export` has written, instead of the store's."),
    ] = None,
    type_name: OneType = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after N journals, and say so.")
    ] = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run code against every open journal of the store, and say what would not go on.

    No step is run, nothing is sent and nothing is written; the handlers' own code between their steps does run, up to
    where each journal ends. Exit code 0 when everything that is open goes on with this code, 1 when something does not.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    orders = deploying.Orders(reference, files or [], type_name, limit)
    shell.run(partial(deploying.deploy_check, shell, orders))


def export(
    invocation: InvocationText,
    *,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to; without it, stdout.")] = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write the journal of one invocation to a file that `replay` reads.

    With the state of its object and all values that it refers to: the file holds your data.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(deploying.export, shell, invocation, out))


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` has written.")],
    reference: AppReference,
    *,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run code against the journals of a file, and say whether they fit.

    No store is needed, and no step is run. Exit code 0 when all fit, 1 when one does not.
    """
    shell = shell_of(None, "keylane", is_json=as_json, is_debug=debug)
    shell.run(partial(deploying.replay, shell, file, reference))
