"""Receivers and effects: what can be declared, and what is refused with which words."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from keylane.journal.errors import RegistrationError
from keylane.objects.app import App, app_of
from keylane.objects.approvals import Proposal
from keylane.objects.receivers import Deduplicates, Effect, Receiver
from keylane.objects.recovery import contract_of
from keylane.objects.settings import Settings
from keylane.objects.virtual_object import VirtualObject


@dataclass
class Terms:
    cents: int


@dataclass
class Receipt:
    number: str


@dataclass
class FullReceipt(Receipt):
    fee: int = 0


async def find(operation_id: str, params: Terms) -> Receipt | None: ...


async def find_anything(operation_id: str, params: Any) -> Any: ...


async def send(operation_id: str, params: Terms) -> Receipt:
    return Receipt(operation_id)


def nobody(approver: str, proposal: Proposal) -> bool:
    return not (approver and proposal)


async def send_number(operation_id: str, params: int) -> Receipt:
    return Receipt(operation_id)


async def look_at_number(params: int) -> int:
    return params


async def give_number(operation_id: str, params: Terms) -> int:
    return params.cents


def receiver(name: str = "payments", **options: Any) -> Receiver:
    """A receiver that can be looked up unless told otherwise."""
    given: dict[str, Any] = {"owner": "payments-oncall", "lookup": find, **options}
    return Receiver(name, **given)


def declared(target: Receiver, function: Any = send, name: str = "refund", **options: Any) -> Effect[Any, Any]:
    """An effect of a receiver."""
    return target.effect(name, **options)(function)


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("options", "parameter", "words"),
    [
        ({"name": "9lives"}, "name", "'9lives' can't name a receiver"),
        ({"owner": " "}, "owner", "has no owner: name the team that settles by hand"),
        ({"owner": None}, "owner", "has no owner"),
        ({"runbook": 5}, "runbook", "runbook is 5: it must be text"),
        ({"deduplicates": HOUR}, "deduplicates", "write Deduplicates(retention="),
        ({"id_limit": "200"}, "id_limit", "id_limit is '200': use 32 to"),
        ({"lookup_lag": -HOUR}, "lookup_lag", "lookup_lag is -1 day, 23:00:00: use a timedelta, zero or more"),
        ({"lookup_lag": timedelta(days=31)}, "lookup_lag", "at most 30 days"),
        ({"in_flight": timedelta(days=31)}, "in_flight", "at most 30 days"),
        ({"lookup_lag": 5}, "lookup_lag", "lookup_lag is 5: use a timedelta"),
        ({"lookup_retention": timedelta(0)}, "lookup_retention", "use a timedelta, above zero"),
        ({"lookup_retention": timedelta(days=9999)}, "lookup_retention", "at most 3,653 days"),
        ({"in_flight": timedelta(0)}, "in_flight", "in_flight is 0:00:00"),
        ({"reconcile_within": -HOUR}, "reconcile_within", "above zero"),
        ({"absent_means": "nothing"}, "absent_means", "it must be 'unknown' or 'not_done'"),
        ({"late_calls": "never"}, "late_calls", "it must be 'possible' or 'impossible'"),
        ({"ids": "mine"}, "ids", "it must be 'qualified' or 'verbatim'"),
        ({"while_unknown": "wait"}, "while_unknown", "it must be 'block' or 'allow'"),
        ({"id_limit": 31}, "id_limit", "use 32 to 1,024: a longer operation id is hashed, and a shorter hash is not"),
        ({"lookup": None, "absent_means": "not_done"}, "absent_means", "absence is what a look-up finds"),
        ({"lookup": None, "lookup_lag": HOUR}, "lookup_lag", "give the look-up that it is about"),
        ({"lookup": None, "lookup_retention": HOUR}, "lookup_retention", "give the look-up that it is about"),
        ({"lookup": nobody}, "lookup", "write async def lookup"),
        ({"lookup": send.__name__}, "lookup", "'send' can't be its lookup"),
    ],
)
def test_a_receiver_that_contradicts_itself_is_refused(options: dict[str, Any], parameter: str, words: str) -> None:
    """Where it is declared, naming the parameter and what to write instead."""
    with pytest.raises(RegistrationError) as caught:
        receiver(**options)

    assert caught.value.parameter == parameter
    assert words in str(caught.value)


@pytest.mark.parametrize("retention", [timedelta(0), -HOUR, timedelta(days=9999), 3600])
def test_a_retention_of_operation_ids_is_a_span(retention: Any) -> None:
    """Nothing, less than nothing and a slip of the unit are none."""
    with pytest.raises(RegistrationError, match="Deduplicates: retention is"):
        Deduplicates(retention=retention)


def bare(**options: Any) -> Receiver:
    """A receiver that offers nothing."""
    return receiver(lookup=None, **options)


async def three(operation_id: str, params: Terms, more: int) -> Receipt | None: ...


@pytest.mark.parametrize(
    ("make", "parameter", "words"),
    [
        (lambda: declared(receiver(), name="a b"), "name", "'a b' can't name an effect"),
        (lambda: declared(receiver(), timeout=timedelta(0)), "timeout", "timeout is 0:00:00: use a timedelta, above"),
        (lambda: declared(receiver(), timeout=timedelta(days=2)), "timeout", "at most 1 day"),
        (
            lambda: declared(receiver(in_flight=timedelta(seconds=20))),
            "in_flight",
            "a call may take 0:00:30, and in_flight is 0:00:20: a call that has not ended can still take effect",
        ),
        (lambda: declared(receiver(), recheck=send), "recheck", "write async def recheck(params"),
        (lambda: declared(receiver(), recheck=look_at_number), "recheck", "takes Terms, and its recheck int"),
        (lambda: declared(receiver(), compensate_with="cancel"), "compensate_with", "'cancel' is no effect"),
        (
            lambda: declared(receiver(), compensate_with=declared(receiver("other", lookup=None), send_number)),
            "compensate_with",
            "takes Terms, and refund, which undoes it, int: an effect is undone with the parameters",
        ),
        (lambda: declared(receiver(), on_unknown="retry"), "on_unknown", "it must be 'settle' or 'ask'"),
        (lambda: declared(receiver(), on_unknown=""), "on_unknown", "it must be 'settle' or 'ask'"),
        (
            lambda: declared(bare(), on_unknown="settle"),
            "on_unknown",
            "offers nothing to do that with: it can't be asked what became of an operation id, and one that is sent",
        ),
        (lambda: declared(receiver(), give_number), "lookup", "has a receipt of int, and its look-up finds"),
        (lambda: declared(receiver(), send_number), "lookup", "takes int, and its look-up Terms"),
        (lambda: receiver(lookup=three), "lookup", "write async def lookup(operation_id: str, params: Params)"),
    ],
)
def test_an_effect_that_its_receiver_can_not_have_is_refused(
    make: Callable[[], object], parameter: str, words: str
) -> None:
    """Where it is declared, naming the parameter and what to write instead."""
    with pytest.raises(RegistrationError) as caught:
        make()

    assert caught.value.parameter == parameter
    assert words in str(caught.value)


def test_two_effects_of_a_receiver_have_two_names() -> None:
    """An entry of the store names its effect."""
    target = receiver()
    declared(target)

    with pytest.raises(RegistrationError, match=r"payments\.refund is declared twice: a name belongs to one effect"):
        declared(target)


def test_a_refused_effect_is_not_kept() -> None:
    """So that the declaration can be put right in a session that goes on."""
    target = bare()
    with pytest.raises(RegistrationError):
        declared(target, on_unknown="settle")

    assert target.effects == ()
    assert declared(target).on_unknown == "ask"


def test_a_look_up_may_find_more_than_one_kind_of_receipt() -> None:
    """A union, a base class or anything at all includes the receipt of the effect."""

    async def find_either(operation_id: str, params: Terms | int) -> Receipt | int | None: ...

    async def give_full(operation_id: str, params: Terms) -> FullReceipt:
        return FullReceipt(operation_id)

    target = receiver(lookup=find_either)
    names = [declared(target, give_number, "count").name, declared(target, send_number, "pay").name]
    names += [declared(target, give_full, "full").name, declared(receiver(lookup=find_anything), give_number).name]

    assert names == ["count", "pay", "full", "refund"]


def test_an_object_type_finds_its_effects_by_receiver_and_name() -> None:
    """As an entry of the store names them, with those that undo others."""
    cancel = declared(receiver("desk"), name="cancel")
    refund = declared(receiver(), compensate_with=cancel)
    order = VirtualObject("Order", owner="me", effects=[refund])

    assert order.find_effect("payments", "refund") is refund
    assert order.find_effect("desk", "cancel") is cancel
    assert order.find_effect("payments", "cancel") is None


def test_what_an_object_type_lists_are_effects_of_different_names() -> None:
    """Two declarations under one name could not be told apart in the store."""
    twice = [declared(receiver()), declared(receiver())]
    with pytest.raises(RegistrationError, match=r"has two effects payments\.refund"):
        VirtualObject("Order", owner="me", effects=twice)
    with pytest.raises(RegistrationError, match="is no effect: list what"):
        VirtualObject("Order", owner="me", effects=[send])  # pyright: ignore[reportArgumentType]


async def anybody(approver: str, proposal: Proposal) -> bool:
    return bool(approver and proposal)


def test_who_may_approve_is_said_by_an_async_function_of_two() -> None:
    """It may ask a directory, and gets the approver and the proposal."""
    assert VirtualObject("Order", owner="me", may_approve=anybody).may_approve is anybody
    for wrong in (nobody, "ada", find.__name__):
        with pytest.raises(RegistrationError, match="can't say who may approve: write async def may_approve"):
            VirtualObject("Order", owner="me", may_approve=wrong)  # pyright: ignore[reportArgumentType]


def test_an_app_knows_its_receivers() -> None:
    """Those of the listed effects, and those that are named besides."""
    refund = declared(receiver())
    mail = receiver("mail")
    note = declared(mail, name="note")
    app = App([VirtualObject("Order", owner="me", effects=[refund])], receivers=[mail])

    assert set(app.receivers) == {"payments", "mail"}
    assert app.effects == (refund, note)


@pytest.mark.parametrize("named", [[], [receiver()]])
def test_an_app_has_one_receiver_of_a_name(named: list[Receiver]) -> None:
    """Also where they are effects of different object types."""
    one, other = declared(receiver()), declared(receiver(), name="pay")
    objects = [VirtualObject("Order", owner="me", effects=[one]), VirtualObject("Customer", owner="me")]
    if not named:
        objects[1] = VirtualObject("Customer", owner="me", effects=[other])

    with pytest.raises(RegistrationError, match="two receivers are named 'payments'"):
        App(objects, receivers=named)
    with pytest.raises(RegistrationError, match="7 is no receiver"):
        App(objects[0], receivers=[7])  # pyright: ignore[reportArgumentType]


def test_verbatim_ids_have_an_object_type_that_keeps_them() -> None:
    """Once, however often an app is made of another one's object types; its name belongs to nobody else."""
    order = VirtualObject("Order", owner="me", effects=[declared(receiver(ids="verbatim"))])
    app = App(order)

    assert app.objects["keylane.ids"].owner == "payments-oncall"
    assert set(app_of(app, settings=Settings()).objects) == {"Order", "keylane.ids"}
    assert set(App(VirtualObject("Order", owner="me")).objects) == {"Order"}
    with pytest.raises(RegistrationError, match="the name of an object type of Keylane's own: rename it"):
        App([order, VirtualObject("keylane.ids", owner="me")])


