"""The commands, their arguments and their help."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ...journal.reading import TIMELINE_ENTRIES
from ...journal.safety import Durability, Replicated
from ..orders import LONGEST_SECONDS
from . import (
    approval_commands,
    calls,
    cancel_commands,
    contract_commands,
    deploy_commands,
    hosting,
    ledger_commands,
    logs,
    restoring,
    signal_commands,
    views,
)
from . import doctor as checkup
from .examples import give_examples
from .output import survive_any_text, write_line
from .shell import (
    COUNT_MAX,
    VALUES,
    AppReference,
    AsJson,
    By,
    Debug,
    InvocationText,
    Namespace,
    ObjectKey,
    ObjectType,
    OneType,
    Reason,
    Shell,
    StoreUrl,
    TimeoutSeconds,
    shell_of,
)

HELP: Final = """Durable actors on Redis streams: host objects, call them, look at them.

Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 the store can't be reached or used.
"""

app = typer.Typer(
    name="keylane",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    # A wrong command line gets plain sentences, which no frame cuts.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

HandlerName = Annotated[str, typer.Argument(metavar="HANDLER", help="The handler, e.g. refund.")]
JsonArgument = Annotated[
    str | None, typer.Argument(metavar="JSON", help="Its argument as JSON; - reads it from stdin.")
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="The same key and argument get the first call's result."),
]
PauseTarget = Annotated[str, typer.Argument(metavar="INVOCATION|TYPE", help="An invocation's id, or an object type.")]
PausedKey = Annotated[
    str | None, typer.Argument(metavar="KEY", help="The object, as tenant/key; without it, all of the type.")
]
AllowUnsafe = Annotated[
    bool, typer.Option("--allow-unsafe", help="Start also on a server whose settings can't keep the promise.")
]


def _durability(text: str) -> Durability:
    """Read `--durability`."""
    if text == "fsync" or text == "server":  # noqa: PLR1714, told apart for the type checker
        return text
    name, _, count = text.partition(":")
    if name == "replicated" and count.isdecimal() and int(count):
        return Replicated(int(count))
    raise typer.BadParameter(f"{text!r} is none of fsync, server and replicated:N")


DurabilityOption = Annotated[
    Any,
    typer.Option(
        "--durability",
        metavar="fsync|server|replicated:N",
        parser=_durability,
        help="What an answer promises: synced to disk, whatever the server does, or written by N replicas.",
    ),
]


def main() -> None:
    """Run the command line and end the process.

    Raises:
        SystemExit: In any case, with the command's exit code.
    """
    survive_any_text()
    app(prog_name="keylane")


@app.callback(invoke_without_command=True)
def common(
    *,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Take what stands in front of a command."""
    if show_version:
        write_line(f"keylane {version('keylane')}")
        raise typer.Exit


