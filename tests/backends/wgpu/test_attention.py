"""The attention shader against the reference: masks, shared heads, strides, lengths that only a run knows, and rows
that have nothing to attend to."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rlx import ops
from rlx.backends.base import Backend, Options
from rlx.backends.claims import Dispatch
from rlx.backends.cpu import CpuBackend
from rlx.backends.wgpu import BACKENDS
from rlx.backends.wgpu.build import Plan, build
from rlx.errors import UnsupportedOp
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial

from .conftest import Check, compiled


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attention(shape: tuple[int, ...], keys: int, groups: int = 1, dtype: str = "f32") -> tuple[Graph, list[Value]]:
    """A graph with q, k and v of b, h, s, d, so many keys, and a head of keys for each group of heads."""
    graph = Graph("attention")
    b, h, s, d = shape
    sides = (("q", (b, h, s, d)), ("k", (b, h // groups, keys, d)), ("v", (b, h // groups, keys, d)))
    return graph, [graph.input(name, of, dtype) for name, of in sides]


def inputs_of(graph: Graph) -> dict[str, Array]:
    inputs = {}
    for seed, value in enumerate(graph.inputs):
        shape = tuple(d for d in value.shape if isinstance(d, int))
        inputs[value.name] = numbers(*shape, seed=seed).astype(value.dtype.numpy)
    return inputs


def works(plan: Plan) -> list[FusedAttention]:
    return [step.kernel.work for step in plan.main if isinstance(step.kernel.work, FusedAttention)]


@pytest.mark.parametrize("size", [1, 6, 64, 130, 256])
@pytest.mark.parametrize("queries, keys", [(33, 1), (70, 40), (130, 33)])
def test_sizes(size: int, queries: int, keys: int, check: Check) -> None:
    graph, sides = attention((1, 2, queries, size), keys)
    graph.output(ops.attention(*sides))
    check(graph, [({}, inputs_of(graph))])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("groups", [1, 4])
def test_narrow_floats_and_shared_heads(dtype: str, groups: int, check: Check) -> None:
    graph, sides = attention((2, 4, 36, 16), 19, groups, dtype)
    graph.output(ops.attention(*sides, scale=0.4))
    check(graph, [({}, inputs_of(graph))])


def masks(graph: Graph, sides: list[Value], kind: str, queries: int, keys: int) -> dict[str, Array]:
    """Adds a mask to an attention of two batches, and gives it; one that is added leaves a query without a key."""
    random = np.random.default_rng(3)
    if kind == "none":
        return {}
    if kind == "added":
        sides.append(graph.input("m", (queries, keys), "f32"))
        added = np.where(random.random((queries, keys)) < 0.3, -np.inf, numbers(queries, keys)).astype(np.float32)
        added[3] = -np.inf
        return {"m": added}
    sides.append(graph.input("m", (2, 1, queries, keys), "bool"))
    return {"m": random.random((2, 1, queries, keys)) < 0.5}


@pytest.mark.parametrize("causal, offset", [(False, 0), (True, 0), (True, 5), (True, -3)])
@pytest.mark.parametrize("kind_of_mask", ["none", "bool", "added", "whole"])
@pytest.mark.parametrize("fill", [-np.inf, -1e4])
def test_masks(causal: bool, offset: int, kind_of_mask: str, fill: float, check: Check) -> None:
    """`whole` masks every key of some queries; with `fill` these mix all values alike."""
    graph, sides = attention((2, 2, 34, 8), 35)
    inputs = inputs_of(graph) | masks(graph, sides, kind_of_mask, 34, 35)
    if kind_of_mask == "whole":
        inputs["m"][:, :, 3:9] = False
    for empty in ("zero", "nan"):
        graph.output(ops.attention(*sides, causal=causal, offset=offset, fill=fill, empty=empty))
    check(graph, [({}, inputs)])


@pytest.mark.parametrize("window", [1, 7, 40, 500])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("offset, fill", [(0, -np.inf), (9, -np.inf), (-30, -np.inf), (2, -1e4)])
def test_windows(window: int, causal: bool, offset: int, fill: float, check: Check) -> None:
    """Tiles of keys that lie outside are left out; a query may be left with nothing."""
    graph, sides = attention((1, 2, 150, 8), 131)
    graph.output(ops.attention(*sides, causal=causal, offset=offset, window=window, fill=fill))
    check(graph, [({}, inputs_of(graph))])


def test_soft_caps(check: Check) -> None:
    graph, sides = attention((1, 2, 40, 8), 33)
    sides.append(graph.input("m", (40, 33), "f32"))
    graph.output(ops.attention(*sides, softcap=1.5, scale=2.0), ops.attention(*sides, softcap=5.0, window=6))
    check(graph, [({}, inputs_of(graph))])


def test_nan_and_infinities(check: Check) -> None:
    """A NaN or +inf among the scores of a row makes the row NaN; so does one among values that count."""
    graph, sides = attention((1, 1, 40, 8), 50)
    graph.output(ops.attention(*sides), ops.attention(*sides, empty="nan"))
    inputs = inputs_of(graph)
    inputs["q"][0, 0, 3, 2], inputs["q"][0, 0, 7, 1], inputs["q"][0, 0, 9, :] = np.nan, np.inf, -np.inf
    inputs["v"][0, 0, 45, 5] = np.inf
    check(graph, [({}, inputs)])
    inputs["k"][0, 0, 49, 0] = np.nan
    check(graph, [({}, inputs)])


def test_scores_of_any_size(check: Check) -> None:
    """Powers are of differences: large scores overflow nothing, and a greatest that comes late shrinks the rest."""
    graph, sides = attention((1, 2, 64, 4), 100)
    graph.output(ops.attention(*sides, scale=300.0), ops.attention(*sides, scale=-1e-6))
    check(graph, [({}, inputs_of(graph))], tolerance=Tolerance(1 << 14, scale=1))


def test_lengths_that_only_a_run_knows(check: Check) -> None:
    graph = Graph("lengths")
    q = graph.input("q", ("b", "s", 4, 16)).transpose(0, 2, 1, 3)
    k, v = (graph.input(name, ("b", "t", 2, 16)).transpose(0, 2, 1, 3) for name in "kv")
    mask = graph.input("seen", ("b", "t"), "bool")
    graph.output(ops.attention(q, k, v, mask[:, None, None, :]).transpose(0, 2, 1, 3))
    graph.output(ops.attention(q, k, v, causal=True, empty="nan"))
    calls = []
    for b, s, t in ((1, 1, 1), (2, 7, 30), (1, 130, 16), (3, 64, 65), (1, 3, 0), (0, 3, 3), (1, 0, 3)):
        arrays = {"q": numbers(b, s, 4, 16), "k": numbers(b, t, 2, 16, seed=1), "v": numbers(b, t, 2, 16, seed=2)}
        arrays["seen"] = np.random.default_rng(s).random((b, t)) < 0.7
        calls.append(({"b": b, "s": s, "t": t}, arrays))
    check(graph, calls)


def ways(graph: Graph) -> list[type]:
    """The kinds of kernels that attention becomes."""
    kinds = (FusedAttention, SplitKvPartial, SplitKvCombine)
    return [
        type(step.kernel.work) for step in build(graph, Options(), 1 << 24).main if isinstance(step.kernel.work, kinds)
    ]


@pytest.mark.parametrize("size", [1, 6, 64, 130, 256])
@pytest.mark.parametrize("queries, keys, groups", [(1, 256, 1), (1, 700, 4), (3, 257, 2), (8, 300, 4)])
def test_few_queries(size: int, queries: int, keys: int, groups: int, check: Check) -> None:
    graph, sides = attention((2, 4, queries, size), keys, groups)
    graph.output(ops.attention(*sides))
    assert ways(graph) == [SplitKvPartial, SplitKvCombine]
    check(graph, [({}, inputs_of(graph))])


def test_few_queries_with_values_of_another_size(check: Check) -> None:
    graph = Graph("sizes")
    q, k = (graph.input(name, (1, 3, n, 40)) for name, n in (("q", 2), ("k", 300)))
    for size in (1, 7, 33, 200):
        graph.output(ops.attention(q, k, graph.input(f"v{size}", (1, 3, 300, size))))
    check(graph, [({}, inputs_of(graph))])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_few_queries_of_narrow_floats(dtype: str, check: Check) -> None:
    graph, sides = attention((2, 4, 3, 16), 290, 2, dtype)
    graph.output(ops.attention(*sides, scale=0.4))
    check(graph, [({}, inputs_of(graph))])


@pytest.mark.parametrize("causal, offset", [(False, 0), (True, 0), (True, 200), (True, 286), (True, -3)])
@pytest.mark.parametrize("kind_of_mask", ["none", "bool", "added", "whole"])
@pytest.mark.parametrize("fill", [-np.inf, -1e4])
def test_masks_of_few_queries(causal: bool, offset: int, kind_of_mask: str, fill: float, check: Check) -> None:
    """`whole` masks every key of some queries, whole chunks of others."""
    graph, sides = attention((2, 4, 5, 8), 291, 2)
    inputs = inputs_of(graph) | masks(graph, sides, kind_of_mask, 5, 291)
    if kind_of_mask == "whole":
        inputs["m"][:, :, 1:3] = inputs["m"][:, :, :, 128:] = False
    for empty in ("zero", "nan"):
        graph.output(ops.attention(*sides, causal=causal, offset=offset, fill=fill, empty=empty))
    check(graph, [({}, inputs)])


@pytest.mark.parametrize("window", [1, 7, 140])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("offset, fill", [(0, -np.inf), (250, -np.inf), (-30, -np.inf), (400, -np.inf), (90, -1e4)])
def test_windows_and_soft_caps_of_few_queries(
    window: int, causal: bool, offset: int, fill: float, check: Check
) -> None:
    graph, sides = attention((1, 2, 6, 8), 330)
    options = {"causal": causal, "offset": offset, "window": window, "fill": fill}
    graph.output(ops.attention(*sides, **options), ops.attention(*sides, softcap=1.5, **options))
    check(graph, [({}, inputs_of(graph))])


def test_nan_and_infinities_of_few_queries(check: Check) -> None:
    graph, sides = attention((1, 1, 7, 8), 400)
    graph.output(ops.attention(*sides), ops.attention(*sides, causal=True, offset=380, scale=300.0))
    inputs = inputs_of(graph)
    inputs["q"][0, 0, 1, 2], inputs["q"][0, 0, 3, 1], inputs["q"][0, 0, 5, :] = np.nan, np.inf, -np.inf
    inputs["v"][0, 0, 345, 5] = np.inf
    check(graph, [({}, inputs)], tolerance=Tolerance(1 << 14, scale=1))
    inputs["k"][0, 0, 399, 0] = np.nan
    check(graph, [({}, inputs)], tolerance=Tolerance(1 << 14, scale=1))


def test_a_run_takes_the_way_of_its_queries(check: Check) -> None:
    graph = Graph("lengths")
    q = graph.input("q", ("b", "s", 4, 16)).transpose(0, 2, 1, 3)
    k, v = (graph.input(name, ("b", "t", 2, 16)).transpose(0, 2, 1, 3) for name in "kv")
    graph.output(ops.attention(q, k, v, causal=True, empty="nan").transpose(0, 2, 1, 3) + 1.0)
    assert ways(graph) == [FusedAttention, SplitKvPartial, SplitKvCombine]
    calls = []
    for b, s, t in ((1, 8, 300), (1, 9, 300), (2, 1, 700), (1, 1, 1), (1, 3, 0), (0, 3, 3), (1, 0, 3)):
        arrays = {"q": numbers(b, s, 4, 16), "k": numbers(b, t, 2, 16, seed=1), "v": numbers(b, t, 2, 16, seed=2)}
        calls.append(({"b": b, "s": s, "t": t}, arrays))
    check(graph, calls)


def test_scores_take_no_memory(kind: str) -> None:
    """The arena holds the operands and the result alone."""
    graph, sides = attention((1, 2, 512, 16), 512)
    graph.output(ops.attention(*sides))
    executable = compiled(kind, graph)
    assert len(works(executable.plan)) == 1
    assert executable.bind({}).nbytes == 4 * 4 * 2 * 512 * 16


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"size": 257}, "a head size over 256"),
        ({"size": "d", "scale": 1.0}, "a head size that is not known"),
        ({"queries": 1}, "so few queries"),
    ],
)
def test_what_is_decomposed(change: dict[str, object], reason: str) -> None:
    attributes = {name: value for name, value in change.items() if name not in ("size", "queries")}
    shape = (1, 2, change.get("queries", 40), change.get("size", 8))
    graph = Graph("refused")
    q, k, v = (graph.input(name, shape) for name in "qkv")
    graph.output(ops.attention(q, k, v, **attributes))
    assert not works(build(graph, Options(), 1 << 20))
    with pytest.raises(UnsupportedOp, match=rf"\[attention\] expected .*{reason}"):
        build(graph, Options(dispatch=Dispatch("force-native")), 1 << 20)


@pytest.mark.parametrize("backend", [BACKENDS["vulkan"], CpuBackend])
def test_any_number_of_heads_to_a_key(backend: type[Backend]) -> None:
    graph = Graph("heads")
    q, k = graph.input("q", (1, "h", 40, 8)), graph.input("k", (1, 1, 40, 8))
    graph.output(ops.attention(q, k, k))
    (node,) = [node for node in graph.nodes if node.op.name == "attention"]
    assert backend().claim(node) == "a number of heads to a key that is not known"
    assert not backend().unsupported(graph)


@pytest.mark.parametrize("sizes", [(1, 1), (64, 64), (256, 256), (256, 1), (5, 200)])
def test_tiles_fit_in_workgroup_memory(sizes: tuple[int, int]) -> None:
    graph = Graph("tiles")
    q, k = (graph.input(name, (1, 1, "s", sizes[0])) for name in "qk")
    graph.output(ops.attention(q, k, graph.input("v", (1, 1, "s", sizes[1]))))
    sizes_of = {"f32": 4, "vec4<f32>": 16}
    for step in build(graph, Options(), 1 << 20).main:
        shared = re.findall(r"var<workgroup> \w+: array<([\w<>]+), (\d+)>", step.shader.text)
        assert sum(sizes_of[kind] * int(count) for kind, count in shared) <= 16 << 10
