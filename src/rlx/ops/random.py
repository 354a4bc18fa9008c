"""Random numbers from counters: Philox 4x32-10. The same state gives the same bits on every device and in every run.

A *state* is u32 [4]: a key of two words, and two words that count (the runs of a program, say). The numbers of an op
are a function of state, `stream` and position alone, so they can be drawn in any order and by any number of threads.
Ops of a program that shall differ under one state have streams of their own. `rlx.runtime` gives the state to programs
whose input of the name `RANDOM_STATE` the caller leaves out.

Source: Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", doi:10.1145/2063384.2063405.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import DTypeError, ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim, Shape
from rlx.ir.dtype import DType, accumulator
from rlx.ir.expr import Expr, apply, const, select
from rlx.ir.graph import Value
from rlx.ir.op import Composite, Elementwise, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops import build

Array = np.ndarray[Any, Any]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MAX_NUMBERS = 1 << 32
"""Of one op: positions are words of 32 bits."""


@op
class MultiplyHigh(Elementwise):
    """The upper half of the product of two u32."""

    kinds = ("uint",)

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        return _words(x, y)

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return _multiply_high(x, y)

    def reference(self, x: Array, y: Array) -> Array:
        return ((x.astype(np.uint64) * y.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


@op
class Philox(Elementwise):
    """One word of a Philox block: word `word` (0 to 3) of what the counter becomes under the key. All are u32."""

    kinds = ("uint",)

    def infer(
        self, c0: TensorType, c1: TensorType, c2: TensorType, c3: TensorType, k0: TensorType, k1: TensorType,
        word: TensorType,
    ) -> TensorType:  # fmt: skip
        return _words(c0, c1, c2, c3, k0, k1, word)

    def scalar(self, c0: Expr, c1: Expr, c2: Expr, c3: Expr, k0: Expr, k1: Expr, word: Expr) -> Expr:
        factors = [const(m, dtypes.u32) for m in MULTIPLIERS]
        for number in range(ROUNDS):
            if number:
                k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
            high0, high1 = _multiply_high(c0, factors[0]), _multiply_high(c2, factors[1])
            low0, low1 = c0 * factors[0], c2 * factors[1]
            c0, c1 = apply("xor", apply("xor", high1, c1), k0), low1
            c2, c3 = apply("xor", apply("xor", high0, c3), k1), low0
        upper = select(apply("eq", word, const(2, dtypes.u32)), c2, c3)
        lower = select(apply("eq", word, const(0, dtypes.u32)), c0, c1)
        return select(apply("lt", word, const(2, dtypes.u32)), lower, upper)

    def reference(self, *operands: Array) -> Array:
        word, blocks = operands[6], operands[:6]
        wide = [np.asarray(a, np.uint64) for a in np.broadcast_arrays(*blocks)]
        mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        for number in range(ROUNDS):
            if number:
                wide[4:] = [(key + np.uint64(step)) & mask for key, step in zip(wide[4:], WEYL)]
            first, second = wide[0] * np.uint64(MULTIPLIERS[0]), wide[2] * np.uint64(MULTIPLIERS[1])
            wide[0], wide[1] = (second >> half) ^ wide[1] ^ wide[4], second & mask
            wide[2], wide[3] = (first >> half) ^ wide[3] ^ wide[5], first & mask
        return np.choose(np.minimum(word, 3), np.stack(wide[:4])).astype(np.uint32)


def _words(*types: TensorType) -> TensorType:
    for of in types:
        if of.dtype is not dtypes.u32:
            raise DTypeError(f"expected operands of u32, got {of}")
    return TensorType(expect.broadcast(*(t.shape for t in types)), dtypes.u32)


def _multiply_high(x: Expr, y: Expr) -> Expr:
    """By halves of 16 bits: no target needs integers of 64 bits for it."""
    low, high = ([apply("and", e, 0xFFFF), apply("shr", e, 16)] for e in (x, y))
    (x0, x1), (y0, y1) = low, high
    middle = x1 * y0 + apply("shr", x0 * y0, 16)
    other = x0 * y1 + apply("and", middle, 0xFFFF)
    return x1 * y1 + apply("shr", middle, 16) + apply("shr", other, 16)


class _Draw(Composite):
    """What ops that draw numbers share."""

    stream: int

    def _check(self, state: TensorType, shape: Shape) -> None:
        if state.dtype is not dtypes.u32 or state.rank != 1:
            raise ShapeError(f"expected a state of u32[4], got {state}")
        expect.same_dim(state.shape[0], 4, f"expected a state of u32[4], got {state}")
        if not 0 <= self.stream < 1 << 32:
            raise ShapeError(f"expected a stream of 32 bits, got {self.stream}")
        size = dims.product(shape)
        if isinstance(size, int) and size > MAX_NUMBERS:
            raise ShapeError(f"expected at most {MAX_NUMBERS} numbers, got {list(shape)}")

    def _raw(self, state: Array, shape: Shape, words: int = 1) -> list[Array]:
        """`words` arrays of u32 of this shape; position i has the words i · words and on of the stream."""
        sizes = [dims.evaluate(d, {}) for d in shape]
        first = np.arange(int(np.prod(sizes)), dtype=np.uint32) * np.uint32(words)
        three, key = np.uint32(3), [state[i : i + 1] for i in range(4)]
        place = [np.full(1, self.stream, np.uint32), key[0], key[1]]
        counters = [first + np.uint32(i) for i in range(words)]
        return [
            Philox().reference(at >> np.uint32(2), key[2], key[3], *place, at & three).reshape(sizes) for at in counters
        ]

    def _bits(self, state: Value, shape: Shape, words: int = 1) -> list[Value]:
        """As `_raw`, in the graph."""
        place = build.iota(state.graph, shape=(dims.product(shape),), dtype=dtypes.u32)
        block, first = build.shift_right(place, 2 // words), build.bitwise_and(place, 4 // words - 1) * words
        return [self._word(state, block, first + i).reshape(shape) for i in range(words)]

    def _word(self, state: Value, block: Value, word: Value) -> Value:
        """Words of blocks of this op's stream; several words of one block cost little more than one."""
        four = state if state.shape == (4,) else state.reshape(4)  # its length may go by another name
        k0, k1, run0, run1 = (four[i : i + 1] for i in range(4))
        stream = state.graph.constant(self.stream, dtypes.u32)
        return build.philox(block, run0, run1, stream, k0, k1, word)


