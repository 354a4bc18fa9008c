"""What a program gives by the reference, and how far a device may be from it.

The reference runs once as it is and several times with noise: after each node whose arithmetic may round otherwise on a
device, every element moves by as much as the op is allowed, up or down by chance. How far an output's element then
strays is what errors of that size do to it, through whatever follows. Where everything is exact (whole numbers under
sums and products, comparisons, moves) there is no noise, and the results must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.compare import epsilon
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.interpreter import bind_op
from rlx.ir.literal import Array
from rlx.ir.op import Input, Measured, Op, Param
from rlx.ir.substitute import type_with_dims
from rlx.ir.type import TensorType
from rlx.ops.packed import PackedMatmul
from tools.fuzz.program import Binding, Program

SPREAD = 4.0
"""How many times the strays seen an element may be off: few runs with noise do not meet the worst."""
SUMS = frozenset({
    "dot_general", "matmul", "conv", "conv_transpose", "reduce_sum", "reduce_mean", "cumsum", "average_pool",
    "overlap_add", "col2im", "reduce_l1", "reduce_sum_square", "grouped_matmul", "scatter_elements", "scatter_nd",
    "packed_matmul",
})  # fmt: skip
"""Ops whose error grows with the sum of what they add, not with the result."""
RING = SUMS - {"reduce_mean", "average_pool", "packed_matmul"} | {
    "add", "sub", "mul", "square", "reduce_prod", "cumprod", "reduce_window",
}  # fmt: skip
"""Ops that give whole numbers for whole numbers."""
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
ACCUMULATE = SUMS | {"cumprod", "reduce_prod"}
MEETS_ZEROS = ("conv_transpose", "attention")
"""Ops whose definition multiplies zeros by operands that the reference may leave out, as it is more exact."""
EITHER_ZERO = ("minimum", "maximum", "reduce_min", "reduce_max", "reduce_window", "cummax", "cummin", "relu", "clamp")
"""Ops that take one of several numbers that are equal, of which zeros may have different signs."""
SHIFTED = ("softmax", "log_softmax", "reduce_log_sum_exp", "attention")
"""Ops that take the exponential of a difference from the greatest: a device that fuses the product before into the
difference is off by a rounding of the operand there."""
VANISHES = ("sigmoid", "silu")
"""Ops of which results below the normal range may be zero: one over a power that overflows."""
DIFFERENCES = ("add", "sub")
"""Ops that give exactly nothing for operands that are equal, or opposite."""
STEPPED = "dynamic_quantize_"
"""How ops begin that round what they computed to steps: at the edge of one, an error of a rounding is one of a step."""
QUANTISED = "dynamic_quantize"
STEP = 0.05
EXACT_BITS = {"f32": 24, "f64": 53, "f16": 11, "bf16": 8}


TINY = float(np.finfo(np.float32).tiny)
ANGLES, FARTHEST_ANGLE = ("sin", "cos", "tan"), 1e5
"""Functions of angles, and up to which of them their results are known in f32 (`codegen/scalar/maths.py`)."""


class Noise:
    """Moves results of inexact nodes, by so many times what they are allowed.

    least_ulps   what elementary functions, quotients and roots may be off at least
    flushes      floats below the normal range may become zeros
    unsaid       what becomes of elements that may be anything: all of them NaN, none, or by chance; where chance alone
                 decided, a NaN that must pass several nodes to be seen would be lost on its way
    filling      the number that elements have which may be any, but are NaN: by zero not everything divides
    simple       how many of the numbers that are nearly simple ones become these, all in one run for the same reason
    """

    def __init__(self, seed: int, scale: float, least_ulps: float = 0, flushes: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        # of two runs one moves each element up that the other moves down: what truncates then sees both
        self.signs = np.random.default_rng(1000 + seed // 2)
        self.scale = scale if seed % 2 else -scale
        self.least_ulps = least_ulps
        self.flushes = flushes and seed % 2 == 0
        self.vanishes = seed % 2 == 1
        self.unsaid = ("nan", "number", "chance")[seed % 3]
        self.filling = seed // 3 % 2
        self.simple = (0.3, 1.0, 0.3)[seed % 3]

    def after(self, op: Op, operands: list[Array], result: Array, strayed: Array | float = 0.0) -> Array:
        """The result with noise, as its node may be off; `strayed` is what noise before made of it."""
        dtype = dtypes.of(result.dtype)
        if op.name == "bitcast":
            return self._bits_of_nan(operands[0], result)
        if op.name == "copysign":
            result = self._sign_of_nan(operands[1], result)
        if op.name in COMPARE:
            return self._nearly_equal(operands, result)
        if not dtype.is_inexact:
            return result
        result = self._zeros(op, operands, self.flushed(result))
        if op.name in VANISHES and self.vanishes:
            result = np.where(np.abs(result) < TINY, np.zeros_like(result), result)
        wide = result.astype(np.complex128 if dtype.is_complex else np.float64)
        off, anything = _allowed(op, operands, result, self.least_ulps), _may_be_anything(op, operands, wide)
        if off is not None:
            # about as much as is allowed, but never as much as another node has moved an element the other way
            signs = self.signs.choice([-self.scale, self.scale], size=result.shape)
            sizes = self.signs.uniform(0.75, 1.25, size=result.shape)
            exact = (wide == 0) if op.name in DIFFERENCES else np.False_
            perturbed = np.where(np.isfinite(wide) & ~exact, wide + signs * sizes * off, wide)
            # what is nearly a simple number may be just that, which comparisons see; what is one, may be off
            simple = np.round(wide * 8) / 8
            before = strayed * (2.0 if op.name in DIFFERENCES else 1.0)  # that both operands strayed by
            in_reach = np.abs(simple - wide) <= off * abs(self.scale) + before
            nearly = in_reach & (simple != wide) & (self.random.random(result.shape) < self.simple)
            result = np.where(nearly, simple, perturbed).astype(result.dtype)
        return result if anything is None else self._anything(anything, result)

    def _anything(self, where: Array, result: Array) -> Array:
        """The result with NaN for numbers, or numbers for NaN, at these places."""
        to_nan = {"nan": np.True_, "number": np.False_, "chance": self.random.random(result.shape) < 0.5}[self.unsaid]
        number = np.where(np.isnan(result), np.full_like(result, self.filling), result)
        return np.where(where, np.where(to_nan, np.full_like(result, np.nan), number), result)

    def _zeros(self, op: Op, operands: list[Array], result: Array) -> Array:
        """The greater or the less of two zeros may have the sign of either."""
        floats = [a for a in operands if dtypes.of(a.dtype).is_float]
        if op.name not in EITHER_ZERO or not any((np.signbit(a) & (a == 0)).any() for a in floats):
            return result
        signs = self.random.choice(np.array([-1, 1]), size=result.shape).astype(result.dtype)
        return np.where(result == 0, np.copysign(result, signs), result)

    def _bits_of_nan(self, operand: Array, result: Array) -> Array:
        """The bits of a NaN may be any NaN's."""
        of = dtypes.of(operand.dtype)
        if not of.is_float or operand.shape != result.shape or not dtypes.of(result.dtype).is_integer:
            return result
        other = np.where(self.random.random(result.shape) < 0.5, np.zeros_like(result), result)
        return np.where(np.isnan(operand.astype(np.float64)), other, result)

    def _sign_of_nan(self, operand: Array, result: Array) -> Array:
        """The sign of a NaN may be either."""
        other = np.where(self.random.random(result.shape) < 0.5, -result, result)
        return np.where(np.isnan(np.broadcast_to(operand, result.shape)), other, result)

    def _nearly_equal(self, operands: list[Array], result: Array) -> Array:
        """Numbers that are about the same, and not simple ones, may be equal or not."""
        if not all(dtypes.of(a.dtype).is_float for a in operands):
            return result
        a, b = (np.broadcast_to(x.astype(np.float64), result.shape) for x in operands)
        own = max(epsilon(dtypes.of(x.dtype)) for x in operands)
        about = np.abs(a - b) <= max(16 * own, 1e-5) * np.maximum(np.abs(a), np.abs(b))
        simple = (np.round(a * 8) == a * 8) & (np.round(b * 8) == b * 8)
        return np.where(about & ~simple & (self.random.random(result.shape) < 0.5), ~result, result)

    def before(self, op: Op, operands: list[Array]) -> list[Array]:
        """The operands of a composite with noise: how much it makes of roundings on its way."""
        quotients = self.least_ulps and op.name.startswith(STEPPED[:-1])
        if not op.is_composite or (op.tolerance.ulps == 0 and not quotients) or op.name in SUMS:
            return operands
        return [self.moved(a) if a.dtype in (np.float32, np.float64) else a for a in operands]

    def moved(self, array: Array) -> Array:
        by = self.random.choice([-2.0, 2.0], size=array.shape) * self.scale * np.finfo(array.dtype).eps
        return np.where(np.isfinite(array), array * (1 + by), array).astype(array.dtype)

    def other_step(self, x: Array, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """The results of dynamic quantisation with the next zero point, where it lies about halfway to that: quotients
        of a device need not be rounded right."""
        quantised, scale, zero = arrays
        least = min(float(np.min(x, initial=0)), 0.0)
        exact = -least / float(scale) if np.isfinite(scale) and scale > 0 else 0.0
        if not np.isfinite(exact) or abs(exact % 1 - 0.5) > 1e-3 or self.random.random() < 0.5:
            return arrays
        other = np.floor(exact) + np.ceil(exact) - float(zero)
        shifted = np.clip(quantised.astype(np.int64) + int(other - float(zero)), 0, 255).astype(np.uint8)
        return shifted, scale, np.asarray(np.clip(other, 0, 255)).astype(np.uint8)

    def flushed(self, array: Array) -> Array:
        """The array as a device may see it that has nothing below the normal range."""
        if not self.flushes or not dtypes.of(array.dtype).is_inexact:
            return array
        return np.where(np.abs(array) < TINY, np.zeros_like(array), array)


def _extreme(array: Array) -> bool:
    """Whether squares or products of some such numbers leave the range of f32."""
    of = dtypes.of(array.dtype)
    if not of.is_float or of.bits > 32:
        return False
    size = np.abs(array.astype(np.float64))
    return bool((((size > 1e15) & np.isfinite(size)) | ((size > 0) & (size < 1e-15))).any())


def _beyond_half(array: Array) -> bool:
    """Whether small numbers times some such leave the range of f16."""
    return dtypes.of(array.dtype).is_float and bool((np.abs(array.astype(np.float64)) > 256).any())


def _may_be_anything(op: Op, operands: list[Array], wide: Array) -> Array | None:
    """Elements of a result of which nothing can be said, as a mask; None if there are none."""
    if (op.is_composite or op.name in ACCUMULATE) and (any(map(_extreme, operands)) or _runs_away(op, operands)):
        # the reference, in f64, neither overflows nor underflows on its way
        return np.ones(wide.shape, np.bool_)
    if op.name == "packed_matmul" and any(map(_beyond_half, operands)) and operands[0].dtype == np.float16:
        return np.ones(wide.shape, np.bool_)  # a product with its scale may be infinite, or come after the sum
    if op.is_composite and not all(map(_finite, operands)):
        # what is beyond all bounds times what is below them may be anything
        return np.ones(wide.shape, np.bool_) if op.name in MEETS_ZEROS else ~np.isfinite(wide)
    if op.name in ANGLES and dtypes.of(operands[0].dtype).bits <= 32:
        size = np.abs(operands[0].astype(np.float64))
        far = np.isfinite(size) & (size > FARTHEST_ANGLE)
        return far if far.any() else None
    return None


def _runs_away(op: Op, operands: list[Array]) -> bool:
    """Whether a product of many leaves the range of f32 on its way."""
    if op.name not in ("reduce_prod", "cumprod") or not dtypes.of(operands[0].dtype).is_float:
        return False
    size = np.abs(operands[0].astype(np.float64))
    logarithms = np.log10(size[np.isfinite(size) & (size > 0)])
    return bool(max(logarithms.clip(min=0).sum(), -logarithms.clip(max=0).sum()) > 30)


def _finite(array: Array) -> bool:
    return dtypes.of(array.dtype).is_integer or bool(np.isfinite(array.astype(np.complex128)).all())


def _rounds(op: Op, operands: list[Array], result: Array) -> bool:
    """Whether the numbers of a result depend on how a device rounds."""
    return not op.regions and dtypes.of(result.dtype).is_inexact and _allowed(op, operands, result, 0) is not None


def _allowed(op: Op, operands: list[Array], result: Array, least_ulps: float) -> Array | None:
    """By how much each element may be off, as an array or a number; None for not at all."""
    tolerance = op.tolerance
    if tolerance.ulps == 0 and not (op.regions or op.is_composite):
        return None
    if op.name in RING and _whole(op, operands, result) and not _by_winograd(op, operands):
        return None
    dtype = dtypes.of(result.dtype)
    own, wide = epsilon(dtype), epsilon(dtypes.accumulator(dtype))
    size = np.abs(result.astype(np.complex128 if dtype.is_complex else np.float64))
    if op.name.startswith(STEPPED):
        return np.asarray(STEP * np.max(size, initial=1e-6))
    if op.name in SUMS:
        terms = max([a.size for a in operands] + [1]) / max(result.size, 1)
        if isinstance(op, PackedMatmul):  # its weights are rounded to the dtype that it computes for
            wide, terms = own, op.depth
        return np.asarray(max(least_ulps, 1) * own * size + (3 + np.sqrt(terms)) * wide * _sum_of_sizes(op, operands))
    ulps = max(min(tolerance.ulps, 64) if own < 1e-5 else min(tolerance.ulps, 4), least_ulps)
    if least_ulps and op.name in SHIFTED:
        ulps += max([float(np.max(np.abs(a), initial=0, where=np.isfinite(a))) for a in operands[:1]])
    least = float(ml_dtypes.finfo(result.dtype).smallest_subnormal)
    return np.asarray(ulps * (own * (size + min(tolerance.scale, 1)) + least))


def _by_winograd(op: Op, operands: list[Array]) -> bool:
    """Whether a convolution may be worked out by transforms, whose factors are no whole numbers."""
    return op.name == "conv" and operands[1].shape[2:] == (3, 3) and operands[1].dtype == np.float32


def _sum_of_sizes(op: Op, operands: list[Array]) -> Array:
    """What the op gives for the sizes of its operands: what roundings on the way are measured by."""
    if isinstance(op, PackedMatmul):  # sizes of integers are not those of the weights that they stand for
        weights = op.reference(np.eye(op.depth), *operands[1:])
        return np.asarray(np.abs(operands[0].astype(np.float64)) @ np.abs(weights))
    wide = [np.abs(a.astype(np.float64)) if dtypes.of(a.dtype).is_float else a for a in operands]
    totals = op.reference(*wide)
    return np.abs(np.asarray(totals[0] if isinstance(totals, tuple) else totals).astype(np.float64))


def _whole(op: Op, operands: list[Array], result: Array) -> bool:
    """Whether all that is added and multiplied are whole numbers small enough to be exact."""
    bound = 1.0
    floats = [a for a in operands if dtypes.of(a.dtype).is_float]
    for a in floats:
        wide = a.astype(np.float64)
        if not np.isfinite(wide).all() or (wide != np.trunc(wide)).any():
            return False
        bound *= max(float(np.abs(wide).max(initial=0)), 1.0)
    dtype: DType = dtypes.of(result.dtype)
    if op.name in SUMS:
        dtype = dtypes.accumulator(dtype)
        bound *= max([a.size for a in operands] + [1])
    if op.name in ("reduce_prod", "cumprod", "reduce_window"):
        bound = float(np.abs(result.astype(np.float64)).max(initial=0)) * 16
    return bound < 2.0 ** EXACT_BITS.get(dtype.name, 0)


class _Region:
    """A sub-graph that a control op can call."""

    def __init__(self, graph: Graph, params: Mapping[str, Array], binding: Binding, noise: Noise | None) -> None:
        self.graph, self.params, self.binding, self.noise = graph, params, binding, noise
        self.outputs: tuple[TensorType, ...] = tuple(
            type_with_dims(v.type, lambda d: dims.evaluate(d, binding)) for v in graph.outputs.values()
        )

    def __call__(self, *operands: Array) -> list[Array]:
        self.graph.bind(self.binding)
        inputs = dict(zip((v.name for v in self.graph.inputs), operands))
        values = run(self.graph, inputs, self.params, self.binding, self.noise)
        return [values[v] for v in self.graph.outputs.values()]


def run_node(
    node: Node,
    operands: list[Array],
    params: Mapping[str, Array],
    binding: Binding,
    noise: Noise | None = None,
    quiet: Sequence[Array] | None = None,
) -> tuple[Array, ...]:
    """Results of a node that is no input or param; `quiet` are those without noise anywhere before."""
    bound_op = bind_op(node.op, binding)
    noisy = operands if noise is None else noise.before(bound_op, operands)
    keywords: dict[str, Any] = {}
    if node.regions:
        keywords["regions"] = tuple(_Region(g, params, binding, noise) for g in node.regions)
    arrays = _arrays(node, bound_op.reference(*noisy, **keywords))
    if noise is None or node.regions:
        return arrays
    if bound_op.name == QUANTISED and noise.least_ulps:
        arrays = noise.other_step(operands[0], arrays)
    strays = [_apart(a, b) for a, b in zip(arrays, quiet)] if quiet is not None else [0.0] * len(arrays)
    return tuple(noise.after(bound_op, operands, a, stray) for a, stray in zip(arrays, strays))


def _arrays(node: Node, result: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    results = result if isinstance(result, tuple) else (result,)
    return tuple(np.asarray(r, dtype=t.dtype.numpy) for r, t in zip(results, node.types))


def _apart(a: Array, b: Array) -> Array:
    """The distances of two arrays' elements, 0 where they are the same or none is a number, and for arrays of other
    sizes, as what data measure may be with noise."""
    if a.shape != b.shape:
        return np.zeros(a.shape)
    wide = np.complex128 if dtypes.of(a.dtype).is_complex else np.float64
    with np.errstate(all="ignore"):
        return np.where(a == b, 0.0, np.nan_to_num(np.abs(a.astype(wide) - b.astype(wide)), nan=0.0))


def _read_again(noise: Noise, node: Node, operands: list[Array], rounded: set[Value]) -> list[Array]:
    """The operands as a device may see them that works out a value anew wherever it is read, and not always alike."""
    if not noise.least_ulps:
        return operands
    return [noise.moved(a) if v in rounded else a for v, a in zip(node.inputs, operands)]


def run(
    graph: Graph,
    inputs: Mapping[str, Array],
    params: Mapping[str, Array],
    binding: Binding,
    noise: Noise | None = None,
    quiet: Mapping[Value, Array] | None = None,
) -> dict[Value, Array]:
    """Every value of the graph; `quiet` are those without noise."""
    values: dict[Value, Array] = {}
    rounded: set[Value] = set()
    for node in graph.nodes:
        if isinstance(node.op, (Input, Param)):
            array = (inputs if isinstance(node.op, Input) else params)[node.name]
            results: tuple[Array, ...] = (array if noise is None else noise.flushed(array),)
        else:
            operands = [values[v] for v in node.inputs]
            if noise is not None:
                operands = _read_again(noise, node, operands, rounded)
            still = None if quiet is None else [quiet[v] for v in node.outputs]
            results = run_node(node, operands, params, binding, noise, still)
            passed = any(v in rounded for v in node.inputs)
            if noise is not None and (passed or _rounds(bind_op(node.op, binding), operands, results[0])):
                rounded.update(v for v, r in zip(node.outputs, results) if r.dtype in (np.float32, np.float64))
            if isinstance(node.op, Measured):
                binding = {**binding, node.op.symbol: int(results[0])}
        values.update(zip(node.outputs, results))
    return values


@dataclass(frozen=True)
class Expected:
    """An output's array, and how far each element may be from it; infinite where nothing can be said."""

    array: Array
    bound: Array

    def strays(self, other: Array) -> Array:
        """How far each element is from another array's; nothing for those that are the same, and none that is one."""
        return 1.01 * _apart(self.array, other)

    def mismatch(self, actual: Array) -> str | None:
        """What is wrong with an array; None if nothing is."""
        expected = self.array
        if actual.dtype != expected.dtype or actual.shape != expected.shape:
            return f"expected {expected.dtype}{list(expected.shape)}, got {actual.dtype}{list(actual.shape)}"
        wide = np.complex128 if dtypes.of(expected.dtype).is_complex else np.float64
        if dtypes.of(expected.dtype).is_integer:
            off, same = (actual != expected) * 1.0, actual == expected
        else:
            a, b = actual.astype(wide), expected.astype(wide)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            with np.errstate(all="ignore"):
                off = np.where(same, 0.0, np.abs(a - b))
        wrong = ~(same | (off <= self.bound) | np.isinf(self.bound))
        if not wrong.any():
            return None
        at = np.unravel_index(int(np.argmax(np.where(wrong, np.nan_to_num(off, nan=np.inf), -1))), wrong.shape)
        where = [int(i) for i in at]
        return (
            f"{int(wrong.sum())} of {wrong.size} elements differ, worst at {where}: "
            f"expected {expected[at]} within {self.bound[at]:.3g}, got {actual[at]}"
        )


def expect(
    program: Program,
    binding: Binding,
    runs: int = 3,
    scale: float = 1.0,
    change: int = 0,
    least_ulps: float = 0,
    flushes: bool = False,
) -> dict[str, Expected]:
    """What each output should be. More `runs` and more `scale` find what the first few missed."""
    with np.errstate(all="ignore"):
        graph, (inputs, params) = program.graph, program.arrays(binding, change)
        outputs = graph.outputs
        base = run(graph, inputs, params, binding)
        noisy = [run(graph, inputs, params, binding, Noise(i, scale, least_ulps, flushes), base) for i in range(runs)]
        # comparisons of what is below the normal range may go either way: the greater of 0 and -1e-40
        least = {name: TINY if flushes and dtypes.of(base[v].dtype).is_inexact else 0.0 for name, v in outputs.items()}
        return {
            name: Expected(base[value], least[name] + _bound(base[value], [values[value] for values in noisy]))
            for name, value in outputs.items()
        }


def _bound(base: Array, noisy: list[Array]) -> Array:
    """The widest stray times `SPREAD`; infinite where NaN, infinities or whole numbers come and go."""
    discrete = not dtypes.of(base.dtype).is_inexact
    wide: Callable[[Array], Array] = lambda a: a.astype(np.complex128 if np.iscomplexobj(a) else np.float64)  # noqa: E731
    exact = wide(base)
    worst = np.zeros(base.shape)
    for array in noisy:
        other = wide(array)
        same = (array == base) | (np.isnan(other) & np.isnan(exact))
        apart = np.where(same, 0.0, np.abs(other - exact))
        if discrete:
            apart = np.where(same, 0.0, np.inf)
        worst = np.maximum(worst, np.nan_to_num(apart, nan=np.inf, posinf=np.inf))
    return worst * SPREAD
