"""Object types: a name, its handlers and its policies."""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast

from ..journal.errors import InvalidOutput, RegistrationError, UnknownHandler
from ..journal.key import is_name
from ..journal.utf8 import is_text
from .approvals import Proposal
from .handler import (
    CHECKPOINTS,
    Handler,
    HandlerDecorator,
    HandlerOptions,
    SharedDecorator,
    handler_decorator,
    shared_decorator,
)
from .policies import RetryPolicy
from .receivers import Effect
from .signature import Kind, read_signature, takes
from .types import Boundary, make_boundary
from .validator import validator_of

PARTITIONS_MAX: Final = 16_384
#: Bytes of UTF-8 that the name of a state value may have.
STATE_NAME_LIMIT_BYTES: Final = 256
_COUNT_MAX: Final = 2**31 - 1
_IDEMPOTENCY_RETENTION_MAX: Final = timedelta(days=400)
_NAME_REMEDY: Final = "a name begins with a letter and has at most 64 letters, digits and _ . -"
_COUNT_REMEDY: Final = f"it must be 1 or more, and at most {_COUNT_MAX:,}"


#: Brings an object's state, plain values by name, from an older version to the newest one.
Migrate: TypeAlias = Callable[[dict[str, Any], int], dict[str, Any]]
#: Whether somebody may decide on a proposal; asked at the decision, and again before what was approved is done.
MayApprove: TypeAlias = Callable[[str, Proposal], Coroutine[Any, Any, bool]]


