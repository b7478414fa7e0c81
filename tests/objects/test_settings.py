"""Settings: argument, then environment, then default."""

from datetime import timedelta
from typing import Any

import pytest

from keylane.journal.errors import RegistrationError
from keylane.objects.settings import Settings

DEFAULTS = {
    "partitions": 16,
    "lease_seconds": 3.0,
    "renewal_seconds": 1.0,
    "sweep_seconds": 1.0,
    "lane_slots": 256,
    "backlog_per_key": 1_000,
    "drain_limit_seconds": 30.0,
    "stuck_after_seconds": 30.0,
    "payload_limit_bytes": 1_048_576,
    "snapshot_every_deltas": 32,
    "result_retention_seconds": 86_400.0,
    "tombstone_retention_days": 30,
    "blocking_threads": 40,
    "redis_url": None,
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"KEYLANE_{name.upper()}", raising=False)


def test_the_defaults_are_the_documented_ones() -> None:
    """The table of the documentation, number by number."""
    settings = Settings()

    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS
    assert (settings.retry.first, settings.retry.attempts) == (timedelta(milliseconds=50), 10)


def test_an_argument_wins_over_a_variable_and_a_variable_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest word counts."""
    monkeypatch.setenv("KEYLANE_LEASE_SECONDS", "5")
    monkeypatch.setenv("KEYLANE_LANE_SLOTS", "8")

    settings = Settings(lease_seconds=7)

    assert (settings.lease_seconds, settings.lane_slots, settings.partitions) == (7.0, 8, 16)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"renewal_seconds": 1.5}, "renewal_seconds is 1.5, which must be less than half of lease_seconds"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"lease_seconds": float("inf")}, "lease_seconds"),
        ({"partitions": 0}, "partitions"),
        ({"tombstone_retention_days": 401}, "tombstone_retention_days"),
        ({"result_retention_seconds": 40 * 86_400}, "tombstone_retention_days must be at least as long"),
        ({"retry_cap_seconds": 0.01}, "retry_cap_seconds must be at least"),
        ({"leese_seconds": 3}, "leese_seconds"),
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, Any], words: str) -> None:
    """A deployment with numbers that can't work does not start."""
    with pytest.raises(RegistrationError, match=words):
        Settings(**wrong)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the error knows which variable to change."""
    monkeypatch.setenv("KEYLANE_SWEEP_SECONDS", "often")

    with pytest.raises(RegistrationError, match=r"setting sweep_seconds \(KEYLANE_SWEEP_SECONDS\) can't be used"):
        Settings()


def test_settings_do_not_show_the_password_of_the_store() -> None:
    """They are printed by `doctor` and in logs."""
    assert "hunter2" not in repr(Settings(redis_url="redis://:hunter2@example.org"))


def test_settings_do_not_change() -> None:
    """What a worker was started with holds for its life."""
    with pytest.raises(ValueError, match="frozen"):
        Settings().lease_seconds = 9