def hosted(effect: Effect[Any, Any], lease_seconds: float = 3.0) -> App:
    """An app with one effect."""
    order = VirtualObject("Order", owner="me", effects=[effect])
    numbers = Settings(lease_seconds=lease_seconds, renewal_seconds=lease_seconds / 3, send_within_seconds=1)
    return App(order, settings=numbers)


def test_deduplication_that_could_never_be_used_is_refused() -> None:
    """A call that arrives after the receiver has forgotten the id would be taken again."""
    retention = timedelta(seconds=92)
    target = receiver(lookup=None, deduplicates=Deduplicates(retention=retention))
    effect = declared(target)

    assert hosted(effect, lease_seconds=1.5).effects == (effect,)
    with pytest.raises(RegistrationError, match=r"could never be sent again: .* for 0:01:32, a call may leave"):
        hosted(effect)


def test_absence_that_could_never_count_is_refused() -> None:
    """Where it can be found for less time than a call may be under way."""
    options: dict[str, Any] = {
        "absent_means": "not_done",
        "in_flight": timedelta(seconds=40),
        "lookup_lag": timedelta(seconds=10),
    }
    short = declared(receiver(lookup_retention=timedelta(seconds=96), **options))
    long = declared(receiver(lookup_retention=timedelta(seconds=97), **options))

    assert hosted(long).effects == (long,)
    with pytest.raises(RegistrationError, match=r"absence of effect payments\.refund would never count"):
        hosted(short)


def test_a_contract_is_what_was_declared_in_milliseconds() -> None:
    """With the timeout of the call and a minute where nothing says how long it may be in flight."""
    target = receiver(
        deduplicates=Deduplicates(retention=HOUR), lookup_lag=timedelta(seconds=1.5), late_calls="impossible"
    )
    contract = contract_of(declared(target, timeout=timedelta(seconds=5)), 3_000)

    assert (contract.dedup_ms, contract.lag_ms, contract.found_ms) == (3_600_000, 1_500, None)
    assert (contract.in_flight_ms, contract.lease_ms) == (65_000, 3_000)
    assert (contract.can_look_up, contract.may_be_late, contract.absent_means_not_done) == (True, False, False)
    assert not contract.asks_people
    assert contract_of(declared(receiver(), on_unknown="ask"), 3_000).asks_people
