"""Graphs of f32 computed in f64."""

from __future__ import annotations

import numpy as np

from rlx import ops
from rlx.ir.graph import Graph
from rlx.ir.interpreter import evaluate

X = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)


def test_nothing_is_rounded_to_f32() -> None:
    graph = Graph("sums")
    x = graph.input("x", (5, 64))
    w = graph.param("w", (64, 3), data=X.T[:, :3].copy())
    graph.output(ops.tanh(x @ w / 3.0).cast("f64").cast("f32"), name="y")
    (y,) = evaluate(graph, {"x": X}, graph.data, {}, doubles=True)
    assert y.dtype == np.float64
    third = np.float64(np.float32(3.0))
    np.testing.assert_allclose(y, np.tanh(X.astype(np.float64) @ X.T[:, :3].astype(np.float64) / third), rtol=1e-13)
    assert evaluate(graph, {"x": X}, graph.data, {})[0].dtype == np.float32


def test_what_takes_f32_alone_gets_it() -> None:
    graph = Graph("bits")
    x = graph.input("x", (5, 64))
    small, scale, zero = ops.dynamic_quantize(x)
    graph.output(ops.bitcast(x, to="i32"), small, scale)
    bits, values, step = evaluate(graph, {"x": X}, {}, {}, doubles=True)
    expected = evaluate(graph, {"x": X}, {}, {})
    np.testing.assert_array_equal(bits, X.view(np.int32))
    np.testing.assert_array_equal(values, expected[1])
    assert step.dtype == np.float64 and step == expected[2]
    assert zero.dtype.name == "u8"


def test_other_dtypes_stay() -> None:
    graph = Graph("others")
    x, i = graph.input("x", (3,), "f16"), graph.input("i", (3,), "i32")
    graph.output(x * 2.0, i + 1, x.cast("f32"))
    half = np.ones(3, np.float16)
    dtypes = [a.dtype.name for a in evaluate(graph, {"x": half, "i": np.ones(3, np.int32)}, {}, {}, doubles=True)]
    assert dtypes == ["float16", "int32", "float64"]


def test_bodies_are_computed_in_it_too() -> None:
    graph = Graph("branches")
    flag, x = graph.input("flag", (), "bool"), graph.input("x", (5, 64))
    bodies = []
    for name, factor in (("yes", 1.0), ("no", 2.0)):
        body = Graph(name)
        body.output(ops.mean(ops.exp(body.input("v", (5, 64))), axes=(1,)) * factor)
        bodies.append(body)
    result = graph.add(ops.control.If(), flag, x, regions=bodies)
    graph.output(result[0] if isinstance(result, tuple) else result, name="y")
    (y,) = evaluate(graph, {"flag": np.asarray(False), "x": X}, {}, {}, doubles=True)
    np.testing.assert_allclose(y, np.exp(X.astype(np.float64)).mean(1) * 2, rtol=1e-14)