class VirtualObject:
    """An object type: `VirtualObject("Order", owner="refunds-oncall")`.

    Args:
        name: Part of every key of the store and every invocation id: keep it for as long as there is data.
        owner: Who is in charge of stuck work; named in errors, in `doctor` and in the metrics.
        state: The types of state values by name; `ctx.set` checks against them.
        effects: The outside actions that its handlers may ask for; those that undo them come with them.
        may_approve: `async def may_approve(approver, proposal) -> bool`: whether somebody may decide on a proposal.
            It is asked at the decision, and again before what was approved is done. Without it, everybody may.
        partitions: Units of ownership, fixed at first use; without it, the deployment's (16).
        backlog: Invocations that may wait in one lane; without it, the deployment's (1,000).
        on_paused: Whether a paused invocation holds the lane or lets the next one pass.
        retry: The retry policy of handlers that declare none.
        idempotency_retention: How long the idempotency keys of such handlers are known.
        state_version: The version of the state's shape; raise it together with a `migrate` that brings older state to
            it. State that is newer than this is left alone, and what would use it is paused.
        migrate: `migrate(state, from_version)` returns the state as this version has it. It gets plain values by name:
            dicts where models were written. What it does not touch and returns is kept as it is; a name that it leaves
            out is cleared. It runs when an object of an older version is used, and once more where its result could not
            be written, so it may do nothing but compute. One that raises pauses the invocation and changes nothing.

    Raises:
        RegistrationError: A declaration can't work; the error names the parameter and the remedy.
    """

    def __init__(
        self,
        name: str,
        *,
        owner: str,
        state: Mapping[str, Any] | None = None,
        effects: Iterable[Effect[Any, Any]] = (),
        may_approve: MayApprove | None = None,
        partitions: int | None = None,
        backlog: int | None = None,
        on_paused: Literal["hold", "skip"] = "hold",
        retry: RetryPolicy | None = None,
        idempotency_retention: timedelta | None = None,
        state_version: int = 1,
        migrate: Migrate | None = None,
    ) -> None:
        what = f"VirtualObject({name!r})"
        _require(is_name(name), f"{name!r} can't name an object type", "name", _NAME_REMEDY)
        has_owner = is_text(owner) and bool(owner.strip())
        _require(has_owner, f"{what} has no owner", "owner", "name the team that answers for stuck work")
        bounds = f"use 1 to {PARTITIONS_MAX:,}"
        are_bounded = partitions is None or (_is_count(partitions) and partitions <= PARTITIONS_MAX)
        _require(are_bounded, f"{what}: partitions is {partitions!r}", "partitions", bounds)
        is_bound = backlog is None or _is_count(backlog)
        _require(is_bound, f"{what}: backlog is {backlog!r}", "backlog", _COUNT_REMEDY)
        is_known = on_paused in ("hold", "skip")
        _require(is_known, f"{what}: on_paused is {on_paused!r}", "on_paused", 'it must be "hold" or "skip"')
        _check_policy(what, retry)
        _check_retention(what, idempotency_retention)
        _check_migration(what, state_version, migrate)
        _check_approver(what, may_approve)
        self.name: Final = name
        self.owner: Final = owner
        self.partitions: Final = partitions
        self.backlog: Final = backlog
        self.on_paused: Final = on_paused
        self.retry: Final = retry
        self.idempotency_retention: Final = idempotency_retention
        self.state_version: Final = state_version
        self.migrate: Final = migrate
        self.state: Final[Mapping[str, Boundary[Any]]] = MappingProxyType(
            _boundaries(what, {} if state is None else state)
        )
        self.effects: Final[Mapping[tuple[str, str], Effect[Any, Any]]] = MappingProxyType(_effects(what, effects))
        self.may_approve: Final = may_approve
        self._versions: dict[tuple[str, int], Handler[Any, Any]] = {}
        self._newest: dict[str, Handler[Any, Any]] = {}

    def __repr__(self) -> str:
        return f"VirtualObject({self.name!r}, owner={self.owner!r})"

    @property
    def handler(self) -> HandlerDecorator:
        """The decorator of exclusive handlers: `@order.handler`, or with options `@order.handler(version=2)`."""
        return handler_decorator(lambda function, options: self._register(function, "exclusive", options))

    @property
    def shared(self) -> SharedDecorator:
        """The decorator of shared handlers, which only read: `@order.shared`."""
        return shared_decorator(lambda function, options: self._register(function, "shared", options))

    @property
    def handlers(self) -> Mapping[str, Handler[Any, Any]]:
        """The newest version of each handler, by name."""
        return MappingProxyType(self._newest)

    def version_of(self, name: str, version: int) -> Handler[Any, Any] | None:
        """The handler of a name in one version, None where it is not registered."""
        return self._versions.get((name, version))

    def versions(self, name: str) -> tuple[int, ...]:
        """The registered versions of a handler, ascending."""
        return tuple(sorted(version for each, version in self._versions if each == name))

    def find(self, name: str, version: int | None = None) -> Handler[Any, Any]:
        """The handler of a name, in its newest version unless one is asked for.

        Raises:
            UnknownHandler: There is none.
        """
        found = self._newest.get(name) if version is None else self._versions.get((name, version))
        if found is None:
            shown = name if version is None else f"{name}, version {version}"
            raise UnknownHandler(self.name, shown, tuple(sorted(self._newest)))
        return found

    def find_effect(self, receiver: str, name: str) -> Effect[Any, Any] | None:
        """The effect of a name at the receiver of a name; None where the object type does not list it."""
        return self.effects.get((receiver, name))

    def _register(self, function: Callable[..., Any], kind: Kind, options: HandlerOptions) -> Handler[Any, Any]:
        signature = read_signature(function, kind)
        name = function.__name__ if options.name is None else options.name
        what = f"handler {self.name}.{name}"
        _require(is_name(name), f"{name!r} can't name a handler of {self.name}", "name", f"{_NAME_REMEDY}; set name=")
        is_number = _is_count(options.version)
        _require(is_number, f"{what}: version is {options.version!r}", "version", _COUNT_REMEDY)
        _check_policy(what, options.retry)
        _check_retention(what, options.idempotency_retention)
        is_mode = options.checkpoint in CHECKPOINTS
        modes = 'it must be "sync", "async" or "exit"'
        _require(is_mode, f"{what}: checkpoint is {options.checkpoint!r}", "checkpoint", modes)
        is_new = (name, options.version) not in self._versions
        remedy = "give one of them another name=, or a higher version="
        _require(is_new, f"{what}, version {options.version}, is declared twice", "name", remedy)
        handler: Handler[Any, Any] = Handler(
            object_name=self.name,
            name=name,
            version=options.version,
            function=function,
            kind=kind,
            is_blocking=signature.is_blocking,
            is_private=options.private,
            input=signature.input,
            output=signature.output,
            retry=options.retry or self.retry,
            idempotency_retention=options.idempotency_retention or self.idempotency_retention,
            partitions=self.partitions,
            checkpoint=options.checkpoint,
            validate=None if options.validate is None else validator_of(options.validate, signature, what),
        )
        self._keep(handler)
        return handler

    def _keep(self, handler: Handler[Any, Any]) -> None:
        self._versions[handler.name, handler.version] = handler
        newest = self._newest.get(handler.name)
        if newest is None or newest.version < handler.version:
            self._newest[handler.name] = handler


