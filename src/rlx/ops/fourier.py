"""Fourier transforms along an axis, of real and imaginary parts that are values of their own.

The compiled backends have no complex dtype. Two values compose better than a trailing axis of [re, im] pairs: windows,
twiddles and powers stay elementwise on neighbouring elements, and a real signal needs no imaginary half.

Lengths that are known become a few contractions with small matrices (`fourier_plan.py`); a length that is a named dim
becomes one contraction with a matrix that is made at run time. Sources: Cooley & Tukey 1965,
doi:10.1090/S0025-5718-1965-0178586-1; Bluestein 1970, doi:10.1109/TAU.1970.1162132; Sorensen et al. 1987,
doi:10.1109/TASSP.1987.1165220 (real signals).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.dtype import accumulator
from rlx.ir.graph import Value, call
from rlx.ir.op import Composite, Cost, Tolerance, op
from rlx.ir.padding import Padded, Padding
from rlx.ir.type import TensorType
from rlx.ops import build, fourier_plan, shorthand
from rlx.ops.fourier_plan import MAX_LENGTH, Plan, plan

Array = np.ndarray[Any, Any]
Pair = tuple[Value, Value]


def half(length: Dim) -> Dim:
    """Number of bins of a real signal's transform that say all of it."""
    return dims.add(dims.floordiv(length, 2), 1)


class _Transform(Composite):
    """What transforms share. `scale` of the tolerance: errors are relative to the size of the whole row."""

    axis: int
    length: Dim | None
    tolerance = Tolerance(64, scale=16)

    def _with_axis(self, of: TensorType, extent: Dim) -> TensorType:
        """The type with another extent along the axis."""
        if isinstance(extent, int) and not 1 <= extent <= MAX_LENGTH:
            raise ShapeError(f"expected a transform of 1 to {MAX_LENGTH} elements, got {extent} of {of}")
        at = expect.axis(self.axis, of.rank)
        return of.with_shape((*of.shape[:at], extent, *of.shape[at + 1 :]))

    def _count(self) -> int | None:
        """The length as a number."""
        return None if self.length is None else dims.evaluate(self.length, {})

    def padded(self, padding: Padding, real: Padded, *imaginary: Padded) -> Padded | tuple[Padded, ...] | None:
        """As it is, of rows that count whole; others have to be taken apart."""
        at = self.axis % len(real.axes)
        if padding.is_open(real.shape[at], self.length or 0):
            return None
        axes = padding.joined(real.shape, (real, *imaginary))
        result = padding.graph.add(self, real.value, *(x.value for x in imaginary))
        results = [
            Padded(value, (*axes[:at], (value.shape[at],), *axes[at + 1 :]))
            for value in (result if isinstance(result, tuple) else (result,))
        ]
        return tuple(results) if isinstance(result, tuple) else results[0]

    def is_plain(self, x: TensorType) -> bool:
        """Whether rows are transformed as they are: along the last axis, of no other length, in a dtype that sums are
        kept in. Other ops are defined by plain ones."""
        at_end = expect.axis(self.axis, x.rank) == x.rank - 1
        return at_end and accumulator(x.dtype) is x.dtype and self._extent(x) == x.shape[-1]

    def _extent(self, x: TensorType) -> Dim:
        """Of the axis, elements of the operand that the transform sees."""
        return x.shape[self.axis] if self.length is None else self.length

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        """As a fast transform of 5 · n · log₂ n operations; a length that is a dim as a direct sum."""
        n = max((t.shape[self.axis] for t in (*inputs, *outputs)), key=lambda d: (not isinstance(d, int), str(d)))
        if isinstance(n, int):
            n = max(d for t in (*inputs, *outputs) if isinstance(d := t.shape[self.axis], int))
            depth: Dim = 5 * max(n.bit_length() - 1, 1)
        else:
            depth = dims.mul(4, n)
        nbytes = sum((dims.mul(t.size, t.dtype.itemsize) for t in (*inputs, *outputs)), start=0)
        return Cost(flops=dims.mul(outputs[0].size, depth), bytes=nbytes)


