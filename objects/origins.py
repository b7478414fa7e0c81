"""Where the effective settings come from: an argument, a `KEYLANE_*` variable, or the default."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .settings import Settings

Source: TypeAlias = Literal["argument", "variable", "default"]


@dataclass(frozen=True, slots=True)
class Origin:
    """One effective setting.

    Args:
        name: Its name.
        value: Its value.
        source: Where it comes from.
        variable: The variable that would set it, or has.
    """

    name: str
    value: Any
    source: Source
    variable: str


def origins(
    settings: Settings, arguments: Collection[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[Origin, ...]:
    """Return the settings of a process and where each comes from. A store's URL may hold a password and is left out.

    Args:
        settings: The effective settings.
        arguments: Names of those that were given as arguments.
        environment: The variables that were read; by default those of this process.
    """
    variables = {name.upper() for name in (os.environ if environment is None else environment)}
    prefix = Settings.model_config.get("env_prefix", "")
    found: list[Origin] = []
    for name in Settings.model_fields:
        if name == "redis_url":
            continue
        variable = f"{prefix}{name}".upper()
        found.append(Origin(name, getattr(settings, name), _source(name, variable, arguments, variables), variable))
    return tuple(found)


def _source(name: str, variable: str, arguments: Collection[str], variables: Collection[str]) -> Source:
    if name in arguments:
        return "argument"
    return "variable" if variable in variables else "default"
