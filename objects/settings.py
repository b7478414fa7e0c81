"""The numbers of a deployment: an argument, else the `KEYLANE_*` variable, else the default."""

from datetime import timedelta
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ..journal.errors import RegistrationError
from .policies import RetryPolicy

_PREFIX = "KEYLANE_"

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """Every tunable number, with its unit in its name.

    `Settings(lease_seconds=5)` and `KEYLANE_LEASE_SECONDS=5` set the same number; the argument wins.

    Raises:
        RegistrationError: A value can't be read, is out of its bounds, or does not fit another one.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid")

    redis_url: str | None = Field(None, repr=False, description="Store URL; without it the embedded store is used.")

    partitions: int = Field(16, ge=1, le=16_384, description="Partitions per object type, fixed at first use.")
    lease_seconds: Seconds = Field(
        3.0, description="How long a silent owner keeps its partitions; others wait for the longer of both leases."
    )
    renewal_seconds: Seconds = Field(1.0, description="How often an owner renews; less than half of the lease.")
    sweep_seconds: Seconds = Field(1.0, description="How often a worker looks for what no hint has told it.")
    lane_slots: Count = Field(
        256, description="Exclusive invocations that one worker runs at a time; an eighth more for tenants that wait."
    )
    blocking_threads: Count = Field(40, description="Plain `def` handlers that one worker runs at a time.")
    backlog_per_key: Count = Field(1_000, description="Invocations that may wait in one lane.")
    doubt_seconds: Seconds = Field(
        60.0, description="How far a loss may reach back from the restart of a server without fsync, and ahead."
    )
    resident_lanes: Count = Field(100_000, description="Objects that one worker keeps in memory while they are idle.")
    drain_limit_seconds: Seconds = Field(30.0, description="How long a stopping worker waits for running work.")
    waiting_residency_seconds: float = Field(
        30.0,
        ge=0,
        allow_inf_nan=False,
        description="How long a handler that waits stays in memory; after that it is replayed.",
    )
    waiting_resident_max: Count = Field(
        10_000, description="Handlers that wait in memory at a time; beyond that the longest waiting go first."
    )
    stuck_after_seconds: Seconds = Field(
        30.0, description="After so long without a turn of the event loop the lease goes."
    )

    retry_first_seconds: Seconds = Field(0.05, description="Pause after the first failed attempt.")
    retry_factor: float = Field(2.0, ge=1, allow_inf_nan=False, description="Growth of the pause.")
    retry_cap_seconds: Seconds = Field(10.0, description="The longest pause.")
    retry_attempts: int = Field(10, ge=1, le=10_000, description="Attempts in all.")

    memory_limit_ratio: float = Field(
        0.9, gt=0.05, le=1, description="Part of the server's maxmemory at which nothing new is taken in."
    )
    payload_limit_bytes: int = Field(1_048_576, ge=1_024, le=268_435_456, description="Largest single value.")
    blob_threshold_bytes: int = Field(
        16_384, ge=1_024, le=1_048_576, description="Larger values are written once per object and referred to."
    )
    state_limit_bytes: int = Field(67_108_864, ge=1_048_576, description="All values of one object together.")
    records_per_invocation: int = Field(10_000, ge=10, le=1_000_000, description="Records after which it is paused.")
    snapshot_every_deltas: Count = Field(32, description="State deltas after which an object gets a snapshot.")
    result_retention_seconds: Seconds = Field(86_400.0, description="How long results and histories are kept.")
    effect_slots: Count = Field(64, description="Calls and look-ups of effects that one worker makes at a time.")
    send_within_seconds: Seconds = Field(
        10.0, description="How soon after its intent the call of an effect has to begin; else it is not sent."
    )
    ledger_retention_days: int = Field(
        90, ge=1, le=4_000, description="How long settled effects, proposals and their ledger are kept."
    )
    tombstone_retention_days: int = Field(30, ge=1, le=400, description="How long an idempotency key is known.")

    metrics_port: int | None = Field(
        None, ge=0, le=65_535, description="Port on which a worker shows its metrics; without it there is none."
    )
    metrics_host: str = Field("127.0.0.1", description="Address of that port; `0.0.0.0` for all of a machine's.")
    tracing: bool = Field(
        default=False, description="Whether spans are made, by OpenTelemetry's global tracer provider."
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _named(error) from error

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.renewal_seconds >= self.lease_seconds / 2:
            raise ValueError(
                f"renewal_seconds is {self.renewal_seconds:g}, which must be less than half of "
                f"lease_seconds ({self.lease_seconds:g}), so that one lost renewal does not cost the lease"
            )
        if self.retry_cap_seconds < self.retry_first_seconds:
            raise ValueError("retry_cap_seconds must be at least retry_first_seconds")
        if self.result_retention_seconds > self.tombstone_retention_days * 86_400:
            raise ValueError("tombstone_retention_days must be at least as long as result_retention_seconds")
        return self

    @property
    def retry(self) -> RetryPolicy:
        """The policy of steps and invocations that declare none."""
        return RetryPolicy(
            first=timedelta(seconds=self.retry_first_seconds),
            factor=self.retry_factor,
            cap=timedelta(seconds=self.retry_cap_seconds),
            attempts=self.retry_attempts,
        )


def _named(error: ValidationError) -> RegistrationError:
    detail = error.errors(include_url=False, include_input=False)[0]
    message = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:
        return RegistrationError("the settings do not fit each other", remedy=message)
    name = str(detail["loc"][0])
    return RegistrationError(f"setting {name} ({_PREFIX}{name.upper()}) can't be used", parameter=name, remedy=message)


def settings_of(given: Settings | None) -> Settings:
    """Return the settings that were given, else those of the environment.

    Raises:
        RegistrationError: They are something else, or the environment's can't be read.
    """
    if given is None:
        return Settings()
    if not isinstance(given, Settings):  # pyright: ignore[reportUnnecessaryIsInstance] - a user gives it
        raise RegistrationError(
            f"settings is a {type(given).__name__}", parameter="settings", remedy="give keylane.Settings(…)"
        )
    return given
