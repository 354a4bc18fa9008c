"""Every named optimisation of kernels makes other code of some graph, and on or off the graph gives the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa
from rlx.codegen.simd.module import generate
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Tolerance
from support import assert_close, run_on

ROOT = Path(rlx.__file__).parent


def weight(g: Graph, *shape: int) -> Value:
    data = np.random.default_rng(1).standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
    return g.param("w", shape, data=data)


def convolution(g: Graph) -> Value:
    made: Value = ops.conv(g.input("x", (1, 64, 14, 14)), weight(g, 64, 64, 3, 3), strides=(1, 1), dilations=(1, 1),
                           low=(1, 1), high=(1, 1))  # fmt: skip
    return made


def chain(g: Graph) -> Value:
    """Products that each need memory, of which at most two are alive."""
    made = g.input("x", (32, 64))
    w = weight(g, 64, 64)
    for _ in range(4):
        made = ops.softmax(made @ w, axis=-1)
    return made


GRAPHS: dict[str, Callable[[Graph], Any]] = {
    "fuse/epilogue": lambda g: ops.relu(g.input("x", (8, 64)) @ weight(g, 64, 32) + 1.0),
    "fuse/row": lambda g: ops.softmax(g.input("x", (8, 64)), axis=-1),
    "pack": lambda g: g.input("x", (8, 64)) @ weight(g, 64, 96),
    "memory-reuse": chain,
    "winograd": convolution,
}


def code(graph: Graph, off: str = "") -> list[str]:
    """The modules of LLVM that a graph becomes."""
    level = isa.detect()
    program, bounds = build.program_of(graph, level, Options(disable=frozenset({off})))
    return list(generate(program, level, bounds, build._kept(program), reuse=off != "memory-reuse"))


def test_every_switch_has_a_graph() -> None:
    """What the code asks for by name: `"pack" not in disable`."""
    asked = re.compile(r'"([a-z/-]+)" (?:not )?in (?:self\.)?disable\b')
    files = [path for folder in ("kernel", "backends") for path in (ROOT / folder).rglob("*.py")]
    assert set(GRAPHS) == {name for path in files for name in asked.findall(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", GRAPHS)
def test_an_optimisation_happens_and_changes_no_result(name: str) -> None:
    graph = Graph(name.replace("/", "-"))
    graph.output(GRAPHS[name](graph), name="y")
    assert code(graph) == code(graph), "code is the same each time"
    assert code(graph) != code(graph, off=name), "nothing changes without it"
    inputs = {v.name: np.random.default_rng(0).standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    wanted = run_on("reference", graph, inputs)["y"]
    for off in ("", name):
        assert_close(run_on("cpu", graph, inputs, disable=frozenset({off}))["y"], wanted, Tolerance(256, scale=1))
