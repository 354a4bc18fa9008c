"""What carriers compute is what the dtype itself gives, for every number that it has."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.codegen.scalar import emulation as emulation
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.ir.literal import Array

CARRIED = [dtype for dtype in dtypes.ALL.values() if emulation.is_emulated(dtype)]
OTHERS = [dtypes.bool_, dtypes.i8, dtypes.u8, dtypes.i64, dtypes.u64, dtypes.f16, dtypes.f32, dtypes.f64]


def everything(dtype: DType) -> Array:
    """Every number of a carried dtype; of another, small and large ones of each sign."""
    if emulation.is_emulated(dtype):
        codes = np.arange(1 << dtype.bits, dtype=np.uint8)
        return codes.view(dtype.numpy) if dtype.is_float else codes.astype(np.int8).astype(dtype.numpy)
    random = np.random.default_rng(3)
    wide = np.concatenate([np.arange(-40, 40) / 4, random.normal(size=200) * 2.0 ** random.integers(-20, 20, 200)])
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return np.concatenate([wide, [np.inf, -np.inf, np.nan, -0.0]]).astype(dtype.numpy)
    return np.trunc(wide).astype(np.int64).astype(dtype.numpy)


def through_carriers(body: Expr, *arrays: Array) -> Array:
    """The carried expression's result, of stored arrays and stored again."""
    types = [dtypes.of(a.dtype) for a in arrays]
    operands = [emulation.loaded(Expr("stored", emulation.stored(d), (), i), d) for i, d in enumerate(types)]
    whole = ex.rewrite(
        emulation.carried(body), lambda node, args: operands[node.attr] if node.kind == "operand" else None
    )
    stored = [emulation.to_stored(a) for a in arrays]
    result = ex.evaluate(emulation.to_store(whole, body.dtype), lambda leaf: stored[leaf.attr])
    return emulation.from_stored(np.asarray(result), body.dtype)


def assert_same(body: Expr, *arrays: Array) -> None:
    expected = np.asarray(ex.evaluate(body, lambda leaf: arrays[leaf.attr]))
    actual = through_carriers(body, *arrays)
    assert actual.dtype == expected.dtype
    a, b = (x.astype(np.float64) for x in (actual, expected))
    different = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    assert not different.any(), f"{body}: {expected[different][:5]} came out as {actual[different][:5]}"


@pytest.mark.parametrize("dtype", CARRIED, ids=str)
@pytest.mark.parametrize("other", [*CARRIED, *OTHERS], ids=str)
def test_casts(dtype: DType, other: DType) -> None:
    for source, to in ((dtype, other), (other, dtype)):
        assert_same(ex.cast(Expr("operand", source, (), 0), to), everything(source))


@pytest.mark.parametrize("dtype", CARRIED, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "min", "max", "lt", "eq", "and", "shl", "shr", "neg"])
def test_instructions(dtype: DType, name: str) -> None:
    of = ex.INSTRUCTIONS[name]
    if {"int": "i", "uint": "u", "float": "f"}[dtype.kind] not in of.kinds:
        pytest.skip(f"there is no {name} of {dtype}")
    numbers = everything(dtype)
    pairs = [a.reshape(-1) for a in np.meshgrid(numbers, numbers)][: of.arity]
    assert_same(ex.apply(name, *(Expr("operand", dtype, (), i) for i in range(of.arity))), *pairs)


@pytest.mark.parametrize("dtype", [d for d in CARRIED if d.bits == 8], ids=str)
@pytest.mark.parametrize("bits", [dtypes.u8, dtypes.i8], ids=str)
def test_bits(dtype: DType, bits: DType) -> None:
    """But for those of NaNs, of which one is as good as another."""
    numbers = everything(dtype)
    numbers = numbers[~np.isnan(numbers.astype(np.float32))]
    assert_same(ex.bitcast(Expr("operand", dtype, (), 0), bits), numbers)
    assert_same(ex.bitcast(Expr("operand", bits, (), 0), dtype), np.arange(256, dtype=np.uint8).astype(bits.numpy))


@pytest.mark.parametrize("dtype", CARRIED, ids=str)
def test_arrays_come_back_as_they_went(dtype: DType) -> None:
    numbers = everything(dtype)
    assert emulation.from_stored(emulation.to_stored(numbers), dtype).tobytes() == numbers.tobytes()
