"""Receivers: outside systems with their contracts, and the effects that are asked of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, cast
from urllib.parse import quote

from .receiver_checks import check_deduplication, check_effect, check_receiver
from .signature import effect_boundaries
from .types import Boundary

Params = TypeVar("Params")
Params_contra = TypeVar("Params_contra", contravariant=True)
Receipt = TypeVar("Receipt")
Receipt_co = TypeVar("Receipt_co", covariant=True)

#: What a look-up that finds nothing means once enough time has passed: nothing, or that it was not done.
AbsentMeans: TypeAlias = Literal["unknown", "not_done"]
#: Whether a process that was stopped between its last check and the first byte may still send when it goes on.
LateCalls: TypeAlias = Literal["possible", "impossible"]
#: What the receiver sees as operation id: one that no other object, tenant or type can have, or the handler's own.
Ids: TypeAlias = Literal["qualified", "verbatim"]
#: What becomes of further effects of an object at a receiver while one there is in question.
WhileUnknown: TypeAlias = Literal["block", "allow"]
#: What is done about an unknown outcome: what the contract allows, or nothing until a person says so.
OnUnknown: TypeAlias = Literal["settle", "ask"]

_HASH_BYTES_MAX: Final = 32

CALL_TIMEOUT: Final = timedelta(seconds=30)
IN_FLIGHT_MARGIN: Final = timedelta(seconds=60)
RECONCILE_WITHIN: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Deduplicates:
    """The receiver takes an operation id once: a second request with it does nothing and gives the first answer.

    Args:
        retention: For how long it knows an operation id, from the first request.

    Raises:
        RegistrationError: The retention is zero, negative or above ten years.
    """

    retention: timedelta

    def __post_init__(self) -> None:
        check_deduplication(self.retention)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Effect(Generic[Params_contra, Receipt_co]):
    """An outside action, declared with `@receiver.effect("name")`.

    Attributes:
        receiver: Whom it is asked of.
        name: Its name, which is also the action that an approval for it is about.
        function: The plain function: `async def (operation_id: str, params) -> receipt`.
        params: The boundary of its parameters.
        receipt: The boundary of its receipt.
        timeout: How long one call may take.
        recheck: Looks at the facts once more before the intent: `async def (params) -> facts`. What it returns is
            recorded; a `TerminalError` that it raises refuses the effect.
        compensate_with: The effect that undoes this one.
        on_unknown: What is done about an unknown outcome.
    """

    receiver: Receiver
    name: str
    function: Callable[[str, Params_contra], Coroutine[Any, Any, Receipt_co]]
    params: Boundary[Any]
    receipt: Boundary[Any]
    timeout: timedelta
    recheck: Callable[[Any], Coroutine[Any, Any, Any]] | None
    compensate_with: Effect[Any, Any] | None
    on_unknown: OnUnknown = "settle"

    def __repr__(self) -> str:
        return f"Effect({self.receiver.name}.{self.name})"

    @property
    def in_flight(self) -> timedelta:
        """The longest time from the first byte of a call until it can still take effect."""
        return self.receiver.in_flight or self.timeout + IN_FLIGHT_MARGIN


def qualified_id(namespace: str, type_name: str, key_text: str, operation_id: str, limit: int) -> str:
    """Return the operation id that a receiver sees: `namespace.Type.tenant/key.operation`, or a hash of it.

    Two operations never have the same one: a dot within a part, and what is not printable ASCII, is written as in URLs.

    Args:
        namespace: The namespace of the deployment.
        type_name: The object type.
        key_text: The object, as `tenant/key`.
        operation_id: The operation id, as the handler wrote it.
        limit: How many characters the receiver takes; what is longer becomes hexadecimal digits without a dot.
    """
    parts = (namespace, type_name, key_text, operation_id)
    readable = ".".join([part if _is_plain(part) else _escaped(part) for part in parts])
    if len(readable) <= limit:
        return readable
    return blake2b(readable.encode(), digest_size=min(limit // 2, _HASH_BYTES_MAX)).hexdigest()


def _escaped(part: str) -> str:
    return quote(part, safe=_PLAIN).replace(".", "%2E")


#: What stands in an operation id as it is, beside letters, digits and `_.-~`.
_PLAIN: Final = "/:@+=,;!"
#: Nearly all parts have nothing else.
_is_plain: Final = re.compile(rf"[A-Za-z0-9_~{_PLAIN}-]*").fullmatch


class Receiver:
    """An outside system, and what it promises.

    Args:
        name: Its name.
        owner: Who settles by hand what stays unknown there.
        deduplicates: That it takes an operation id once, and for how long it knows one.
        lookup: Asks it what became of an operation id: `async def (operation_id: str, params) -> receipt | None`; None
            means that it knows nothing of it, and `Rejected` that it has refused it.
        lookup_lag: How long after it was done something can be found.
        lookup_retention: For how long it can be found; None for ever.
        absent_means: What it means that nothing is found, once nothing can be under way any more.
        in_flight: The longest time from the first byte of a call until it can still take effect; by default the timeout
            of the call and a minute.
        late_calls: Whether a call of a process that was stopped can arrive after its time.
        ids: Whether it sees operation ids that are qualified by namespace, type, tenant and key, or with `"verbatim"`
            the handler's own. Each of those is first reserved for its object, by a call; another object
            that asks for it gets `EffectConflict`. Two namespaces know nothing of each other's.
        id_limit: How many characters of an operation id it takes; longer ones are hashed, or refused if verbatim.
        while_unknown: What becomes of further effects of an object here while one is in question.
        reconcile_within: How soon a person has to settle what stays unknown.
        runbook: What that person should know.

    Raises:
        RegistrationError: The declaration contradicts itself; the error names the parameter and the remedy.
    """

    def __init__(
        self,
        name: str,
        *,
        owner: str,
        deduplicates: Deduplicates | None = None,
        lookup: Callable[[str, Any], Coroutine[Any, Any, Any]] | None = None,
        lookup_lag: timedelta = timedelta(0),
        lookup_retention: timedelta | None = None,
        absent_means: AbsentMeans = "unknown",
        in_flight: timedelta | None = None,
        late_calls: LateCalls = "possible",
        ids: Ids = "qualified",
        id_limit: int = 200,
        while_unknown: WhileUnknown = "block",
        reconcile_within: timedelta = RECONCILE_WITHIN,
        runbook: str = "",
    ) -> None:
        self.name: Final = name
        self.owner: Final = owner
        self.deduplicates: Final = deduplicates
        self.lookup: Final = lookup
        self.lookup_lag: Final = lookup_lag
        self.lookup_retention: Final = lookup_retention
        self.absent_means: Final[AbsentMeans] = absent_means
        self.in_flight: Final = in_flight
        self.late_calls: Final[LateCalls] = late_calls
        self.ids: Final[Ids] = ids
        self.id_limit: Final = id_limit
        self.while_unknown: Final[WhileUnknown] = while_unknown
        self.reconcile_within: Final = reconcile_within
        self.runbook: Final = runbook
        self._effects: dict[str, Effect[Any, Any]] = {}
        check_receiver(self)

    def __repr__(self) -> str:
        return f"Receiver({self.name!r}, owner={self.owner!r})"

    @property
    def can_settle(self) -> bool:
        """Whether it offers anything by which an unknown outcome could be settled without people."""
        return self.lookup is not None or self.deduplicates is not None

    @property
    def effects(self) -> tuple[Effect[Any, Any], ...]:
        """What is asked of it, in the order of declaration."""
        return tuple(self._effects.values())

    def effect(
        self,
        name: str,
        *,
        timeout: timedelta = CALL_TIMEOUT,
        recheck: Callable[[Any], Coroutine[Any, Any, Any]] | None = None,
        compensate_with: Effect[Any, Any] | None = None,
        on_unknown: OnUnknown | None = None,
    ) -> Callable[[Callable[[str, Params], Coroutine[Any, Any, Receipt]]], Effect[Params, Receipt]]:
        """Declare an effect: `async def send_refund(operation_id: str, terms: RefundTerms) -> Receipt`.

        The function hands the operation id to the receiver. It returns the receipt, raises `Rejected` where the
        receiver said no, and `NotSent` where nothing has left. Any other exception leaves open what happened.

        Args:
            name: Its name among the effects of the receiver; an approval for it names it as the action.
            timeout: How long one call may take.
            recheck: Looks at the facts once more before the intent: `async def (params) -> facts`.
            compensate_with: The effect that undoes this one where a handler asks for it with `compensate=True`; it
                takes the same parameters, and is an effect of every object type that lists this one.
            on_unknown: `"settle"` has an unknown outcome settled by what the receiver offers, `"ask"` puts it before
                people at once. The default is to settle where the receiver offers anything.

        Raises:
            RegistrationError: The receiver can't have such an effect; the error names the parameter and the remedy.
        """

        def declare(function: Callable[[str, Params], Coroutine[Any, Any, Receipt]]) -> Effect[Params, Receipt]:
            params, receipt = effect_boundaries(function)
            # A parametrised call would set an attribute, which a frozen class with slots refuses.
            effect: Effect[Params, Receipt] = Effect(
                receiver=self,
                name=name,
                function=function,
                params=params,
                receipt=receipt,
                timeout=timeout,
                recheck=recheck,
                compensate_with=compensate_with,
                on_unknown=("settle" if self.can_settle else "ask") if on_unknown is None else on_unknown,
            )
            check_effect(effect)
            self._effects[name] = cast("Effect[Any, Any]", effect)
            return effect

        return declare
