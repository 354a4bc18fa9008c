"""Products with weights of few bits, unpacked by the kernels that use them, on the emulated driver."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda.build import build, program_of
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct
from rlx.kernel.ir.program import Program
from rlx.kernel.ir.verify import verify
from rlx.ops.packed import PackedMatmul
from support import assert_close

from .emulated_driver import EmulatedDriver

DEPTH, COLUMNS = 256, 40


def product(
    graph: Graph, x: Value, columns: int = COLUMNS, bits: int = 4, block: int = 32, zeros: str = "",
    scale_dtype: str = "", name: str = "w",
) -> Value:  # fmt: skip
    """x times a weight of few bits: its zeros are half of what these say, integers, or any floats."""
    random = np.random.default_rng(columns + bits + block)
    (*_, depth), dtype = x.shape, dtypes.of(scale_dtype) if scale_dtype else x.dtype
    assert isinstance(depth, int)
    count = -(-depth // block)
    w = random.integers(0, 256, (columns, count * block * bits // 8), np.uint8)
    step = (random.uniform(0.5, 1.5, (columns, count)) / (1 << bits)).astype(dtype.numpy)
    parameters = [graph.param(f"{name}.w", w.shape, "u8", data=w)]
    parameters.append(graph.param(f"{name}.scale", step.shape, dtype, data=step))
    if zeros == "whole":
        whole = random.integers(0, 1 << bits, step.shape, np.uint8)
        parameters.append(graph.param(f"{name}.zero", whole.shape, "u8", data=whole).cast(dtype))
    elif zeros:
        drawn = random.uniform(-1, 1, step.shape) * (1.0 if zeros == "added" else 1 << bits)
        zero = drawn.astype(dtype.numpy)
        parameters.append(graph.param(f"{name}.zero", zero.shape, dtype, data=zero))
    made: Value = ops.packed_matmul(x, *parameters, depth=depth, bits=bits, block=block, added=zeros == "added")
    return made


def products_of(program: Program) -> list[Contraction]:
    works = (kernel.work for kernel in program.main)
    contracted = (work.product if isinstance(work, RowProduct) else work for work in works)
    return [work for work in contracted if isinstance(work, Contraction)]


def check(graph: Graph, given: dict[str, Array]) -> None:
    expected = rlx.Session("reference").compile(graph).run(given)
    for made, exact in zip(rlx.Session("cuda").compile(graph).run(given), expected):
        assert_close(np.asarray(made), np.asarray(exact), PackedMatmul.tolerance)


def input_of(rows: int, depth: int, dtype: str) -> dict[str, Array]:
    drawn = np.random.default_rng(rows).standard_normal((rows, depth))
    return {"x": drawn.astype(dtypes.of(dtype).numpy)}


@pytest.mark.parametrize(
    ("bits", "block", "dtype", "zeros"),
    [
        (2, 32, "f16", "whole"), (4, 16, "f16", ""), (4, 32, "f16", "any"), (8, 128, "f16", "whole"),
        (2, 64, "bf16", ""), (4, 32, "bf16", "whole"), (4, 64, "bf16", "added"), (8, 32, "bf16", ""),
        (2, 32, "f32", "any"), (4, 32, "f32", ""), (8, 16, "f32", "added"),
    ],
)  # fmt: skip
def test_few_rows(bits: int, block: int, dtype: str, zeros: str, driver: EmulatedDriver) -> None:
    for rows in (1, 3, 20 if dtype != "f32" else 8):
        graph = Graph("few")
        x = graph.input("x", (rows, DEPTH), dtype)
        graph.output(product(graph, x, bits=bits, block=block, zeros=zeros), name="y")
        program = program_of(graph)
        verify(program)
        (work,) = products_of(program)
        assert work.blocks is not None and work.packed
        check(graph, input_of(rows, DEPTH, dtype))


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("block", [32, 96])
def test_many_rows(block: int, dtype: str, driver: EmulatedDriver) -> None:
    """Their weights are unpacked to memory, those of few rows are not; columns and blocks do not fill panels."""
    graph = Graph("many")
    x = graph.input("x", ("n", 160), dtype)
    graph.output(product(graph, x, columns=43, block=block, zeros="whole"), name="y")
    program = program_of(graph)
    verify(program)
    assert [work.blocks is not None for work in products_of(program)] == [True, False]
    for rows in (0, 8, 64, 65, 130):
        check(graph, input_of(rows, 160, dtype))
    fixed = Graph("fixed")
    fixed.output(product(fixed, fixed.input("x", (70, 160), dtype), block=block), name="y")
    assert [work.blocks for work in products_of(program_of(fixed))] == [None]
    check(fixed, input_of(70, 160, dtype))


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_other_scales_and_rows(dtype: str, driver: EmulatedDriver) -> None:
    """Scales of f32, rows that lie apart, and those of a batch."""
    graph = Graph("other")
    x = graph.input("x", (3, "n", 2 * DEPTH), dtype)
    graph.output(product(graph, x[:, :, DEPTH:], scale_dtype="f32", zeros="whole"), name="y")
    assert any(work.blocks is not None for work in products_of(program_of(graph)))
    for rows in (1, 4):
        drawn = np.random.default_rng(rows).standard_normal((3, rows, 2 * DEPTH))
        check(graph, {"x": drawn.astype(dtypes.of(dtype).numpy)})


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_norm_and_a_residual_are_part_of_the_product(dtype: str, driver: EmulatedDriver) -> None:
    graph = Graph("normed")
    x = graph.input("x", ("n", DEPTH), dtype)
    scale = graph.param("scale", (DEPTH,), dtype, data=np.linspace(0.5, 1.5, DEPTH).astype(dtypes.of(dtype).numpy))
    normed = ops.rms_norm(x, scale)
    y = ops.silu(product(graph, normed, DEPTH)) + x
    graph.output(y, name="y")
    program = program_of(graph)
    verify(program)
    assert sum(isinstance(kernel.work, RowProduct) for kernel in program.main) == 1
    for rows in (1, 5, 9):
        given = input_of(rows, DEPTH, dtype)
        (made,), (exact,) = (rlx.Session(device).compile(graph).run(given) for device in ("cuda", "reference"))
        off = {"f16": 4e-3, "bf16": 3e-2, "f32": 1e-5}[dtype]
        np.testing.assert_allclose(np.asarray(made, np.float64), np.asarray(exact, np.float64), rtol=off, atol=off)


def test_weights_that_no_kernel_unpacks_become_floats(driver: EmulatedDriver) -> None:
    """Rows of no whole pieces, and few columns."""
    for depth, columns, block in ((250, COLUMNS, 32), (DEPTH, 5, 32), (DEPTH, COLUMNS, 20)):
        graph = Graph("floats")
        graph.output(product(graph, graph.input("x", (3, depth), "f16"), columns, block=block), name="y")
        assert all(work.blocks is None for work in products_of(program_of(graph)))
        check(graph, input_of(3, depth, "f16"))


def test_products_of_one_left_side_become_one(driver: EmulatedDriver) -> None:
    graph = Graph("merged")
    x = graph.input("x", ("n", DEPTH), "f16")
    parts = [product(graph, x, columns, zeros="whole", name=f"w{columns}") for columns in (16, 40)]
    bias = graph.param("bias", (16,), "f16", data=np.ones(16, np.float16))
    graph.output(parts[0], parts[1], product(graph, x, 16, bits=8, name="wide") + bias)
    assert {work.n for work in products_of(program_of(graph))} == {56, 16}
    check(graph, input_of(2, DEPTH, "f16"))


def test_a_precision_narrows_the_left_side(driver: EmulatedDriver) -> None:
    """Scales stay what they are: weights are rounded once."""
    graph = Graph("narrow")
    x = graph.input("x", ("n", DEPTH), "f32")
    graph.output(product(graph, x, zeros="whole"), name="y")
    plan = build(graph, Options(precision="f16"))
    work = next(work for work in products_of(plan.program) if work.blocks is not None)
    assert work.a_dtype is dtypes.f16 and work.blocks is not None and work.blocks.scale is dtypes.f32
    given = input_of(3, DEPTH, "f32")
    (exact,) = rlx.Session("reference").compile(graph).run(given)
    (made,) = rlx.Session("cuda", precision="f16").compile(graph).run(given)
    assert 0 < np.abs(np.asarray(made) - exact).max() < 4e-3 * np.abs(exact).max()


@pytest.mark.parametrize("rows", [3, 20])
def test_sums_of_shorter_floats_are_for_many_rows(rows: int, driver: EmulatedDriver) -> None:
    graph = Graph("parts")
    graph.output(product(graph, graph.input("x", (rows, DEPTH), "f32")), name="y")
    (work,) = products_of(build(graph, Options(precision="f32_fast")).program)
    assert (work.blocks is None) == (rows > 8)
    assert work.float_parts
    given = input_of(rows, DEPTH, "f32")
    (exact,) = rlx.Session("reference").compile(graph).run(given)
    (made,) = rlx.Session("cuda", precision="f32_fast").compile(graph).run(given)
    np.testing.assert_allclose(made, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "bits", "block", "turned"), [("f16", "i4", 32, False), ("f32", "u8", 0, True), ("bf16", "i8", 0, False)]
)
def test_dequantised_weights_stay_packed(
    dtype: str, bits: str, block: int, turned: bool, driver: EmulatedDriver
) -> None:
    graph = Graph("dequantised")
    random = np.random.default_rng(3)
    x = graph.input("x", ("n", DEPTH), dtype)
    shape = (COLUMNS, DEPTH) if turned else (DEPTH, COLUMNS)
    whole = graph.param("whole", shape, bits, data=random.integers(-8, 8, shape).astype(dtypes.of(bits).numpy))
    scales = (DEPTH // block, COLUMNS) if block else (COLUMNS,)
    step = random.uniform(0.01, 0.1, scales).astype(dtypes.of(dtype).numpy)
    parameters = [graph.param("scale", scales, dtype, data=step)]
    if bits == "u8":
        parameters.append(graph.param("zero", scales, bits, data=random.integers(0, 9, scales).astype(np.uint8)))
    w = ops.dequantize(whole, *parameters, dtype=dtype, axis=0 if block or turned else 1, block=block)
    graph.output(x @ (w.transpose(1, 0) if turned else w), name="y")
    assert all(work.blocks is not None for work in products_of(program_of(graph))[:1])
    check(graph, input_of(2, DEPTH, dtype))
