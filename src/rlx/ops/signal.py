"""Signals over time: short-time transforms and back, log-mel spectra, power spectra and their peaks.

Time is the last axis. Windows are operands, so that any may be used (`shorthand.hann_window` and others make them).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.dtype import accumulator
from rlx.ir.graph import Value, call
from rlx.ir.op import Composite, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.fourier import half
from rlx.ops.shape import Frames

Array = np.ndarray[Any, Any]
Pair = tuple[Value, Value]

LEAST_SEEN = 1e-10
"""Where the squared windows over a place add up to less than this, nothing is known of the signal there."""


@op
class OverlapAdd(Composite):
    """Frames laid `step` apart, one over the other, and added: the contrary of `frames`.

    x       number [..., frames, length]
    result  [..., (frames - 1) · step + length]
    """

    step: int
    tolerance = Tolerance(16, scale=1)

    def infer(self, x: TensorType) -> TensorType:
        expect.kind(x, "int", "uint", "float")
        expect.rank(x, 2)
        if self.step < 1:
            raise ShapeError(f"expected a step of at least 1, got {self.step}")
        count, length = x.shape[-2:]
        if count == 0:
            raise ShapeError(f"expected at least one frame, got {x}")
        extent = dims.add(dims.mul(dims.add(count, -1), self.step), length)
        return x.with_shape((*x.shape[:-2], extent if isinstance(extent, int) else dims.maximum(0, extent)))

    def reference(self, x: Array) -> Array:
        count, length = x.shape[-2:]
        wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x
        signal = np.zeros((*x.shape[:-2], (count - 1) * self.step + length), wide.dtype)
        for i in range(count):
            signal[..., i * self.step : i * self.step + length] += wide[..., i, :]
        return signal.astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        """Each frame is cut into parts of a step; all first parts lie side by side, all second ones a step on."""
        count, length = x.shape[-2:]
        if not isinstance(length, int):
            raise ShapeError(f"expected frames of a known length, got {x.type}")
        parts = -(-length // self.step)
        none = [0] * (x.rank - 1)
        dtype = x.dtype
        x = build.pad(x.cast(accumulator(dtype)), low=(*none, 0), high=(*none, parts * self.step - length))
        total: Value | None = None
        for part in range(parts):
            piece = x[..., part * self.step : (part + 1) * self.step]
            line = piece.reshape(*x.shape[:-2], dims.mul(count, self.step))
            edge = (*none[1:], part * self.step), (*none[1:], (parts - 1 - part) * self.step)
            line = build.pad(line, low=edge[0], high=edge[1])
            total = line if total is None else total + line
        assert total is not None  # a frame has an element at least
        stop = dims.add(dims.mul(dims.add(count, -1), self.step), length)
        stops = (*total.shape[:-1], stop)
        return build.slice(total, starts=(0,) * total.rank, stops=stops, steps=(1,) * total.rank).cast(dtype)


class _Framed(Composite):
    """What ops on frames of a signal share."""

    step: int

    def _frames(self, x: TensorType, window: TensorType) -> TensorType:
        """The type of the frames that the window sees. Raises ShapeError, DTypeError."""
        expect.floating(x)
        expect.rank(x, 1)
        expect.same_dtype(x, window)
        expect.rank(window, 1, "window", at_most=1)
        result_type = Frames(length=window.shape[0], step=self.step).infer(x)
        if result_type.shape[-2] == 0:
            raise ShapeError(f"expected a signal of at least one frame of {window.shape[0]}, got {x}")
        return result_type

    def _bins(self, x: TensorType, window: TensorType) -> Dim:
        return half(self._frames(x, window).shape[-1])


@op
class Stft(_Framed):
    """Short-time Fourier transform of a real signal: windowed frames, `step` apart, each transformed.

    x        float [..., time]
    window   like x, [length]
    results  real and imaginary part [..., frames, length / 2 + 1]; only whole frames count, nothing is padded
    """

    step: int
    tolerance = Tolerance(64, scale=16)

    def infer(self, x: TensorType, window: TensorType) -> tuple[TensorType, TensorType]:
        result_type = self._frames(x, window)
        result_type = result_type.with_shape((*result_type.shape[:-1], half(result_type.shape[-1])))
        return result_type, result_type

    def reference(self, x: Array, window: Array) -> tuple[Array, Array]:
        spectrum = _spectra(x, window, self.step)
        return spectrum.real.astype(x.dtype), spectrum.imag.astype(x.dtype)

    def decompose(self, x: Value, window: Value) -> Pair:
        wide = x.cast(accumulator(x.dtype))
        re, im = _stft(wide, window.cast(wide.dtype), self.step)
        return re.cast(x.dtype), im.cast(x.dtype)


@op
class Istft(Composite):
    """The signal whose short-time transform is nearest to this one (least squares), the inverse of `stft`.

    real, imaginary  float [..., frames, bins]
    window           like real, [length], bins = length / 2 + 1
    result           [..., (frames - 1) · step + length]; 0 where no window looks
    Source: Griffin & Lim 1984, doi:10.1109/TASSP.1984.1164317, eq. 6.
    """

    step: int
    tolerance = Tolerance(256, scale=1)

    def infer(self, real: TensorType, imaginary: TensorType, window: TensorType) -> TensorType:
        expect.floating(real, "real")
        expect.same_dtype(real, imaginary, window)
        expect.rank(real, 2, "real")
        expect.rank(imaginary, real.rank, "imaginary", at_most=real.rank)
        for a, b in zip(real.shape, imaginary.shape):
            expect.same_dim(a, b, f"expected imaginary parts of the shape of real {real}, got {imaginary}")
        expect.rank(window, 1, "window", at_most=1)
        expect.same_dim(real.shape[-1], half(window.shape[0]), f"expected bins for a window {window}, got {real}")
        return OverlapAdd(self.step).infer(real.with_shape((*real.shape[:-1], window.shape[0])))

    def reference(self, real: Array, imaginary: Array, window: Array) -> Array:
        wide = window.astype(np.float64)
        frames = np.fft.irfft(real.astype(np.float64) + 1j * imaginary, len(window), -1) * wide
        add = OverlapAdd(self.step)
        weight = add.reference(np.broadcast_to(wide**2, (real.shape[-2], len(window))))
        enough = weight > LEAST_SEEN
        signal: Array = np.where(enough, add.reference(frames) / np.where(enough, weight, 1), 0)
        return signal.astype(real.dtype)

    def decompose(self, real: Value, imaginary: Value, window: Value) -> Value:
        dtype = accumulator(real.dtype)
        shape = window.cast(dtype)
        frames = build.irfft(real.cast(dtype), imaginary.cast(dtype), length=window.shape[0]) * shape
        weights = build.broadcast_to(shape * shape, shape=frames.shape[-2:])
        total, weight = (build.overlap_add(part, step=self.step) for part in (frames, weights))
        enough = weight > LEAST_SEEN
        return build.select(enough, total / build.select(enough, weight, 1.0), 0.0).cast(real.dtype)


@op
class LogMel(_Framed):
    """Logarithm of a spectrogram's power in bands: log(max(|stft|² · filters, floor)), by the natural logarithm.

    x        float [..., time]
    window   like x, [length]
    filters  like x, [length / 2 + 1, bands]; `mel_filters` makes them
    result   [..., frames, bands]
    """

    step: int
    floor: float = 1e-10
    tolerance = Tolerance(512, scale=1)

    def infer(self, x: TensorType, window: TensorType, filters: TensorType) -> TensorType:
        expect.same_dtype(x, filters)
        expect.rank(filters, 2, "filters", at_most=2)
        result_type = self._frames(x, window)
        bins = half(result_type.shape[-1])
        expect.same_dim(filters.shape[0], bins, f"expected filters of {bins} bins, got {filters}")
        return result_type.with_shape((*result_type.shape[:-1], filters.shape[1]))

    def reference(self, x: Array, window: Array, filters: Array) -> Array:
        power = np.abs(_spectra(x, window, self.step)) ** 2
        result: Array = np.log(np.maximum(power @ filters.astype(np.float64), self.floor))
        return result.astype(x.dtype)

    def decompose(self, x: Value, window: Value, filters: Value) -> Value:
        wide = x.cast(accumulator(x.dtype))
        re, im = _stft(wide, window.cast(wide.dtype), self.step)
        bands = build.matmul(re * re + im * im, filters.cast(wide.dtype))
        return build.log(build.maximum(bands, self.floor)).cast(x.dtype)


@op
class Welch(_Framed):
    """Power spectral density: the mean over frames of |transform|², one-sided, each frame without its mean.

    x       float [..., time], in units u
    window  like x, [length]
    result  [..., length / 2 + 1], in u² / Hz; bin k is the frequency k · rate_hz / length
    Source: Welch 1967, doi:10.1109/TAU.1967.1161901.
    """

    step: int
    rate_hz: float = 1.0
    tolerance = Tolerance(512, scale=1)

    def infer(self, x: TensorType, window: TensorType) -> TensorType:
        return x.with_shape((*x.shape[:-1], self._bins(x, window)))

    def reference(self, x: Array, window: Array) -> Array:
        wide = window.astype(np.float64)
        frames = Frames(length=len(window), step=self.step).reference(x.astype(np.float64))
        frames = (frames - frames.mean(-1, keepdims=True)) * wide
        power = (np.abs(np.fft.rfft(frames)) ** 2).mean(-2) / (self.rate_hz * (wide**2).sum())
        count = np.full(power.shape[-1], 2.0)
        count[0] = 1
        if len(window) % 2 == 0:
            count[-1] = 1
        density: Array = power * count
        return density.astype(x.dtype)

    def decompose(self, x: Value, window: Value) -> Value:
        wide, taper = x.cast(accumulator(x.dtype)), window.cast(accumulator(x.dtype))
        frames = build.frames(wide, length=window.shape[0], step=self.step)
        frames = (frames - build.reduce_mean(frames, axes=(-1,), keepdims=True)) * taper
        spectrum: Any = call("rfft", frames)
        power = build.reduce_mean(build.square(spectrum[0]) + build.square(spectrum[1]), axes=(-2,))
        bins = half(window.shape[0])
        place = build.iota(x.graph, shape=(bins,), dtype=dtypes.i64)
        size = build.dims_tensor(x.graph, values=(window.shape[0],)).reshape()
        alone = build.eq(place, 0) | build.eq(place + place, size)
        total = build.reduce_sum(taper * taper, axes=(0,)) * self.rate_hz
        return (power * build.select(alone, 1.0 / total, 2.0 / total)).cast(x.dtype)


@op
class WelchPeaks(_Framed):
    """The greatest local maxima of the power spectral density (`welch`): their frequencies and densities.

    x, window  as in `welch`
    results    frequencies in Hz and densities [..., count], the greatest first; where there are fewer, 0 and 0

    A bin is a maximum if it is above the bin before and not below the one behind; the first and the last are none.
    """

    step: int
    count: int
    rate_hz: float = 1.0
    tolerance = Tolerance(512, scale=1)

    def infer(self, x: TensorType, window: TensorType) -> tuple[TensorType, TensorType]:
        bins = self._bins(x, window)
        if self.count < 1 or (isinstance(bins, int) and self.count > bins):
            raise ShapeError(f"expected a count of peaks from 1 to {bins}, got {self.count}")
        result_type = x.with_shape((*x.shape[:-1], self.count))
        return result_type, result_type

    def reference(self, x: Array, window: Array) -> tuple[Array, Array]:
        density = Welch(self.step, self.rate_hz).reference(x, window)
        left, middle, right = density[..., :-2], density[..., 1:-1], density[..., 2:]
        highest = np.zeros_like(density)
        highest[..., 1:-1] = np.where((middle > left) & (middle >= right), middle, 0)
        order = np.argsort(-highest.astype(np.float64), -1, kind="stable")[..., : self.count]
        peaks = np.take_along_axis(highest, order, -1)
        hertz = np.where(peaks > 0, order * (self.rate_hz / len(window)), 0)
        return hertz.astype(x.dtype), peaks

    def decompose(self, x: Value, window: Value) -> Pair:
        density = build.welch(x, window, step=self.step, rate_hz=self.rate_hz)
        bins = density.shape[-1]
        place = build.iota(x.graph, shape=(bins,), dtype=dtypes.i64)
        last = build.dims_tensor(x.graph, values=(dims.add(bins, -1),)).reshape()
        left, right = (_neighbour(density, by) for by in (-1, 1))
        is_peak = (density > left) & (density >= right) & (place > 0) & (place < last)
        results: Any = call("top_k", build.select(is_peak, density, 0.0), axis=-1, k=self.count)
        peaks, at = results
        length = build.dims_tensor(x.graph, values=(window.shape[0],)).reshape()
        wide = accumulator(x.dtype)
        hertz = at.cast(wide) * (self.rate_hz / length.cast(wide))
        return build.select(peaks > 0.0, hertz, 0.0).cast(x.dtype), peaks


def _neighbour(x: Value, by: int) -> Value:
    """The element before (-1) or behind (1) along the last axis; 0 beyond the ends."""
    none = (0,) * (x.rank - 1)
    return build.pad(x, low=(*none, -by), high=(*none, by))


def _stft(x: Value, window: Value, step: int) -> Pair:
    frames = build.frames(x, length=window.shape[0], step=step) * window
    spectrum: Any = call("rfft", frames)
    return spectrum[0], spectrum[1]


def _spectra(x: Array, window: Array, step: int) -> Array:
    """The short-time transform in complex128."""
    frames = Frames(length=len(window), step=step).reference(x.astype(np.float64))
    return np.asarray(np.fft.rfft(frames * window.astype(np.float64)))


def mel_filters(
    bands: int, length: int, rate_hz: float, low_hz: float = 0.0, high_hz: float | None = None, *, slaney: bool = True
) -> Array:
    """Triangular filters with corners at equal distances on the mel scale, float64 [length / 2 + 1, bands].

    length   of the transform whose bins are weighted
    high_hz  half the rate if it is None
    slaney   the scale that is linear below 1 kHz, each filter of area 1 per Hz (Slaney 1998, Auditory Toolbox); else
             mel = 2595 · log₁₀(1 + f / 700), with peaks of 1 (O'Shaughnessy 1987, Speech Communication)
    Raises ShapeError.
    """
    top = rate_hz / 2 if high_hz is None else high_hz
    if bands < 1 or length < 2 or not 0 <= low_hz < top:
        raise ShapeError(f"[mel_filters] expected bands between frequencies, got {bands} from {low_hz} to {top} Hz")
    to_mel, to_hz = (_slaney_mel, _slaney_hz) if slaney else (_mel, _hz)
    corners = to_hz(np.linspace(to_mel(np.array(low_hz)), to_mel(np.array(top)), bands + 2))
    at = np.arange(length // 2 + 1)[:, None] * (rate_hz / length)
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    triangles: Array = np.maximum(0, np.minimum((at - low) / (middle - low), (high - at) / (high - middle)))
    return triangles * (2 / (high - low)) if slaney else triangles


def _mel(hertz: Array) -> Array:
    return np.asarray(2595 * np.log10(1 + hertz / 700))


def _hz(mel: Array) -> Array:
    return np.asarray(700 * (10 ** (mel / 2595) - 1))


_KNEE_HZ, _HZ_PER_MEL, _LOG_STEP = 1000.0, 200 / 3, math.log(6.4) / 27


def _slaney_mel(hertz: Array) -> Array:
    above = _KNEE_HZ / _HZ_PER_MEL + np.log(np.maximum(hertz, _KNEE_HZ) / _KNEE_HZ) / _LOG_STEP
    return np.where(hertz < _KNEE_HZ, hertz / _HZ_PER_MEL, above)


def _slaney_hz(mel: Array) -> Array:
    knee = _KNEE_HZ / _HZ_PER_MEL
    return np.where(mel < knee, mel * _HZ_PER_MEL, _KNEE_HZ * np.exp(_LOG_STEP * np.maximum(mel - knee, 0)))
