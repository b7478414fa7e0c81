"""The parts of the guides that are made from the code: the map of the modules, and the table of the settings.

`python -m tests.project.generated`, which `make format` runs, brings them up to date.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from keylane.objects.settings import Settings
from keylane.runtime.metric_table import METRICS, exported_name
from tests.project.tree import ROOT, library_modules


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a guide between two markers, and how it is made."""

    guide: Path
    name: str
    render: Callable[[], str]

    @property
    def begin(self) -> str:
        """The line before the part."""
        return f"<!-- {self.name}, written by make format -->\n"

    @property
    def end(self) -> str:
        """The line behind the part."""
        return f"<!-- end of {self.name} -->\n"

    def written(self) -> str:
        """Return the part as it stands in the guide."""
        return self.guide.read_text(encoding="utf-8").partition(self.begin)[2].partition(self.end)[0]

    def write(self) -> None:
        """Bring the part up to date."""
        before, _, rest = self.guide.read_text(encoding="utf-8").partition(self.begin)
        after = rest.partition(self.end)[2]
        self.guide.write_text(before + self.begin + self.render() + self.end + after, encoding="utf-8")


def render_map() -> str:
    """Return a line per module, taken from the first line of its docstring."""
    return "".join(_table(package) for package in ("runtime", "objects", "journal"))


def _table(package: str) -> str:
    modules = [path for path in library_modules() if path.relative_to(ROOT).parts[0] == package]
    rows = "".join(f"| `{path.relative_to(ROOT)}` | {_purpose(path)} |\n" for path in modules if _is_listed(path))
    return f"\n**`{package}/`**: {_purpose(ROOT / package / '__init__.py')}\n\n| module | |\n| --- | --- |\n{rows}\n"


def _is_listed(path: Path) -> bool:
    return path.name != "__init__.py" or path.parents[1] != ROOT


def _purpose(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n", maxsplit=1)[0].replace("|", "\\|")


def render_settings() -> str:
    """Return a line per setting, from its description and default."""
    return "\n| variable | default | |\n| --- | --- | --- |\n" + "".join(_settings()) + "\n"


def _settings() -> Iterator[str]:
    prefix = Settings.model_config.get("env_prefix", "")
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else _shown(field.default)
        yield f"| `{prefix}{name.upper()}` | {default} | {field.description} |\n"


def _shown(default: object) -> str:
    return default if isinstance(default, str) else f"{default:,}".removesuffix(".0")


def render_metrics() -> str:
    """Return a line per metric, from what is said of it where it is counted."""
    rows = (f"| `{exported_name(each)}` | {', '.join(each.labels)} | {each.text} |\n" for each in METRICS)
    return "\n| metric | labels | |\n| --- | --- | --- |\n" + "".join(rows) + "\n"


PARTS = (
    Part(ROOT / "CONTRIBUTING.md", "map", render_map),
    Part(ROOT / "README.md", "settings", render_settings),
    Part(ROOT / "README.md", "metrics", render_metrics),
)


if __name__ == "__main__":
    for part in PARTS:
        part.write()
