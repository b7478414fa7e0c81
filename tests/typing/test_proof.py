"""Both type checkers accept what is right and refuse what is wrong, line by line.

In the files beside this one each intended error carries a comment that silences it, so that they pass like any other
file. Here the comments are taken away, and each checker must complain about exactly those lines.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
FILES = ("declared.py", "called.py", "in_a_handler.py")
SILENCED = re.compile(r"  # type: ignore\[[a-z, -]+\](?=  # E )")
PYRIGHT = {"include": ["proof"], "extraPaths": [str(SOURCE)], "pythonVersion": "3.11", "typeCheckingMode": "strict"}

Lines = set[tuple[str, int]]


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a package of the files, their errors no longer silenced."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "proof").mkdir()
    (folder / "proof" / "__init__.py").touch()
    for name in FILES:
        (folder / "proof" / name).write_text(SILENCED.sub("", (HERE / name).read_text()))
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    return folder


def run(folder: Path, *command: str) -> str:
    """Run a checker in the folder, with the library on its path."""
    environment = {"PATH": str(Path(sys.executable).parent), "MYPYPATH": str(SOURCE)}
    finished = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return finished.stdout + finished.stderr


def complaints(output: str, pattern: str) -> Lines:
    """The lines of the proof that a checker complains about."""
    return {(found[1], int(found[2])) for found in re.finditer(pattern, output, re.MULTILINE)}


def intended() -> Lines:
    """The lines that are marked as wrong."""
    return {
        (name, number)
        for name in FILES
        for number, line in enumerate((HERE / name).read_text().splitlines(), start=1)
        if "  # E " in line
    }


def test_mypy_complains_about_exactly_the_marked_lines(proof: Path) -> None:
    """In its strict mode."""
    output = run(proof, "mypy", "--strict", "--config-file=", "--follow-imports=silent", "-p", "proof")

    assert complaints(output, r"^proof/(\w+\.py):(\d+): error:") == intended(), output


def test_pyright_complains_about_exactly_the_marked_lines(proof: Path) -> None:
    """In its strict mode."""
    output = run(proof, "pyright", "--pythonpath", sys.executable)

    assert complaints(output, r"/proof/(\w+\.py):(\d+):\d+ - error:") == intended(), output


def test_there_is_something_to_complain_about() -> None:
    """An empty set of marked lines would prove nothing."""
    assert len(intended()) > 20
