"""Imports go down the layers only, and `import rlx` is light."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "rlx"
LAYERS = (
    {
        "arguments",
        "collector",
        "elsewhere",
        "errors",
        "flags",
        "disk",
        "interrupt",
        "locks",
        "logs",
        "mapped",
        "records",
    },
    {"ir"},
    {"ops"},
    {"passes", "transform", "kernel"},
    {"codegen"},
    {"cost"},
    {"backends"},
    {"device"},
    {"runtime"},
    {"frontends", "tracing"},
    {"models", "train", "serve"},
    {"model"},
    {"cli"},
    {"__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
MODULE = re.compile(r"rlx(\.[a-z_]+)+(:\w+)?")
"""A module, or a name in it, as lazy imports write it."""
FILES = sorted(SOURCE.rglob("*.py"))


def rooms_imported(tree: ast.Module) -> set[str]:
    """Rooms of rlx that a module imports, wherever in it; those under TYPE_CHECKING count too, and those that strings
    name, from which modules are imported late."""
    rooms: set[str] = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            names = [node.value]
        rooms.update(name.split(".")[1] for name in names if name.startswith("rlx."))
    return rooms


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
    completed = subprocess.run(
        [sys.executable, "-c", f"import sys\n{script}\nprint(*sys.modules)"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
    )  # fmt: skip
    return set(completed.stdout.split())


def test_import_is_light() -> None:
    assert not {"numpy", "llvmlite", "onnx", "torch", "ml_dtypes"} & modules_after("import rlx")


def test_a_module_of_rlx_is_imported_alone() -> None:
    loaded = modules_after("from rlx import locks")
    assert "rlx.locks" in loaded and not {"numpy", "rlx.ir", "rlx.ops"} & loaded


def test_graphs_need_numpy_and_ml_dtypes_alone() -> None:
    loaded = modules_after("import rlx; g = rlx.Graph(); rlx.gelu(g.input('x', (2,)))")
    assert not {"llvmlite", "onnx", "torch", "rlx.backends", "rlx.kernel"} & loaded


def imports_of(file: Path, modules: set[str]) -> set[str]:
    """Modules of rlx that a module imports, in functions too; what only type annotations need is left out."""
    modules_imported: set[str] = set()

    def visit(node: ast.AST) -> None:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.If) and "TYPE_CHECKING" in ast.unparse(inner.test):
                continue
            if isinstance(inner, ast.ImportFrom) and inner.module and inner.module.startswith("rlx"):
                names = (f"{inner.module}.{alias.name}" for alias in inner.names)
                modules_imported.update(name if name in modules else inner.module for name in names)
            elif isinstance(inner, ast.Import):
                modules_imported.update(alias.name for alias in inner.names if alias.name in modules)
            visit(inner)

    visit(ast.parse(file.read_text(encoding="utf-8")))
    return modules_imported


CIRCLES = {
    frozenset(
        f"rlx.codegen.simt.language.wgsl.{name}" for name in ("language", "shader", "small_floats")
    ): "functions of the shader library are written in the language that assembles them",
}
"""Modules that import one another, in functions, with the reason."""


def test_no_module_imports_its_importers() -> None:
    modules = {
        ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in FILES
    }
    names = set(modules)
    below = {name: imports_of(file, names) & names - {name} for name, file in modules.items()}
    circles = {frozenset(group) for group in strongly_connected(below) if len(group) > 1}
    assert circles == set(CIRCLES)


def strongly_connected(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of nodes that reach one another (Tarjan 1972, doi:10.1137/0201010)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            position = stack.index(node)
            groups.append(set(stack[position:]))
            del stack[position:]

    for node in graph:
        if node not in index:
            visit(node)
    return groups


MOST_LINES = 60
"""Of a function: what is longer wants to be two."""


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_functions_are_short(file: Path) -> None:
    functions = [n for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)]
    long = [
        f"{n.name}: {n.end_lineno - n.lineno + 1} lines" for n in functions if n.end_lineno - n.lineno >= MOST_LINES
    ]
    assert not long


MOST_FILE_LINES = 520
"""Of a module: one idea each."""


def test_modules_are_short() -> None:
    lengths = {str(f.relative_to(SOURCE)): len(f.read_text(encoding="utf-8").splitlines()) for f in FILES}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_FILE_LINES}


def test_what_is_too_complex_says_why() -> None:
    """The linter bounds the complexity of functions; whoever switches that off for one gives the reason beside it."""
    for file in FILES:
        for line in file.read_text(encoding="utf-8").splitlines():
            assert "noqa: C901" not in line or re.search(r"noqa: C901 - \w", line), f"{file}: {line.strip()}"