def _unit(bits: list[Array], dtype: DType) -> Array:
    """Numbers in [0, 1) that the dtype holds exactly: 53, 24, 11 or 8 bits of the words."""
    if dtype is dtypes.f64:
        high, low = ((b >> np.uint32(s)).astype(np.float64) for b, s in zip(bits, (5, 6)))
        return np.asarray((high * 2.0**26 + low) * 2.0**-53)
    count = _PRECISION[dtype.name]
    return ((bits[0] >> np.uint32(32 - count)).astype(np.float32) * np.float32(2.0**-count)).astype(np.float32)


_PRECISION = {"f32": 24, "f16": 11, "bf16": 8}


def _unit_value(bits: list[Value], dtype: DType) -> Value:
    if dtype is dtypes.f64:
        high, low = (build.shift_right(b, s).cast("f64") for b, s in zip(bits, (5, 6)))
        return (high * 2.0**26 + low) * 2.0**-53
    count = _PRECISION[dtype.name]
    return build.shift_right(bits[0], 32 - count).cast("f32") * 2.0**-count


def _float(dtype: DType) -> None:
    if dtype.name not in ("f64", *_PRECISION):
        raise DTypeError(f"expected f64, f32, f16 or bf16, got {dtype}")


def _words_of(dtype: DType) -> int:
    return 2 if dtype is dtypes.f64 else 1


@op
class RandomBits(_Draw):
    """Uniform u32 words of this shape. `state` as the module says."""

    shape: Shape
    stream: int = 0

    def infer(self, state: TensorType) -> TensorType:
        self._check(state, self.shape)
        return TensorType(self.shape, dtypes.u32)

    def reference(self, state: Array) -> Array:
        return self._raw(state, self.shape)[0]

    def decompose(self, state: Value) -> Value:
        return self._bits(state, self.shape)[0]


