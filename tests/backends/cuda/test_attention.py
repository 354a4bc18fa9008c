"""Attention on matrix units: warps that share a tile's keys, and warps with a tile each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import team_attention
from rlx.codegen.simt.module import cpp_module
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.kernel.ir.attention import FusedAttention

from .emulated_driver import EmulatedDriver


def graph_of(heads: int, shared: int, features: int, dtype: str, masked: bool, options: dict[str, Any]) -> Graph:
    graph = Graph("attention")
    q = graph.input("q", (2, heads, "n", features), dtype)
    k, v = (graph.input(name, (2, shared, "m", features), dtype) for name in "kv")
    mask = graph.input("mask", (2, 1, 1, "m"), "bool") if masked else None
    graph.output(ops.attention(q, k, v, *([mask] if mask is not None else []), **options).cast("f32"))
    return graph


@pytest.mark.parametrize("most", [0, 1 << 30], ids=["tiles of their own", "shared tiles"])
@pytest.mark.parametrize(
    ("heads", "shared", "features", "dtype", "masked", "options"),
    [
        (2, 2, 32, "f16", False, {}),
        (4, 2, 64, "bf16", False, {"causal": True}),
        (2, 1, 40, "f16", True, {}),
        (2, 2, 32, "bf16", False, {"causal": True, "window": 9}),
        (1, 1, 24, "f16", False, {"softcap": 5.0}),
    ],
)
def test_attention_of_both_forms(
    heads: int, shared: int, features: int, dtype: str, masked: bool, options: dict[str, Any], most: int,
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(team_attention, "FEW_TILES", most)
    graph = graph_of(heads, shared, features, dtype, masked, options)
    texts = "".join(cpp_module([program_of(graph)]).kernels.values())
    assert f"mma_{dtype}(scores[" in texts
    on_device, on_processor = (rlx.Session(device).compile(graph) for device in ("cuda", "cpu"))
    for queries, keys in ((70, 70), (16, 16), (33, 50), (130, 130)):
        if options.get("causal") and queries != keys:
            continue
        random = np.random.default_rng(queries)
        numpy = getattr(dtypes, dtype).numpy
        given = {
            "q": random.standard_normal((2, heads, queries, features)).astype(numpy),
            "k": random.standard_normal((2, shared, keys, features)).astype(numpy),
            "v": random.standard_normal((2, shared, keys, features)).astype(numpy),
        }
        if masked:
            given["mask"] = random.random((2, 1, 1, keys)) < 0.8
        made, expected = (np.asarray(model.run(given)[0]) for model in (on_device, on_processor))
        tolerance = 3e-2 if dtype == "bf16" else 4e-3
        np.testing.assert_allclose(made, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_the_form_is_chosen_by_the_queries_of_all_heads() -> None:
    graph = graph_of(2, 2, 32, "f16", False, {})
    program = program_of(graph)
    module = cpp_module([program])
    (kernel,) = [k for k in program.main if isinstance(k.work, FusedAttention)]
    few, many = (module.variant(kernel, {"n": n, "m": 64}).name for n in (64, 1 << 14))
    assert few != many


def test_few_queries_have_values_on_their_way_before_scores_and_places_before_they_wait() -> None:
    program = program_of(graph_of(2, 2, 32, "f16", False, {}))
    module = cpp_module([program])
    (kernel,) = [k for k in program.main if isinstance(k.work, FusedAttention)]
    variant = module.variant(kernel, {"n": 16, "m": 16})
    ahead, behind = module.kernels[variant.name].rsplit("follow();", 1)
    assert "position % " in ahead and "slot1[" not in ahead
    assert behind.index("HalfPiece*)(slot") < behind.index("mma_f16(scores[")
    assert not variant.shader.ahead
