"""Maps and rows of which a lane has neighbours: results at extents of all kinds, and which nests they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt.module import cpp_module
from rlx.ir.graph import Graph, Value

from .emulated_driver import EmulatedDriver
from .fused_graphs import graph_dtype

Make = Callable[[Value], Value]


def graph_of(shape: tuple[int | str, ...], dtype: str, make: Make) -> Graph:
    graph = Graph("pieces")
    graph.output(make(graph.input("x", shape, dtype)), name="y")
    return graph


def schedules(graph: Graph) -> list[str]:
    program = program_of(graph)
    module = cpp_module([program])
    return [str(module.variants[id(kernel)][0].shader.schedule) for kernel in program.main]


def check(graph: Graph, *shape: int) -> None:
    x = graph.inputs[0]
    random = np.random.default_rng(sum(shape))
    array = (random.standard_normal(shape) * 2).astype(graph_dtype(x.dtype.name))
    if array.size:
        array.reshape(-1)[:: max(array.size // 5, 1)] = 0
    made, expected = (np.asarray(rlx.Session(device).compile(graph).run([array])[0]) for device in ("cuda", "cpu"))
    assert made.dtype == expected.dtype and made.shape == expected.shape
    wide = np.float64 if made.dtype.kind in "fV" else made.dtype
    tolerance = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}[x.dtype.name]
    np.testing.assert_allclose(made.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)


MAPS: dict[str, Make] = {
    "gate": lambda x: ops.silu(x[:, :48]) * x[:, 48:96],
    "joined": lambda x: ops.concat(x[:, 16:40], ops.neg(x[:, 56:88]), axis=-1),
    "chosen": lambda x: ops.select(ops.lt(x, ops.abs(x)), x, x * 3),
    "bytes": lambda x: ops.lt(x, 0.5),
    "cast": lambda x: x.cast("f32") * 2,
    "narrowed": lambda x: (x * 2).cast("f16"),
    "column": lambda x: x + x[:, :1],
}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", MAPS)
def test_a_map_has_neighbours(name: str, dtype: str, driver: EmulatedDriver) -> None:
    graph = graph_of(("n", 96), dtype, MAPS[name])
    assert any("pieces" in schedule for schedule in schedules(graph))
    for rows in (0, 1, 3, 50):
        check(graph, rows, 96)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ops.concat(x[:, 3:40], x[:, 50:], axis=-1),  # begins where no piece does
        lambda x: ops.silu(x[:, 1:]),
        lambda x: (
            ops.erf(ops.sin(x)) * ops.log(ops.abs(x) + 1) + ops.cos(ops.tanh(x))
        ),  # lanes of which would have too much to do
        lambda x: x[:, ::2] * 2,
    ],
)
def test_other_maps_have_an_element_a_lane(make: Make, driver: EmulatedDriver) -> None:
    graph = graph_of(("n", 96), "f32", make)
    assert not any("pieces" in schedule for schedule in schedules(graph))
    check(graph, 3, 96)


def test_extents_that_a_run_tells_are_in_pieces_where_all_of_them_are(driver: EmulatedDriver) -> None:
    whole, ragged = (graph_of(("n", width), "f32", lambda x: ops.silu(x) + 1) for width in (24, 23))
    assert "pieces" in schedules(whole)[0] and "pieces" not in schedules(ragged)[0]
    for rows in (1, 5):
        check(whole, rows, 24)
        check(ragged, rows, 23)


def norm(x: Value) -> Value:
    wide = x.cast("f32")
    centred = wide - ops.reduce_mean(wide, axes=(-1,), keepdims=True)
    return (centred * ops.rsqrt(ops.reduce_mean(ops.square(centred), axes=(-1,), keepdims=True) + 1e-6)).cast(x.dtype)


def halves_turned(x: Value) -> Value:
    """A norm whose halves change places, as rotary positions have them."""
    normed, half = norm(x), int(str(x.shape[-1])) // 2
    return ops.concat(ops.neg(normed[..., half:]), normed[..., :half], axis=-1)


ROWS: dict[str, Make] = {
    "norm": norm,
    "turned": halves_turned,
    "softmax": lambda x: ops.softmax(x, axis=-1),
    "greatest": lambda x: ops.reduce_max(x.cast("f32"), axes=(-1,)),
    "two": lambda x: x - ops.reduce_max(x.cast("f32"), axes=(-1,), keepdims=True).cast(x.dtype),
}


@pytest.mark.parametrize("width", [80, 384, 1000, 4096])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_walked_by_neighbours(name: str, dtype: str, width: int, driver: EmulatedDriver) -> None:
    graph = graph_of(("n", width), dtype, ROWS[name])
    found = schedules(graph)
    if width < 4096 or dtype == "bf16":
        assert any("vectors of 8" in schedule for schedule in found), found
    for rows in (0, 1, 3, 33):
        check(graph, rows, width)


def test_a_row_that_a_lane_cannot_hold_is_walked_by_elements(driver: EmulatedDriver) -> None:
    graph = graph_of(("n", 1 << 15), "f32", norm)
    assert not any("vectors of 8" in schedule for schedule in schedules(graph))
    check(graph, 2, 1 << 15)


def test_a_window_of_one_element_is_no_row(driver: EmulatedDriver) -> None:
    graph = graph_of((2, 6, 3, 4), "f32", lambda x: ops.reduce_window(x, "add", (1, 1, 1, 1)) * x)
    check(graph, 2, 6, 3, 4)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0])
def test_special_numbers_come_through(special: float, driver: EmulatedDriver) -> None:
    graph = graph_of(("n", 96), "f16", MAPS["gate"])
    array = np.ones((3, 96), np.float16)
    array[1, ::7] = special
    made, expected = (np.asarray(rlx.Session(device).compile(graph).run([array])[0]) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(made, expected, rtol=2e-3)
    np.testing.assert_array_equal(np.signbit(made), np.signbit(expected))


@pytest.mark.parametrize(("begin", "width"), [(3, 8), (4, 8), (0, 24), (0, 8)])
def test_what_loops_carry_may_lie_anywhere(begin: int, width: int, driver: EmulatedDriver) -> None:
    """In the first trip in the middle of an input, later in memory of its own, or in a row of a result."""
    graph, step = Graph("loop"), Graph("step")
    value, row = step.input("value", (width,)), step.input("row", (width,))
    step.output(ops.tanh(value) + row, name="next")
    step.output(value * row, name="seen")
    x, rows = graph.input("x", (40,)), graph.input("rows", ("n", width))
    graph.output(*ops.scan(x[begin : begin + width], rows, carried=1, sequences=1, length="n", regions=(step,)))
    random = np.random.default_rng(begin)
    given = [random.standard_normal(40).astype(np.float32), random.standard_normal((5, width)).astype(np.float32)]
    made, expected = (rlx.Session(device).compile(graph).run(given) for device in ("cuda", "cpu"))
    for ours, theirs in zip(made, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
