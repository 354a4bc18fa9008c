"""Which kernels a graph becomes: what only this backend decides."""

from __future__ import annotations

import pytest

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda import CudaBackend, build
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import module
from rlx.codegen.simt.kernel import render
from rlx.codegen.simt.module import cpp_module
from rlx.errors import UnsupportedOp
from rlx.ir.graph import Graph
from rlx.kernel.ir.attention import FusedAttention, SplitKvCombine, SplitKvPartial
from rlx.kernel.ir.contraction import Contraction


def attention(queries: int | str, keys: int | str, dtype: str) -> list[type]:
    """The kinds of work of attention of 12 heads."""
    graph = Graph("attention")
    q = graph.input("q", (1, 12, queries, 32), dtype)
    k, v = (graph.input(name, (1, 12, keys, 32), dtype) for name in "kv")
    graph.output(ops.attention(q, k, v))
    return [type(kernel.work) for kernel in program_of(graph).main]


@pytest.mark.parametrize(
    ("queries", "keys", "dtype", "kinds"),
    [
        (128, 128, "f32", [SplitKvPartial, SplitKvCombine]),
        (512, 512, "f32", [FusedAttention]),
        ("n", "n", "f32", [FusedAttention, SplitKvPartial, SplitKvCombine]),
        (128, 128, "f16", [FusedAttention]),  # matrix units, with a workgroup for each 16 queries
        (4, 512, "f16", [SplitKvPartial, SplitKvCombine]),
    ],
)
def test_attention_is_spread_over_keys_where_scores_are_few(
    queries: int | str, keys: int | str, dtype: str, kinds: list[type]
) -> None:
    assert attention(queries, keys, dtype) == kinds


def test_what_has_no_kernel_is_refused_with_its_node() -> None:
    graph = Graph("complex")
    x = graph.input("x", (4,), "c64")
    graph.output(x + x)
    refused = {each.node.op.name: each.reason for each in CudaBackend().unsupported(graph)}
    assert "complex" in refused["add"]
    with pytest.raises(UnsupportedOp, match="add"):
        build.build(graph, Options())


def test_what_is_for_many_rows_has_no_functions_for_few() -> None:
    """Where a run has few, another kernel computes them."""
    graph = Graph("rows")
    x = graph.input("x", ("n", 64), "f16")
    graph.output(ops.softmax(x, axis=-1) @ graph.param("w", (64, 512), "f16"))
    program = program_of(graph)
    module = cpp_module([program])
    (left,) = (kernel for kernel in program.main if isinstance(kernel.work, Contraction))
    assert left.work.above == 16
    assert [variant.most_rows for variant in module.variants[id(left)]] == [32, 192, 1024, None]


def test_layers_that_are_alike_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(module, "render", lambda *given: written.append(given[0]) or render(*given))

    def count(layers: int) -> int:
        written.clear()
        graph = Graph("layers")
        x = graph.input("x", ("n", 64), "f16")
        for layer in range(layers):
            w = [graph.param(f"{name}{layer}", (64, 64), "f16") for name in "ab"]
            x = x + ops.relu(ops.softmax(x, axis=-1) @ w[0]) @ w[1]
        graph.output(x)
        cpp_module([program_of(graph)])
        return len(written)

    assert count(6) == count(3) > 0


def test_numbers_that_differ_in_their_sign_have_kernels_of_their_own() -> None:
    graph = Graph("signs")
    q, k, v = (graph.input(name, (1, 2, 100, 32), "f16") for name in "qkv")
    mask = graph.input("mask", (1, 1, 100, 100), "bool")
    for fill in (-0.0, 0.0):
        graph.output(ops.attention(q, k, v, mask, fill=fill, scale=0.5))
    kernels = cpp_module([program_of(graph)]).kernels
    assert len([name for name in kernels if "attention" in name]) == 2