def _check_migration(what: str, state_version: int, migrate: Migrate | None) -> None:
    is_number = _is_count(state_version)
    _require(is_number, f"{what}: state_version is {state_version!r}", "state_version", _COUNT_REMEDY)
    if state_version == 1:
        remedy = "raise state_version with it: it is called for state of a version below that"
        _require(migrate is None, f"{what} has a migrate and its state_version is 1", "state_version", remedy)
        return
    remedy = "write migrate(state, from_version), which returns the state of this version"
    _require(callable(migrate), f"{what}: state_version is {state_version}, and there is no migrate", "migrate", remedy)
    is_plain = not inspect.iscoroutinefunction(migrate)
    _require(is_plain, f"{what}: migrate is an async def", "migrate", "make it a plain def: it may only compute")


def _boundaries(what: str, forms: Mapping[str, Any]) -> dict[str, Boundary[Any]]:
    boundaries: dict[str, Boundary[Any]] = {}
    are_named = isinstance(cast("object", forms), Mapping)
    _require(are_named, f"{what}: state is {forms!r}", "state", 'write the types by name, as in {"status": str}')
    for name, form in forms.items():
        remedy = f"a name is text of at most {STATE_NAME_LIMIT_BYTES} bytes"
        is_named = isinstance(cast("object", name), str)
        fits = is_named and len(name.encode(errors="surrogatepass")) <= STATE_NAME_LIMIT_BYTES
        _require(fits, f"{what}: {name!r} can't name a state value", "state", remedy)
        try:
            boundaries[name] = make_boundary(form, where=f"state {name}", refusal=InvalidOutput)
        except RegistrationError as error:
            raise RegistrationError(f"{what}: {error.what}", parameter="state", remedy=error.remedy) from error
    return boundaries


def _effects(what: str, listed: Iterable[object]) -> dict[tuple[str, str], Effect[Any, Any]]:
    effects: dict[tuple[str, str], Effect[Any, Any]] = {}
    remedy = 'list what `@receiver.effect("name")` returns'
    _require(isinstance(cast("object", listed), Iterable), f"{what}: effects is {listed!r}", "effects", remedy)
    waiting = list(listed)
    for each in waiting:
        remedy = 'list what `@receiver.effect("name")` returns'
        _require(isinstance(each, Effect), f"{what}: {each!r} is no effect", "effects", remedy)
        effect = cast("Effect[Any, Any]", each)
        known = effects.setdefault((effect.receiver.name, effect.name), effect)
        twice = f"{what} has two effects {effect.receiver.name}.{effect.name}"
        remedy = "an effect is found again by its name and its receiver's: rename one, or declare the receiver once"
        _require(known is effect, twice, "effects", remedy)
        # What undoes an effect is asked for where it was asked for.
        waiting += [effect.compensate_with] if effect.compensate_with is not None else []
    return effects


def _check_approver(what: str, may_approve: object) -> None:
    is_fit = may_approve is None or takes(may_approve, 2)
    remedy = "write async def may_approve(approver: str, proposal: Proposal) -> bool"
    _require(is_fit, f"{what}: {may_approve!r} can't say who may approve", "may_approve", remedy)


def _check_policy(what: str, retry: object) -> None:
    holds = retry is None or isinstance(retry, RetryPolicy)
    _require(holds, f"{what}: retry is {retry!r}", "retry", "use a RetryPolicy, such as RetryPolicy(attempts=3)")


def _check_retention(what: str, retention: object) -> None:
    is_time = isinstance(retention, timedelta)
    holds = retention is None or (is_time and timedelta(0) < retention <= _IDEMPOTENCY_RETENTION_MAX)
    shown = retention if is_time else repr(retention)
    remedy = "use a timedelta, above zero and at most 400 days"
    _require(holds, f"{what}: idempotency_retention is {shown}", "idempotency_retention", remedy)


def _is_count(number: object) -> bool:
    return type(number) is int and 1 <= number <= _COUNT_MAX


def _require(holds: bool, what: str, parameter: str, remedy: str) -> None:  # noqa: FBT001  the condition is the subject
    if not holds:
        raise RegistrationError(what, parameter=parameter, remedy=remedy)
