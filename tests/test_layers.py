"""Imports go down the layers only, and `import rlx` is light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "rlx"
LAYERS = (
    {"errors", "flags", "disk", "locks", "mapped"},
    {"ir"},
    {"ops"},
    {"passes", "transform", "kernel"},
    {"codegen"},
    {"backends"},
    {"device"},
    {"runtime"},
    {"frontends"},
    {"models", "train", "serve"},
    {"cli"},
    {"__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FILES = sorted(SOURCE.rglob("*.py"))


def rooms_imported(tree: ast.Module) -> set[str]:
    """Rooms of rlx that a module imports, wherever in it; those under TYPE_CHECKING count too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found.update(name.split(".")[1] for name in names if name.startswith("rlx."))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_go_down(file: Path) -> None:
    here = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    if here == "__init__":
        return
    assert here in LEVEL, f"{here} is in no layer of tests/test_layers.py"
    for room in rooms_imported(ast.parse(file.read_text())) & LEVEL.keys():
        neighbour = 0 < LEVEL[room] == LEVEL[here] and room != here
        assert LEVEL[room] <= LEVEL[here] and not neighbour, f"{here} imports {room}"


def test_passes_name_no_backend() -> None:
    for file in (SOURCE / "passes").glob("*.py"):
        assert "backends" not in rooms_imported(ast.parse(file.read_text()))


def modules_after(script: str) -> set[str]:
    """Modules that are loaded after a script ran in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{script}\nprint(*sys.modules)"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
    )  # fmt: skip
    return set(done.stdout.split())


def test_import_is_light() -> None:
    assert not {"numpy", "llvmlite", "onnx", "torch", "ml_dtypes"} & modules_after("import rlx")


def test_graphs_need_numpy_and_ml_dtypes_alone() -> None:
    loaded = modules_after("import rlx; g = rlx.Graph(); rlx.gelu(g.input('x', (2,)))")
    assert not {"llvmlite", "onnx", "torch", "rlx.backends", "rlx.kernel"} & loaded
