"""Keylane: durable actors for Python on Redis streams.

Everything a user writes against is imported from here; the modules behind it are internal.
"""

from .journal.cancel_report import CancelOutcome, CancelReport
from .journal.errors import (
    ApprovalDeclined,
    ApprovalExpired,
    ApprovalUnfit,
    CallError,
    CallTimeout,
    Cancelled,
    Deadlock,
    Draining,
    EffectConflict,
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
    NotSent,
    Overloaded,
    PayloadTooLarge,
    RegistrationError,
    Rejected,
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
from .objects.approvals import Approval, Proposal
from .objects.branching import BranchGroup, DurableTask
from .objects.context import BlockingObjectContext, BlockingSharedContext, ObjectContext, SharedContext
from .objects.handler import Handler, NoInput
from .objects.messaging import Sent
from .objects.modelling import ModelAnswer
from .objects.policies import RetryPolicy
from .objects.receivers import Deduplicates, Effect, Receiver
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
    "Approval",
    "ApprovalDeclined",
    "ApprovalExpired",
    "ApprovalUnfit",
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
    "Deduplicates",
    "Draining",
    "DurableTask",
    "Effect",
    "EffectConflict",
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
    "ModelAnswer",
    "NoInput",
    "NotPermitted",
    "NotSent",
    "ObjectContext",
    "Overloaded",
    "PayloadTooLarge",
    "Proposal",
    "Receiver",
    "RegistrationError",
    "Rejected",
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
