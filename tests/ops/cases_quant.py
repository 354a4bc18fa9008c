"""Cases of quantisation and of products of small integers."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from ops.case import Array, Case, array, case, specimen
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType


def whole(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    """Integers of the whole range of a dtype."""
    info = ml_dtypes.iinfo(dtype.numpy)
    return (
        np.random.default_rng(seed + 1).integers(int(info.min), int(info.max), shape, endpoint=True).astype(dtype.numpy)
    )


def _scale(shape: tuple[int, ...], dtype: DType = dtypes.f32) -> Array:
    return np.asarray(np.random.default_rng(5).uniform(0.01, 0.1, shape)).astype(dtype.numpy)


@specimen("quantize")
def _quantize(name: str) -> Iterator[Case]:
    integers = (dtypes.u8, dtypes.i8, dtypes.u16, dtypes.i16, dtypes.u4, dtypes.i4, dtypes.u2, dtypes.i2)
    for dtype in (*integers, dtypes.f8e4m3, dtypes.f8e5m2, dtypes.f8e4m3fnuz, dtypes.f4e2m1):
        zero = np.asarray(np.zeros((), dtype.numpy) if dtype.is_float else whole((), dtype))
        yield case(name, f"to-{dtype}", array((4, 37), special=True), _scale(()), zero, dtype=dtype)
    ties = np.arange(-8, 9, dtype=np.float32) / 2
    yield case(name, "ties", ties, np.float32([1]), dtype=dtypes.i8)
    yield case(name, "axis", array((2, 5, 3)), _scale((5,)), whole((5,), dtypes.i8), dtype=dtypes.i8)
    yield case(name, "last-axis", array((2, 5)), _scale((5,)), whole((5,), dtypes.u8), dtype=dtypes.u8, axis=-1)
    yield case(
        name, "blocks", array((3, 7, 2)), _scale((3, 3, 2)), whole((3, 3, 2), dtypes.u8), dtype=dtypes.u8, block=3
    )
    yield case(name, "even-blocks", array((3, 8)), _scale((3, 2)), dtype=dtypes.i16, block=4, axis=-1)
    yield case(name, "zero-scale", array((6,), special=True), np.float32(0), dtype=dtypes.u8)
    for dtype in (dtypes.f16, dtypes.f64):
        yield case(name, f"of-{dtype}", array((37,), dtype), _scale((), dtype), dtype=dtypes.u8)
    yield case(name, "empty", array((0, 3)), _scale((3,)), dtype=dtypes.u8)
    yield case(name, "number", np.float32(2.5), np.float32(1), dtype=dtypes.u8)


@specimen("packed_matmul")
def _packed_matmul(name: str) -> Iterator[Case]:
    for bits, block in ((4, 32), (4, 16), (2, 128), (8, 64), (4, 256)):
        attributes = {"depth": 2 * block + 7, "bits": bits, "block": block}
        w, scale = whole((5, 3 * block * bits // 8), dtypes.u8), _scale((5, 3)) / np.float32(1 << (bits - 2))
        zero = whole((5, 3), dtypes.u8).astype(np.float32) / (1 << (8 - bits))
        x = array((2, 3, 2 * block + 7), seed=bits)
        yield case(name, f"{bits}-bits", x, w, scale, **attributes)
        yield case(name, f"{bits}-bits-zeros", x, w, scale, zero, **attributes)
        yield case(name, f"{bits}-bits-added", x, w, scale, -scale * zero, added=True, **attributes)
    even = {"depth": 64, "bits": 4, "block": 32}
    w = whole((4, 32), dtypes.u8)
    for dtype in (dtypes.f16, dtypes.bf16, dtypes.f64):
        zero = whole((4, 2), dtypes.u4).astype(dtype.numpy)
        yield case(name, f"in-{dtype}", array((3, 64), dtype), w, _scale((4, 2), dtype), zero, **even)
    yield case(name, "mixed", array((3, 64), dtypes.f16), w, _scale((4, 2)), **even)
    yield case(name, "vector", array((64,)), w, _scale((4, 2)), **even)
    yield case(name, "special", array((3, 64), special=True), w, _scale((4, 2)), **even)
    yield case(name, "no-rows", array((0, 64)), w, _scale((4, 2)), **even)
    yield case(name, "no-columns", array((3, 64)), w[:0], _scale((0, 2)), **even)
    yield case(name, "one", array((1, 1)), w[:1, :1], _scale((1, 1)), depth=1, bits=4, block=2)


@specimen("dequantize")
def _dequantize(name: str) -> Iterator[Case]:
    for dtype in (dtypes.u8, dtypes.i8, dtypes.u16, dtypes.i16, dtypes.u4, dtypes.i4, dtypes.u2, dtypes.i2):
        yield case(name, f"of-{dtype}", whole((4, 37), dtype), _scale(()), whole((), dtype, 3), dtype=dtypes.f32)
    yield case(name, "of-i32", whole((37,), dtypes.i32) // 4, _scale(()), dtype=dtypes.f32)
    yield case(name, "axis", whole((2, 5, 3), dtypes.i8), _scale((5,)), whole((5,), dtypes.i8, 3), dtype=dtypes.f32)
    yield case(name, "blocks", whole((3, 7, 2), dtypes.u8), _scale((3, 3, 2)), whole((3, 3, 2), dtypes.u8, 3),
               dtype=dtypes.f32, block=3)  # fmt: skip
    yield case(name, "narrow", whole((37,), dtypes.u8), _scale((), dtypes.f16), dtype=dtypes.f16)
    yield case(name, "of-f8", array((37,), dtypes.f8e5m2), _scale(()), dtype=dtypes.f32)
    yield case(name, "empty", whole((0, 3), dtypes.u8), _scale((3,)), dtype=dtypes.f32)


@specimen("dynamic_quantize")
def _dynamic_quantize(name: str) -> Iterator[Case]:
    yield case(name, "mixed", array((3, 70)))
    yield case(name, "positive", np.abs(array((37,))))
    yield case(name, "negative", -np.abs(array((2, 3, 5))))
    yield case(name, "zeros", np.zeros((4,), np.float32))
    yield case(name, "empty", np.zeros((0, 2), np.float32))
    yield case(name, "number", np.float32(-3))


@specimen("float8_matmul")
def _float8_matmul(name: str) -> Iterator[Case]:
    for dtype in (dtypes.f8e4m3, dtypes.f8e5m2, dtypes.f8e4m3fnuz, dtypes.f8e5m2fnuz):
        yield case(name, "numbers", array((5, 37), dtype), array((37, 19), dtype, 1))
    x, y = array((3, 5, 48)) / 8, array((48, 24), seed=1) / 8
    yield case(name, "whole-pieces", x.astype(dtypes.f8e4m3.numpy), y.astype(dtypes.f8e4m3.numpy))
    x, y = array((2, 1, 5, 7), dtypes.f8e4m3), array((3, 7, 4), dtypes.f8e4m3, 1)
    yield case(name, "batch", x, y)
    x = array((4, 32), dtypes.f8e4m3)
    x[1, 3] = np.nan
    yield case(name, "none", x, array((32, 16), dtypes.f8e4m3, 1))
    yield case(name, "empty", array((0, 16), dtypes.f8e4m3), array((16, 2), dtypes.f8e4m3))
    yield case(name, "no-terms", array((3, 0), dtypes.f8e4m3), array((0, 2), dtypes.f8e4m3))


@specimen("integer_matmul")
def _integer_matmul(name: str) -> Iterator[Case]:
    for left in (dtypes.u8, dtypes.i8):
        for right in (dtypes.u8, dtypes.i8):
            yield case(name, "numbers", whole((5, 37), left), whole((37, 19), right, 1), whole((), left, 2),
                       whole((), right, 3))  # fmt: skip
    zero = np.zeros((), np.uint8)
    yield case(name, "vectors", whole((2, 5, 7), dtypes.u8), whole((7, 9), dtypes.i8, 1), whole((5, 1), dtypes.u8, 2),
               whole((9,), dtypes.i8, 3))  # fmt: skip
    yield case(name, "batch", whole((2, 1, 5, 7), dtypes.u8), whole((3, 7, 4), dtypes.u8, 1), zero, zero + 7)
    yield case(name, "extreme", np.full((3, 300), 255, np.uint8), np.full((300, 33), -128, np.int8), zero,
               np.int8(127))  # fmt: skip
    yield case(name, "one", whole((1, 1), dtypes.u8), whole((1, 1), dtypes.u8, 1), zero, zero)
    yield case(name, "empty", whole((0, 3), dtypes.u8), whole((3, 2), dtypes.u8), zero, zero)
    yield case(name, "no-depth", whole((2, 0), dtypes.u8), whole((0, 3), dtypes.u8), zero, zero + 1)


@specimen("integer_conv")
def _integer_conv(name: str) -> Iterator[Case]:
    plain = {"strides": (1, 1), "dilations": (1, 1), "low": (0, 0), "high": (0, 0)}
    padded = {**plain, "low": (1, 0), "high": (1, 2)}
    for left in (dtypes.u8, dtypes.i8):
        for right in (dtypes.u8, dtypes.i8):
            yield case(name, "numbers", whole((2, 3, 7, 6), left), whole((5, 3, 3, 2), right, 1), whole((), left, 2),
                       whole((), right, 3), **padded)  # fmt: skip
    x, zero = whole((1, 20, 9, 8), dtypes.u8), np.uint8(100)
    w = whole((20, 20, 3, 3), dtypes.i8, 1)
    yield case(name, "channels", x, w, zero, whole((20,), dtypes.i8, 3), **{**padded, "strides": (2, 1)})
    yield case(name, "pointwise", x, w[:, :, :1, :1], zero, np.int8(0), **plain)
    yield case(name, "depthwise", x, w[:, :1], zero, np.int8(3), groups=20, **padded)
    yield case(name, "groups", x, w[:, :5], zero, whole((20,), dtypes.i8, 3), groups=4, **padded)
    yield case(name, "line", x[..., 0], w[..., 0], zero, np.int8(0), strides=(1,), dilations=(2,), low=(2,), high=(0,))


@specimen("dynamic_quantize_lstm")
def _dynamic_quantize_lstm(name: str) -> Iterator[Case]:
    for direction, count in (("forward", 1), ("bidirectional", 2)):
        x, h, c = array((3, 2, 5)) / 4, array((count, 2, 4), seed=1) / 8, array((count, 2, 4), seed=2) / 8
        w, r = whole((count, 5, 16), dtypes.i8), whole((count, 4, 16), dtypes.i8, 1)
        b = array((count, 32), seed=3) / 8
        scales = [
            _scale((count, 16)) / 8,
            np.zeros((count, 1), np.int8),
            _scale((count, 1)) / 8,
            whole((count, 16), dtypes.i8),
        ]
        yield case(name, direction, x, w, r, b, h, c, *scales, direction=direction)
