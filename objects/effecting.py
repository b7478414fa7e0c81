"""What an exclusive handler may ask of the world outside: effects, whose outcome is never guessed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from ..journal.errors import EffectRejected

if TYPE_CHECKING:
    from .approvals import Approval
    from .receivers import Effect

Params = TypeVar("Params")
Receipt = TypeVar("Receipt")
Receipt_co = TypeVar("Receipt_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Succeeded(Generic[Receipt_co]):
    """The receiver did it.

    Attributes:
        receipt: What it answered.
    """

    receipt: Receipt_co


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can say yet whether the receiver did it; it is being settled meanwhile.

    Attributes:
        since: Since when that is so, by the partition's time.
        why: What is known, in words.
    """

    since: datetime
    why: str


#: What `ctx.effect_outcome` returns; take it apart with `match`.
EffectOutcome: TypeAlias = Succeeded[Receipt] | EffectRejected | Unknown


class Effecting(ABC):
    """Effects of an `async def` handler."""

    __slots__ = ()

    @abstractmethod
    async def effect(
        self,
        effect: Effect[Params, Receipt],
        /,
        *,
        operation_id: str,
        params: Params,
        approval: Approval | None = None,
        compensate: bool = False,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Receipt:
        """Have something done outside, and return the receiver's receipt.

        What is to be done is durable before anything is sent. Where it is not known whether the receiver did it, this
        waits until it is: the receiver is asked, or the same id is sent again where it takes one once, or a person
        settles it. No exception tells that an outcome is unknown, so no handler can take that for a failure.

        Args:
            effect: What: declared with `@receiver.effect(…)` and listed in `VirtualObject(effects=[…])`.
            operation_id: Names the business operation among those of this object. Asking again under the same id, from
                wherever, gives what became of it, and does nothing again; another operation needs another id.
            params: With what.
            approval: What allows it, where people had to; it is used up in the commit that precedes the call.
            compensate: Whether what the effect declares as `compensate_with` undoes it when this handler fails for good
                or is cancelled: registered as by `ctx.compensate` right before this call, with the same parameters,
                under the operation id `refund-1-undo` after `refund-1`. It is asked for only where the effect turns out
                to have been done: what was rejected or not sent is not undone, and while the outcome is unknown the
                undo waits until that is settled. It takes no approval; an undo that needs one is for `ctx.compensate`.
            release_lane: Whether others may change this object meanwhile; see `ObjectContext.release_lane`.
            expects: Names of state values that nobody else may have changed when it returns, with `release_lane=True`.

        Raises:
            EffectRejected: It was not done and will not be, by the receiver's own word or by that of a person.
            EffectConflict: The operation id was used for something else.
            ApprovalUnfit: The approval does not allow this; nothing was sent.
            TerminalError: What the effect's `recheck` has raised; nothing was sent.
            PayloadTooLarge: The parameters have more than 64 KiB, or the operation id more than 200 bytes, or 191 with
                `compensate=True`.
            RegistrationError: The object type does not list the effect, or with `compensate=True` it declares no undo.
            InvalidInput: The parameters do not fit their type.
            Superseded: Others have changed what was expected to stay.
        """

    @abstractmethod
    async def effect_outcome(
        self,
        effect: Effect[Params, Receipt],
        /,
        *,
        operation_id: str,
        params: Params,
        approval: Approval | None = None,
        compensate: bool = False,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Succeeded[Receipt] | EffectRejected | Unknown:
        """Have something done outside, and return what is known of the outcome, also that nothing is.

        ```python
        match await ctx.effect_outcome(send_refund, operation_id="refund-1", params=terms):
            case Succeeded(receipt):
                ...
            case EffectRejected() as rejected:
                ...
            case Unknown(since, why):
                ...  # it is being settled; asking again under the same id gives what became of it
        ```

        Args:
            effect: What; see `effect`, also for the other arguments.
            operation_id: Names the business operation.
            params: With what.
            approval: What allows it.
            compensate: Whether what it declares undoes it, as far as it turns out to have been done.
            release_lane: Whether others may change this object meanwhile.
            expects: Names of state values that nobody else may have changed when it returns.

        Raises:
            TerminalError: As `effect`, but for `EffectRejected`, which is returned.
        """


class BlockingEffecting(ABC):
    """Effects of a plain `def` handler; the wait ends its thread, and it is replayed afterwards."""

    __slots__ = ()

    @abstractmethod
    def effect(
        self,
        effect: Effect[Params, Receipt],
        /,
        *,
        operation_id: str,
        params: Params,
        approval: Approval | None = None,
        compensate: bool = False,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Receipt:
        """Have something done outside, and return the receiver's receipt; see `ObjectContext.effect`."""

    @abstractmethod
    def effect_outcome(
        self,
        effect: Effect[Params, Receipt],
        /,
        *,
        operation_id: str,
        params: Params,
        approval: Approval | None = None,
        compensate: bool = False,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Succeeded[Receipt] | EffectRejected | Unknown:
        """Have something done outside, and return what is known; see `ObjectContext.effect_outcome`."""
