"""Every named optimisation of kernels makes other code of some graph, and on or off the graph gives the same."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from backends.cuda.fused_graphs import GRAPHS as CUDA_GRAPHS
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa
from rlx.backends.wgpu import build as wgpu
from rlx.backends.wgpu.device import PORTABLE_BINDING
from rlx.codegen.simd.module import generate
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Tolerance
from rlx.ir.rewriting import Context
from rlx.kernel import passes as kernel_passes
from rlx.kernel.ir.verify import verify
from rlx.kernel.passes.driver import KernelPass
from rlx.kernel.passes.pack import Pack
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise
from support import assert_close, run_on

ROOT = Path(rlx.__file__).parent


def weight(g: Graph, *shape: int) -> Value:
    data = np.random.default_rng(1).standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
    return g.param("w", shape, data=data)


def convolution(g: Graph) -> Value:
    y: Value = ops.conv(g.input("x", (1, 64, 14, 14)), weight(g, 64, 64, 3, 3), strides=(1, 1), dilations=(1, 1),
                           low=(1, 1), high=(1, 1))  # fmt: skip
    return y


def two_convolutions(g: Graph) -> Value:
    """The pad of the second holds what the first makes."""
    x, form = g.input("x", (1, 4, 6, 6)), {"strides": (1, 1), "dilations": (1, 1), "low": (1, 1), "high": (1, 1)}
    w = weight(g, 4, 4, 3, 3)
    y: Value = ops.conv(ops.relu(ops.conv(x, w, **form)), w, **form)
    return y


def chain(g: Graph) -> Value:
    """Products that each need memory, of which at most two are alive."""
    x = g.input("x", (32, 64))
    w = weight(g, 64, 64)
    for _ in range(4):
        x = ops.softmax(x @ w, axis=-1)
    return x


def both_directions(g: Graph) -> Value:
    """Two loops, whose rows are apart as well."""
    x, data = g.input("x", (5, 4, 8)), np.full((2, 32, 8), 0.1, np.float32)
    w, r = (g.param(name, data.shape, data=data) for name in "wr")
    b, state = g.constant(np.zeros((2, 64), "f4")), g.constant(np.zeros((2, 4, 8), "f4"))
    y: Value = ops.lstm(x, w, r, b, state, state, direction="bidirectional")[0]
    return y


GRAPHS: dict[str, Callable[[Graph], Any]] = {
    "fuse/epilogue": lambda g: ops.relu(g.input("x", (8, 64)) @ weight(g, 64, 32) + 1.0),
    "fuse/row": lambda g: ops.softmax(g.input("x", (8, 64)), axis=-1),
    "pack": lambda g: g.input("x", (8, 64)) @ weight(g, 64, 96),
    "collapse": lambda g: ops.exp(g.input("x", (4, 8, 3))),
    "memory-reuse": chain,
    "winograd": convolution,
    "long-reductions": lambda g: ops.reduce_sum(ops.square(g.input("x", (600, 300))), axes=(0, 1)),
    "borders": lambda g: ops.pad(ops.exp(g.input("x", (4, 8))), low=(1, 0), high=(2, 3), value=0.5),
    "repeats": lambda g: ops.resize(g.input("x", (3, 8, 8)), axes=(1, 2), sizes=(16, 16), up=(2, 2), down=(1, 1)),
    "placement": lambda g: two_convolutions(g),
    "loop-groups": lambda g: both_directions(g),
    "operands": lambda g: ops.einsum(g.input("x", (64, 8)), weight(g, 64, 32), equation="km,kn->mn"),
}


def few_queries(g: Graph) -> Value:
    q, k, v = (g.input(name, (1, 2, rows, 8)) for name, rows in (("q", 1), ("k", 300), ("v", 300)))
    y: Value = ops.attention(q, k, v)
    return y


def long_scatter(g: Graph) -> Value:
    index = g.param("i", (4096,), "i64", data=np.arange(4096) // 2)
    y: Value = ops.scatter_elements(g.input("x", (4096,)), index, g.input("u", (4096,)), axis=0)
    return y


GPU_GRAPHS: dict[str, Callable[[Graph], Any]] = {
    "split-kv": few_queries,
    "atomic-scatter": long_scatter,
}


def shaders(graph: Graph, off: str = "") -> list[str]:
    """The shaders that a graph becomes."""
    plan = wgpu.build(graph, Options(disable=frozenset({off})), PORTABLE_BINDING)
    return [step.shader.text for step in (*plan.prepare, *plan.main)]


def code(graph: Graph, off: str = "") -> list[str]:
    """The modules of LLVM that a graph becomes."""
    level = isa.detect()
    program, bounds = build.program_of(graph, level, Options(disable=frozenset({off})))
    return list(generate(program, level, bounds, build._kept(program), reuse=off != "memory-reuse"))


def test_every_switch_has_a_graph() -> None:
    """What the code asks for by name: `"pack" not in disable`."""
    pattern = re.compile(r'"([a-z/-]+)" (?:not )?in (?:\w+\.)*disable\b')
    files = [path for folder in ("kernel", "codegen", "backends") for path in (ROOT / folder).rglob("*.py")]
    steps = {name for path in files for name in pattern.findall(path.read_text(encoding="utf-8"))}
    passes = {each.name for each in every_pass() if not each.required}
    assert {*GRAPHS, *GPU_GRAPHS, *CUDA_GRAPHS} == steps | passes  # the last ones in tests/backends/cuda/test_fused.py


def every_pass() -> list[type[KernelPass]]:
    """The kernel passes that there are."""
    passes: list[type[KernelPass]] = []
    for module in pkgutil.iter_modules(kernel_passes.__path__, f"{kernel_passes.__name__}."):
        members = vars(importlib.import_module(module.name)).values()
        passes += [m for m in members if isinstance(m, type) and issubclass(m, KernelPass) and hasattr(m, "name")]
    return list(dict.fromkeys(passes))


@pytest.mark.parametrize("name", GRAPHS)
def test_an_optimisation_happens_and_changes_no_result(name: str) -> None:
    graph = Graph(name.replace("/", "-"))
    graph.output(GRAPHS[name](graph), name="y")
    assert code(graph) == code(graph), "code is the same each time"
    assert code(graph) != code(graph, off=name), "nothing changes without it"
    inputs = {v.name: np.random.default_rng(0).standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    expected = run_on("reference", graph, inputs)["y"]
    for off in ("", name):
        assert_close(run_on("cpu", graph, inputs, disable=frozenset({off}))["y"], expected, Tolerance(256, scale=1))


@pytest.mark.devices("vulkan")
@pytest.mark.parametrize("name", GPU_GRAPHS)
def test_a_rewrite_for_gpus_happens_and_changes_no_result(name: str, device: str) -> None:
    graph = Graph(name)
    graph.output(GPU_GRAPHS[name](graph), name="y")
    assert shaders(graph) == shaders(graph), "shaders are the same each time"
    assert shaders(graph) != shaders(graph, off=name), "nothing changes without it"
    inputs = {v.name: np.random.default_rng(0).standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    expected = run_on("reference", graph, inputs)["y"]
    for off in ("", name):
        assert_close(run_on(device, graph, inputs, disable=frozenset({off}))["y"], expected, Tolerance(256))


def test_rewrites_are_counted_and_bisected() -> None:
    """Those of kernels go on where those of the graph end."""
    graph = Graph("bisected")
    graph.output(chain(graph), name="y")
    ready, before = optimise(graph)
    everything = Context()
    passes = [Pack(lambda work: (16, 1))]
    to_kernels(ready, passes=passes, context=everything)
    assert everything.report.rewrites["pack/panels"] == 2
    for stop in range(everything.report.total + 1):
        some = Context(stop_at=stop)
        program = to_kernels(ready, passes=passes, context=some)
        assert some.report.total == stop
        verify(program)
    assert Context.after(before).left > 0
