"""Cases of random numbers: words must be the same to the bit, floats within rounding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ops.case import FLOATS, Case, array, case, specimen
from rlx.ir import dtype as dtypes
from rlx.ir.literal import Array

STATE = np.array([0x243F6A88, 0x85A308D3, 5, 0], np.uint32)


def words(shape: tuple[int, ...], seed: int) -> Array:
    draws = np.random.default_rng(seed).integers(0, 1 << 32, shape, dtype=np.uint32)
    draws.reshape(-1)[:2] = (0, 0xFFFFFFFF)[: draws.size]
    return draws


@specimen("multiply_high")
def _multiply_high(name: str) -> Iterator[Case]:
    yield case(name, "random", words((300,), 0), words((300,), 1))
    yield case(name, "broadcast", words((3, 1), 0), words((4,), 1))


@specimen("philox")
def _philox(name: str) -> Iterator[Case]:
    parts = [words((130,), seed) for seed in range(6)]
    yield case(name, "random", *parts, np.arange(130, dtype=np.uint32) % np.uint32(4))
    yield case(name, "one-key", *parts[:4], parts[4][:1], parts[5][:1], np.array(2, np.uint32))


@specimen("random_bits")
def _random_bits(name: str) -> Iterator[Case]:
    for shape in ((1000,), (3, 5, 7), (), (0, 2)):
        yield case(name, "shape", STATE, shape=shape, stream=3)


@specimen("random_uniform", "random_normal")
def _floats(name: str) -> Iterator[Case]:
    for dtype in FLOATS:
        yield case(name, f"{dtype}", STATE, shape=(301,), dtype=dtype, stream=1)
    yield case(name, "shape", STATE, shape=(2, 3, 5))
    yield case(name, "empty", STATE, shape=(0,))
    attributes = {"low": -3.0, "high": 5.0} if name == "random_uniform" else {"mean": -3.0, "deviation": 2.0}
    yield case(name, "moved", STATE, shape=(100,), **attributes)


@specimen("random_integers")
def _integers(name: str) -> Iterator[Case]:
    for dtype, low, high in (
        (dtypes.i64, -5, 6), (dtypes.i32, -(1 << 31), 1 << 31), (dtypes.u32, 0, 1 << 32), (dtypes.i64, 7, 8),
        (dtypes.u64, (1 << 64) - 9, 1 << 64),
    ):  # fmt: skip
        yield case(name, f"{low}-{high}", STATE, shape=(200,), low=low, high=high, dtype=dtype)


@specimen("bernoulli")
def _bernoulli(name: str) -> Iterator[Case]:
    for dtype in FLOATS:
        yield case(name, "half", np.full((300,), 0.5, dtype.numpy), STATE)
    yield case(name, "edges", np.array([[0, 1, np.nan, -1, 2]], np.float32), STATE)


@specimen("categorical")
def _categorical(name: str) -> Iterator[Case]:
    yield case(name, "rows", array((3, 7)), STATE, samples=50)
    yield case(name, "never", np.array([[0, -np.inf, 0]], np.float32), STATE, samples=40, stream=2)
    yield case(name, "none", array((3, 7)), STATE, samples=0)


@specimen("dropout")
def _dropout(name: str) -> Iterator[Case]:
    for dtype in FLOATS:
        yield case(name, "half", array((10, 13), dtype), np.array(0.5, dtype.numpy), STATE)
    for ratio in (0.0, 1.0, 0.1):
        yield case(name, f"{ratio}", array((50,), special=True), np.array(ratio, np.float32), STATE, stream=9)
