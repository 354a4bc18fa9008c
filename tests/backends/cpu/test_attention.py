"""Attention of few queries, which reads keys and values where they lie, and of more, which packs them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.cpu import isa
from rlx.backends.cpu.build import program_of
from rlx.codegen.simd import attention
from rlx.codegen.simd.module import schedule_of
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.interpreter import evaluate
from rlx.kernel.ir.attention import FusedAttention
from rlx.ops import build
from support import Runner, run_on, runner

from .test_bytes import FLOAT_KINDS

ROUNDINGS = {"f32": 2e-5, "f16": 2e-3, "bf16": 2e-2}
"""What results may be off by, of what dtypes."""


def numbers(*shape: int, seed: int = 0, dtype: str = "f32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtypes.parse(dtype).numpy)


def assert_close(actual: Any, expected: Any, dtype: str, why: str = "") -> None:
    assert actual.dtype == expected.dtype
    near = ROUNDINGS[dtype]
    np.testing.assert_allclose(actual.astype("f4"), expected.astype("f4"), rtol=near, atol=near, err_msg=why)


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("features, values", [(8, 6), (33, 150), (1, 16)])
@pytest.mark.parametrize("known, dtype", [(True, "f32"), (False, "f32"), (False, "f16"), (True, "bf16")])
def test_any_number_of_queries(features: int, values: int, known: bool, dtype: str, device: str) -> None:
    """Shared heads, a causal mask whose place is not the end, an added mask, rows without a key."""

    @cache
    def made(rows: int | str) -> tuple[Graph, Runner]:
        graph = Graph()
        q = graph.input("q", (2, 4, rows, features), dtype)
        k = graph.input("k", (2, 2, "keys", features), dtype)
        v = graph.input("v", (2, 2, "keys", values), dtype)
        mask = graph.input("mask", (rows, "keys"), dtype)
        graph.output(build.attention(q, k, v), name="plain")
        graph.output(build.attention(q, k, v, mask, causal=True, offset=2), name="masked")
        graph.output(build.attention(q, k, v, causal=True, offset=-1, empty="nan"), name="empty")
        return graph, runner(device, graph)

    for queries in (1, 3, attention.FEW, attention.FEW + 1, 20):
        graph, run = made(queries if known else "queries")
        inputs = {
            "q": numbers(2, 4, queries, features, dtype=dtype), "k": numbers(2, 2, 21, features, seed=1, dtype=dtype),
            "v": numbers(2, 2, 21, values, seed=2, dtype=dtype), "mask": numbers(queries, 21, seed=3, dtype=dtype),
        }  # fmt: skip
        actual = run(inputs)
        expected = evaluate(graph, inputs, {}, {"queries": queries, "keys": 21})
        for name, reference in zip(graph.outputs, expected):
            assert_close(actual[name], reference, dtype)


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 7, 60, 1 << 50])
def test_windows(window: int, causal: bool, device: str) -> None:
    """Of few queries and many, at either end of the keys and beyond it, with soft caps and numbers for what is left
    out: such scores count."""
    forms: dict[str, dict[str, Any]] = {
        "plain": {}, "behind": {"offset": 90}, "before": {"offset": -20}, "nan": {"offset": -20, "empty": "nan"},
        "capped": {"softcap": 1.5}, "filled": {"fill": -2.0, "offset": -3}, "masked": {"offset": 30},
    }  # fmt: skip

    @cache
    def made(rows: int | str) -> tuple[Graph, Runner]:
        graph = Graph()
        q = graph.input("q", (1, 2, rows, 16))
        k, v = graph.input("k", (1, 2, "keys", 16)), graph.input("v", (1, 2, "keys", 9))
        mask = graph.input("mask", (rows, "keys"), "bool")
        for name, form in forms.items():
            operands = (q, k, v, mask) if name == "masked" else (q, k, v)
            graph.output(build.attention(*operands, causal=causal, window=window, **form), name=name)
        return graph, runner(device, graph)

    for queries in (1, 4, 70):
        for known in (True, False):
            graph, run = made(queries if known else "queries")
            inputs = {
                "q": numbers(1, 2, queries, 16), "k": numbers(1, 2, 101, 16, seed=1),
                "v": numbers(1, 2, 101, 9, seed=2), "mask": numbers(queries, 101, seed=3) > 0,
            }  # fmt: skip
            actual = run(inputs)
            expected = evaluate(graph, inputs, {}, {"queries": queries, "keys": 101})
            for name, reference in zip(graph.outputs, expected):
                np.testing.assert_allclose(actual[name], reference, rtol=2e-5, atol=2e-5, err_msg=f"{name} {queries}")


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("queries", [2, 20])
def test_what_causal_leaves_out_counts_where_it_is_a_number(queries: int, device: str) -> None:
    graph = Graph()
    q, k = graph.input("q", (1, 1, queries, 8)), graph.input("k", (1, 1, 60, 8))
    graph.output(build.attention(q, k, k, causal=True, fill=0.5), name="some")
    graph.output(build.attention(q, k, k, causal=True, fill=-1e30, offset=-5), name="all")
    inputs = {"q": numbers(1, 1, queries, 8), "k": numbers(1, 1, 60, 8, seed=1)}
    actual = run_on(device, graph, inputs, {})
    for name, expected in zip(graph.outputs, evaluate(graph, inputs, {}, {})):
        np.testing.assert_allclose(actual[name], expected, rtol=2e-5, atol=2e-5)


def test_keys_outside_of_the_window_are_not_looked_at() -> None:
    """They may be NaN."""
    graph = Graph()
    q, k = graph.input("q", (1, 1, 300, 8)), graph.input("k", (1, 1, 300, 8))
    graph.output(build.attention(q, k, k, causal=True, window=10), name="y")
    keys = numbers(1, 1, 300, 8, seed=1)
    keys[:, :, :100] = np.nan
    actual = run_on("cpu", graph, {"q": numbers(1, 1, 300, 8), "k": keys}, {})["y"]
    assert np.isfinite(actual[0, 0, 200:]).all() and np.isnan(actual[0, 0, :110]).all()


@pytest.mark.parametrize("device", FLOAT_KINDS)
def test_no_keys(device: str) -> None:
    graph = Graph()
    q, k = graph.input("q", (1, 2, 1, 8)), graph.input("k", (1, 2, "keys", 8))
    graph.output(build.attention(q, k, k), name="y")
    actual = run_on(device, graph, {"q": numbers(1, 2, 1, 8), "k": numbers(1, 2, 0, 8)}, {})
    assert (actual["y"] == 0).all()


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("dtype", ROUNDINGS)
def test_features_behind_the_last_do_not_count(dtype: str, queries: int, device: str) -> None:
    """Of keys that lie within larger rows: what is beside them is NaN."""
    graph = Graph()
    q, rows = graph.input("q", (1, 1, queries, 5), dtype), graph.input("rows", (1, 1, 7, 12), dtype)
    graph.output(build.attention(q, rows[:, :, :, 2:7], rows[:, :, :, 3:8]), name="y")
    inside = numbers(1, 1, 7, 12, dtype=dtype)
    inside[..., :2], inside[..., 8:] = np.nan, np.nan
    inputs = {"q": numbers(1, 1, queries, 5, seed=1, dtype=dtype), "rows": inside}
    actual = run_on(device, graph, inputs, {})["y"]
    assert_close(actual, evaluate(graph, inputs, {}, {})[0], dtype)
    assert np.isfinite(actual.astype("f4")).all()


def test_narrow_operands_are_read_as_they_are() -> None:
    """And no score is in memory: attention of f16 and bf16 is one kernel."""
    for dtype in ("f16", "bf16"):
        graph = rlx.Graph()
        q, k = graph.input("q", (1, 2, "n", 8), dtype), graph.input("k", (1, 2, "keys", 8), dtype)
        graph.output(build.attention(q, k, k))
        program, _ = program_of(graph, isa.detect(), Options())
        assert [type(kernel.work) for kernel in program.main] == [FusedAttention]


def test_only_the_code_that_may_run_is_made() -> None:
    variants = {}
    for queries in (1, "n", 9):
        graph = rlx.Graph()
        q, k = graph.input("q", (1, 2, queries, 8)), graph.input("k", (1, 2, 30, 8))
        graph.output(build.attention(q, k, k))
        program, _ = program_of(graph, isa.detect(), Options())
        (kernel,) = [k for k in program.main if isinstance(k.work, FusedAttention)]
        scheduled = schedule_of(kernel, isa.detect())
        assert isinstance(scheduled, attention.ScheduledAttention)
        variants[queries] = scheduled.may_be_few, scheduled.may_be_many
    assert variants == {1: (True, False), "n": (True, True), 9: (False, True)}
