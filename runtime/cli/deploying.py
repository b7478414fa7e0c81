"""`deploy check`, `export` and `replay`: journals held against code, and handed on as files."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

from ...journal.codec import Undecodable
from ...journal.exported import Journal, journals_in, lines_of
from ...journal.key import parse_id
from ...journal.open_journals import open_journals, read_journal
from ...journal.store import Store
from ...journal.types_registry import read_types, unused
from ...objects.app import App
from ..deploy_check import Breaking, Verdict, as_facts, check
from ..effects_check import unfit_effects
from ..rehearsal import Rehearsal, Rehearsed
from .hosting import load
from .output import Page, moment, shown, write_json, write_line
from .shell import ExitCode, Shell, WrongUse

STDOUT: Final = "-"
#: So many effects that do not fit are shown; as JSON all are.
EFFECTS_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class Orders:
    """What the command line asks for.

    Args:
        reference: The app, as `module:attribute`.
        files: Files with journals that are checked instead of the store's.
        type_name: The one object type that is looked at, None for all.
        limit: After so many journals the check stops, None to come to the end.
    """

    reference: str
    files: Sequence[Path]
    type_name: str | None
    limit: int | None


async def deploy_check(shell: Shell, orders: Orders) -> ExitCode:
    """Rehearse all open journals against an app, and print what would break."""
    app = load(orders.reference)
    if orders.files:
        verdict = await check(Rehearsal(app), _of_files(orders.files), limit=orders.limit)
        left_out: list[str] = []
        if not verdict.journals:
            raise WrongUse(f"{', '.join(map(str, orders.files))} holds no journals")
    else:
        async with Store(shell.store_url(), namespace=shell.namespace) as store:
            types = await read_types(store)
            wanted, left_out = _wanted(app, types, orders.type_name)
            if not types:
                # Its name may be misspelt, and then nothing open is seen.
                raise unused(store.namespace)
            verdict = await check(Rehearsal(app, store), open_journals(store, wanted), limit=orders.limit)
            hosted = {name: count for name, count in types.items() if name in wanted}
            verdict.effects.extend(await unfit_effects(app, store, hosted))
            verdict.partitions.update(_other_counts(app, hosted))
    if shell.is_json:
        write_json({**as_facts(verdict), "left_out": left_out})
    else:
        _print_verdict(Page(), verdict, left_out)
    return ExitCode.DONE if verdict.may_deploy else ExitCode.NO


def _wanted(app: App, types: dict[str, int], type_name: str | None) -> tuple[set[str], list[str]]:
    """Return the object types whose journals are rehearsed, and those of the store that the app does not host."""
    if type_name is not None and type_name not in app.objects:
        raise WrongUse(f"the app hosts no object type {type_name!r}; it hosts {', '.join(sorted(app.objects))}")
    wanted = set(app.objects) if type_name is None else {type_name}
    return wanted, sorted(name for name in types if name not in app.objects)


def _other_counts(app: App, hosted: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the types that declare another number of partitions than they have; a setting may be another there."""
    declared = {name: app.objects[name].partitions for name in hosted}
    return {name: (hosted[name], count) for name, count in declared.items() if count and count != hosted[name]}


async def _of_files(paths: Sequence[Path]) -> AsyncGenerator[Journal]:
    for path in paths:
        for journal in read_file(path):
            yield journal


