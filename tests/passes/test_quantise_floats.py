"""Products with weights become products of floats of 8 bits: how near they come, what is left alone or is hostile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from rlx import ops
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.passes.driver import Context
from rlx.passes.quantise import FLOATS, LEAST_COLUMNS, Quantise, Range
from support import run_on

from .narrow_products import RANGES, normal, operands, product_of, quantised

DEVICES = ["reference", "cpu"]


def run(graph: Graph, x: Array, of: Range | None = None, device: str = "reference") -> Array:
    made = quantised(graph, of, FLOATS)
    assert [node.op.name for node in made.nodes].count("float8_matmul") == 1
    return run_on(device, made, {"x": x})["y"]


def bound(x: Array, w: Array, most: Array | float) -> Array:
    """What x @ w may be off at most, where `most` becomes 448: each number is rounded by a sixteenth of itself, or by
    half of the least step; and the rounding of f32."""

    def rounding(numbers: Array, greatest: Array | float) -> Array:
        return np.maximum(np.abs(numbers) * 2.0**-4, np.asarray(greatest) / 448 * 2.0**-10) * (1 + 1e-4) + 1e-33

    of_x, of_w = rounding(x, most), rounding(w, np.abs(w).max(0, initial=0))
    return np.asarray(np.abs(x) @ of_w + of_x @ (np.abs(w) + of_w) + 1e-5 * (np.abs(x) @ np.abs(w)))


# how near results come


@given(both=operands())
def test_a_product_is_off_by_the_roundings_of_its_operands(both: tuple[Array, Array]) -> None:
    x, w = both
    graph, wide, weight = product_of("n", len(w), weight=w), x.astype(np.float64), w.astype(np.float64)
    most = np.abs(wide).max(-1, keepdims=True, initial=0)
    assert np.all(np.abs(run(graph, x) - wide @ weight) <= bound(wide, weight, most))
    ends = float(wide.min(initial=0)), float(wide.max(initial=1e-20))
    assert np.all(np.abs(run(graph, x, Range(*ends)) - wide @ weight) <= bound(wide, weight, max(-ends[0], ends[1])))


@pytest.mark.parametrize("of", RANGES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(24,), (1, 24), (2, 3, 24), ("n", 24)])
def test_products_of_all_shapes(shape: tuple[int | str, ...], axis: int, of: Range | None) -> None:
    w = normal(24, 17, seed=1)
    x = normal(*(3 if d == "n" else int(d) for d in shape)).clip(-4, 4)
    y = run(product_of(*shape, weight=w if axis == 0 else w.T.copy(), axis=axis), x, of, "cpu")
    wide = x.astype(np.float64)
    most = np.abs(wide).max(-1, keepdims=True) if of is None else 5.0
    assert y.shape == (*x.shape[:-1], 17)
    assert np.all(np.abs(y - wide @ w) <= bound(wide, w.astype(np.float64), most))


def test_a_row_hangs_on_no_other() -> None:
    graph, x = product_of("n", 32, weight=normal(32, 16)), normal(4, 32)
    np.testing.assert_array_equal(run(graph, x[2:3]), run(graph, x * np.float32([[1e6], [1e-6], [1], [0]]))[2:3])


# what is left alone


def test_convolutions_small_products_and_other_dtypes_stay() -> None:
    graph = Graph("others")
    x, image = graph.input("x", ("n", 32), "f64"), graph.input("image", (1, 32, 9))
    sizes = {"strides": (1,), "dilations": (1,), "low": (1,), "high": (1,)}
    each = graph.param("each", (32, 32, 3), data=normal(32, 32, 3))
    small = graph.input("small", ("n", 32)) @ graph.param("s", (32, LEAST_COLUMNS - 1), data=normal(32, 15))
    wide = graph.param("w", (32, 32), "f64", data=normal(32, 32).astype(np.float64))
    graph.output(x @ wide, ops.conv(image, each, **sizes), small)
    assert Quantise(to=FLOATS).run(graph, Context()) is graph


def test_rewrites_can_be_switched_off() -> None:
    graph = product_of("n", 32, weight=normal(32, 16))
    assert Quantise(to=FLOATS).run(graph, Context(["quantise/product"])).same_as(graph)


# what is hostile


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of", RANGES)
def test_channels_without_numbers_give_none(of: Range | None, device: str) -> None:
    w = normal(32, 20)
    w[3, 1], w[4, 2], w[5, 3], w[:, 4] = np.nan, np.inf, -np.inf, 0
    y = run(product_of("n", 32, weight=w), normal(3, 32), of, device)
    assert np.isnan(y[:, 1:4]).all()
    assert np.isfinite(y[:, 5:]).all() and np.all(y[:, 4] == 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of", RANGES)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_rows_without_numbers_give_none(number: float, of: Range | None, device: str) -> None:
    """With a range too: they are in sight, as they are in floats."""
    x = normal(4, 32)
    x[1, 5], x[3] = number, 0
    y = run(product_of("n", 32, weight=normal(32, 20)), x, of, device)
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all() and np.all(y[3] == 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("most", [0.0, 1e-42, 1e-20, 3.4e38])
def test_tiny_and_huge_rows(most: float, device: str) -> None:
    x = np.float32(most) * np.sign(normal(2, 32)).astype(np.float32)
    w = normal(32, 20) * np.float32(0.01)
    exact = x.astype(np.float64) @ w
    y = run(product_of("n", 32, weight=w), x, None, device)
    assert np.abs(y - exact).max() <= 0.1 * np.abs(exact).max() + 1e-30


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_beyond_a_range_count_as_its_ends(device: str) -> None:
    graph, of = product_of("n", 32, weight=normal(32, 16)), Range(-1.0, 1.0)
    ends = np.sign(normal(3, 32)).astype(np.float32)
    made = [run(graph, ends * np.float32(size), of, device) for size in (1, 1.03, 7, 3e38)]
    for each in made[1:]:
        np.testing.assert_array_equal(each, made[0])


def test_what_is_never_negative_needs_no_magnitudes() -> None:
    graph = Graph("rectified")
    x, w = graph.input("x", ("n", 32)), graph.param("w", (32, 16), data=normal(32, 16))
    graph.output(ops.relu(x) @ w, name="y")
    assert [node.op.name for node in quantised(graph, to=FLOATS).nodes].count("abs") == 1  # of the weight


def test_bodies_are_quantised_too() -> None:
    graph = Graph("branches")
    flag, x = graph.input("flag", (), "bool"), graph.input("x", ("n", 32))
    graph.param("w", (32, 32), data=normal(32, 32))
    inner, other = Graph("yes"), Graph("no")
    inner.output(inner.input("y", ("n", 32)) @ inner.param("w", (32, 32)))
    other.output(other.input("y", ("n", 32)))
    result = graph.add(ops.control.If(), flag, x, regions=(inner, other))
    graph.output(result[0] if isinstance(result, tuple) else result, name="y")
    made = quantised(graph, to=FLOATS)
    assert any(node.op.name == "float8_matmul" for n in made.nodes for body in n.regions for node in body.nodes)
    array = normal(3, 32)
    exact = array.astype(np.float64) @ graph.data["w"]
    (y,) = run_on("reference", made, {"flag": np.asarray(True), "x": array}).values()
    assert np.abs(y - exact).max() < 0.1 * np.abs(exact).max()
