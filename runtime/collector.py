"""Python's garbage collector in a process that is a worker and nothing else.

An invocation makes some fifty short-lived objects that reference counting frees, and each resident lane a few that
stay. With Python's own thresholds the collector walks all of those that stay again and again: on three steps with
distinct keys that was a fifth of the processor time, and pauses of 50 ms (`python -m benchmarks steps
--default-collector`).
"""

from __future__ import annotations

import gc
from typing import Final

#: Objects that are made and not freed before the youngest are looked at, then how many such looks make one further up.
THRESHOLDS: Final = (20_000, 50, 100)


def relax() -> None:
    """Set the collector for a worker's process, and leave what is imported by now out of its walks.

    It holds for the whole process, so only a program that is a worker and nothing else should do it: `keylane worker`
    and `keylane dev` do, `Runtime` does not.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
