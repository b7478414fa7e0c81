"""The two passes of `make test`, on a project of three tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.run_tests import together
from tests.project.tree import ROOT

CONFTEST = """
from tests.conftest import pytest_addoption, pytest_collection_modifyitems, pytest_terminal_summary


def pytest_configure(config):
    for name in ("quiet: alone", "slow: long", "second_store: needs it"):
        config.addinivalue_line("markers", name)
"""
TESTS = """
import os
import sys
from pathlib import Path

import pytest


def note(name):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    Path(__file__).with_name(f"{name} {worker}").touch()


def test_fast():
    note("fast, and compiles again" if sys.dont_write_bytecode else "fast")
    assert "FAIL" not in os.environ


@pytest.mark.quiet
def test_measures():
    note("measures")


@pytest.mark.second_store
def test_other_store():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give the folder of a project."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_three.py").write_text(TESTS)
    return tmp_path


def run(project: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run both passes on the project, with one worker, and no second store."""
    return subprocess.run(
        [sys.executable, "-m", "tests.project.run_tests", "-n", "1", "-p", "no:cacheprovider", project, *arguments],
        cwd=ROOT,
        env={
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "PATH": "",
            **variables,
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_needs_quiet_runs_alone_whatever_fails_before(project: Path) -> None:
    """Each test runs once, where it belongs; a failure of the first pass is the failure of all, and hides nothing."""
    done = run(project, FAIL="1")

    assert {path.name for path in project.glob("* *")} == {"fast gw0", "measures alone"}
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed" in done.stdout
    assert "1 tests of the second store were not run" in done.stdout


def test_a_selection_may_lie_in_one_pass(project: Path) -> None:
    """That the other pass has no test is no failure."""
    done = run(project, "-k", "measures")

    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert {path.name for path in project.glob("* *")} == {"measures alone"}


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((0, 0), 0),
        ((1, 0), 1),
        ((0, 1), 1),
        ((0, 5), 0),
        ((5, 0), 0),
        ((5, 5), 5),
        ((5, 1), 1),
        ((2,), 2),
        ((0, -9), -9),
    ],
)
def test_both_exit_codes_count(codes: tuple[int, ...], code: int) -> None:
    """Nothing is hidden by a pass that went well, nor by one that has no tests; no tests at all are a mistake."""
    assert together(codes) == code
