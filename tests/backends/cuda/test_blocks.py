"""Products with weights of few bits, unpacked by the kernels that use them, on the emulated driver."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda.build import program_of
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
ZEROS = ("", "whole", "any", "added")


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


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(("bits", "block"), [(2, 32), (4, 16), (4, 32), (8, 128)])
def test_few_rows(bits: int, block: int, dtype: str, zeros: str, driver: EmulatedDriver) -> None:
    graph = Graph("few")
    x = graph.input("x", ("n", DEPTH), dtype)
    graph.output(product(graph, x, bits=bits, block=block, zeros=zeros), name="y")
    program = program_of(graph)
    verify(program)
    assert all(work.blocks is not None and work.packed for work in products_of(program)[:1])
    for rows in (1, 3, 20):
        check(graph, input_of(rows, DEPTH, dtype))
