"""Importer functions: Fourier transforms, windows and mel filters. Complex numbers are pairs along a last axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx import ops
from rlx.frontends.onnx.measuring import measure
from rlx.frontends.onnx.model import dtype_of
from rlx.frontends.onnx.table import Known, OnnxNode, Operand, as_int, onnx_op
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Value
from rlx.ir.literal import Array
from rlx.ops import build, shorthand


@onnx_op("DFT", until=19)
def dft_along_attribute(node: OnnxNode, x: Value, length: Known | None) -> Value:
    return _dft(node, x, _length(node, length), node.axis(x.rank, 1))


@onnx_op("DFT", since=20)
def dft(node: OnnxNode, x: Value, length: Known | None, axis: Known | None) -> Value:
    along = -2 if axis is None else as_int(node, _one(node, axis, "an axis"), "the axis")
    return _dft(node, x, _length(node, length), node.normal_axis(along, x.rank))


def _length(node: OnnxNode, length: Known | None) -> Dim | None:
    return None if length is None else _one(node, length, "a dft_length")


def _one(node: OnnxNode, known: Known, what: str) -> Dim:
    if known.size != 1:
        raise node.wrong(f"expected {what} of one element, got {list(known.shape)}")
    dim: Dim = known.reshape(-1)[0]
    return dim


def _dft(node: OnnxNode, x: Value, length: Dim | None, axis: int) -> Value:
    """`onesided` gives the bins of a real signal, and together with `inverse` a real signal of its bins."""
    real, imaginary = _parts(node, x)
    if axis >= real.rank:
        raise node.wrong(f"expected an axis before the last one of {x.type}, got {axis}")
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    if inverse and onesided:
        return shorthand.expand_dims(build.irfft(real, imaginary, axis=axis, length=length), (-1,))
    if onesided and imaginary is None:
        return shorthand.stack(ops.rfft(real, axis=axis, length=length), -1)
    spectrum = shorthand.stack(ops.fft(real, imaginary, axis=axis, length=length, inverse=inverse), -1)
    return _half(spectrum, axis) if onesided else spectrum


def _parts(node: OnnxNode, x: Value) -> tuple[Value, Value | None]:
    """Real and imaginary part of a tensor whose last axis has one or both."""
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise node.wrong(f"expected a last axis of 1 or 2 elements, got {x.type}")
    return x[..., 0], x[..., 1] if x.shape[-1] == 2 else None


def _half(x: Value, axis: int) -> Value:
    """Bins 0 to n/2."""
    stops = tuple(dims.add(dims.floordiv(d, 2), 1) if i == axis else d for i, d in enumerate(x.shape))
    return build.slice(x, starts=(0,) * x.rank, stops=stops, steps=(1,) * x.rank)


@onnx_op("STFT")
def stft(node: OnnxNode, x: Value, step: Known, window: Value | None, length: Known | None) -> Value:
    """[batch, time, 1 or 2] to [batch, frames, bins, 2]; a length goes with a window of that length, or with none.

    The standard wants a last axis for real and imaginary parts; exporters write [batch, time] for real signals too.
    """
    real, imaginary = (x, None) if x.rank == 2 else _parts(node, x)
    if real.rank != 2:
        raise node.wrong(f"expected a signal [batch, time, 1 or 2] or [batch, time], got {x.type}")
    size = real.shape[1] if length is None else _one(node, length, "a frame_length")
    if length is None and window is not None:
        size = window.shape[0]
    by = as_int(node, _one(node, step, "a frame_step"), "the step")
    onesided = node.flag("onesided", True)

    def framed(part: Value) -> Value:
        frames = build.frames(part, length=size, step=by)
        return frames if window is None else frames * window

    if imaginary is None and onesided:
        return shorthand.stack(ops.rfft(framed(real)), -1)
    spectrum = shorthand.stack(ops.fft(framed(real), None if imaginary is None else framed(imaginary)), -1)
    return _half(spectrum, 2) if onesided else spectrum


def _window(name: str, coefficients: Sequence[float]) -> None:
    def run(node: OnnxNode, size: Operand) -> Value:
        count = measure(node, size.value) if size.known is None else _one(node, size.known, "a size")
        dtype = dtype_of(node.integer("output_datatype", 1))
        return shorthand.cosine_window(node.graph, count, coefficients, node.flag("periodic", True), dtype)

    onnx_op(name)(run)


_window("HannWindow", (0.5, 0.5))
_window("HammingWindow", (25 / 46, 21 / 46))
_window("BlackmanWindow", (0.42, 0.5, 0.08))


@onnx_op("MelWeightMatrix")
def mel_weight_matrix(node: OnnxNode, bands: Known, length: Known, rate: Known, low: Operand, high: Operand) -> Value:
    """Triangles between corners at equal distances on the mel scale, rounded down to bins of the transform."""
    names = ("num_mel_bins", "dft_length", "sample_rate")
    count, size, hertz = (
        as_int(node, _one(node, known, name), name) for name, known in zip(names, (bands, length, rate))
    )
    edges = [item.value.constant for item in (low, high)]
    if edges[0] is None or edges[1] is None:
        raise node.unsupported("the edges of its bands are known only when the graph runs")
    if count < 1 or size < 1 or hertz < 1 or count * size > 1 << 28:
        raise node.wrong(f"expected at least one band, bin and sample per second, got {count}, {size} and {hertz}")
    first, last = (2595 * np.log10(1 + float(edge.reshape(-1)[0]) / 700) for edge in edges if edge is not None)
    corners = 700 * (10 ** ((first + np.arange(count + 2) * ((last - first) / (count + 2))) / 2595) - 1)
    places = np.floor((size + 1) * corners / hertz)
    if not (np.isfinite(places).all() and places[0] >= 0 and places[-1] <= size // 2 + 1):
        raise node.wrong(f"expected edges between 0 and half of {hertz} Hz, got {corners[0]:g} and {corners[-1]:g}")
    dtype = dtype_of(node.integer("output_datatype", 1))
    return node.graph.constant(_triangles(places.astype(np.int64), size // 2 + 1), dtype)


def _triangles(corners: Array, bins: int) -> Array:
    """[bins, bands]: from 0 at one corner to 1 at the next and to 0 at the one after it."""
    at = np.arange(bins)[:, None]
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rising = np.where(low == middle, at == middle, (at - low) / np.maximum(middle - low, 1))
    falling = (high - at) / np.maximum(high - middle, 1)
    triangles: Array = np.where((at >= low) & (at <= middle), rising, 0.0)
    return np.where((at >= middle) & (at < high), falling, triangles)
