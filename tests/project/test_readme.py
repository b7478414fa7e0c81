"""The README's tour, run as it stands there."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from keylane.journal.embedded import find_endpoint
from tests.project.tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
START_SECONDS = 30
STOP_SECONDS = 20
POLL_SECONDS = 0.02
#: Where the tour stops declaring and starts running.
MAIN = "import anyio\n"
ASK_TOO = """
async def other_process() -> None:
    async with Runtime(app) as runtime:
        await ask(runtime.store_url)


anyio.run(other_process)
"""


def blocks(language: str) -> list[str]:
    """Return the README's code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run(place: Path, *words: str) -> str:
    """Run a program in a folder and return what it printed."""
    done = subprocess.run(words, cwd=place, env=environment(place), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(place: Path) -> dict[str, str]:
    """Return an environment in which `keylane` is a program and no store is set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KEYLANE_")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(place)}


def test_the_tour_in_python_runs_as_it_is_written(tmp_path: Path) -> None:
    """Every block, one after the other, and the function of the other process called once."""
    (tmp_path / "tour.py").write_text("\n\n".join(blocks("python")) + ASK_TOO)

    printed = run(tmp_path, sys.executable, "tour.py")

    assert "Decimal('10.00')" in printed


@pytest.fixture
def dev(tmp_path: Path) -> Generator[Path]:
    """Run the first command of the shell tour on the declarations of the Python tour."""
    declarations = "\n\n".join(block for block in blocks("python") if MAIN not in block and "Client(" not in block)
    (tmp_path / "shop.py").write_text(declarations)
    command = next(line for line in shell_lines() if line[:2] == ["keylane", "dev"])
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    try:
        until_up(tmp_path, process)
        yield tmp_path
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0, log


def until_up(place: Path, process: subprocess.Popen[str]) -> None:
    """Wait for the embedded server of a `keylane dev`."""
    end = time.monotonic() + START_SECONDS
    while find_endpoint(place / ".keylane") is None:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(POLL_SECONDS)


def shell_lines() -> list[list[str]]:
    """Return the words of each `keylane` command of the README."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("keylane ")]


def test_the_tour_in_the_shell_runs_as_it_is_written(dev: Path) -> None:
    """A call by name is answered, and the object can be looked into."""
    printed = {line[1]: run(dev, *line) for line in shell_lines() if line[1] in {"call", "inspect"}}

    assert "10.00" in printed["call"]
    assert "refunded" in printed["inspect"]


def test_every_command_that_the_readme_names_exists(tmp_path: Path) -> None:
    """Also those that the tour does not run."""
    helped = run(tmp_path, "keylane", "--help")
    named = {line[1] for line in shell_lines()} | set(re.findall(r"`keylane ([a-z]+)", README))

    assert [name for name in sorted(named) if not re.search(rf"\b{name}\b", helped)] == []
