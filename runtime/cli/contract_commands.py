"""The commands that say what an app promises and what happens when something goes wrong: their arguments and help."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from . import contracts
from .shell import AppReference, AsJson, Debug, Namespace, StoreUrl, shell_of


def register(app: typer.Typer) -> None:
    """Add the commands to the others."""
    effects = typer.Typer(
        no_args_is_help=True,
        help="What effects do when their outcome is unknown.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    effects.callback()(_effects)
    effects.command()(plan)
    app.add_typer(effects, name="effects")
    app.command()(contract)


def _effects() -> None:
    """Look at what an app asks of the world outside."""


def plan(
    reference: AppReference,
    *,
    receiver: Annotated[
        str | None, typer.Option("--receiver", metavar="NAME", help="Look at the effects of one receiver only.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print the recovery plan of each effect: what is done, and when, while its outcome is unknown.

    It is computed from the declarations by the code that settles effects. No store is needed.
    """
    shell = shell_of(None, "keylane", is_json=as_json, is_debug=debug)
    shell.run(partial(contracts.effects_plan, shell, reference, receiver))


def contract(
    reference: AppReference,
    *,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print the six answers that a team owes before it runs an app.

    What can be lost and how long recovery takes, what may be repeated, how long ids and results are valid, how workers
    are fenced, how pending work survives a change, and who settles what stays unknown. From the declarations, and from
    the store where there is one. Exit code 1 when the store can't keep what is declared.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(contracts.contract, shell, reference))
