"""Run pyright over the whole tree, and fail when it has left out a file.

pyright says nothing about files that it does not look at, such as those behind a link that leads out of its folders.
"""

import re
import subprocess
import sys

from tests.project.tree import ROOT, tracked_files


def main() -> int:
    """Return the exit code: 0 when every file was checked and none has an error."""
    command = [sys.executable, "-m", "pyright", "--stats", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report, _, statistics = done.stdout.partition("Analysis stats")
    sys.stdout.write(report)
    sys.stderr.write(done.stderr)
    return done.returncode or compare(statistics)


def compare(statistics: str) -> int:
    """Compare the number of files that were checked with the number that there are."""
    counted = re.search(r"Total files checked: (\d+)", statistics)
    checked = int(counted[1]) if counted else 0
    there = len(tracked_files("*.py"))
    if checked >= there:
        return 0
    sys.stdout.write(
        f"pyright checked {checked} files, but there are {there}: name the missing folder in its include\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
