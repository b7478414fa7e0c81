"""The distribution: a wheel built from the sdist, used in an environment and a folder that know nothing else."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project.tree import ROOT

Run = Callable[[str], str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Give a function that runs code where only the wheel and its dependencies are installed."""
    place = tmp_path_factory.mktemp("wheel")
    (wheel,) = build(place / "dist")
    python = environment(place / "environment")
    # Without its dependencies: those of this environment are used, so that nothing is asked of the network.
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()

    def execute(code: str) -> str:
        # What whoever runs the tests has put onto the path of all Pythons would be found before the wheel.
        known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [python, "-c", code], cwd=elsewhere, env=known, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return execute


def build(target: Path) -> list[Path]:
    """Build the sdist from the repository and the wheel from the sdist."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return list(target.glob("*.whl"))


def environment(place: Path) -> Path:
    """Make an environment that finds the dependencies of this one, and not the repository."""
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    # A folder that is named in a .pth file has its own .pth files left unread, and so the editable install unseen.
    (Path(found.stdout.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_facade_is_imported_from_the_wheel(run: Run) -> None:
    """Every public name is there, and it comes from the installed files."""
    place = run("import keylane; [getattr(keylane, name) for name in keylane.__all__]; print(keylane.__file__)")

    assert "environment" in place
    assert str(ROOT) not in place


@pytest.mark.parametrize("package", ["runtime", "objects", "journal"])
def test_nothing_named_like_a_folder_of_ours_leaks(run: Run, package: str) -> None:
    """A user's own `runtime.py` stays the only one of that name."""
    assert run(f"import importlib.util; print(importlib.util.find_spec({package!r}))") == "None"
    assert run(f"import keylane.{package}; print(keylane.{package}.__name__)") == f"keylane.{package}"


def test_tests_examples_and_benchmarks_are_not_installed(run: Run) -> None:
    """The wheel holds the library alone."""
    names = ["tests", "examples", "benchmarks", "src"]
    assert run(f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])") == "[]"


def test_the_functions_for_the_server_can_be_read(run: Run) -> None:
    """The Lua files came along, all of them."""
    code = """
from importlib.resources import files
folder = files("keylane.journal") / "lua"
print(*sorted(f"{f.name}:{len(f.read_text())}" for f in folder.iterdir()))
"""
    there = sorted(f"{path.name}:{len(path.read_text())}" for path in (ROOT / "journal" / "lua").iterdir())

    assert there
    assert run(code).split() == there


def test_the_types_are_marked_as_such(run: Run) -> None:
    """Type checkers read the annotations of an installed package only with the marker."""
    assert run("from importlib.resources import files; print((files('keylane') / 'py.typed').is_file())") == "True"


def test_the_command_is_installed(run: Run) -> None:
    """`keylane` is a program, and `python -m keylane` is the same one."""
    code = """
import subprocess, sys, pathlib
words = [[str(pathlib.Path(sys.prefix) / "bin" / "keylane")], [sys.executable, "-m", "keylane"]]
print(*("Usage" in subprocess.run([*word, "--help"], capture_output=True, text=True).stdout for word in words))
"""
    assert run(code) == "True True"
