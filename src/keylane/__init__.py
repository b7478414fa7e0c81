"""Keylane: durable actors for Python on Redis streams.

Everything a user writes against is imported from here; the modules behind it are internal.
"""

from .journal.cancel_report import CancelOutcome, CancelReport
from .journal.errors import (
    CallError,
    CallTimeout,
    Cancelled,
    Deadlock,
    Draining,
    EffectRejected,
    Fenced,
    IdempotencyConflict,
    InternalError,
    InvalidInput,
    InvalidKey,
    InvalidOutput,
    InvocationCancelled,
    InvocationFailed,
    InvocationPaused,
    InvocationRefused,
    KeylaneError,
    MessageLost,
    MigrationFailed,
    Overloaded,
    PayloadTooLarge,
    RegistrationError,
    ResultExpired,
    RetryableError,
    SchemaMismatch,
    StepFailed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Superseded,
    Suspended,
    TerminalError,
    UnknownHandler,
    UnknownObject,
    UnsafeStore,
    ValueLost,
    WaitTimeout,
    WrongKeyType,
)
from .journal.key import Key
from .journal.safety import Replicated
from .objects.app import App
from .objects.branching import BranchGroup, DurableTask
from .objects.context import BlockingObjectContext, BlockingSharedContext, ObjectContext, SharedContext
from .objects.handler import Handler, NoInput
from .objects.messaging import Sent
from .objects.policies import RetryPolicy
from .objects.settings import Settings
from .objects.verdicts import Accepted, AlreadyCompleted, Expired, NotPermitted, UnknownTarget, WaitVerdict
from .objects.virtual_object import VirtualObject
from .objects.waiting import Awakeable, BlockingAwakeable
from .runtime.blocking import BlockingClient
from .runtime.client import Client
from .runtime.handle import Handle, Verdict
from .runtime.runtime import Runtime

__all__ = [
    "Accepted",
    "AlreadyCompleted",
    "App",
    "Awakeable",
    "BlockingAwakeable",
    "BlockingClient",
    "BlockingObjectContext",
    "BlockingSharedContext",
    "BranchGroup",
    "CallError",
    "CallTimeout",
    "CancelOutcome",
    "CancelReport",
    "Cancelled",
    "Client",
    "Deadlock",
    "Draining",
    "DurableTask",
    "EffectRejected",
    "Expired",
    "Fenced",
    "Handle",
    "Handler",
    "IdempotencyConflict",
    "InternalError",
    "InvalidInput",
    "InvalidKey",
    "InvalidOutput",
    "InvocationCancelled",
    "InvocationFailed",
    "InvocationPaused",
    "InvocationRefused",
    "Key",
    "KeylaneError",
    "MessageLost",
    "MigrationFailed",
    "NoInput",
    "NotPermitted",
    "ObjectContext",
    "Overloaded",
    "PayloadTooLarge",
    "RegistrationError",
    "Replicated",
    "ResultExpired",
    "RetryPolicy",
    "RetryableError",
    "Runtime",
    "SchemaMismatch",
    "Sent",
    "Settings",
    "SharedContext",
    "StepFailed",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Superseded",
    "Suspended",
    "TerminalError",
    "UnknownHandler",
    "UnknownObject",
    "UnknownTarget",
    "UnsafeStore",
    "ValueLost",
    "Verdict",
    "VirtualObject",
    "WaitTimeout",
    "WaitVerdict",
    "WrongKeyType",
]
