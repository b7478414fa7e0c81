"""The table for people and the same figures as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .harness import Row, Sample, Spread, spread
from .workloads import Figure

#: Columns that the table needs; a narrower terminal wraps its lines rather than losing digits.
TABLE_WIDTH = 132


def print_table(rows: Sequence[Row], facts: Mapping[str, str]) -> None:
    """Print the facts and a line for each row.

    Args:
        rows: What was measured.
        facts: Where.
    """
    console = Console(width=max(Console().width, TABLE_WIDTH))
    for name, fact in facts.items():
        console.print(Text(f"{name:>11}  {fact}"))
    table = Table(caption="median, and lowest–highest below it", caption_justify="left", show_lines=True)
    table.add_column("workload", no_wrap=True)
    for heading in ("floor", "engine", "CPU µs each\nfloor | engine", "measured", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)


def _cells(row: Row) -> tuple[Text | str, ...]:
    verdict = Text(_shown(row.value), style="green" if row.is_met else "bold red")
    return (
        row.title,
        _figures(row.floor, row.target.figure),
        _figures(row.engine, row.target.figure),
        f"{_cpu(row.floor)} | {_cpu(row.engine)}",
        verdict,
        f"{row.target}\n{'met' if row.is_met else 'missed'}",
    )


def _figures(samples: Sequence[Sample], figure: Figure) -> str:
    if not samples:
        return "–"
    unit = "/s" if figure is Figure.RATE else " ms"
    return _shown(spread([sample.figure(figure) for sample in samples]), unit)


def _cpu(samples: Sequence[Sample]) -> str:
    measured = [sample.cpu_us for sample in samples if sample.cpu_us]
    return f"{spread(measured).median:.0f}" if measured else "–"


def _shown(value: Spread, unit: str = "") -> str:
    show = _number(value.median)
    return f"{show(value.median)}{unit}\n{show(value.low)}–{show(value.high)}"


def _number(size: float) -> Callable[[float], str]:
    return "{:,.0f}".format if size >= 100 else "{:.2f}".format


def as_json(rows: Sequence[Row], facts: Mapping[str, str]) -> str:
    """Return everything that was measured.

    Args:
        rows: What was measured.
        facts: Where.
    """
    return json.dumps(
        {"facts": dict(facts), "rows": [asdict(row) | {"is_met": row.is_met} for row in rows]},
        indent=2,
        ensure_ascii=False,
    )