@op
class RandomUniform(_Draw):
    """Numbers from low up to, and without, high; low if they are equal."""

    shape: Shape
    low: float = 0.0
    high: float = 1.0
    stream: int = 0
    dtype: DType = dtypes.f32
    tolerance = Tolerance(2, scale=1)

    def infer(self, state: TensorType) -> TensorType:
        self._check(state, self.shape)
        _float(self.dtype)
        if not (self.low <= self.high and np.isfinite(self.high - self.low)):
            raise ShapeError(f"expected finite numbers low ≤ high, got {self.low} and {self.high}")
        return TensorType(self.shape, self.dtype)

    def _greatest(self) -> float:
        """The greatest number of the dtype below high: rounding must not reach it."""
        numpy = self.dtype.numpy.type
        low, high = numpy(self.low), numpy(self.high)
        return float(np.nextafter(high, numpy(-np.inf))) if low < high else float(low)

    def reference(self, state: Array) -> Array:
        unit = _unit(self._raw(state, self.shape, _words_of(self.dtype)), self.dtype).astype(np.float64)
        numbers = (self.low + unit * (self.high - self.low)).astype(self.dtype.numpy)
        return np.asarray(np.minimum(numbers, self.dtype.numpy.type(self._greatest())))

    def decompose(self, state: Value) -> Value:
        unit = _unit_value(self._bits(state, self.shape, _words_of(self.dtype)), self.dtype)
        numbers = (unit * (self.high - self.low) + self.low).cast(self.dtype)
        return build.minimum(numbers, state.graph.constant(self._greatest(), self.dtype))


