"""The repository as the guards see it: its files, the library's modules, and what they import."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("journal", "objects", "runtime")


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement of a library module.

    Attributes:
        module: Where it stands, relative to the root.
        name: The dotted name that is imported, `keylane.…` for what is imported relatively.
        is_relative: Whether it is written with dots.
    """

    module: Path
    name: str
    is_relative: bool

    @property
    def top(self) -> str:
        """The first part of the name."""
        return self.name.split(".")[0]


def tracked_files(pattern: str = "*") -> list[Path]:
    """Return the files of the repository, also those that are new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", pattern]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({ROOT / name for name in names if name and (ROOT / name).exists()})


def library_modules() -> list[Path]:
    """Return every Python file of the three packages."""
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports_of(path: Path) -> Iterator[Import]:
    """Return what a library module imports, wherever in the file."""
    module = path.relative_to(ROOT)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (Import(module, alias.name, is_relative=False) for alias in names)
            case ast.ImportFrom(module=name, level=0) if name is not None:
                yield Import(module, name, is_relative=False)
            case ast.ImportFrom(module=name, names=names, level=level):
                for tail in [name] if name else [alias.name for alias in names]:
                    yield Import(module, _absolute(module, level, tail), is_relative=True)
            case _:
                pass


def _absolute(module: Path, level: int, tail: str) -> str:
    parents = ("keylane", *module.parent.parts)
    return ".".join((*parents[: len(parents) - level + 1], tail))
