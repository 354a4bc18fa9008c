"""The tables of what newcomers met and ask for: tests, functions, flags and files that they name are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

import rlx
from rlx import flags

ROOT = Path(__file__).parents[2]
DEMANDS = ROOT / "docs" / "demands.md"
NEWCOMER = ROOT / "docs" / "design" / "newcomer.md"
PAGES = [*sorted((ROOT / "docs").glob("*.md")), NEWCOMER, *sorted(ROOT.glob("*.md"))]
NAMED = re.compile(r"\brlx\.((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)")
NUMBERED = re.compile(r"\| \d+ \|")
MEMBER = re.compile(r"`(CompiledGraph|GraphDevices|DevicePolicy|Graph|Model|Session)\.(\w+)")


@cache
def names_in(file: Path) -> frozenset[str]:
    """Names of the tests in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def numbered(text: str) -> list[list[str]]:
    """The cells of lines of tables that begin with a number."""
    lines = [line for line in text.splitlines() if NUMBERED.match(line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_demand_is_answered() -> None:
    found = numbered(DEMANDS.read_text(encoding="utf-8"))
    assert [int(row[0]) for row in found] == list(range(1, 43))
    assert all(row[2] in ("yes", "partly", "no") and row[3] for row in found)
    counts = [sum(row[2] == state for row in found) for state in ("yes", "partly", "no")]
    assert "{} yes, {} partly, {} no".format(*counts) in DEMANDS.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, _, name in re.findall(r"`(tests/[\w/]+\.py)(::(\w+))?`", text):
        assert (ROOT / file).is_file(), file
        assert not name or name in names_in(ROOT / file), f"{file}::{name}"
    for folder in re.findall(r"`((?:tests|docs|benchmarks|examples|src)/[\w./-]+)`", text):
        assert (ROOT / folder).exists(), folder
    for kind, name in MEMBER.findall(text):
        assert hasattr(getattr(rlx, kind), name), f"{kind}.{name}"
    assert set(re.findall(r"\bRLX_[A-Z_]+", text)) <= flags.FLAGS.keys()


@pytest.mark.parametrize("page", [page for page in PAGES if page != NEWCOMER], ids=lambda page: page.name)
def test_functions_in_tables_are_there(page: Path) -> None:
    """In code between backticks; blocks of code run elsewhere."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for code in re.findall(r"`([^`]+)`", text):
        for path in NAMED.findall(code):
            assert resolve_name(f"rlx.{path}") is not None


def test_pictures_are_of_the_results_that_they_name() -> None:
    from benchmarks import pictures

    for name, file in (("speed", pictures.SPEED), ("predictions", pictures.CHOICE)):
        assert pictures.source_of(file) in (pictures.IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    assert len(pictures.speeds(1)) == 24 and sum(map(len, pictures.predictions().values())) == 125
    quick = sum(min(ratios.values()) >= 1 for _, _, ratios in pictures.speeds(1))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{quick} of 24 runs are at least as fast as both others" in readme
    assert len(readme.splitlines()) <= 120


def test_every_wrong_use_and_friction_has_a_test() -> None:
    """Uses name a case of the table of wrong uses, or a test elsewhere."""
    uses, frictions = NEWCOMER.read_text(encoding="utf-8").split("## Frictions")
    cases = (ROOT / "tests" / "newcomer" / "test_wrong_uses.py").read_text(encoding="utf-8")
    of_uses, of_frictions = map(numbered, (uses, frictions))
    assert len(of_uses) >= 51 and len(of_frictions) >= 15
    for row in of_uses:
        assert "::" in row[3] or f'    "{row[3]}": (' in cases, row
    assert all("::" in row[3] for row in of_frictions)
