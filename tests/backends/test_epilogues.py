"""What follows a product in its kernel may read the product's own operands again: residuals, and their like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Tolerance
from support import assert_close_on, run_on

Build = Callable[[Value, Value], Value]

RESIDUALS: dict[str, Build] = {
    "left": lambda x, w: x @ w + x,
    "left-after": lambda x, w: x + rlx.maximum(x @ w + 1, x),
    "right": lambda x, w: x @ w + w,
    "both": lambda x, w: (x @ w) * x - w,
    "transposed": lambda x, w: x @ w + rlx.transpose(x, permutation=(1, 0)),
    "one-row": lambda x, w: x @ w + x[2:3, :],
    "column": lambda x, w: x @ w + x[:, 5:6],
    "twice": lambda x, w: (x @ w + x) @ w + x,
}


def whole(shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    """Small whole numbers: sums of their products are exact in any order."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype.numpy)


@pytest.mark.devices("cpu", "cpu-*", "vulkan", "xla", "mlx")
@pytest.mark.parametrize(
    "kind, dtype",
    [("input", dtypes.f32), ("param", dtypes.f32), ("input", dtypes.f64), ("param", dtypes.f16), ("input", dtypes.i32)],
    ids=str,
)
@pytest.mark.parametrize("name", list(RESIDUALS))
def test_products_with_their_own_operands(device: str, name: str, kind: str, dtype: DType) -> None:
    graph = Graph(name)
    x = graph.input("x", (33, 33), dtype)
    w = graph.input("w", (33, 33), dtype) if kind == "input" else graph.param("w", (33, 33), dtype)
    graph.output(RESIDUALS[name](x, w), name="y")
    arrays = {"x": whole((33, 33), dtype, 1), "w": whole((33, 33), dtype, 2)}
    params = {"w": arrays.pop("w")} if kind == "param" else {}
    expected = run_on("reference", graph, arrays, params)["y"]
    assert_close_on(device, run_on(device, graph, arrays, params)["y"], expected, Tolerance(0.0))


@pytest.mark.devices("cpu", "cpu-*", "vulkan", "xla", "mlx")
@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("channels", [3, 32])
def test_convolutions_with_their_own_input(device: str, window: int, channels: int) -> None:
    graph = Graph("residual")
    x = graph.input("x", (2, channels, 13, 11), "f32")
    w = graph.param("w", (channels, channels, window, window), "f32")
    edge = window // 2
    convolved = rlx.conv(x, w, strides=(1, 1), dilations=(1, 1), low=(edge, edge), high=(edge, edge))
    graph.output(x + rlx.relu(convolved + x), name="y")
    shape = (channels, channels, window, window)
    arrays, params = {"x": whole((2, channels, 13, 11), dtypes.f32, 1)}, {"w": whole(shape, dtypes.f32, 2)}
    expected = run_on("reference", graph, arrays, params)["y"]
    exact = Tolerance(0.0) if window != 3 else Tolerance(64.0, scale=100.0)  # Winograd's sums have other terms
    assert_close_on(device, run_on(device, graph, arrays, params)["y"], expected, exact)
