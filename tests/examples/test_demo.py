"""The demo as a newcomer runs it: a process that starts processes."""

import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from examples.refund_order.policy import PolicyLog

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "examples.refund_order", "--orders", "40", "--contested", "10")
LIMIT_S = 170


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        COMMAND,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(folder: Path) -> list[str]:
    """List the command lines of all processes that name a folder."""
    if not Path("/proc/self/cmdline").exists():
        lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
        return [line for line in lines if str(folder) in line]
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it may end while it is looked at
            found.append(file.read_text(errors="replace").replace("\0", " "))
    return [line for line in found if str(folder) in line]


def is_under_way(folder: Path) -> bool:
    """Say whether the policy check was asked about a refund already."""
    with suppress(sqlite3.OperationalError):  # the file is there before its table
        return any(PolicyLog(file).questions() for file in folder.glob("*/policy.sqlite"))
    return False


@pytest.mark.slow
def test_the_books_agree_after_all_that_can_go_wrong(short_path: Path) -> None:
    """Exit code 0, each claim holds, a worker was killed at the worst moment, and nothing is left behind."""
    demo = start(short_path)
    output, _ = demo.communicate(timeout=LIMIT_S)

    assert demo.returncode == 0, output
    assert "The books agree" in output
    assert "paid twice: 0, lost: 0" in output
    assert re.search(r"cards: clean\s+matched +[1-9]", output)
    assert re.search(r"transfers: not clean.*done: it is succeeded.*transfers: clean", output, re.DOTALL)
    assert re.search(r"ok +worker-\d, which has sent \d+ of them, is killed", output)
    assert not re.search(r"^ *NOT ", output, re.MULTILINE)
    assert processes_of(short_path) == []
    assert list(short_path.glob("keylane-demo-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_its_processes(short_path: Path, number: signal.Signals) -> None:
    """After Ctrl-C in the middle no process and no file of the demo is left."""
    demo = start(short_path)
    deadline = time.monotonic() + LIMIT_S
    while not is_under_way(short_path) and time.monotonic() < deadline:
        time.sleep(0.02)

    demo.send_signal(number)
    output, _ = demo.communicate(timeout=LIMIT_S)

    assert demo.returncode == 130, output
    assert processes_of(short_path) == []
    assert list(short_path.glob("keylane-demo-*")) == []
