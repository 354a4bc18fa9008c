"""Inputs on which other runtimes went wrong, with the right answers. B-numbers are those of our list of such inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from support import assert_close, run_on

pytestmark = pytest.mark.devices("reference", "cpu", "cpu-*")


def run(device: str, build: Callable[..., Value], *arrays: Array) -> Array:
    graph = Graph()
    graph.output(build(*(graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays))), name="y")
    return run_on(device, graph, {f"x{i}": a for i, a in enumerate(arrays)})["y"]


def f32(*rows: object) -> Array:
    return np.array(rows, np.float32)


def test_b1_integer_division_truncates(device: str) -> None:
    actual = run(device, ops.div, np.array([8, -8, 7, -7]), np.array([-3, 3, -2, 2]))
    assert actual.tolist() == [-2, -2, -3, -3]


def test_b2_modulo_has_the_sign_of_the_divisor(device: str) -> None:
    assert run(device, ops.mod, np.array([-7, 7]), np.array([3, -3])).tolist() == [2, -2]
    least = np.array([-(2**31)], np.int32)
    assert run(device, ops.mod, least, np.array([-1], np.int32)).tolist() == [0]
    assert run(device, ops.div, least, np.array([-1], np.int32)).tolist() == [-(2**31)]
    assert run(device, ops.div, least, np.array([0], np.int32)).tolist() == [0]


@pytest.mark.parametrize("length", [1, 4, 17, 128, 129])
def test_b6_extrema_keep_nan_at_any_length(length: int, device: str) -> None:
    for at in {0, length // 2, length - 1}:
        x = np.full((1, length), 42, np.float32)
        x[0, at] = np.nan
        assert np.isnan(run(device, lambda v: ops.reduce_max(v, axes=(1,)), x)).all()
        assert np.isnan(run(device, lambda v: ops.reduce_min(v, axes=(1,)), x)).all()


def test_b7_minimum_keeps_nan_of_either_side(device: str) -> None:
    column = f32([np.nan], [1], [20])
    np.testing.assert_array_equal(run(device, ops.minimum, column, f32(10)), f32([np.nan], [1], [10]))
    assert np.isnan(run(device, ops.minimum, column, f32(np.nan))).all()


def test_b8_clamp_with_crossed_limits_gives_the_upper(device: str) -> None:
    actual = run(device, lambda x: ops.clamp(x, 2, 1), f32(-2, 0, 6, np.nan))
    np.testing.assert_array_equal(actual, f32(1, 1, 1, np.nan))


def test_b9_log_sum_exp_does_not_overflow(device: str) -> None:
    actual = run(device, lambda x: ops.reduce_log_sum_exp(x, axes=(1,)), f32([100, 88, 50], [200, -10, 1]))
    assert_close(actual, np.array([100.0000061, 200.0], np.float32), Tolerance(4))


def test_b10_layer_norm_far_from_zero(device: str) -> None:
    row = [-1.3416354, -0.4472118, 0.4472118, 1.3416354]
    far = f32([40000, 40001, 40002, 40003], [80000, 80001, 80002, 80003])
    actual = run(device, lambda x: ops.layer_norm(x, epsilon=1e-5), far)
    assert_close(actual, f32(row, row), Tolerance(16))
    flat = run(device, lambda x: ops.layer_norm(x), np.full((2, 256), 1234, np.float32))
    np.testing.assert_array_equal(flat, np.zeros((2, 256), np.float32))


def test_b13_negative_indices_count_from_the_back(device: str) -> None:
    line = np.array([1, 2, 3, 4, 5])
    assert run(device, ops.gather, line, np.array([-1, -3, 0])).tolist() == [5, 3, 1]
    grid = np.arange(12).reshape(3, 4)
    assert run(device, ops.gather_nd, grid, np.array([[-1, -1], [0, -2]])).tolist() == [11, 2]
    actual = run(device, lambda i: ops.one_hot(i, 5, i.graph.constant(f32(1)[0]), 0), np.array([-1]))
    assert actual.tolist() == [[0, 0, 0, 0, 1]]


def test_b14_slices_with_negative_steps(device: str) -> None:
    assert run(device, lambda x: x[9:0:-3], np.arange(10)).tolist() == [9, 6, 3]
    grid = np.arange(12).reshape(3, 4)
    assert run(device, lambda x: x[:, 3:0:-1], grid).tolist() == [[3, 2, 1], [7, 6, 5], [11, 10, 9]]
    assert run(device, lambda x: x[-1 : -(2**31) : -1], np.arange(4)).tolist() == [3, 2, 1, 0]
    assert run(device, lambda x: x[-1 : 2**31 - 1 : -1], np.arange(4)).tolist() == []


def test_b20_sums_of_nothing(device: str) -> None:
    nothing = run(device, lambda x: ops.reduce_sum(x, axes=(0,), keepdims=True), np.zeros((0, 0), np.float32))
    assert nothing.shape == (1, 0)
    assert run(device, lambda x: ops.reduce_sum(x, axes=(1,)), np.zeros((1, 0), np.float32)).tolist() == [0.0]
    assert run(device, lambda x: ops.reduce_sum(x, axes=()), f32(1, 2)).tolist() == [1, 2]
    assert run(device, ops.matmul, np.zeros((0, 3), np.float32), np.zeros((3, 2), np.float32)).shape == (0, 2)
    assert run(device, ops.mul, np.zeros((0, 3), np.float32), f32(1, 2, 3)).shape == (0, 3)
    with pytest.raises(rlx.ShapeError, match=r"\[reduce_sum\] expected axes in \[0, 0\), got 0"):
        ops.reduce_sum(Graph().input("x", ()), axes=(0,))


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("i8", [127, 0, 127, -128, -128, 1, -1]),
        ("u8", [255, 0, 255, 0, 0, 1, 0]),
        ("i32", [300, 0, 2**31 - 1, -(2**31), -300, 1, -1]),
        ("i64", [300, 0, 2**63 - 1, -(2**63), -300, 1, -1]),
    ],
)
def test_b21_float_to_integer_saturates(to: str, expected: list[int], device: str) -> None:
    x = f32(300, np.nan, np.inf, -np.inf, -300, 1.9, -1.9)
    assert run(device, lambda v: ops.cast(v, to=to), x).tolist() == expected


@pytest.mark.parametrize("length", [1, 7, 127, 128, 129])
def test_b22_softmax_of_minus_infinity_does_not_hang_on_length(length: int, device: str) -> None:
    actual = run(device, lambda x: ops.softmax(x, axis=-1), np.full((2, length), -np.inf, np.float32))
    assert np.isnan(actual).all()


def test_b23_argmax_finds_the_first_nan(device: str) -> None:
    x = f32(3, np.nan, 1, np.nan, 5)
    assert run(device, lambda v: ops.argmax(v, axis=0), x).tolist() == 1
    assert run(device, lambda v: ops.argmin(v, axis=0), x).tolist() == 1


def test_b25_rms_norm_of_large_halves_is_not_zero(device: str) -> None:
    actual = run(device, lambda x: ops.rms_norm(x), np.full((1, 64), 9000, np.float16))
    assert_close(actual, np.ones((1, 64), np.float16), Tolerance(1))


def test_b26_cast_to_same_before_mul_and_div(device: str) -> None:
    actual = run(device, lambda x: ops.cast(x, to="f32") * 1.0 / (ops.cast(x, to="f32") * 1.0), f32(2, 3))
    np.testing.assert_array_equal(actual, f32(1, 1))
