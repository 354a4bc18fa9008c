"""Cases of every op, made from the registry: shapes, dtypes, NaN, infinities, empty and single elements.

Elementwise ops and others without attributes of their own get theirs from their type rules; the rest have a few by hand
in `SPECIMENS`, here and in the files that `MORE` names. `tests/ops/test_coverage.py` asks that no op is without.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from ops import (
    cases_experts,
    cases_order,
    cases_quant,
    cases_random,
    cases_recurrent,
    cases_resize,
    cases_sampling,
    cases_signal,
    cases_windows,
)
from ops.case import DTYPES, FLOATS, NARROW, SPECIMENS, Case, array, case, specimen
from rlx.codegen.scalar import small_floats as narrow
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array, Literal
from rlx.ir.op import REGISTRY, Elementwise, Op, lookup
from rlx.ops.activation import Activation
from rlx.ops.reduce import Reduction, Statistic

MORE = (
    cases_experts, cases_order, cases_quant, cases_random, cases_recurrent, cases_resize, cases_sampling, cases_signal,
    cases_windows,
)  # fmt: skip
__all__ = ["Case", "array", "case", "cases_of", "cases_of_every_op", "decomposed"]


def _elementwise(cls: type[Elementwise]) -> Iterator[Case]:
    count = cls.arity[0]
    attributes: list[dict[str, Any]] = [{}]
    if cls.name in ("cast", "bitcast"):
        return
    for kind in cls.kinds:
        for dtype in (*DTYPES[kind], *NARROW.get(kind, ())):
            yield _of(cls(**attributes[0]), [array((37,), dtype, i, special=i == 0) for i in range(count)], "special")
        main = DTYPES[kind][0]
        shapes = [[(3, 1, 4), (2, 1), (1,)], [(), (2, 3), ()], [(0, 3), (3,), (1, 1)], [(1,), (1, 1), ()]]
        for group in shapes if kind in ("float", "bool") or kind == cls.kinds[0] else shapes[:1]:
            yield _of(cls(), [array(shape, main, i) for i, shape in enumerate(group[:count])], "shapes")


def _of(op: Op, arrays: list[Array], what: str) -> Case:
    if op.name == "select":
        arrays = [array(arrays[0].shape, dtypes.bool_, 9), *arrays[1:]]
    if op.name in ("shift_left", "shift_right"):
        arrays = [arrays[0], np.abs(arrays[1]).astype(arrays[1].dtype)]
    return Case(op, tuple(arrays), what)


def _by_axes(cls: type[Op]) -> Iterator[Case]:
    """Reductions: every kind, several axes, axes that are empty or 1."""
    kinds: tuple[str, ...] = getattr(cls, "kinds", ("bool",))
    for kind in kinds:
        for dtype in DTYPES[kind]:
            yield Case(cls(axes=(1,)), (array((3, 5, 4), dtype, 1),), "middle")
    main = DTYPES[kinds[-1]][0]
    for shape, axes, keep in (
        ((3, 5, 4), (-1,), True), ((3, 5, 4), (0, 2), False), ((3, 5, 4), (0, 1, 2), True), ((2, 70), (1,), False),
        ((0, 4), (0,), True), ((0, 4), (1,), False), ((1, 1), (0, 1), False), ((2, 3), (), False),
    ):  # fmt: skip
        yield Case(cls(axes=axes, keepdims=keep), (array(shape, main, 2),), f"axes{list(axes)}")
    if main.is_float:
        yield Case(cls(axes=(1,)), (array((2, 13), main, 3, special=True),), "special")


@specimen("cast")
def _cast(name: str) -> Iterator[Case]:
    edge = np.array([300, -300, 1.5, -1.5, 2.5, np.nan, np.inf, -np.inf, 1e10, 65520, 3e38, 0.1], np.float32)
    for to in (*FLOATS, *DTYPES["int"], *DTYPES["uint"], dtypes.bool_, *narrow.DTYPES):
        yield case(name, f"to-{to}", edge, to=to)
    whole = np.array([0, 1, -1, 127, 128, -129, 70000, 2**31 - 1, -(2**31)], np.int32)
    for to in (dtypes.i8, dtypes.u8, dtypes.i64, dtypes.f32, dtypes.bool_):
        yield case(name, f"to-{to}", whole, to=to)
    for source in (dtypes.bool_, dtypes.f16, dtypes.bf16, dtypes.u8, dtypes.i64):
        yield case(name, "to-f32", array((9,), source, special=True), to=dtypes.f32)


@specimen("bitcast")
def _bitcast(name: str) -> Iterator[Case]:
    yield case(name, "to-i32", array((2, 13), special=True), to=dtypes.i32)
    yield case(name, "to-f32", array((9,), dtypes.i32), to=dtypes.f32)


@specimen("argmax", "argmin")
def _argument(name: str) -> Iterator[Case]:
    for dtype in (dtypes.f32, dtypes.i32, dtypes.bool_, dtypes.bf16):
        yield case(name, "plain", array((3, 7), dtype), axis=1)
    yield case(name, "ties", np.array([[1, 3, 3, 0, 0]], np.float32), axis=1)
    yield case(name, "ties-last", np.array([[1, 3, 3, 0, 0]], np.float32), axis=-1, last=True, keepdims=True)
    yield case(name, "nan", np.array([3, np.nan, 1, np.nan, 5], np.float32), axis=0)
    yield case(name, "infinite", np.array([np.inf, -np.inf, np.inf, -np.inf], np.float32), axis=0)


@specimen("reshape")
def _reshape(name: str) -> Iterator[Case]:
    yield case(name, "join", array((2, 3, 4)), shape=(6, 4))
    yield case(name, "scalar", array((1, 1)), shape=())
    yield case(name, "empty", array((0, 4)), shape=(2, 0, 3))


@specimen("transpose")
def _transpose(name: str) -> Iterator[Case]:
    yield case(name, "three", array((2, 3, 4)), permutation=(2, 0, 1))
    yield case(name, "matrix", array((17, 33)), permutation=(1, 0))
    yield case(name, "scalar", array(()), permutation=())
    yield case(name, "bool", array((2, 3), dtypes.bool_), permutation=(1, 0))
    for channels in (2, 3, 4, 8):  # images to channels last: few columns are written in turns
        yield case(name, f"channels-{channels}", array((2, channels, 5, 17)), permutation=(0, 2, 3, 1))
    yield case(name, "channels-i32", array((3, 77), dtypes.i32), permutation=(1, 0))


@specimen("broadcast_to")
def _broadcast(name: str) -> Iterator[Case]:
    yield case(name, "axes", array((3, 1)), shape=(2, 3, 4))
    yield case(name, "scalar", array((), dtypes.i64), shape=(2, 2))
    yield case(name, "empty", array((1,)), shape=(0,))


@specimen("slice")
def _slice(name: str) -> Iterator[Case]:
    yield case(name, "part", array((4, 5)), starts=(1, 0), stops=(3, 5), steps=(1, 2))
    yield case(name, "back", array((10,)), starts=(9,), stops=(0,), steps=(-3,))
    yield case(name, "reverse", array((2, 4)), starts=(0, 3), stops=(2, -1), steps=(1, -1))
    yield case(name, "empty", array((4,)), starts=(2,), stops=(2,), steps=(1,))


@specimen("pad")
def _pad(name: str) -> Iterator[Case]:
    yield case(name, "around", array((2, 3)), low=(1, 0), high=(0, 2), value=1.5)
    yield case(name, "crop", array((4, 4)), low=(-1, 2), high=(0, -3))
    yield case(name, "all-gone", array((1, 4)), low=(0, 4), high=(0, -4))
    yield case(name, "int", array((3,), dtypes.i32), low=(2,), high=(1,), value=-7)


@specimen("concat")
def _concat(name: str) -> Iterator[Case]:
    yield case(name, "columns", array((2, 3)), array((2, 1), seed=1), array((2, 0)), axis=1)
    yield case(name, "one", array((2, 3)), axis=0)
    yield case(name, "int", array((2,), dtypes.i64), array((3,), dtypes.i64), axis=-1)


@specimen("iota", "dims_tensor", "constant")
def _leaf(name: str) -> Iterator[Case]:
    if name == "iota":
        yield case(name, "columns", shape=(3, 4), dtype=dtypes.i32, axis=1)
        yield case(name, "float", shape=(5,), dtype=dtypes.f32, axis=0)
    elif name == "dims_tensor":
        yield case(name, "two", values=(3, 4))
    else:
        yield case(name, "array", value=Literal(array((2, 3))))


@specimen("gather")
def _gather(name: str) -> Iterator[Case]:
    x = array((4, 3, 5))
    yield case(name, "rows", x, np.array([[-1, 0], [2, 3]]), axis=0)
    yield case(name, "columns", x, np.array([4, -5], np.int32), axis=2)
    yield case(name, "scalar", x, np.array(1), axis=1)
    yield case(name, "wild", x, np.array([9, -9, 2**40]), axis=1)
    yield case(name, "wild-unsigned", x, np.array([1, 9, 2**63, 2**64 - 1], np.uint64), axis=1)
    yield case(name, "nothing", x, np.zeros((0, 2), np.int64), axis=0)


@specimen("require")
def _require(name: str) -> Iterator[Case]:
    x = array((4, 3))
    for what, low, numbers in (("inside", -1, np.array([0, 2, -1])), ("nothing", 3, np.zeros((0, 2), np.int32))):
        yield Case(lookup(name)(label="test", what="numbers", low=low, high=3), (x, numbers), what)


@specimen("gather_elements")
def _gather_elements(name: str) -> Iterator[Case]:
    yield case(name, "rows", array((3, 4)), np.array([[0, -1, 2, 1]]), axis=0)
    yield case(name, "columns", array((3, 4)), np.array([[3, 0], [-4, 1], [2, 9]]), axis=1)


@specimen("gather_nd")
def _gather_nd(name: str) -> Iterator[Case]:
    yield case(name, "points", array((3, 4)), np.array([[-1, -1], [0, -2]]))
    yield case(name, "rows", array((3, 4)), np.array([[[2], [0]]]))
    yield case(name, "batch", array((2, 3, 4)), np.array([[1], [-3]]), batch_dims=1)


@specimen("scatter_elements")
def _scatter_elements(name: str) -> Iterator[Case]:
    at = np.array([[0, 2, 0], [1, -1, 9]])
    for combine in (None, "add", "mul", "min", "max"):
        yield case(name, str(combine), array((2, 4)), at, array((2, 3), seed=5), axis=1, combine=combine)
    shuffled = np.random.default_rng(0).permutation(900)[None, :, None].repeat(2, 0).repeat(3, 2)
    for combine in (None, "add"):
        x, updates = array((2, 700, 3)), array((2, 900, 3), seed=5)
        yield case(name, f"distinct-{combine}", x, shuffled, updates, axis=1, combine=combine, distinct=True)


@specimen("scatter_nd")
def _scatter_nd(name: str) -> Iterator[Case]:
    for combine in (None, "add", "max"):
        yield case(name, str(combine), array((4, 3)), np.array([[1], [1], [7]]), array((3, 3), seed=5), combine=combine)
    yield case(name, "points", array((2, 3), dtypes.i32), np.array([[0, -1]]), array((1,), dtypes.i32))
    shuffled = np.random.default_rng(0).permutation(5000).reshape(-1, 1)
    yield case(name, "distinct", array((4000, 3)), shuffled, array((5000, 3), seed=5), distinct=True)
    yield case(name, "distinct-flat", array((4000,)), shuffled, array((5000,), seed=5), distinct=True)

    places = np.random.default_rng(1).integers(-30, 30, (2000, 1))
    for dtype, combine in ((dtypes.f32, None), (dtypes.f32, "add"), (dtypes.f16, "max"), (dtypes.i64, "add")):
        yield case(name, f"many-{combine}", array((30, 3), dtype), places, array((2000, 3), dtype, 5), combine=combine)


@specimen("update_slice")
def _update_slice(name: str) -> Iterator[Case]:
    for start in (0, 2, 3, -1):
        yield case(name, f"rows-{start}", array((4, 3)), array((2, 3), seed=5), np.array(start))
    yield case(name, "inner", array((2, 9, 3), dtypes.f16), array((2, 1, 3), dtypes.f16, 5), np.array(8), axis=1)
    yield case(name, "last", array((3, 5), dtypes.i32), array((3, 2), dtypes.i32, 5), np.array(3, np.uint64), axis=-1)
    yield case(name, "bool", array((7,), dtypes.bool_), array((3,), dtypes.bool_, 5), np.array(4, np.int8))
    yield case(name, "far", array((3, 5)), array((1, 5), seed=5), np.array(1 << 63, np.uint64))
    yield case(name, "nothing", array((3, 5)), array((0, 5)), np.array(3, np.int32))


@specimen("dot_general")
def _dot_general(name: str) -> Iterator[Case]:
    for dtype in (*FLOATS, dtypes.i32):
        yield case(name, "matrix", array((5, 7), dtype), array((7, 3), dtype, 1), lhs_contract=(1,), rhs_contract=(0,))
    pairs = {"lhs_batch": (0,), "rhs_batch": (1,)}
    yield case(name, "batch", array((2, 3, 4)), array((4, 2, 5)), lhs_contract=(2,), rhs_contract=(0,), **pairs)
    yield case(name, "two", array((2, 3, 4)), array((4, 3)), lhs_contract=(2, 1), rhs_contract=(0, 1))
    yield case(name, "crossed", array((2, 3, 4)), array((3, 4, 5)), lhs_contract=(1, 2), rhs_contract=(0, 1))
    yield case(name, "left-turned", array((37, 21)), array((37, 19)), lhs_contract=(0,), rhs_contract=(0,))
    yield case(name, "narrow", array((70, 40)), array((70, 3)), lhs_contract=(0,), rhs_contract=(0,))
    # small: sums that cancel, in one order or another, stay as near as a tolerance of numbers near 1 says
    small = array((40, 20)) / np.float32(8)
    yield case(name, "nan", array((40, 9), special=True), small, lhs_contract=(0,), rhs_contract=(0,))
    yield case(name, "empty-turned", array((0, 3)), array((0, 4)), lhs_contract=(0,), rhs_contract=(0,))
    yield case(name, "outer", array((3,)), array((2,)), lhs_contract=(), rhs_contract=())
    yield case(name, "empty-sum", array((2, 0)), array((0, 3)), lhs_contract=(1,), rhs_contract=(0,))
    yield case(name, "empty", array((0, 2)), array((2, 3)), lhs_contract=(1,), rhs_contract=(0,))


@specimen("matmul")
def _matmul(name: str) -> Iterator[Case]:
    for left, right in (
        ((5, 7), (7, 3)), ((7,), (7, 3)), ((5, 7), (7,)), ((7,), (7,)), ((2, 1, 5, 7), (3, 7, 2)), ((2, 5, 7), (7, 3)),
        ((0, 7), (7, 3)), ((2, 0), (0, 3)),
    ):  # fmt: skip
        yield case(name, "float", array(left), array(right, seed=1))
    yield case(name, "int", array((3, 4), dtypes.i64), array((4, 2), dtypes.i64))
    yield case(name, "half", array((3, 40), dtypes.f16), array((40, 2), dtypes.f16))


@specimen("det")
def _det(name: str) -> Iterator[Case]:
    for size in (0, 1, 2, 3, 6):
        yield case(name, "batch", array((2, size, size)))
    yield case(name, "singular", np.ones((3, 3), np.float32))
    yield case(name, "swap", np.array([[0, 1], [1, 0]], np.float32))
    for dtype in (dtypes.f64, dtypes.f16):
        yield case(name, "dtype", array((2, 2), dtype))


@specimen("softmax", "log_softmax", "l2_normalize")
def _rows(name: str) -> Iterator[Case]:
    for dtype in FLOATS:
        yield case(name, "rows", array((3, 37), dtype), axis=-1)
    yield case(name, "columns", array((2, 5, 3)), axis=1)
    yield case(name, "one", array((4, 1)), axis=1)
    yield case(name, "empty", array((0, 3)), axis=1)
    yield case(name, "nan", array((2, 13), special=True), axis=1)
    yield case(name, "minus-infinity", np.full((1, 128), -np.inf, np.float32), axis=1)
    yield case(name, "large", np.array([[1000, 999, -1000]], np.float32), axis=1)


@specimen("layer_norm", "rms_norm")
def _norm(name: str) -> Iterator[Case]:
    for dtype in FLOATS:
        yield case(name, "rows", array((3, 37), dtype), array((37,), dtype, 1))
    if name == "layer_norm":
        yield case(name, "bias", array((2, 3, 8)), array((8,), seed=1), array((8,), seed=2))
        far = np.array([[40000, 40001, 40002, 40003], [80000, 80001, 80002, 80003]], np.float32)
        yield case(name, "far", far)
        yield case(name, "constant", np.full((1, 256), 1234, np.float32))
    yield case(name, "bare", array((2, 5)))
    yield case(name, "two-axes", array((2, 3, 4)), array((3, 4), seed=1), axes=(1, 2))
    yield case(name, "first-axis", array((2, 3, 4)), array((3, 1), seed=1), axes=(1,))
    yield case(name, "big-half", np.full((1, 8), 9000, np.float16))


@specimen("group_norm", "instance_norm", "batch_norm")
def _channel_norm(name: str) -> Iterator[Case]:
    attributes = {"groups": 2} if name == "group_norm" else {}
    vectors = [np.abs(array((4,), seed=i)) + 0.1 for i in range(4 if name == "batch_norm" else 2)]
    yield case(name, "image", array((2, 4, 3, 5)), *vectors, **attributes)
    yield case(name, "line", array((1, 4, 6)), *vectors, **attributes)
    half = [v.astype(np.float16) for v in vectors]
    yield case(name, "half", array((2, 4, 3), dtypes.f16), *half, **attributes)


@specimen("attention")
def _attention(name: str) -> Iterator[Case]:
    q, k, v = array((2, 4, 5, 8)), array((2, 4, 7, 8), seed=1), array((2, 4, 7, 6), seed=2)
    few = (k[:, :2], v[:, :2])
    keep, add = array((2, 1, 1, 7), dtypes.bool_, 3), array((5, 7), seed=4)
    yield case(name, "plain", q, k, v)
    yield case(name, "grouped", q, *few, scale=0.3)
    yield case(name, "bool-mask", q, k, v, keep)
    yield case(name, "float-mask", q, k, v, add)
    yield case(name, "causal", q, k, v, causal=True, offset=2)
    yield case(name, "window", q, k, v, causal=True, offset=2, window=3)
    yield case(name, "wide-window", q, k, v, window=2)
    yield case(name, "softcap", q, k, v, keep, softcap=5.0)
    yield case(name, "nothing-zero", q, k, v, keep & False)
    yield case(name, "nothing-nan", q, k, v, keep & False, empty="nan")
    yield case(name, "fill", q, k, v, keep & False, fill=-1e4)
    for dtype in (dtypes.f16, dtypes.bf16, dtypes.f64):
        yield case(name, "dtype", *(a.astype(dtype.numpy) for a in (q, k, v)))
    yield case(name, "one-query", q[:, :, :1], *few)
    many, keys, values = array((1, 4, 70, 8)), array((1, 2, 45, 8), seed=1), array((1, 2, 45, 6), seed=2)
    yield case(name, "many", many, keys, values, causal=True, offset=-20)
    yield case(name, "many-masked", many, keys, values, array((70, 45), dtypes.bool_, 3), fill=-1e4)
    yield case(name, "many-narrow", *(a.astype(np.float16) for a in (many, keys, values)), empty="nan")
    yield case(name, "one-feature", q[..., :1], k[..., :1], v)
    step, keys, values = array((1, 4, 3, 8)), array((1, 2, 300, 8), seed=1), array((1, 2, 300, 6), seed=2)
    yield case(name, "step", step[:, :, :1], keys, values, causal=True, offset=270, window=200)
    yield case(name, "steps-masked", step, keys, values, array((1, 1, 3, 300), dtypes.bool_, 3), softcap=5.0)
    yield case(name, "steps-narrow", *(a.astype(np.float16) for a in (step, keys, values)))


@specimen("rotary_embedding")
def _rotary(name: str) -> Iterator[Case]:
    x, angles = array((2, 3, 5, 8)), array((5, 4), seed=1)
    for interleaved in (False, True):
        yield case(name, "whole", x, np.cos(angles), np.sin(angles), interleaved=interleaved)
        part = (np.cos(angles[:, :2]), np.sin(angles[:, :2]))
        yield case(name, "part", x, *part, interleaved=interleaved)


@specimen("prelu")
def _prelu(name: str) -> Iterator[Case]:
    yield case(name, "channel", array((2, 3, 13), special=True), array((3, 1), seed=1))
    yield case(name, "int", array((5,), dtypes.i32), array((1,), dtypes.i32))


@specimen("relu")
def _relu(name: str) -> Iterator[Case]:
    for dtype in (*FLOATS, dtypes.i32, dtypes.u8):
        yield case(name, "plain", array((3, 13), dtype, special=True))


@specimen("gelu")
def _gelu(name: str) -> Iterator[Case]:
    for dtype in FLOATS:
        for approximate in (False, True):
            yield case(name, "plain", array((3, 13), dtype, special=True), approximate=approximate)


def _activation(cls: type[Op]) -> Iterator[Case]:
    for dtype in FLOATS:
        yield Case(cls(), (array((3, 13), dtype, special=True),), "special")
    yield Case(cls(), (array((0, 2)),), "empty")


def cases_of(cls: type[Op]) -> list[Case]:
    """Cases of one op class; none for leaves and control flow, which have tests of their own."""
    if cls.name in SPECIMENS:
        return list(SPECIMENS[cls.name]())
    if issubclass(cls, Elementwise):
        return list(_elementwise(cls))
    if issubclass(cls, (Reduction, Statistic)) or cls.name in ("reduce_any", "reduce_all"):
        return list(_by_axes(cls))
    return list(_activation(cls)) if issubclass(cls, Activation) else []


@cache
def cases_of_every_op() -> tuple[Case, ...]:
    """All cases, in the order of the registry."""
    return tuple(case for cls in REGISTRY.values() for case in cases_of(cls))


def decomposed(case: Case) -> Graph:
    """A graph of a composite's definition in place of the op."""
    graph = Graph(case.op.name)
    values = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(case.arrays)]
    results: Value | tuple[Value, ...] = case.op.decompose(*values)  # type: ignore[attr-defined]
    for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
        graph.output(value, name=f"y{i}")
    return graph
