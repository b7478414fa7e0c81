"""The examples in the help of the commands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from keylane.runtime.cli.app import app
from keylane.runtime.cli.examples import EXAMPLES, commands_of

ALL = [(words, example) for words, examples in EXAMPLES.items() for example in examples]


def test_every_command_shows_an_example_and_nothing_else_has_one() -> None:
    """Who asks for help gets a line to copy."""
    words = [each for each, _ in commands_of(app)]

    assert sorted(words) == sorted(EXAMPLES)
    for each in words:
        shown = CliRunner().invoke(app, [*each.split(), "--help"]).stdout
        assert f"keylane {each} {EXAMPLES[each][0]}" in shown


@pytest.mark.parametrize(("words", "example"), ALL)
def test_every_example_is_one_that_its_command_takes(
    words: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its options exist and none is missing; nothing is run."""
    monkeypatch.chdir(tmp_path)
    command: Any = typer.main.get_command(app)
    for word in words.split():
        command = command.commands[word]

    context = command.make_context(words, shlex.split(example))

    assert None not in [context.params[each.name] for each in command.params if each.required]


def test_what_may_be_left_out_is_bracketed_once() -> None:
    """The usage line sets the brackets."""
    for each in EXAMPLES:
        assert "[[" not in CliRunner().invoke(app, [*each.split(), "--help"]).stdout
