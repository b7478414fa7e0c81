"""What every command shares: its options, where its store is, how its work is run and how it ends.

Exit codes: 0 done · 1 the answer is no · 2 wrong use · 3 the store can't be reached or used · 70 a bug of Keylane ·
130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final, cast

import anyio
import typer

from ...journal.endpoint import absolute, find_endpoint
from ...journal.errors import (
    InternalError,
    InvalidKey,
    InvocationFailed,
    KeylaneError,
    RegistrationError,
    StoreError,
    StoreUnavailable,
    code_of,
    fields_of,
)
from ...journal.urls import DEFAULT_FOLDER, EmbeddedAddress, parse_store_url
from ...objects.settings import Settings
from ..bounds import COUNTED_MAX
from ..orders import LONGEST_SECONDS
from . import logs
from .output import say_error, write_json
from .values import as_json, to_json

#: The largest count that is taken.
COUNT_MAX: Final = COUNTED_MAX - 1
NO_SERVER: Final = (
    "no server runs there; start one with `keylane dev module:app`, or name a store with --store or KEYLANE_REDIS_URL"
)

#: Stands below the help of commands that take or print values.
VALUES: Final = """Values are JSON. Decimal, UUID, dates and times are written as strings, and so they are printed.
Bytes are printed as base64, and written as {"$base64": "aGk="}: a plain string for bytes is taken as its UTF-8.
"""

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store; without it KEYLANE_REDIS_URL, else the one that `keylane dev` runs in this folder.",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", metavar="NAME", help="The deployment's prefix in the store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout; log and errors as JSON lines on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks, and log everything.")]
AppReference = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The app, e.g. shop.orders:app; the attribute defaults to app.")
]
ObjectType = Annotated[str, typer.Argument(metavar="TYPE", help="The object type, e.g. Order.")]
ObjectKey = Annotated[str, typer.Argument(metavar="TENANT/KEY", help="The object, e.g. acme/o-1001.")]
InvocationText = Annotated[str, typer.Argument(metavar="ID", help="An invocation id, as `send` prints it.")]
TimeoutSeconds = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        max=LONGEST_SECONDS,
        help="How long to wait; the invocation goes on afterwards.",
    ),
]
OneType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Look at one object type only.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who decides it; it goes into the record.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it goes into the record.")]
MessageId = Annotated[
    str | None,
    typer.Option("--message-id", metavar="ID", help="The same id for the same target is taken in once."),
]


class ExitCode(IntEnum):
    """How a command ends."""

    DONE = 0
    NO = 1
    WRONG_USE = 2
    NO_STORE = 3
    BUG = 70
    INTERRUPTED = 130
    UNREAD = 141


class WrongUse(Exception):
    """The command line asks for something that can't be meant."""


def check_words(by: str, reason: str | None) -> None:
    """Refuse to go on while nobody says who decides something, or why; None where no reason has to be given.

    Raises:
        WrongUse: One of them is blank.
    """
    if not by.strip() or (reason is not None and not reason.strip()):
        asked = "--by goes" if reason is None else "--reason and --by go"
        raise WrongUse(f"{asked} into the record: say {'' if reason is None else 'why, and '}who decides it")


@dataclass(frozen=True, slots=True)
class Shell:
    """The options that every command takes.

    Args:
        store: The store's URL, None when none was given.
        namespace: The deployment's prefix.
        is_json: Whether programs read the output.
        is_debug: Whether tracebacks are shown.
    """

    store: str | None
    namespace: str
    is_json: bool
    is_debug: bool

    def store_url(self) -> str:
        """Return the URL of a store that runs already.

        Raises:
            StoreUnavailable: None was named, and none runs in this folder.
            StoreError: The URL is malformed.
        """
        url = self.store or Settings().redis_url or f"embedded:{DEFAULT_FOLDER}"
        address = parse_store_url(url)
        if not isinstance(address, EmbeddedAddress):
            return url
        found = find_endpoint(address.folder)
        if found is None:
            raise StoreUnavailable(f"embedded:{absolute(address.folder)}", NO_SERVER)
        return found

    def run(self, work: Callable[[], Coroutine[Any, Any, ExitCode]]) -> None:
        """Do a command's work, say what went wrong if something did, and end with the code for that.

        Raises:
            typer.Exit: In any case.
        """
        try:
            code = anyio.run(work)
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        except Exception as error:  # noqa: BLE001, whatever it is becomes one sentence and a code
            code = self._report(_innermost(error))
        raise typer.Exit(code)

    def _report(self, error: Exception) -> ExitCode:
        if self.is_debug:
            sys.stderr.write("".join(traceback.format_exception(error)))
        if isinstance(error, BrokenPipeError):
            _drop_output()
            return ExitCode.UNREAD
        if self.is_json:
            write_json(_facts(error), sys.stderr)
        else:
            say_error(_sentence(error, is_debug=self.is_debug))
        return exit_code(error)


def _drop_output() -> None:
    """Let what is left of the output go nowhere: its reader, such as `head`, has gone, and Python flushes it yet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def shell_of(store: str | None, namespace: str, *, is_json: bool, is_debug: bool) -> Shell:
    """Return the shell of a command that asks something of a store or a file, with its log on stderr."""
    logs.install(is_json=is_json, is_debug=is_debug)
    return Shell(store, namespace, is_json=is_json, is_debug=is_debug)


def exit_code(error: Exception) -> ExitCode:
    """Return the code that an error ends a command with."""
    match error:
        case WrongUse() | InvalidKey() | RegistrationError():
            return ExitCode.WRONG_USE
        case StoreError():
            # The plain kind is about the URL itself.
            return ExitCode.WRONG_USE if type(error) is StoreError else ExitCode.NO_STORE
        case InternalError():
            return ExitCode.BUG
        case KeylaneError():
            return ExitCode.NO
        case _:
            return ExitCode.BUG


def _innermost(error: Exception) -> Exception:
    """Return the one error that task groups have wrapped; several are kept together."""
    if not isinstance(error, ExceptionGroup):
        return error
    group = cast("ExceptionGroup[Exception]", error)
    first, *others = group.exceptions
    return group if others else _innermost(first)


def _sentence(error: Exception, *, is_debug: bool) -> str:
    match error:
        case InvocationFailed():
            details = "" if error.details is None else f" · details: {as_json(error.details)}"
            return f"{error} · code: {error.code}{details}"
        case KeylaneError() | WrongUse():
            return str(error)
        case _:
            hint = "" if is_debug else "; --debug shows the traceback"
            return f"{type(error).__name__}: {error} (this is a bug in Keylane, please report it{hint})"


def _facts(error: Exception) -> dict[str, Any]:
    if isinstance(error, KeylaneError):
        fields = cast("dict[str, Any]", to_json(fields_of(error)))
        return {"error": code_of(error), "message": error.message, **fields}
    name = "wrong-use" if isinstance(error, WrongUse) else type(error).__name__
    return {"error": name, "message": str(error)}
