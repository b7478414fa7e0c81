"""The pytest plugin, in a project that is not ours."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.project.tree import ROOT

TESTS = """
from datetime import timedelta

import pytest

from keylane import ObjectContext, VirtualObject
from keylane.pytest_plugin import MakeHarness

sleeper = VirtualObject("Sleeper", owner="tests")
runs: list[str] = []


@sleeper.handler
async def nap(ctx: ObjectContext, days: int) -> int:
    runs.append(str(ctx.key))
    await ctx.sleep(timedelta(days=days))
    return days


@pytest.mark.anyio
@pytest.mark.parametrize("days", [1, 30])
async def test_nap(keylane_harness: MakeHarness, days: int) -> None:
    runs.clear()
    async with keylane_harness([sleeper]) as h:
        assert await h.call(nap, "acme/s-1", days) == days
        print("runs:", len(runs), "force:", h.force)
"""
CONFTEST = """
import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
"""


@pytest.mark.parametrize(("force", "runs"), [("", 1), ("suspend", 2)])
def test_the_fixture_gives_harnesses_on_a_shared_store(tmp_path: Path, force: str, runs: int) -> None:
    """A user's tests need an import of their objects and nothing else; the variable forces what the whole run does."""
    (tmp_path / "test_sleeper.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)

    done = run_pytest(tmp_path, KEYLANE_TEST_FORCE=force)

    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count(f"runs: {runs}") == 2
    assert done.stdout.count(f"force: {force or None}") == 2


def test_a_word_that_forces_nothing_is_refused(tmp_path: Path) -> None:
    """A suite that believes to be forced and is not would prove nothing."""
    (tmp_path / "test_sleeper.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)

    done = run_pytest(tmp_path, KEYLANE_TEST_FORCE="suspned")

    assert "2 failed" in done.stdout
    assert "use suspend or replay" in done.stdout


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    """It is named like its module, and the module is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"keylane.pytest_plugin": "keylane.pytest_plugin"}
    assert (ROOT / "src" / "keylane" / "pytest_plugin.py").exists()


def test_the_kit_is_imported_without_pytest() -> None:
    """Only pytest itself needs the plugin."""
    code = "import sys; sys.modules['pytest'] = None; import keylane.testing; print('fine')"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert output.strip() == "fine"


def run_pytest(folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest on a folder with the plugin named, since this environment may not be installed anew."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "keylane.pytest_plugin", "-p", "no:cacheprovider", "-rA", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
