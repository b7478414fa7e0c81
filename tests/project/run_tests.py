"""Run the tests in two passes: most of them side by side, and those that need the machine to themselves one by one.

`python -m tests.project.run_tests`, which `make test` runs, hands its arguments to pytest, in both passes. The second
one runs whatever has failed in the first, and both exit codes count.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

#: The tests of a file stay together, so that what they share is made once.
SIDE_BY_SIDE = ("--quiet-tests=never", "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")
ONE_BY_ONE = ("--quiet-tests=only", "-n", "0")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of both passes."""
    # Ctrl-C reaches pytest, too, which has servers to stop before it ends; whoever waits for it waits for that.
    signal.signal(signal.SIGINT, lambda _signal, _frame: None)
    codes = [_run(*SIDE_BY_SIDE, *arguments)]
    if codes[0] != pytest.ExitCode.INTERRUPTED:
        # The number of workers that somebody asks for is that of the first pass.
        codes.append(_run(*arguments, *ONE_BY_ONE))
    return together(codes)


def _run(*arguments: str) -> int:
    # Tests start hundreds of processes, each of which would compile the library anew if nobody may write it down.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode


def together(codes: Sequence[int]) -> int:
    """Return the exit code of all passes by those of each: a selection may be without any test in some of them."""
    ran = [code for code in codes if code != pytest.ExitCode.NO_TESTS_COLLECTED]
    if not ran:
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    return next((code for code in ran if code != pytest.ExitCode.OK), int(pytest.ExitCode.OK))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
