"""What the texts of the repository say: no place of a machine, no command that does not exist, a map that is true."""

import re

import pytest

from tests.project.generated import PARTS, Part
from tests.project.tree import ROOT, tracked_files

# In two parts, so that this file does not contain what it looks for.
PLACES = re.compile(
    "|".join("/" + place for place in ("home/[a-z]{2}", "root/", "Users/[a-z]", "work/", "opt/", "tmp/[a-z]"))
)
TEXT_SUFFIXES = {"", ".cfg", ".ini", ".json", ".lua", ".md", ".py", ".pyi", ".sh", ".toml", ".txt", ".yaml", ".yml"}
GUIDES = ("README.md", "CONTRIBUTING.md", ".ci/run")


def test_no_file_names_a_place_of_a_machine() -> None:
    """What works on one machine only does not belong here."""
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in tracked_files()
        if path.suffix in TEXT_SUFFIXES and path.is_file() and not path.is_symlink()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if PLACES.search(line)
    ]

    assert found == []


@pytest.mark.parametrize("guide", GUIDES)
def test_every_make_command_that_a_guide_names_exists(guide: str) -> None:
    """A newcomer types what stands there."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / guide).read_text(), re.MULTILINE))

    assert named
    assert named <= targets


def test_the_first_screen_of_the_readme_has_the_two_commands() -> None:
    """What it is, for whom, when not, and how to try it, before anything is scrolled."""
    first_screen = (ROOT / "README.md").read_text().splitlines()[:40]

    assert "make demo" in " ".join(first_screen)
    assert "make test" in " ".join(first_screen)


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    """The file says which versions, never where from."""
    lines = (ROOT / "constraints-dev.txt").read_text().splitlines()

    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9A-Za-z.+]+", line)] == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_what_a_guide_says_of_the_code_is_up_to_date(part: Part) -> None:
    """The map and the settings are written by `make format`; here it shows when that was forgotten."""
    assert part.written() == part.render()
