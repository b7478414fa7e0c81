"""Switches that make each handler suffer what few runs meet: its own suites are run with them too."""

from __future__ import annotations

import os
from typing import Final, Literal

#: `suspend`: each wait suspends its handler at once. `replay`: each record that lets a handler go on ends its run,
#: which is begun anew and replayed up to there.
VARIABLE: Final = "KEYLANE_TEST_FORCE"


def forced() -> Literal["suspend", "replay"] | None:
    """Return what is forced in this process.

    Raises:
        ValueError: The variable has another value.
    """
    match os.environ.get(VARIABLE, ""):
        case "":
            return None
        case "suspend":
            return "suspend"
        case "replay":
            return "replay"
        case other:
            raise ValueError(f"{VARIABLE} is {other!r}: it may be suspend or replay")
