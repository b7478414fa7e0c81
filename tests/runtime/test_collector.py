"""The garbage collector of a worker's process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from keylane.runtime import collector
collector.relax()
assert gc.get_threshold() == collector.THRESHOLDS, gc.get_threshold()
assert gc.get_freeze_count() > 10_000
assert gc.isenabled()
"""


def test_a_worker_process_walks_what_it_imported_no_more() -> None:
    """The thresholds are raised, what is imported is out of the walks, and garbage is still collected."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=30)

    assert ended.returncode == 0, ended.stderr
