from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keylane.runtime import presence
from keylane.runtime.presence import Presence, new_worker_identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "presence"


@pytest.fixture
def own(folder: Path) -> Iterator[Presence]:
    """Give the presence of a worker in this process, which looks at others."""
    opened = Presence("observer", folder=folder)
    opened.open()
    assert opened.machine
    yield opened
    opened.close()


CHILD = """
import sys
from pathlib import Path
from keylane.runtime.presence import Presence
presence = Presence("child", folder=Path(sys.argv[1]))
presence.open()
print(presence.machine, flush=True)
sys.stdin.read()
presence.close()
"""


@contextmanager
def worker_process(folder: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run a worker that is present until its standard input ends, and give it with its machine text."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        yield child, child.stdout.readline().strip()
        child.kill()


def test_each_process_start_is_a_new_worker() -> None:
    """A restarted worker is never taken for the one before, and its name is fit for a file."""
    first, second = new_worker_identity(), new_worker_identity()

    assert first != second
    assert str(os.getpid()) in first
    assert "/" not in first


def test_a_killed_worker_of_this_machine_is_known_to_be_dead(own: Presence, folder: Path) -> None:
    """The kernel lets go of the lock of a killed process, and that is all the proof it takes."""
    with worker_process(folder) as (child, machine):
        assert machine == own.machine
        assert not own.same_machine_dead(machine, "child")

        child.kill()
        child.wait()

        assert own.same_machine_dead(machine, "child")


def test_two_who_ask_at_once_both_get_the_answer(own: Presence, folder: Path) -> None:
    """Asking takes the lock for a moment, and must not make a dead worker look alive to another who asks."""
    with worker_process(folder) as (child, machine):
        child.kill()
        child.wait()

        with next(folder.glob("*-child.lock")).open() as other:
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)

            assert own.same_machine_dead(machine, "child")


def test_a_stopped_worker_is_not_dead(own: Presence, folder: Path) -> None:
    """A process under SIGSTOP can come back and send: its lock holds, and its lease must run out."""
    with worker_process(folder) as (child, machine):
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)

        assert not own.same_machine_dead(machine, "child")

        child.send_signal(signal.SIGCONT)


def test_a_missing_file_proves_nothing(own: Presence, folder: Path) -> None:
    """Somebody may have cleaned the temporary folder under a live worker; an orderly end leaves no file either."""
    with worker_process(folder) as (child, machine):
        for path in folder.glob("*-child.lock"):
            path.unlink()

        assert not own.same_machine_dead(machine, "child")
        assert not own.same_machine_dead(machine, "never-was")
        assert child.poll() is None


def test_a_worker_that_ends_in_order_leaves_no_file(own: Presence, folder: Path) -> None:
    """Only the dead leave files behind."""
    with worker_process(folder) as (child, _):
        child.communicate("", timeout=10)

        assert child.returncode == 0
        assert list(folder.glob("*-child.lock")) == []


def test_a_worker_of_another_machine_is_never_known_to_be_dead(own: Presence, folder: Path) -> None:
    """A free lock says something only about a worker that ran under the same boot and used the same folder."""
    with worker_process(folder) as (child, machine):
        child.kill()
        child.wait()

        assert not own.same_machine_dead("0123456789abcdef:" + machine.partition(":")[2], "child")
        assert not own.same_machine_dead(machine + "x", "child")
        assert not own.same_machine_dead("", "child")
        assert not own.same_machine_dead(machine, "../child")


def test_without_a_boot_id_there_is_no_proof(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines that can't be told apart must not judge each other's workers."""
    monkeypatch.setattr(presence, "_boot_id", str)
    blind = Presence("w1", folder=folder)

    blind.open()

    assert blind.machine == ""
    assert not blind.same_machine_dead("", "w2")
    blind.close()


def test_a_folder_that_others_can_write_to_is_not_trusted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who can put files there could make a live worker look dead."""
    folder.mkdir()
    folder.chmod(0o777)
    exposed = Presence("w1", folder=folder)

    exposed.open()

    assert exposed.machine == ""
    assert "wait for the lease" in caplog.text


def test_a_link_in_the_place_of_the_folder_is_not_trusted(folder: Path, tmp_path: Path) -> None:
    """The temporary folder is everybody's, so whoever came first may have left a link."""
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    misled = Presence("w1", folder=folder)

    misled.open()

    assert misled.machine == ""


def test_a_file_system_without_locks_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every lock is granted, a free lock would make the living look dead."""

    def grant(_descriptor: int, _operation: int) -> None:
        return

    monkeypatch.setattr(fcntl, "flock", grant)
    unlocked = Presence("w1", folder=folder)

    unlocked.open()

    assert unlocked.machine == ""
    assert list(folder.iterdir()) == []


def test_old_files_of_the_dead_are_swept_at_a_start(own: Presence, folder: Path) -> None:
    """The folder does not grow for ever; a young file is a proof that others may still need."""
    old, young = folder / "old.lock", folder / "young.lock"
    for path in (old, young):
        path.touch()
    hours_ago = time.time() - 2 * presence.STALE_FILE_SECONDS
    os.utime(old, (hours_ago, hours_ago))
    held = next(folder.glob("*-observer.lock"))
    os.utime(held, (hours_ago, hours_ago))

    other = Presence("w2", folder=folder)
    other.open()

    assert not old.exists()
    assert young.exists()
    assert held.exists(), "its worker lives, however long ago it began"
    other.close()


def test_workers_of_one_user_share_the_default_folder() -> None:
    """Without being told, all workers of a user on a machine describe it by the same text."""
    first, second = Presence(new_worker_identity()), Presence(new_worker_identity())
    first.open()
    second.open()

    assert first.machine == second.machine
    assert not first.same_machine_dead(second.machine, second.worker)

    first.close()
    second.close()
    second.close()


def test_a_worker_of_this_process_that_was_killed_for_a_test_is_known_to_be_dead(own: Presence, folder: Path) -> None:
    """Its file stays as that of a killed process does, and so whoever takes over need not wait for its lease."""
    victim = Presence("victim", folder=folder)
    victim.open()
    assert not own.same_machine_dead(victim.machine, "victim")

    victim.abandon()

    assert own.same_machine_dead(victim.machine, "victim")
