"""Products with weights become products of bytes: how near they come, what is left alone, and what is hostile."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given

from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.kernel.pipeline import to_kernels
from rlx.passes.driver import Context
from rlx.passes.pipeline import optimise
from rlx.passes.quantise import LEAST_COLUMNS, LEAST_DEPTH, Quantise, Range
from support import binding_of, run_on

from .narrow_products import RANGES, normal, operands, product_of, quantised


def run(graph: Graph, x: Array, of: Range | None = None, device: str = "reference") -> Array:
    return run_on(device, quantised(graph, of), {"x": x})["y"]


def bound(x: Array, w: Array, low: Array, high: Array) -> Array:
    """What x @ w may be off at most: half a step of each weight, and one of each element, whose ends lie half a step
    beside those of the bytes; and the rounding of f32."""
    step_of_w = np.abs(w).max(0) / 127
    step_of_x = (np.asarray(high, np.float64) - low) / 255
    size, most = np.abs(x), np.abs(w).sum(0)
    exact = size.sum(-1, keepdims=True) * step_of_w / 2 + step_of_x * (most + w.shape[0] * step_of_w / 2)
    return np.asarray(exact * (1 + 1e-4) + 1e-30)


# how near results come


@given(both=operands())
def test_a_product_is_off_by_the_steps_of_its_operands(both: tuple[Array, Array]) -> None:
    x, w = both
    wide = x.astype(np.float64)
    graph = product_of("n", len(w), weight=w)
    low, high = wide.min(-1, keepdims=True, initial=0), wide.max(-1, keepdims=True, initial=0)
    error = np.abs(run(graph, x) - wide @ w.astype(np.float64))
    assert np.all(error <= bound(wide, w, low, high))
    ends = np.min(low, initial=0), np.max(high, initial=1e-20)
    error = np.abs(run(graph, x, Range(*map(float, ends))) - wide @ w.astype(np.float64))
    assert np.all(error <= bound(wide, w, *ends))


@pytest.mark.parametrize("of", RANGES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(24,), (1, 24), (2, 3, 24), ("n", 24)])
def test_products_of_all_shapes(shape: tuple[int | str, ...], axis: int, of: Range | None) -> None:
    w = normal(24, 17, seed=1)
    x = normal(*(3 if d == "n" else int(d) for d in shape)).clip(-4, 4)
    y = run(product_of(*shape, weight=w if axis == 0 else w.T.copy(), axis=axis), x, of, "cpu")
    wide = x.astype(np.float64)
    low, high = wide.min(-1, keepdims=True, initial=0), wide.max(-1, keepdims=True, initial=0)
    ends = (low, high) if of is None else (of.low, of.high)
    assert y.shape == (*x.shape[:-1], 17)
    assert np.all(np.abs(y - wide @ w) <= bound(wide, w, *ends))


def test_sums_over_several_axes() -> None:
    graph = Graph("heads")
    x, w = graph.input("x", ("n", 4, 8)), graph.param("w", (4, 8, 3, 7), data=normal(4, 8, 3, 7, seed=1))
    graph.output(ops.dot_general(x, w, lhs_contract=(1, 2), rhs_contract=(0, 1)), name="y")
    array = normal(5, 4, 8)
    exact = np.tensordot(array.astype(np.float64), graph.data["w"], 2)
    assert np.abs(run(graph, array) - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("of", RANGES)
@pytest.mark.parametrize("channels", [2, 3, 8])
@pytest.mark.parametrize("spatial", [1, 2])
def test_convolutions(spatial: int, channels: int, of: Range | None, device: str) -> None:
    graph = Graph("windows")
    x = graph.input("x", ("n", channels, *("h", "w")[:spatial]))
    w = graph.param("w", (17, channels, *[5] * spatial), data=normal(17, channels, *[5] * spatial, seed=1))
    sizes = {name: (value,) * spatial for name, value in (("strides", 2), ("dilations", 1), ("low", 2), ("high", 1))}
    graph.output(ops.relu(ops.conv(x, w, **sizes)), name="y")
    array = normal(2, channels, *(9, 11)[:spatial]).clip(-4, 5)
    exact = evaluate(graph, {"x": array}, graph.data, binding_of(graph, {"x": array}), doubles=True)[0]
    y = run(graph, array, of, device)
    assert 0 < np.abs(y - exact).max() < 0.03 * np.abs(exact).max()


def test_a_row_hangs_on_no_other() -> None:
    graph = product_of("n", 32, weight=normal(32, 16))
    x = normal(4, 32)
    np.testing.assert_array_equal(run(graph, x[2:3]), run(graph, x * np.float32([[1e6], [1e-6], [1], [0]]))[2:3])


def test_what_is_never_negative_has_all_steps_above() -> None:
    graph = Graph("rectified")
    x, w = graph.input("x", ("n", 8, 5)), graph.param("w", (16, 8, 3), data=normal(16, 8, 3))
    sizes = {"strides": (1,), "dilations": (1,), "low": (1,), "high": (1,)}
    graph.output(ops.conv(ops.relu(x), w, **sizes), name="y")
    zeros = [node.inputs[2].constant for node in quantised(graph).nodes if node.op.name == "integer_conv"]
    assert zeros == [0]


# what is left alone


def nothing_changes(graph: Graph) -> bool:
    return Quantise().run(graph, Context()) is graph


@pytest.mark.parametrize(("depth", "columns"), [(LEAST_DEPTH - 1, 99), (99, LEAST_COLUMNS - 1), (0, 99), (99, 0)])
def test_small_products_stay(depth: int, columns: int) -> None:
    assert nothing_changes(product_of("n", depth, weight=normal(depth, columns)))


def test_products_without_weights_stay() -> None:
    graph = Graph("scores")
    x, w = graph.input("x", ("n", 32)), graph.param("w", (32, 32), data=normal(32, 32))
    graph.output(x @ x.transpose(1, 0), w @ w)
    assert nothing_changes(graph)


def test_other_dtypes_and_groups_stay() -> None:
    graph = Graph("others")
    x, w = graph.input("x", ("n", 32), "f64"), graph.param("w", (32, 32), "f64", data=normal(32, 32).astype(np.float64))
    image, each = graph.input("image", (1, 32, 9)), graph.param("each", (32, 1, 3), data=normal(32, 1, 3))
    sizes = {"strides": (1,), "dilations": (1,), "low": (1,), "high": (1,)}
    graph.output(x @ w, ops.conv(image, each, **sizes, groups=32))
    assert nothing_changes(graph)


def test_rewrites_can_be_switched_off() -> None:
    graph = product_of("n", 32, weight=normal(32, 16))
    off = Quantise().run(graph, Context(["quantise/product"]))
    assert off.same_as(graph)


# what is hostile


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("of", RANGES)
def test_channels_without_numbers_give_none(of: Range | None, device: str) -> None:
    w = normal(32, 20)
    w[3, 1], w[4, 2], w[5, 3], w[:, 4] = np.nan, np.inf, -np.inf, 0
    y = run(product_of("n", 32, weight=w), normal(3, 32), of, device)
    assert not np.isfinite(y[:, 1:4]).any()
    assert np.isfinite(y[:, 5:]).all() and np.all(y[:, 4] == 0)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_rows_without_numbers_give_none(number: float, device: str) -> None:
    x = normal(3, 32)
    x[1, 5] = number
    y = run(product_of("n", 32, weight=normal(32, 20)), x, None, device)
    assert not np.isfinite(y[1]).any() and np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("most", [0.0, 1e-42, 1e-20, 3.4e38])
def test_tiny_and_huge_rows(most: float, device: str) -> None:
    x = np.float32(most) * np.sign(normal(2, 32)).astype(np.float32)
    w = normal(32, 20) * np.float32(0.01)
    exact = x.astype(np.float64) @ w
    y = run(product_of("n", 32, weight=w), x, None, device)
    assert np.abs(y - exact).max() <= 0.02 * np.abs(exact).max() + 1e-30


def test_weights_of_zeros() -> None:
    assert np.all(run(product_of("n", 32, weight=np.zeros((32, 16), np.float32)), normal(3, 32)) == 0)


def test_numbers_beyond_a_range_count_as_its_ends() -> None:
    graph, of = product_of("n", 32, weight=normal(32, 16)), Range(-1.0, 1.0)
    ends = np.sign(normal(3, 32)).astype(np.float32)
    np.testing.assert_array_equal(run(graph, ends * np.float32(7), of), run(graph, ends * np.float32(1.5), of))


@pytest.mark.parametrize("of", RANGES)
@pytest.mark.parametrize("shape", [(0, 8, 5), (2, 8, 1)])
def test_windows_over_nothing_and_over_one(shape: tuple[int, ...], of: Range | None) -> None:
    graph = Graph("few")
    x, w = graph.input("x", ("n", 8, "l")), graph.param("w", (16, 8, 3), data=normal(16, 8, 3))
    graph.output(ops.conv(x, w, strides=(1,), dilations=(1,), low=(1,), high=(1,)), name="y")
    for device in ("reference", "cpu"):
        assert run(graph, normal(*shape), of, device).shape == (shape[0], 16, shape[2])


@pytest.mark.parametrize("low", [0.0, -1e30, -1e-30])
@pytest.mark.parametrize("high", [0.0, 1e30, 1e-30])
def test_every_range_has_a_step_and_a_zero(low: float, high: float) -> None:
    of = Range(low, high)
    assert 0 < of.scale < np.inf and 0 <= of.zero <= 255


# what becomes of it


def residual(x: Value, w: Callable[[str], Value]) -> Value:
    sizes = {"strides": (1, 1), "dilations": (1, 1), "low": (1, 1), "high": (1, 1)}
    x = ops.relu(ops.conv(x, w("first"), **sizes))
    y = ops.relu(ops.conv(x, w("second"), **sizes))
    last: Value = ops.relu(ops.conv(y, w("third"), **sizes) + x)
    return last


def test_residuals_are_carried_in_bytes() -> None:
    graph = Graph("residual")
    weights = {name: normal(16, 16, 3, 3, seed=len(name)) * np.float32(0.1) for name in ("first", "second", "third")}
    x = graph.input("x", (1, 16, 8, 8))
    graph.output(residual(x, lambda name: graph.param(name, (16, 16, 3, 3), data=weights[name])), name="y")
    made = quantised(graph, Range(-4.0, 4.0))
    program = to_kernels(optimise(made)[0])
    floats = [b for b in program.buffers if b.dtype.name == "f32" and b.size == 16 * 8 * 8]
    assert len(floats) == 2  # what comes in, and what goes out
    array = normal(1, 16, 8, 8).clip(-4, 4)
    exact = evaluate(graph, {"x": array}, graph.data, {}, doubles=True)[0]
    for device in ("reference", "cpu"):
        assert np.abs(run_on(device, made, {"x": array})["y"] - exact).max() < 0.05 * np.abs(exact).max()


def test_products_of_one_operand_share_its_bytes() -> None:
    graph = Graph("shared")
    x = graph.input("x", ("n", 32))
    parts = [x @ graph.param(name, (32, 16), data=normal(32, 16)) for name in ("a", "b")]
    graph.output(*parts)
    assert sum(node.op.name == "round" and node.types[0].shape[0] == "n" for node in quantised(graph).nodes) <= 2
    casts = [node for node in quantised(graph).nodes if node.op.name == "cast" and node.types[0].dtype.name == "u8"]
    assert len(casts) == 2  # of elements, and of zero points


def test_bodies_are_quantised_too() -> None:
    graph = Graph("branches")
    flag, x = graph.input("flag", (), "bool"), graph.input("x", ("n", 32))
    w = graph.param("w", (32, 32), data=normal(32, 32))
    inner = Graph("yes")
    y = inner.input("y", ("n", 32))
    inner.output(y @ inner.param("w", (32, 32)))
    other = Graph("no")
    other.output(other.input("y", ("n", 32)))
    result = graph.add(ops.control.If(), flag, x, regions=(inner, other))
    graph.output(result[0] if isinstance(result, tuple) else result, name="y")
    assert w.name == "w"
    made = quantised(graph)
    assert any(node.op.name == "integer_matmul" for n in made.nodes for body in n.regions for node in body.nodes)
    array = normal(3, 32)
    exact = array.astype(np.float64) @ graph.data["w"]
    results = run_on("reference", made, {"flag": np.asarray(True), "x": array})
    assert np.abs(results["y"] - exact).max() < 0.02 * np.abs(exact).max()