@app.command()
def dev(
    reference: AppReference,
    *,
    path: Annotated[
        Path | None, typer.Option("--path", metavar="FOLDER", help="The embedded store's folder; without it .keylane.")
    ] = None,
    durability: DurabilityOption = "fsync",
    allow_unsafe: AllowUnsafe = False,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a worker with a store of its own.

    The store lies in .keylane unless another one is named. Ctrl-C lets what runs end; a second one ends at once.
    """
    shell = Shell(store, namespace, is_json=as_json, is_debug=debug)
    _host(
        shell, reference, lambda: hosting.store_of_dev(shell, path), durability, allow_unsafe=allow_unsafe, is_dev=True
    )


@app.command()
def worker(
    reference: AppReference,
    *,
    durability: DurabilityOption = "fsync",
    allow_unsafe: AllowUnsafe = False,
    ready_fd: Annotated[
        int | None,
        typer.Option(
            "--ready-fd", metavar="N", min=0, help="Write `ready` to this descriptor once it is, and close it."
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="N",
            min=0,
            max=65_535,
            help="Show the metrics for Prometheus there; 0 for any free port.",
        ),
    ] = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a worker on a store that is there.

    SIGTERM and Ctrl-C let what runs end, within the drain limit, and hand over the rest; a second Ctrl-C ends at once.
    """
    shell = Shell(store, namespace, is_json=as_json, is_debug=debug)
    _host(
        shell,
        reference,
        shell.store_url,
        durability,
        allow_unsafe=allow_unsafe,
        ready_fd=ready_fd,
        metrics_port=metrics_port,
    )


@app.command(epilog=VALUES)
def call(
    object_type: ObjectType,
    key: ObjectKey,
    handler: HandlerName,
    argument: JsonArgument = None,
    *,
    idempotency_key: IdempotencyKey = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Call a handler and print its output."""
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    target = (object_type, key, handler)
    shell.run(partial(calls.call, shell, target, argument, idempotency_key=idempotency_key, timeout=timeout))


@app.command(epilog=VALUES)
def send(
    object_type: ObjectType,
    key: ObjectKey,
    handler: HandlerName,
    argument: JsonArgument = None,
    *,
    idempotency_key: IdempotencyKey = None,
    delay: Annotated[
        float | None,
        typer.Option("--delay", metavar="SECONDS", min=0, max=LONGEST_SECONDS, help="How long it waits to begin."),
    ] = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Have a handler run and don't wait.

    The request is durable when the invocation's id is printed, also while no worker is up.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    target = (object_type, key, handler)
    shell.run(partial(calls.send, shell, target, argument, idempotency_key=idempotency_key, delay=delay))


@app.command(epilog=VALUES)
def attach(
    invocation: InvocationText,
    *,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Wait for an invocation and print its output."""
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(calls.attach, shell, invocation, timeout=timeout))


@app.command()
def describe(
    invocation: InvocationText,
    *,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what is known of one invocation.

    Where it stands, its steps, its errors, what it waits for and who has to act.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(views.describe, shell, invocation))


@app.command()
def inspect(
    object_type: ObjectType,
    key: ObjectKey,
    *,
    entries: Annotated[
        int, typer.Option("--entries", metavar="N", min=1, max=10_000, help="How much of the journal to show.")
    ] = TIMELINE_ENTRIES,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show an object's state, lane and journal.

    Its values, who holds its lane and why, who waits, and what happened last.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(views.inspect, shell, object_type, key, entries=entries))


@app.command()
def pause(
    target: PauseTarget,
    key: PausedKey = None,
    *,
    reason: Reason,
    by: By,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Stop exclusive work: of an object, of a whole type, or an invocation.

    What runs goes on up to its next durable point; shared handlers read on. Calls are taken in and wait.
    Reason and name are kept and shown until it is resumed.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    named = (target,) if key is None else (target, key)
    shell.run(partial(calls.pause, shell, named, reason=reason, by=by, timeout=timeout))


@app.command()
def resume(
    target: PauseTarget,
    key: PausedKey = None,
    *,
    reason: Reason,
    by: By,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a paused invocation go on, or an object or a type that was paused.

    An invocation's retries are counted anew; reason and name go into its record.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    named = (target,) if key is None else (target, key)
    shell.run(partial(calls.resume, shell, named, reason=reason, by=by, timeout=timeout))


signal_commands.register(app)


@app.command()
def restart(
    invocation: InvocationText,
    *,
    keep: Annotated[
        int,
        typer.Option(
            "--keep", metavar="N", min=0, max=COUNT_MAX, help="How many commands stay, as `describe` counts them."
        ),
    ],
    reason: Reason,
    by: By,
    handler_version: Annotated[
        int | None,
        typer.Option(
            "--version",
            metavar="N",
            min=1,
            max=COUNT_MAX,
            help="The version of its handler; without it, the one it has.",
        ),
    ] = None,
    timeout: TimeoutSeconds = None,
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a paused invocation go on from an earlier step.

    What stays keeps its results, ids and random numbers. What comes behind it is done anew: steps run again, other
    objects are called again. What was written to the state stays written.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    how = calls.Restart(keep, handler_version, reason, by)
    shell.run(partial(calls.restart, shell, invocation, how, timeout=timeout))


cancel_commands.register(app)
approval_commands.register(app)
ledger_commands.register(app)


@app.command()
def doctor(
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Have owners put right what can be put right safely, and look again.")
    ] = False,
    type_name: OneType = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="Stop after N keys, and say that the rest was not looked at."),
    ] = None,
    durability: DurabilityOption = "fsync",
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Look for work that can't go on, and say what causes it and what puts it right.

    Owners are watched for about a lease, every key is looked at once, nothing is changed without --repair.
    Exit code 0 when nothing was found, 1 when something was.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    orders = checkup.Orders(durability, type_name, limit, repairs=repair)
    shell.run(partial(checkup.doctor, shell, orders))


@app.command()
def restored(
    *,
    since: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="What the copy lacks began here, e.g. 2026-03-01T12:00:00+01:00."),
    ],
    store: StoreUrl = None,
    namespace: Namespace = "keylane",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Declare that the store's data were put back from a copy.

    Nothing in the store can tell what the copy lacks, which may be all of some. All partitions are marked to be in
    doubt from TIME on, and begin a new history. Workers may run meanwhile: they let go of what they have in memory
    and begin anew from the store.
    """
    shell = shell_of(store, namespace, is_json=as_json, is_debug=debug)
    shell.run(partial(restoring.restored, shell, since))


contract_commands.register(app)

deploy_commands.register(app)


def _host(
    shell: Shell,
    reference: str,
    store: Callable[[], str | None],
    durability: Durability,
    *,
    allow_unsafe: bool,
    ready_fd: int | None = None,
    metrics_port: int | None = None,
    is_dev: bool = False,
) -> None:
    # What the app's own modules have to say is wanted in the log, and of the other libraries only warnings.
    talkative = ("keylane", reference.partition(":")[0].partition(".")[0] or "keylane")
    # The shell prints the promise itself; and a partition's coming and going means nothing to somebody who develops.
    quiet = () if shell.is_json else ("keylane.runtime", *(["keylane.ownership"] if is_dev else []))
    logs.install(is_json=shell.is_json, is_debug=shell.is_debug, talkative=talkative, quiet=quiet)
    shell.run(
        partial(
            hosting.host,
            shell,
            hosting.Hosting(reference, store, durability, allow_unsafe, ready_fd, metrics_port),
        )
    )


give_examples(app)
