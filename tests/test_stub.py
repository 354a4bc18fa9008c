"""The stub that tells type checkers what `rlx` hands out."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlx
from tools import write_stub

SOURCE = Path(rlx.__file__).parent

USES = """
import rlx
graph = rlx.Graph()
x = graph.input("x", (2, 3))
reveal_type(rlx.softmax(x, -1))
reveal_type(rlx.top_k(x, 1, 2))
reveal_type(rlx.sum(x, 0).mean(-1, keepdims=True))
reveal_type(rlx.Session("cpu"))
reveal_type(rlx.f32)
rlx.softmax(x, axs=1)
rlx.gelo(x)
"""


def test_the_stub_is_current() -> None:
    assert write_stub.STUB.read_text(encoding="utf-8") == write_stub.text(), "python -m tools.write_stub writes it"


def test_the_stub_has_every_name_and_no_other() -> None:
    names: set[str] = set()
    for node in ast.parse(write_stub.STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            names.update(alias.asname for alias in node.names if alias.asname and not alias.asname.startswith("_"))
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
    assert names == set(dir(rlx))


def test_the_package_says_that_it_has_types() -> None:
    assert (SOURCE / "py.typed").exists()


def test_a_type_checker_knows_functions(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "uses.py").write_text(USES)
    completed = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--config-file=", "uses.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(SOURCE.parent)},
    )  # fmt: skip
    lines = [line.split(": ", 1)[1] for line in completed.stdout.splitlines() if line.startswith("uses.py")]
    revealed = [line.split('"')[1] for line in lines if "Revealed type" in line]
    value = "rlx.ir.value.Value"
    assert revealed == [
        value, f"tuple[{value}, {value}]", value, "rlx.runtime.session.Session", "rlx.ir.dtype.DType",
    ]  # fmt: skip
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 2 and "axs" in errors[0] and "gelo" in errors[1]
