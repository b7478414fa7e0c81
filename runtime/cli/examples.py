"""An example of each command, which stands at the end of its help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer
    from typer.models import CommandInfo

_ID: Final = "Order.3.0193a1b2c3d47e5f8a9b0c1d2e3f4a5b"
_PROPOSAL: Final = "Order/acme/o-1001#refund.3"
_DECIDED: Final = '--by ada --reason "ticket 77"'

#: By the words of the command; each is checked to be one that the command takes.
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "dev": ("shop:app",),
    "worker": ("shop:app --store redis://127.0.0.1:6379",),
    "call": ("""Order acme/o-1001 refund '{"amount": "10.00"}' --idempotency-key ticket-77""",),
    "send": ("""Order acme/o-1001 refund '{"amount": "10.00"}' --delay 3600""",),
    "attach": (f"{_ID} --timeout 60",),
    "describe": (_ID,),
    "inspect": ("Order acme/o-1001 --entries 20",),
    "pause": (f"Order acme/o-1001 {_DECIDED}", f"Order {_DECIDED}", f"{_ID} {_DECIDED}"),
    "resume": (f"{_ID} {_DECIDED}", f"Order acme/o-1001 {_DECIDED}"),
    "resolve": (f"""{_ID}.1 '{{"granted": true, "by": "ana"}}' --by ana""",),
    "reject": (f'{_ID}.1 "the supplier has withdrawn" --code withdrawn --by ana',),
    "signal": (f"""{_ID} "parcel back" '"p-7"'""", """Order "parcel back" '"p-7"' --key acme/o-1001"""),
    "restart": (f"{_ID} --keep 3 {_DECIDED}", f"{_ID} --keep 0 --version 2 {_DECIDED}"),
    "cancel": (f'{_ID} --by ada --reason "sold out"',),
    "kill": (f"{_ID} {_DECIDED}",),
    "explain": ("Order acme/o-1001", "acme/o-1001"),
    "audit": (
        "--receiver payments --against books.csv",
        "--receiver payments --against books.csv --amount-column amount --amount-field amount --allow-queued",
    ),
    "alerts": ("--follow",),
    "reconcile list": ("--receiver payments",),
    "reconcile show": ("Order acme/o-1001 refund-1",),
    "reconcile lookup": (f"Order acme/o-1001 refund-1 {_DECIDED}",),
    "reconcile succeeded": (
        """Order acme/o-1001 refund-1 '{"id": "r-77"}' --by ada --reason "seen in their books\"""",
    ),
    "reconcile not-done": ('Order acme/o-1001 refund-1 --by ada --reason "not on the statement of May 3"',),
    "reconcile resend": (f"Order acme/o-1001 refund-1 {_DECIDED}",),
    "reconcile hand-over": (f"Order acme/o-1001 refund-1 --to bea --within-hours 24 {_DECIDED}",),
    "doctor": ("--repair",),
    "restored": ("--from 2026-11-30T02:00:00Z",),
    "export": (f"{_ID} --out refund.jsonl",),
    "replay": ("refund.jsonl shop:app",),
    "deploy check": ("shop:app", "shop:app --file refund.jsonl"),
    "effects plan": ("shop:app", "shop:app --receiver payments"),
    "contract": ("shop:app", "shop:app --store redis://127.0.0.1:6379"),
    "compensation skip": (f"{_ID} {_DECIDED}",),
    "approvals list": ("Order", "Order acme/o-1001"),
    "approvals show": (_PROPOSAL,),
    "approvals approve": (f"{_PROPOSAL} --by ada", f"{_PROPOSAL} --by bob --on-behalf-of ada"),
    "approvals decline": (f"{_PROPOSAL} {_DECIDED}",),
    "approvals revoke": (f"{_PROPOSAL} {_DECIDED}",),
    "approvals delegate": (f"{_PROPOSAL} --by ada --to bob",),
}


def give_examples(app: typer.Typer) -> None:
    """Put the examples of a command line below the help of its commands."""
    for words, command in commands_of(app):
        lines = [f"  keylane {words} {example}" for example in EXAMPLES.get(words, ())]
        if lines:
            # The mark keeps the lines as they are.
            examples = "\n".join(["\b", "Examples:", *lines])
            command.epilog = f"{command.epilog}\n\n{examples}" if command.epilog else examples


def commands_of(app: typer.Typer, before: str = "") -> Iterator[tuple[str, CommandInfo]]:
    """Give each command with the words that call it."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{before}{command.name or command.callback.__name__.replace('_', '-')}", command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            name = group.name if isinstance(group.name, str) else group.typer_instance.info.name
            yield from commands_of(group.typer_instance, f"{before}{name} ")