def read_file(path: Path) -> Iterator[Journal]:
    """Return the journals of a file.

    Raises:
        WrongUse: It can't be read, or is no such file.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            yield from journals_in(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{path} can't be read: {error}") from error
    except Undecodable as error:
        raise WrongUse(f"{path} holds no journals: {error.reason}") from error


def _print_verdict(out: Page, verdict: Verdict, left_out: Sequence[str]) -> None:
    count = verdict.journals
    whole = "" if verdict.is_whole else "; there are more, which were not looked at"
    if not verdict.breaking:
        out.put(f"every open journal fits this code ({count} rehearsed{whole})")
    else:
        broken = sum(each.invocations for each in verdict.breaking)
        out.put(f"{broken} of {count} open journals do not fit this code{whole}")
    for each in verdict.breaking:
        _print_breaking(out, each)
    for effect in verdict.effects[:EFFECTS_NAMED]:
        name = f"{effect.effect} {effect.operation} of {effect.type_name} {effect.key}"
        out.put(f"\neffect: {shown(name)} is {effect.state}, and would go before people: {shown(effect.why)}")
    if len(verdict.effects) > EFFECTS_NAMED:
        out.put(f"and {len(verdict.effects) - EFFECTS_NAMED} effects more")
    for type_name, (found, declared) in sorted(verdict.partitions.items()):
        out.put(f"\npartitions: {shown(type_name)} has {found} here and {declared} in this code, which would not start")
    if verdict.versions:
        out.put("\nopen invocations")
        table = Table(box=None, padding=(0, 2), show_edge=False)
        for name in ("handler", "version", "count"):
            table.add_column(name)
        for (type_name, handler, version), number in sorted(verdict.versions.items()):
            table.add_row(shown(f"{type_name}.{handler}"), str(version), str(number))
        out.put(table)
    for (type_name, handler, name), number in sorted(verdict.old_ways.items()):
        out.put(f"{number} of {shown(f'{type_name}.{handler}')} go on without {shown(repr(name))}: keep its old way")
    if left_out:
        out.put(f"not looked at, since the app does not host them: {shown(', '.join(left_out))}")


def _print_breaking(out: Page, breaking: Breaking) -> None:
    cause = breaking.cause
    out.put(f"\n{cause.fit.value}: {shown(f'{cause.type_name}.{cause.handler}')}, version {cause.version}")
    pairs = [
        ("recorded", cause.recorded),
        ("attempted", cause.attempted),
        ("at", cause.line),
        ("detail", cause.detail),
        ("how many", f"{breaking.invocations} invocations of {breaking.keys} keys"),
        ("oldest", moment(breaking.oldest)),
        ("such as", ", ".join(breaking.named)),
    ]
    _print_pairs(out, pairs)


def _print_pairs(out: Page, pairs: Sequence[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for name, text in pairs:
        if text:
            grid.add_row(f"  {name}", shown(text))
    out.put(grid)


async def export(shell: Shell, invocation_id: str, path: Path | None) -> ExitCode:
    """Write the journal of an invocation to a file, or to stdout."""
    invocation = parse_id(invocation_id)
    async with Store(shell.store_url(), namespace=shell.namespace) as store:
        journal, written = await read_journal(store, invocation)
    lines = lines_of(journal, written)
    if path is None or str(path) == STDOUT:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return ExitCode.DONE
    _write_file(path, lines)
    if shell.is_json:
        write_json({"exported": invocation_id, "records": len(written), "path": str(path)})
    else:
        write_line(f"{len(written)} records of {invocation_id} are in {path}")
    return ExitCode.DONE


def _write_file(path: Path, lines: Iterator[str]) -> None:
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise WrongUse(f"{path} can't be written: {error}") from error


async def replay(shell: Shell, path: Path, reference: str) -> ExitCode:
    """Rehearse the journals of a file against an app, and print how each goes together with it."""
    rehearsal = Rehearsal(load(reference))
    results = [await rehearsal.of(journal) for journal in read_file(path)]
    if not results:
        raise WrongUse(f"{path} holds no journals")
    if shell.is_json:
        write_json([_facts(each) for each in results])
    else:
        out = Page()
        for each in results:
            _print_rehearsed(out, each)
    return ExitCode.NO if any(each.is_breaking for each in results) else ExitCode.DONE


def _facts(rehearsed: Rehearsed) -> dict[str, object]:
    return {
        "id": rehearsed.journal.id,
        "key": rehearsed.journal.key,
        "handler": rehearsed.handler,
        "version": rehearsed.version,
        "fit": rehearsed.fit.value,
        "is_breaking": rehearsed.is_breaking,
        "recorded": rehearsed.recorded,
        "attempted": rehearsed.attempted,
        "line": rehearsed.line,
        "detail": rehearsed.detail,
        "records": len(rehearsed.journal.records),
        "ways": rehearsed.ways,
    }


def _print_rehearsed(out: Page, told: Rehearsed) -> None:
    out.put(f"{told.journal.id}  {told.fit.value}")
    pairs = [
        ("object", f"{told.journal.type_name} {told.journal.key}"),
        ("handler", f"{told.handler}, version {told.version}"),
        ("records", str(len(told.journal.records))),
        ("recorded", told.recorded),
        ("attempted", told.attempted),
        ("at", told.line),
        ("detail", told.detail),
        ("old ways", ", ".join(name for name, is_new in told.ways.items() if not is_new)),
    ]
    _print_pairs(out, pairs)