@op
class RandomNormal(_Draw):
    """Normal numbers of this mean and standard deviation, by pairs (Box & Muller 1958, doi:10.1214/aoms/1177706645).

    The radius comes of all 32 bits of a word, so tails reach to 6.6 standard deviations.
    """

    shape: Shape
    mean: float = 0.0
    deviation: float = 1.0
    stream: int = 0
    dtype: DType = dtypes.f32
    tolerance = Tolerance(32, scale=2)

    def infer(self, state: TensorType) -> TensorType:
        self._check(state, self.shape)
        _float(self.dtype)
        return TensorType(self.shape, self.dtype)

    def reference(self, state: Array) -> Array:
        sizes = [dims.evaluate(d, {}) for d in self.shape]
        count = int(np.prod(sizes))
        pairs = RandomBits((-(-count // 2), 2), self.stream).reference(state)
        radius = np.sqrt(-2 * np.log((pairs[:, :1] + 1.0) * 2.0**-32))
        angle = pairs[:, 1:].view(np.int32) * (2 * np.pi * 2.0**-32)
        both = radius * np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        numbers: Array = self.mean + self.deviation * both.reshape(-1)[:count].reshape(sizes)
        return numbers.astype(self.dtype.numpy)

    def decompose(self, state: Value) -> Value:
        wide = accumulator(self.dtype)
        place = build.iota(state.graph, shape=(dims.product(self.shape),), dtype=dtypes.u32)
        block, first = build.shift_right(place, 2), build.bitwise_and(place, 2)
        a, b = (self._word(state, block, word) for word in (first, first + 1))
        radius = build.sqrt(build.log((a.cast(wide) + 1.0) * 2.0**-32) * -2.0)
        angle = build.bitcast(b, to=dtypes.i32).cast(wide) * (2 * np.pi * 2.0**-32)
        # the second of a pair is the sine: a cosine a quarter turn behind
        behind = build.bitwise_and(place, 1).cast(wide) * (np.pi / 2)
        numbers = radius * build.cos(angle - behind) * self.deviation + self.mean
        return numbers.reshape(self.shape).cast(self.dtype)


@op
class RandomIntegers(_Draw):
    """Integers from low up to, and without, high; high - low at most 2³². Of unlike chance by less than range / 2³²."""

    shape: Shape
    low: int
    high: int
    stream: int = 0
    dtype: DType = dtypes.i64

    def infer(self, state: TensorType) -> TensorType:
        self._check(state, self.shape)
        if self.dtype.name not in ("i32", "i64", "u32", "u64"):
            raise DTypeError(f"expected an integer dtype of 32 or 64 bits, got {self.dtype}")
        info = np.iinfo(self.dtype.numpy)
        if not (info.min <= self.low < self.high <= int(info.max) + 1 and self.high - self.low <= 1 << 32):
            raise ShapeError(f"expected low < high, at most 2³² apart and of {self.dtype}, got {self.low}, {self.high}")
        return TensorType(self.shape, self.dtype)

    def reference(self, state: Array) -> Array:
        bits = self._raw(state, self.shape)[0].astype(np.uint64)
        offset = (bits * np.uint64(self.high - self.low - 1) + bits) >> np.uint64(32)
        with np.errstate(over="ignore"):
            return np.asarray(offset.astype(self.dtype.numpy) + np.array(self.low, self.dtype.numpy))

    def decompose(self, state: Value) -> Value:
        bits = self._bits(state, self.shape)[0]
        count = self.high - self.low
        if count < 1 << 32:
            bits = build.multiply_high(bits, state.graph.constant(count, dtypes.u32))
        return bits.cast(self.dtype) + state.graph.constant(self.low, self.dtype)


@op
class Bernoulli(_Draw):
    """Whether a uniform number of [0, 1) is below p: bool of the shape of p. NaN gives false.

    p  float [...]
    """

    stream: int = 0

    def infer(self, p: TensorType, state: TensorType) -> TensorType:
        expect.floating(p, "p")
        self._check(state, p.shape)
        return TensorType(p.shape, dtypes.bool_)

    def _dtype(self, p: DType) -> DType:
        return dtypes.f64 if p is dtypes.f64 else dtypes.f32

    def reference(self, p: Array, state: Array) -> Array:
        dtype = self._dtype(dtypes.of(p.dtype))
        unit = _unit(self._raw(state, p.shape, _words_of(dtype)), dtype)
        return np.asarray(unit < p.astype(dtype.numpy))

    def decompose(self, p: Value, state: Value) -> Value:
        dtype = self._dtype(p.dtype)
        return _unit_value(self._bits(state, p.shape, _words_of(dtype)), dtype) < p.cast(dtype)


@op
class Categorical(_Draw):
    """Draws classes by logarithms of their chances, which need not add up to 1: i64 [..., samples].

    logits  float [..., classes]; -inf is never drawn
    Source: Gumbel-max, Maddison, Tarlow & Minka 2014, arXiv:1411.0030, section 2.
    """

    samples: Dim
    stream: int = 0

    def infer(self, logits: TensorType, state: TensorType) -> TensorType:
        expect.floating(logits, "logits")
        expect.rank(logits, 1, "logits")
        if logits.shape[-1] == 0 or (isinstance(self.samples, int) and self.samples < 0):
            raise ShapeError(f"expected classes and a number of samples, got {logits} and {self.samples}")
        self._check(state, self._noise(logits.shape))
        return TensorType((*logits.shape[:-1], self.samples), dtypes.i64)

    def _noise(self, shape: Shape) -> Shape:
        return (*shape[:-1], self.samples, shape[-1])

    def reference(self, logits: Array, state: Array) -> Array:
        bits = self._raw(state, self._noise(logits.shape))[0]
        unit = ((bits >> np.uint32(8)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-24)
        noise = -np.log(-np.log1p(-unit))  # f32 as in compiled code: a nearly equal pair falls the same way
        return np.asarray(np.argmax(logits.astype(np.float32)[..., None, :] + noise, -1))

    def decompose(self, logits: Value, state: Value) -> Value:
        bits = self._bits(state, self._noise(logits.shape))[0]
        unit = (build.shift_right(bits, 8).cast("f32") + 0.5) * 2.0**-24
        noise = build.neg(build.log(build.neg(build.log1p(build.neg(unit)))))
        lead = logits.cast("f32").reshape(*logits.shape[:-1], 1, logits.shape[-1])
        return build.argmax(lead + noise, axis=-1)


@op
class Dropout(_Draw):
    """x with elements set to 0 with the chance `ratio`, the others divided by 1 - ratio; and what was kept, bool.

    x      float [...]
    ratio  float scalar in [0, 1]; at 1 all is 0
    Source: Srivastava et al. 2014, Journal of Machine Learning Research 15.
    """

    stream: int = 0
    tolerance = Tolerance(2)

    def infer(self, x: TensorType, ratio: TensorType, state: TensorType) -> tuple[TensorType, TensorType]:
        expect.floating(x)
        expect.floating(ratio, "ratio")
        expect.rank(ratio, 0, "ratio", at_most=0)
        self._check(state, x.shape)
        return x, TensorType(x.shape, dtypes.bool_)

    def reference(self, x: Array, ratio: Array, state: Array) -> tuple[Array, Array]:
        share = ratio.astype(np.float32)
        mask = _unit(self._raw(state, x.shape), dtypes.f32) >= share
        wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
        with np.errstate(all="ignore"):
            scaled = wide * (1 / (1 - share)).astype(wide.dtype)
            return np.where(mask, scaled, 0).astype(x.dtype), np.asarray(mask)

    def decompose(self, x: Value, ratio: Value, state: Value) -> tuple[Value, Value]:
        share = ratio.cast("f32")
        mask = _unit_value(self._bits(state, x.shape), dtypes.f32) >= share
        wide = accumulator(x.dtype)
        scaled = x.cast(wide) * (1.0 / (1.0 - share)).cast(wide)
        return build.select(mask, scaled, 0.0).cast(x.dtype), mask
