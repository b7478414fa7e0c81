"""Which receivers and effects can't be declared: each refusal names the parameter, the reason and the remedy."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin

from ..journal.errors import RegistrationError
from ..journal.key import is_name
from ..journal.utf8 import is_text
from .recovery import contract_under, may_ever_count, may_ever_resend
from .signature import first_form, lookup_forms, takes

if TYPE_CHECKING:
    from .receivers import Effect, Receiver
    from .settings import Settings

#: Longer spans are a slip of the unit: ten years.
SPAN_MAX: Final = timedelta(days=3653)
#: What nobody may be told of for longer than that is no lag and no flight.
DELAY_MAX: Final = timedelta(days=30)
TIMEOUT_MAX: Final = timedelta(days=1)
#: Shorter operation ids could not hold a hash that nobody meets twice.
ID_LIMIT_MIN: Final = 32
ID_LIMIT_MAX: Final = 1_024

_NAME_REMEDY: Final = "a name begins with a letter and has at most 64 letters, digits and _ . -"
_NOTHING: Final = timedelta(0)


def check_deduplication(retention: object) -> None:
    """Refuse a retention of operation ids that is none.

    Raises:
        RegistrationError: It is zero, negative, too long, or no timedelta.
    """
    _check_span("Deduplicates", "retention", retention)


def check_receiver(receiver: Receiver) -> None:
    """Refuse a receiver whose declaration contradicts itself.

    Raises:
        RegistrationError: The first contradiction.
    """
    what = f"Receiver({receiver.name!r})"
    _require(is_name(receiver.name), f"{receiver.name!r} can't name a receiver", "name", _NAME_REMEDY)
    has_owner = is_text(receiver.owner) and bool(receiver.owner.strip())
    _require(has_owner, f"{what} has no owner", "owner", "name the team that settles by hand what stays unknown there")
    _check_choices(what, receiver)
    _check_spans(what, receiver)
    _check_lookup(what, receiver)
    has_retention = isinstance(getattr(receiver.deduplicates, "retention", None), timedelta)
    remedy = "write Deduplicates(retention=timedelta(…)), or leave it out"
    fits = receiver.deduplicates is None or has_retention
    _require(fits, f"{what}: deduplicates is {receiver.deduplicates!r}", "deduplicates", remedy)
    _require(is_text(receiver.runbook), f"{what}: runbook is {receiver.runbook!r}", "runbook", "it must be text")
    fits = type(receiver.id_limit) is int and ID_LIMIT_MIN <= receiver.id_limit <= ID_LIMIT_MAX
    remedy = (
        f"use {ID_LIMIT_MIN} to {ID_LIMIT_MAX:,}: a longer operation id is hashed, and a shorter hash is not unique"
    )
    _require(fits, f"{what}: id_limit is {receiver.id_limit!r}", "id_limit", remedy)


def check_effect(effect: Effect[Any, Any]) -> None:
    """Refuse an effect that its receiver can't have.

    Raises:
        RegistrationError: The first reason.
    """
    what = f"effect {effect.receiver.name}.{effect.name}"
    _require(is_name(effect.name), f"{effect.name!r} can't name an effect", "name", _NAME_REMEDY)
    is_new = all(each.name != effect.name for each in effect.receiver.effects)
    _require(is_new, f"{what} is declared twice", "name", "a name belongs to one effect of a receiver; rename one")
    _check_span(what, "timeout", effect.timeout, most=TIMEOUT_MAX)
    shown = f"{what}: a call may take {effect.timeout}, and in_flight is {effect.in_flight}"
    remedy = "a call that has not ended can still take effect: raise in_flight of the receiver, or lower timeout"
    _require(effect.in_flight >= effect.timeout, shown, "in_flight", remedy)
    _check_recheck(what, effect)
    _check_compensation(what, effect)
    _check_settling(what, effect)
    _check_lookup_types(what, effect)


def check_windows(effect: Effect[Any, Any], settings: Settings) -> None:
    """Refuse promises of a receiver that could never be used: what they are there for would not happen.

    Raises:
        RegistrationError: Its windows are shorter than a call takes.
    """
    contract = contract_under(effect, settings)
    what = f"effect {effect.receiver.name}.{effect.name}"
    leaves = timedelta(milliseconds=contract.leaves_within_ms)
    call = f"a call may leave {leaves} after its intent and take effect {effect.in_flight} later"
    if not may_ever_resend(contract):
        retention = timedelta(milliseconds=contract.dedup_ms or 0)
        shown = f"{what} could never be sent again: its receiver knows an operation id for {retention}, {call}"
        remedy = (
            "declare the retention that the receiver really has, lower in_flight or the setting send_within_seconds, "
            "or leave deduplicates out"
        )
        raise RegistrationError(shown, parameter="deduplicates", remedy=remedy)
    if contract.absent_means_not_done and not may_ever_count(contract):
        span = effect.receiver.lookup_retention
        shown = f"absence of {what} would never count: it can be found for {span}, {call}"
        remedy = "lower in_flight or lookup_lag to what they really are, or leave absent_means at 'unknown'"
        raise RegistrationError(shown, parameter="lookup_retention", remedy=remedy)


def _check_choices(what: str, receiver: Receiver) -> None:
    choices = {
        "absent_means": ("unknown", "not_done"),
        "late_calls": ("possible", "impossible"),
        "ids": ("qualified", "verbatim"),
        "while_unknown": ("block", "allow"),
    }
    for name, allowed in choices.items():
        value = getattr(receiver, name)
        _require(
            value in allowed, f"{what}: {name} is {value!r}", name, f"it must be {' or '.join(map(repr, allowed))}"
        )


def _check_spans(what: str, receiver: Receiver) -> None:
    if receiver.in_flight is not None:
        _check_span(what, "in_flight", receiver.in_flight, most=DELAY_MAX)
    if receiver.lookup_retention is not None:
        _check_span(what, "lookup_retention", receiver.lookup_retention)
    _check_span(what, "lookup_lag", receiver.lookup_lag, most=DELAY_MAX, may_be_nothing=True)
    _check_span(what, "reconcile_within", receiver.reconcile_within)


def _check_lookup(what: str, receiver: Receiver) -> None:
    if receiver.lookup is None:
        remedy = "absence is what a look-up finds: give one as lookup=, or leave absent_means at 'unknown'"
        claims = receiver.absent_means == "not_done"
        _require(not claims, f"{what} has no lookup and says what absence means", "absent_means", remedy)
        for name, is_set in (("lookup_lag", receiver.lookup_lag), ("lookup_retention", receiver.lookup_retention)):
            _require(
                not is_set, f"{what} has {name} and no lookup", name, "give the look-up that it is about as lookup="
            )
        return
    remedy = "write async def lookup(operation_id: str, params: Params) -> Receipt | None"
    _require(takes(receiver.lookup, 2), f"{what}: {receiver.lookup!r} can't be its lookup", "lookup", remedy)


def _check_recheck(what: str, effect: Effect[Any, Any]) -> None:
    recheck = effect.recheck
    if recheck is None:
        return
    remedy = "write async def recheck(params: Params), which returns the facts, or raises a TerminalError"
    _require(takes(recheck, 1), f"{what}: {recheck!r} can't be its recheck", "recheck", remedy)
    taken, params = first_form(recheck), effect.params.form
    shown = f"{what} takes {_shown(params)}, and its recheck {_shown(taken)}"
    _require(_includes(taken, params), shown, "recheck", "a recheck gets the parameters of the effect")


def _check_compensation(what: str, effect: Effect[Any, Any]) -> None:
    undo = effect.compensate_with
    if undo is None:
        return
    is_effect = hasattr(undo, "params") and hasattr(undo, "receiver")
    remedy = 'give what `@receiver.effect("name")` returned; it has to be declared before'
    _require(is_effect, f"{what}: {undo!r} is no effect", "compensate_with", remedy)
    shown = f"{what} takes {_shown(effect.params.form)}, and {undo.name}, which undoes it, {_shown(undo.params.form)}"
    remedy = "an effect is undone with the parameters that it was asked for with: let both take the same type"
    _require(undo.params.form == effect.params.form, shown, "compensate_with", remedy)


def _check_settling(what: str, effect: Effect[Any, Any]) -> None:
    is_known = effect.on_unknown in ("settle", "ask")
    remedy = "it must be 'settle' or 'ask'"
    _require(is_known, f"{what}: on_unknown is {effect.on_unknown!r}", "on_unknown", remedy)
    can_settle = effect.on_unknown == "ask" or effect.receiver.can_settle
    shown = (
        f"{what} is to be settled by itself, and its receiver {effect.receiver.name!r} offers nothing to do that with: "
        "it can't be asked what became of an operation id, and one that is sent again it would do again"
    )
    remedy = (
        "give the receiver lookup= or deduplicates=, where it has them; else people have to settle it: leave it out"
    )
    _require(can_settle, shown, "on_unknown", remedy)


def _check_lookup_types(what: str, effect: Effect[Any, Any]) -> None:
    lookup = effect.receiver.lookup
    if lookup is None:
        return
    taken, given = lookup_forms(lookup)
    is_fit = _includes(given, effect.receipt.form)
    shown = f"{what} has a receipt of {_shown(effect.receipt.form)}, and its look-up finds {_shown(given)}"
    remedy = "a look-up returns the receipt that the call would have returned, or None where it finds nothing"
    _require(is_fit, shown, "lookup", remedy)
    shown = f"{what} takes {_shown(effect.params.form)}, and its look-up {_shown(taken)}"
    _require(_includes(taken, effect.params.form), shown, "lookup", "a look-up gets the parameters of the effect")


def _includes(form: Any, wanted: Any) -> bool:
    """Return whether a type is another one, or a union with it; what is not known includes everything."""
    if form in (Any, object) or form == wanted:
        return True
    parts = get_args(form) if _is_union(form) else ()
    wanted_parts = get_args(wanted) if _is_union(wanted) else (wanted,)
    return all(any(_is_one(part, each) for part in (*parts, form)) for each in wanted_parts)


def _is_one(form: Any, wanted: Any) -> bool:
    if form in (Any, object) or form == wanted:
        return True
    return isinstance(form, type) and isinstance(wanted, type) and issubclass(wanted, form)


def _is_union(form: Any) -> bool:
    return get_origin(form) is Union or type(form).__name__ == "UnionType"


def _check_span(
    what: str, name: str, span: object, *, most: timedelta = SPAN_MAX, may_be_nothing: bool = False
) -> None:
    least = "zero or more" if may_be_nothing else "above zero"
    remedy = f"use a timedelta, {least} and at most {most.days:,} {'day' if most.days == 1 else 'days'}"
    is_span = isinstance(span, timedelta)
    fits = is_span and _NOTHING <= span <= most and (may_be_nothing or span > _NOTHING)
    _require(fits, f"{what}: {name} is {span if is_span else repr(span)}", name, remedy)


def _shown(form: Any) -> str:
    return form.__name__ if isinstance(form, type) else str(form).replace("typing.", "")


def _require(holds: bool, what: str, parameter: str, remedy: str) -> None:  # noqa: FBT001  the condition is the subject
    if not holds:
        raise RegistrationError(what, parameter=parameter, remedy=remedy)