@op
class Fft(_Transform):
    """Discrete Fourier transform: Σₜ x[t] · e^(∓2πi·k·t/n), and for the inverse divided by n.

    real, imaginary  float [..., n, ...]; without an imaginary part it is 0
    results          real and imaginary part [..., length, ...]

    A `length` other than n cuts x, or puts zeros behind it. A NaN makes its row NaN.
    """

    axis: int = -1
    length: Dim | None = None
    inverse: bool = False

    def infer(self, real: TensorType, imaginary: TensorType | None = None) -> tuple[TensorType, TensorType]:
        _same(real, imaginary)
        at = expect.axis(self.axis, real.rank)
        result_type = self._with_axis(real, real.shape[at] if self.length is None else self.length)
        return result_type, result_type

    def reference(self, real: Array, imaginary: Array | None = None) -> tuple[Array, Array]:
        transform = np.fft.ifft if self.inverse else np.fft.fft
        x = _complex(real, imaginary)
        spectrum = _nan_rows(transform(x, self._count(), self.axis), x, self.axis)
        return spectrum.real.astype(real.dtype), spectrum.imag.astype(real.dtype)

    def decompose(self, real: Value, imaginary: Value | None = None) -> Pair:
        length = self._extent(real.type)
        if not self.is_plain(real.type):
            re = _row(real, self.axis, length)
            im = None if imaginary is None else _row(imaginary, self.axis, length)
            spectrum = _fft(re, im, length, self.inverse)
            return _back(spectrum[0], real, self.axis), _back(spectrum[1], real, self.axis)
        spectrum = _transform(real, imaginary, 1 if self.inverse else -1, length)
        if self.inverse:
            spectrum = (build.div(spectrum[0], _number(real, length)), build.div(spectrum[1], _number(real, length)))
        return spectrum


