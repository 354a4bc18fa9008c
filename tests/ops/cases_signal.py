"""Cases of Fourier transforms and what is made of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ops.case import FLOATS, Case, array, case, specimen
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array
from rlx.ops.signal import mel_filters

# direct, with factors, a large prime (Bluestein), a power of two, odd with factors
LENGTHS = (1, 7, 16, 60, 509, 512, 1023)


@specimen("fft")
def _fft(name: str) -> Iterator[Case]:
    for n in LENGTHS:
        yield case(name, "whole", array((3, n)), array((3, n), seed=1))
    for inverse in (False, True):
        for dtype in FLOATS:
            parts = array((2, 12), dtype), array((2, 12), dtype, 1)
            yield case(name, f"inverse-{inverse}", *parts, inverse=inverse)
    yield case(name, "real", array((2, 100)))
    yield case(name, "first-axis", array((96, 2, 3)), array((96, 2, 3), seed=1), axis=0, inverse=True)
    yield case(name, "middle-axis", array((2, 9, 5)), axis=1)
    yield case(name, "longer", array((2, 10)), array((2, 10), seed=1), length=64)
    yield case(name, "shorter", array((2, 10)), array((2, 10), seed=1), length=4)
    yield case(name, "empty", array((0, 8)), array((0, 8)))
    yield case(name, "vector", array((64,)))
    broken = array((2, 40))
    broken[0, 3] = np.nan
    yield case(name, "nan", broken)


@specimen("rfft")
def _rfft(name: str) -> Iterator[Case]:
    for n in LENGTHS:
        yield case(name, "whole", array((3, n)))
    for dtype in FLOATS:
        yield case(name, "dtype", array((2, 24), dtype))
    yield case(name, "first-axis", array((80, 3)), axis=0)
    yield case(name, "longer", array((2, 10)), length=128)
    yield case(name, "empty", array((0, 8)))


@specimen("irfft")
def _irfft(name: str) -> Iterator[Case]:
    for n in LENGTHS:
        bins = n // 2 + 1
        yield case(name, "whole", array((3, bins)), array((3, bins), seed=1), length=n)
    for dtype in FLOATS:
        yield case(name, "dtype", array((2, 13), dtype), array((2, 13), dtype, 1))
    yield case(name, "real", array((2, 9)))
    yield case(name, "first-axis", array((65, 3)), array((65, 3), seed=1), axis=0)
    yield case(name, "more-bins", array((2, 9)), array((2, 9), seed=1), length=6)
    yield case(name, "fewer-bins", array((2, 9)), array((2, 9), seed=1), length=100)


@specimen("frames")
def _frames(name: str) -> Iterator[Case]:
    yield case(name, "overlap", array((2, 25)), length=8, step=3)
    yield case(name, "apart", array((2, 25), dtypes.i32), length=2, step=5)
    yield case(name, "first-axis", array((10, 3)), length=4, step=2, axis=0)
    yield case(name, "too-short", array((2, 3)), length=8, step=3)
    yield case(name, "one", array((1,)), length=1, step=1)


@specimen("overlap_add")
def _overlap_add(name: str) -> Iterator[Case]:
    for length, step in ((8, 3), (8, 4), (3, 5), (1, 1)):
        yield case(name, f"step-{step}", array((2, 5, length)), step=step)
    for dtype in (dtypes.f16, dtypes.i32):
        yield case(name, "dtype", array((4, 6), dtype), step=2)
    yield case(name, "one", array((1, 6)), step=2)


def _window(size: int, dtype: DType = dtypes.f32) -> Array:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(dtype.numpy)


@specimen("stft")
def _stft(name: str) -> Iterator[Case]:
    yield case(name, "rows", array((2, 300)), _window(64), step=16)
    yield case(name, "whisper", array((1, 2000)), _window(400), step=160)
    yield case(name, "odd", array((100,)), _window(15), step=7)
    yield case(name, "half", array((1, 60), dtypes.f16), _window(16, dtypes.f16), step=8)
    yield case(name, "axes", array((2, 1, 3, 70)), _window(32), step=32)


@specimen("istft")
def _istft(name: str) -> Iterator[Case]:
    for size, step in ((64, 16), (30, 15), (15, 5)):
        parts = (array((2, 6, size // 2 + 1), seed=seed) for seed in (0, 1))
        yield case(name, f"{size}-{step}", *parts, _window(size) + np.float32(0.1), step=step)
    yield case(name, "unseen", array((3, 5)), array((3, 5), seed=1), _window(8), step=10)


@specimen("log_mel")
def _log_mel(name: str) -> Iterator[Case]:
    filters = mel_filters(20, 128, 16000).astype(np.float32)
    yield case(name, "rows", array((2, 700)), _window(128), filters, step=50)
    yield case(name, "silence", np.zeros((1, 200), np.float32), _window(128), filters, step=50)


@specimen("welch")
def _welch(name: str) -> Iterator[Case]:
    yield case(name, "even", array((2, 700)) + 5, _window(128), step=64, rate_hz=256.0)
    yield case(name, "odd", array((300,)), _window(31), step=10)


@specimen("welch_peaks")
def _welch_peaks(name: str) -> Iterator[Case]:
    time_s = np.arange(2048) / 256
    tones = np.stack([np.sin(2 * np.pi * 10 * time_s) + 0.5 * np.sin(2 * np.pi * 37 * time_s), np.cos(160 * time_s)])
    noise = np.random.default_rng(0).normal(size=tones.shape) * 0.01
    yield case(name, "tones", (tones + noise).astype(np.float32), _window(256), step=128, count=1, rate_hz=256.0)
    yield case(name, "nothing", np.zeros((1, 64), np.float32), _window(16), step=8, count=3)
