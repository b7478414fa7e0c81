"""Runs validators: a call of a handler that has one keeps its place in its lane until it is known to be taken in.

It stands there in memory alone. So calls enter in the order of intake however long their validators take, and of one
that is refused nothing was ever written. Those behind it wait for it, which is why there is a limit to its time.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..journal.codec import unpack
from ..journal.errors import CallError, InvocationRefused, KeylaneError, StoreUnavailable, TerminalError
from .claims import as_call_error, decided
from .failures import failure_of
from .invocation import Hold
from .partition import Phase
from .reads import is_from_outside
from .replies import refuse

if TYPE_CHECKING:
    from .invocation import Invocation
    from .reads import Reads
    from .slots import Slots

logger = logging.getLogger("keylane.intake")

#: Validators that run at once.
VALIDATOR_SLOTS: Final = 64
#: How long one may take: a call behind it waits for as long.
VALIDATOR_SECONDS: Final = 5.0


class Validation:
    """One call whose validator is to run.

    Args:
        invocation: The call.
        is_sent: Whether another object has sent it without waiting for it: then somebody has to be told of a refusal.
    """

    __slots__ = ("invocation", "is_sent")

    def __init__(self, invocation: Invocation, *, is_sent: bool) -> None:
        self.invocation = invocation
        self.is_sent = is_sent


def sender_of(validation: Validation) -> str:
    """Return the tenant whose call is to be validated."""
    return validation.invocation.lane.key.tenant


class Validating:
    """Validates calls for one worker.

    Args:
        reads: Runs validators on what is durable.
        details_limit_bytes: How large the details of a refusal may be.
    """

    def __init__(self, reads: Reads, details_limit_bytes: int) -> None:
        self._reads = reads
        self._details_limit_bytes = details_limit_bytes
        self.slots: Slots[Validation]

    def begin(self, invocation: Invocation, *, is_sent: bool = False) -> None:
        """Have a call validated, once it is known that it is no repetition of another."""
        validation = Validation(invocation, is_sent=is_sent)
        if invocation.hold is Hold.RECALLING:
            invocation.on_recalled.append(partial(self._give, validation))
        else:
            self._give(validation)

    def _give(self, validation: Validation) -> None:
        invocation = validation.invocation
        if not invocation.ended:
            invocation.hold = Hold.RECALLING
            self.slots.give(validation)

    async def turn(self, validation: Validation) -> None:
        """Run one validator, and let the call in or refuse it."""
        invocation = validation.invocation
        partition = invocation.lane.partition
        if _is_over(invocation):
            return
        try:
            refusal = await self._verdict(invocation)
        except StoreUnavailable:
            # The lane stands still with the store; the sweep asks again.
            partition.recall_again.append(partial(self._give, validation))
            return
        if _is_over(invocation):
            return
        if refusal is None:
            decided(invocation)
        else:
            self._refuse(validation, refusal)

    async def _verdict(self, invocation: Invocation) -> CallError | None:
        """Return why a call is refused, None when it is not.

        Raises:
            StoreUnavailable: The state can't be read now.
        """
        lane, handler = invocation.lane, invocation.handler
        run = self._reads.validate(lane.partition, handler, lane.key_text, invocation.payload, invocation.raw_id)
        try:
            with anyio.move_on_after(VALIDATOR_SECONDS) as limit:
                await run
        except (TerminalError, ValueError) as error:
            return self._refused(str(handler), error)
        except KeylaneError as error:
            if isinstance(error, StoreUnavailable):
                raise
            return as_call_error(error)
        except BaseException as error:
            if is_from_outside(error):
                raise
            logger.exception("the validator of %s failed", handler)
            why = f"its validator failed with {type(error).__name__}"
            return InvocationRefused(str(handler), why, "validator-failed")
        if limit.cancelled_caught:
            why = f"its validator took longer than {VALIDATOR_SECONDS:g} s"
            return InvocationRefused(str(handler), why, "validator-timeout")
        return None

    def _refused(self, handler: str, error: TerminalError | ValueError) -> InvocationRefused:
        failure = failure_of(error, self._details_limit_bytes)
        details: Any = None if failure.details is None else unpack(failure.details)
        code = failure.code if isinstance(error, TerminalError) else "invalid"
        return InvocationRefused(handler, failure.message, code, details)

    @staticmethod
    def _refuse(validation: Validation, error: CallError) -> None:
        invocation = validation.invocation
        partition = invocation.lane.partition
        invocation.ended = True
        if invocation.entry is not None:
            refuse(partition, invocation.raw_id, invocation.entry, invocation.client, error, invocation.caller)
        if validation.is_sent:
            tell_of_refused_message(invocation, error)
        partition.ended(invocation, error)
        decided(invocation)


def _is_over(invocation: Invocation) -> bool:
    return invocation.ended or invocation.lane.partition.phase is Phase.LOST


def tell_of_refused_message(invocation: Invocation, error: KeylaneError) -> None:
    """Say that a message of another object came to nothing: nobody waits for it, so somebody has to be told."""
    partition = invocation.lane.partition
    logger.error(
        "%s: a message of another object to %s at %s was refused: %s; %s has to look into it",
        partition.invocation_id(invocation.raw_id), invocation.handler.name, invocation.lane.key_text, error.message,
        partition.virtual_object.owner,
    )  # fmt: skip
