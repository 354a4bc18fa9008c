"""Integers of every width, narrow floats, and casts, which WGSL has few of. What all devices share is in tests/ops."""

from __future__ import annotations

import numpy as np
import pytest

import skips
from rlx.backends.base import Options
from rlx.backends.wgpu import BACKENDS
from rlx.codegen.scalar import small_floats as narrow
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import REGISTRY, Elementwise, Op
from support import assert_close

WHOLE = [
    name for name, op in REGISTRY.items()
    if issubclass(op, Elementwise) and "int" in op.kinds and name not in ("select", "cast", "bitcast", "pow")
]  # fmt: skip


def patterns(dtype: dtypes.DType, seed: int) -> Array:
    """Integers of every size, the edges among them."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 63, 300, dtype=np.uint64) * 2 + random.integers(0, 2, 300, dtype=np.uint64)
    bits >>= random.integers(0, 64, 300).astype(np.uint64)
    signs = random.integers(0, 2, 300).astype(np.bool_)
    whole = np.where(signs, bits, np.uint64(0) - bits)
    edges = [0, 1, (1 << 64) - 1, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1, 1 << 31]
    return np.concatenate([np.array(edges, np.uint64), whole]).astype(dtype.numpy)


@pytest.mark.parametrize("name", WHOLE)
def test_integers_of_every_width(name: str, kind: str) -> None:
    op = REGISTRY[name]
    for dtype in (dtypes.i64, dtypes.u64, dtypes.i32, dtypes.u32, dtypes.i8, dtypes.u8):
        if dtype.kind not in op.kinds:  # type: ignore[attr-defined]  # WHOLE are elementwise
            continue
        arrays = [np.random.default_rng(i).permutation(patterns(dtype, 7)) for i in range(op.arity[0])]
        if name.startswith("shift"):
            arrays[1] = np.random.default_rng(5).integers(0, 70, arrays[1].shape).astype(dtype.numpy)
        assert_equal(kind, op(), arrays)


@pytest.mark.parametrize("source", [dtypes.i64, dtypes.u64, dtypes.i32, dtypes.u32, dtypes.i8, dtypes.u8, dtypes.f32])
def test_casts(source: dtypes.DType, kind: str) -> None:
    if source is dtypes.f32:
        numbers = patterns(dtypes.i64, 3).astype(np.float64) * 2.0 ** np.arange(-154, 154)
        edges = [np.nan, np.inf, -np.inf, 0.5, -0.5, 2.0**63, -(2.0**63)]
        with np.errstate(over="ignore"):
            array = np.concatenate([numbers, edges]).astype(np.float32)
    else:
        array = patterns(source, 3)
    whole = (dtypes.i64, dtypes.u64, dtypes.i32, dtypes.u32, dtypes.i8, dtypes.u8, dtypes.bool_)
    for to in (*whole, dtypes.f32, dtypes.f16, dtypes.bf16):
        if (source.kind, to.bits) in (("int", 16), ("uint", 16)) and source.bits == 64:
            continue  # NumPy rounds these twice
        assert_equal(kind, REGISTRY["cast"](to=to), [array])  # type: ignore[call-arg]


@pytest.mark.parametrize("dtype", narrow.DTYPES, ids=str)
def test_every_code_of_narrow_floats(dtype: dtypes.DType, kind: str) -> None:
    """To f32 and negated; and f32 of every size rounded to it."""
    codes = np.arange(1 << dtype.bits).astype(narrow.bits_dtype(dtype).numpy).view(dtype.numpy)
    with np.errstate(all="ignore"):
        codes = codes[~np.isnan(codes.astype(np.float32))]
        steps = codes.astype(np.float32)
    assert_equal(kind, REGISTRY["cast"](to=dtypes.f32), [codes])  # type: ignore[call-arg]
    assert_equal(kind, REGISTRY["neg"](), [codes])
    random = np.random.default_rng(1).integers(0, 1 << 32, 2000, np.uint32).view(np.float32)
    random = random[~np.isnan(random)]
    edges = np.array([0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        ties = (steps[1:] + steps[:-1]) / 2
        near = np.concatenate([ties * factor for factor in (1, 1 + 1e-6, 1 - 1e-6)])
    inputs = skips.of(kind).prepared(np.concatenate([random, near, edges]).astype(np.float32))
    assert_equal(kind, REGISTRY["cast"](to=dtype), [inputs])  # type: ignore[call-arg]


@pytest.mark.parametrize("dtype", [dtypes.i4, dtypes.u4, dtypes.i2, dtypes.u2], ids=str)
@pytest.mark.parametrize("name", ["add", "mul", "sub", "maximum"])
def test_integers_below_a_byte(dtype: dtypes.DType, name: str, kind: str) -> None:
    """Every pair; bits above the width count for nothing."""
    codes = np.arange(1 << dtype.bits)
    pairs = [np.repeat(codes, len(codes)), np.tile(codes, len(codes))]
    assert_equal(kind, REGISTRY[name](), [p.astype(np.int32).astype(dtype.numpy) for p in pairs])


def assert_equal(kind: str, op: Op, arrays: list[Array]) -> None:
    graph = Graph(op.name)
    result = graph.add(op, *(graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)))
    assert not isinstance(result, tuple)
    graph.output(result)
    (actual,) = BACKENDS[kind]().compile(graph, Options()).bind({})(arrays)
    flushed = skips.of(kind).prepared
    assert_close(flushed(actual), flushed(np.asarray(op.reference(*arrays))))