@op
class Rfft(_Transform):
    """The bins 0 to ⌊n/2⌋ of the transform of a real signal; the others are their conjugates.

    x        float [..., n, ...]
    results  real and imaginary part [..., ⌊length/2⌋ + 1, ...]

    A `length` other than n cuts x, or puts zeros behind it.
    """

    axis: int = -1
    length: Dim | None = None

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        expect.floating(x)
        at = expect.axis(self.axis, x.rank)
        whole = self._with_axis(x, x.shape[at] if self.length is None else self.length)
        result_type = self._with_axis(x, half(whole.shape[at]))
        return result_type, result_type

    def reference(self, x: Array) -> tuple[Array, Array]:
        spectrum = _nan_rows(np.fft.rfft(x.astype(np.float64), self._count(), self.axis), x, self.axis)
        return spectrum.real.astype(x.dtype), spectrum.imag.astype(x.dtype)

    def decompose(self, x: Value) -> Pair:
        length = self._extent(x.type)
        if not self.is_plain(x.type):
            spectrum: Any = call("rfft", _row(x, self.axis, length), length=length)
            return _back(spectrum[0], x, self.axis), _back(spectrum[1], x, self.axis)
        if not isinstance(length, int):
            return _at_run_time(x, None, -1, length, half(length))
        if not plan(length).factor:
            return _direct(x, None, length, -1, axis=-1, bins=length // 2 + 1)
        if length % 2 == 0:
            return _real_by_half(x, length)
        re, im = _fft(x, None, length)
        return _cut(re, half(length)), _cut(im, half(length))


@op
class Irfft(_Transform):
    """The real signal that has these bins: the inverse of Rfft.

    real, imaginary  float [..., bins, ...]; the imaginary parts of bin 0 and of n/2 count as 0
    result           [..., length, ...], by default of length 2 · (bins - 1); missing bins are 0, further ones unused
    """

    axis: int = -1
    length: Dim | None = None

    def infer(self, real: TensorType, imaginary: TensorType | None = None) -> TensorType:
        _same(real, imaginary)
        return self._with_axis(real, self._length(real))

    def _length(self, real: TensorType) -> Dim:
        bins = real.shape[expect.axis(self.axis, real.rank)]
        return dims.mul(dims.add(bins, -1), 2) if self.length is None else self.length

    def reference(self, real: Array, imaginary: Array | None = None) -> Array:
        signal: Array = np.fft.irfft(_complex(real, imaginary), self._count(), self.axis)
        return signal.astype(real.dtype)

    def _extent(self, x: TensorType) -> Dim:
        return half(self._length(x))

    def decompose(self, real: Value, imaginary: Value | None = None) -> Value:
        length = self._length(real.type)
        if not self.is_plain(real.type):
            re = _row(real, self.axis, half(length))
            im = None if imaginary is None else _row(imaginary, self.axis, half(length))
            row: Any = call("irfft", re, im, length=length)
            return _back(row, real, self.axis)
        if imaginary is None:
            imaginary = build.mul(real, 0.0)
        if isinstance(length, int) and length % 2 == 0 and plan(length).factor:
            return _halves_to_real(real, imaginary, length)
        return _sum_to_real(real, imaginary, length)


def _same(real: TensorType, imaginary: TensorType | None) -> None:
    expect.floating(real, "real")
    if imaginary is not None:
        expect.same_dtype(real, imaginary)
        expect.rank(imaginary, real.rank, "imaginary", at_most=real.rank)
        for a, b in zip(real.shape, imaginary.shape):
            expect.same_dim(a, b, f"expected parts of one shape, got {real} and {imaginary}")


def _nan_rows(spectrum: Array, x: Array, axis: int) -> Array:
    """A NaN reaches every bin, also where an algorithm would pass it by."""
    return np.where(np.isnan(x).any(axis, keepdims=True), np.nan * (1 + 1j), spectrum)


def _complex(real: Array, imaginary: Array | None) -> Array:
    numbers = real.astype(np.complex128)
    if imaginary is not None:
        numbers.imag = imaginary
    return numbers


# rows: the transformed axis last, of the right extent, in float32 or wider


def _row(x: Value, axis: int, extent: Dim) -> Value:
    return resized(shorthand.swap_axes(x, axis, -1), extent).cast(accumulator(x.dtype))


def _back(row: Value, like: Value, axis: int) -> Value:
    return shorthand.swap_axes(row.cast(like.dtype), axis, -1)


def resized(x: Value, extent: Dim) -> Value:
    """x cut along its last axis, or with zeros behind it."""
    have = x.shape[-1]
    if have == extent:
        return x
    missing = dims.add(extent, dims.mul(have, -1))
    return build.pad(x, low=(0,) * x.rank, high=(*([0] * (x.rank - 1)), missing))


def _cut(x: Value, stop: Dim, start: Dim = 0) -> Value:
    """Elements of the last axis; the ends are known to lie inside."""
    starts = (*([0] * (x.rank - 1)), start)
    return build.slice(x, starts=starts, stops=(*x.shape[:-1], stop), steps=(1,) * x.rank)


def _number(like: Value, number: Dim) -> Value:
    """A dim as a scalar of the dtype of `like`."""
    if isinstance(number, int):
        return like.graph.constant(number, like.dtype)
    return build.dims_tensor(like.graph, values=(number,), dtype=like.dtype).reshape()


def _constant(like: Value, array: Array) -> Value:
    return like.graph.constant(array, like.dtype)


def _fft(re: Value, im: Value | None, length: Dim, inverse: bool = False) -> Pair:
    """A transform of rows as an op of its own, which a backend may claim."""
    spectrum: Any = call("fft", re, im, length=length, inverse=inverse)
    return spectrum[0], spectrum[1]


def _times(re: Value, im: Value, factor: Pair) -> Pair:
    """A complex product."""
    return re * factor[0] - im * factor[1], re * factor[1] + im * factor[0]


# transforms


def _transform(re: Value, im: Value | None, sign: int, length: Dim) -> Pair:
    """Rows [..., length] to as many bins, not normalised."""
    if not isinstance(length, int):
        return _at_run_time(re, im, sign, length, length)
    column = _steps(re[..., None], None if im is None else im[..., None], plan(length), sign)
    flat = [part.reshape(re.shape) for part in column]
    return flat[0], flat[1]


def _at_run_time(re: Value, im: Value | None, sign: int, length: Dim, bins: Dim) -> Pair:
    """The sums of the definition with a matrix that is made when the length is known."""
    cosine, sine = _made_matrix(re, sign, length, bins)
    axis = re.rank - 1
    real, imaginary = _dot(re, cosine, axis), _dot(re, sine, axis)
    if im is not None:
        real, imaginary = real - _dot(im, sine, axis), imaginary + _dot(im, cosine, axis)
    return real, imaginary


def _direct(re: Value, im: Value | None, length: int, sign: int, axis: int, bins: int | None = None) -> Pair:
    """The sums of the definition along `axis`, in whose place nothing stays; the bins come last.

    Elements t and n-t meet the same cosine and opposite sines, so their sums and differences are taken first: half the
    products, and what cancels by symmetry cancels exactly (a spectrum of a real signal gives an imaginary part of 0).
    """
    count = length // 2 + 1
    cosine, sine = (part[:count] for part in fourier_plan.matrix(length, sign, bins))
    alone = np.arange(count) * 2 % length == 0
    cosine = np.where(alone[:, None], cosine / 2, cosine)
    axis %= re.rank
    evens, odds = zip(*(_folded(part, length, axis) for part in (re, im) if part is not None))
    factors = _constant(re, cosine), _constant(re, sine)
    real, imaginary = _dot(evens[0], factors[0], axis), _dot(odds[0], factors[1], axis)
    if im is not None:
        real, imaginary = real - _dot(odds[1], factors[1], axis), imaginary + _dot(evens[1], factors[0], axis)
    return real, imaginary


def _folded(x: Value, length: int, axis: int) -> Pair:
    """x[t] + x[n-t] and x[t] - x[n-t] for t up to n/2."""
    count = length // 2 + 1
    stops = tuple(count if i == axis else d for i, d in enumerate(x.shape))
    front = build.slice(x, starts=(0,) * x.rank, stops=stops, steps=(1,) * x.rank)
    back = build.gather(x, np.mod(-np.arange(count), length), axis=axis)
    return front + back, front - back


def _dot(x: Value, matrix: Value, axis: int) -> Value:
    return build.dot_general(x, matrix, lhs_contract=(axis,), rhs_contract=(0,))


def _steps(re: Value, im: Value | None, how: Plan, sign: int) -> Pair:
    """Columns [..., t, m] to [..., m, k] for a transform along t.

    With t = N₂·t₁ + t₂ and k = k₁ + N₁·k₂ the sum over t₁ is a transform of length N₁, a twiddle e^(2πi·t₂·k₁/n)
    follows, and the sum over t₂ is a transform of length N₂ for which k₁ is one more position.
    """
    if how.factor == 0:
        return _direct(re, im, how.length, sign, axis=-2)
    if how.factor < 0:
        return _bluestein(re, im, how, sign)
    first, rest = how.factor, how.length // how.factor
    lead, count = re.shape[:-2], re.shape[-1]
    split = [None if part is None else part.reshape(*lead, first, rest, count) for part in (re, im)]
    assert split[0] is not None
    parts = _direct(split[0], split[1], first, sign, axis=-3)  # [..., t₂, m, k₁]
    twiddle = fourier_plan.roots(np.outer(np.arange(rest), np.arange(first)), how.length, sign)
    factors = [_constant(re, part[:, None, :]) for part in twiddle]
    parts = _times(*parts, (factors[0], factors[1]))
    inner = [part.reshape(*lead, rest, dims.mul(count, first)) for part in parts]
    spectra = _steps(inner[0], inner[1], plan(rest), sign)  # [..., m·k₁, k₂]
    columns = [
        shorthand.swap_axes(part.reshape(*lead, count, first, rest), -1, -2).reshape(*lead, count, how.length)
        for part in spectra
    ]
    return columns[0], columns[1]


def _bluestein(re: Value, im: Value | None, how: Plan, sign: int) -> Pair:
    """With k·t = (k² + t² - (k-t)²) / 2 the sum is a convolution with a chirp, done by smooth transforms."""
    n, size = how.length, how.padded
    chirp = fourier_plan.chirp(n, sign)
    factor = _constant(re, chirp[0]), _constant(re, chirp[1])
    row = shorthand.swap_axes(re, -1, -2)
    across = build.mul(row, 0.0) if im is None else shorthand.swap_axes(im, -1, -2)
    parts = [resized(part, size) for part in _times(row, across, factor)]
    kernel = np.zeros(size, np.complex128)
    kernel[:n] = chirp[0] - 1j * chirp[1]
    kernel[size - n + 1 :] = kernel[1:n][::-1]
    spectrum = np.fft.fft(kernel)
    spectrum_of_x = _fft(parts[0], parts[1], size)
    product = _times(*spectrum_of_x, (_constant(re, spectrum.real), _constant(re, spectrum.imag)))
    signal = _fft(*product, size, inverse=True)
    return _times(_cut(signal[0], n), _cut(signal[1], n), factor)


def _made_matrix(like: Value, sign: int, length: Dim, bins: Dim) -> Pair:
    """The matrix of a length that the run brings. k·t is reduced modulo the length in integers."""
    graph = like.graph
    size = build.dims_tensor(graph, values=(length,), dtype="i64").reshape()
    time, bin_ = (build.iota(graph, shape=(length, bins), dtype="i64", axis=axis) for axis in (0, 1))
    turn = build.mod(time * bin_, size)
    turn = build.select(turn + turn > size, turn - size, turn)
    angle = build.div(turn.cast(like.dtype) * (2 * np.pi), _number(like, length))
    return build.cos(angle), build.sin(angle) * float(sign)


# real signals


def _real_by_half(x: Value, length: int) -> Pair:
    """Even and odd elements are taken as real and imaginary part of a signal z of half the length.

    X[k] = (Z[k] + Z*[n/2-k]) / 2 - i/2 · e^(-2πi·k/n) · (Z[k] - Z*[n/2-k])
    """
    count = length // 2
    pairs = x.reshape(*x.shape[:-1], count, 2)
    re, im = _fft(pairs[..., 0], pairs[..., 1], count)
    re, im = (build.concat(part, _cut(part, 1), axis=part.rank - 1) for part in (re, im))
    re_back, im_back = (shorthand.flip(part, (-1,)) for part in (re, im))
    cosine, sine = fourier_plan.roots(np.arange(count + 1), length, -1)
    # -i/2 · e^(-2πi·k/n) = (sine - i·cosine) / 2
    factor = _constant(re, sine / 2), _constant(re, -cosine / 2)
    odd = _times(re - re_back, im + im_back, factor)
    return (re + re_back) * 0.5 + odd[0], (im - im_back) * 0.5 + odd[1]


def _halves_to_real(re: Value, im: Value, length: int) -> Value:
    """The contrary of `_real_by_half`: Z[k] = X[k] + X*[n/2-k] + i · e^(2πi·k/n) · (X[k] - X*[n/2-k])."""
    count = length // 2
    edge = (*([0] * (im.rank - 1)), 1)
    im = build.pad(_cut(im, count, 1), low=edge, high=edge)
    re_back, im_back = (_cut(shorthand.flip(part, (-1,)), count) for part in (re, im))
    re, im = _cut(re, count), _cut(im, count)
    cosine, sine = fourier_plan.roots(np.arange(count), length, 1)
    odd = _times(re - re_back, im + im_back, (_constant(re, -sine), _constant(re, cosine)))
    pairs = _fft(re + re_back + odd[0], im - im_back + odd[1], count, inverse=True)
    return shorthand.stack(pairs, -1).reshape(*re.shape[:-1], length) * 0.5


def _sum_to_real(re: Value, im: Value, length: Dim) -> Value:
    """A real signal from its bins by the conjugates that are missing, or if it is short by one sum over the bins."""
    bins = half(length)
    if isinstance(length, int) and plan(length).factor:  # an odd length
        re = build.concat(re, shorthand.flip(_cut(re, bins, 1), (-1,)), axis=re.rank - 1)
        im = build.pad(_cut(im, bins, 1), low=(*([0] * (im.rank - 1)), 1), high=(0,) * im.rank)
        im = build.concat(im, build.neg(shorthand.flip(_cut(im, bins, 1), (-1,))), axis=im.rank - 1)
        return _fft(re, im, length, inverse=True)[0]
    if isinstance(length, int):
        cosine, sine = (_constant(re, part) for part in fourier_plan.matrix(length, 1, length // 2 + 1))
    else:
        cosine, sine = _made_matrix(re, 1, length, bins)
    weight = _weights(re, length, bins)
    cosine, sine = (build.mul(part, weight) for part in (cosine, sine))
    # at the middle bin sin(π·t) is 0 except for rounding; a bin beyond it does not count
    cosines = build.dot_general(re, cosine, lhs_contract=(re.rank - 1,), rhs_contract=(1,))
    return cosines - build.dot_general(im, sine, lhs_contract=(im.rank - 1,), rhs_contract=(1,))


def _weights(like: Value, length: Dim, bins: Dim) -> Value:
    """How often each bin counts, by length: 1 for bin 0 and the middle one, 2 for those that stand for two."""
    place = build.iota(like.graph, shape=(bins,), dtype=dtypes.i64)
    size = build.dims_tensor(like.graph, values=(length,), dtype=dtypes.i64).reshape()
    alone = build.eq(place, 0) | build.eq(place + place, size)
    return build.div(build.select(alone, _number(like, 1), _number(like, 2)), _number(like, length))
