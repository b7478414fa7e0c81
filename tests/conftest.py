"""What every test may ask for: an embedded store, a namespace of its own, the second store, and a limit on its time."""

import faulthandler
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import hypothesis
import pytest

from keylane.journal.embedded import EmbeddedStore
from keylane.runtime.forcing import forced
from tests.faults.topologies import servers_of

#: Names what the tests run on: `single` (the default), `cluster` or `sentinel`.
TOPOLOGY = os.environ.get("KEYLANE_TEST_TOPOLOGY", "single")
if TOPOLOGY == "cluster":
    # Tests know where their keys lie by the default of one server; child processes have to agree.
    os.environ.setdefault("KEYLANE_PARTITIONS", "16")
#: Ends runs of handlers for nothing, in this process and in those that it starts: `suspend` or `replay`.
FORCED = forced()
#: Fixtures that are about one server, which the test stops, fills or stands in front of.
ONE_SERVER_FIXTURES = {"own_server", "proxy", "redis_url"}
SECOND_STORE = "redis-server"
NOT_INSTALLED = f"{SECOND_STORE} is not installed"
TIMEOUT_SECONDS = 120
TIMEOUT_SECONDS_BY_MARKER = {"slow": 600, "nightly": 3600}
# An alarm that falls into a callback of the event loop is only logged; the next one falls elsewhere.
ALARM_AGAIN_SECONDS = 5

hypothesis.settings.register_profile("keylane", deadline=None, print_blob=True)
hypothesis.settings.load_profile("keylane")

#: Most tests wait for processes and servers most of their time: so many workers for each core keep it busy.
WORKERS_PER_CORE = 2
WORKERS_MAX = 8


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, the only backend that the client library has."""
    return "asyncio"


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the URL of a store that all tests share, by default an embedded one; each keeps to its own namespace."""
    if TOPOLOGY == "single":
        with embedded(tmp_path_factory.mktemp("store"), binary=None) as url:
            yield url
        return
    with servers_of(TOPOLOGY) as servers:
        yield servers.url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the URL of a Redis server, the second supported implementation; skips where it is not installed."""
    with embedded(tmp_path_factory.mktemp("redis"), binary=shutil.which(SECOND_STORE)) as url:
        yield url


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.second_store)])
def each_store_url(request: pytest.FixtureRequest) -> str:
    """Give the URL of the embedded Valkey, then that of Redis."""
    return str(request.getfixturevalue("store_url" if request.param == "valkey" else "redis_url"))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Give a folder whose path is short: sockets below it have to fit, which they don't below every `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="kl-") as folder:
        yield Path(folder)


@pytest.fixture
def namespace() -> str:
    """Give a namespace that no other test uses."""
    return f"test-{secrets.token_hex(6)}"


@contextmanager
def embedded(folder: Path, *, binary: str | None) -> Generator[str]:
    """Run a server on a folder, outside any test's event loop."""
    store = EmbeddedStore(folder, binary=binary)
    anyio.run(store.__aenter__)
    try:
        yield store.url
    finally:
        anyio.run(store.__aexit__, None, None, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make test` run the tests in two passes."""
    parser.addoption(
        "--quiet-tests",
        choices=("only", "never"),
        help="run only the tests that are marked `quiet`, or all but them; both are run without this option",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Say how many workers `-n auto` means."""
    return min(WORKERS_PER_CORE * (os.cpu_count() or 1), WORKERS_MAX)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests of a pass, and skip those of what is missing here."""
    _choose_pass(config, items)
    _skip_what_can_not_run(items)


def _choose_pass(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--quiet-tests")
    if wanted is None:
        return
    quiet = [item for item in items if item.get_closest_marker("quiet") is not None]
    others = [item for item in items if item.get_closest_marker("quiet") is None]
    items[:], left_out = (quiet, others) if wanted == "only" else (others, quiet)
    config.hook.pytest_deselected(items=left_out)


def _skip_what_can_not_run(items: list[pytest.Item]) -> None:
    if TOPOLOGY != "single":
        for item in items:
            if _needs_one_server(item):
                item.add_marker(pytest.mark.skip(reason=f"about one server, not about a {TOPOLOGY}"))
    if FORCED is not None:
        for item in items:
            if item.get_closest_marker("counts_runs") is not None:
                item.add_marker(pytest.mark.skip(reason=f"counts runs, which are ended for nothing: {FORCED}"))
    if shutil.which(SECOND_STORE):
        return
    for item in items:
        if _needs_second_store(item):
            item.add_marker(pytest.mark.skip(reason=NOT_INSTALLED))


def _needs_one_server(item: pytest.Item) -> bool:
    names = set(getattr(item, "fixturenames", ()))
    is_marked = any(item.get_closest_marker(name) is not None for name in ("one_server", "second_store"))
    return is_marked or bool(names & ONE_SERVER_FIXTURES)


def _needs_second_store(item: pytest.Item) -> bool:
    return item.get_closest_marker("second_store") is not None or "redis_url" in getattr(item, "fixturenames", ())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line that tests were not run for want of the second store."""
    # By what was reported: where tests run side by side, they are collected in other processes than this one.
    skipped: list[pytest.TestReport] = terminalreporter.getreports("skipped")
    count = sum(isinstance(each.longrepr, tuple) and NOT_INSTALLED in each.longrepr[2] for each in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests of the second store were not run: {NOT_INSTALLED}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Limit the time of what prepares a test."""
    with time_limit(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Limit the time of a test."""
    with time_limit(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Limit the time of what cleans up after a test."""
    with time_limit(item):
        yield


@contextmanager
def time_limit(item: pytest.Item) -> Generator[None]:
    """Fail the test when it takes longer than its markers allow, and show where each thread stood."""
    markers = {marker.name for marker in item.iter_markers()}
    seconds = max([TIMEOUT_SECONDS, *(TIMEOUT_SECONDS_BY_MARKER.get(name, 0) for name in markers)])

    def ring(_signal: int, _frame: object) -> None:
        faulthandler.dump_traceback()
        pytest.fail(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, ALARM_AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
