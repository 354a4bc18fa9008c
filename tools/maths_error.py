"""Measures the functions of `rlx.codegen.scalar.maths` in ulps, with `fma` rounding twice and once.

    python tools/maths_error.py > docs/design/maths.md

Inputs are dense sweeps, linear and by exponent, from fixed seeds; the reference is NumPy in float64. An ulp is the
distance of neighbouring float32 at the exact result, so a result in the subnormals is measured in 2^-149.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.codegen.scalar import maths
from rlx.ir import dtype as dtypes
from rlx.ir.expr import INSTRUCTIONS, Expr, apply, evaluate, walk

Floats = NDArray[np.float32]

COUNT = 1 << 18


@contextmanager
def fused() -> Iterator[None]:
    """`fma` rounds once while this is open, as hardware that has it does (the product is exact in float64)."""
    plain = INSTRUCTIONS["fma"]

    def once(a: Any, b: Any, c: Any) -> Any:
        return (np.float64(a) * b + np.float64(c)).astype(np.float32)

    INSTRUCTIONS["fma"] = dataclasses.replace(plain, numpy=once)
    try:
        yield
    finally:
        INSTRUCTIONS["fma"] = plain


def legal(name: str) -> Expr:
    """The function of leaves a, b, … as simple instructions."""
    leaves = [Expr("leaf", dtypes.f32, (), letter) for letter in "ab"[: INSTRUCTIONS[name].arity]]
    return maths.legalise(apply(name, *leaves))


def run(root: Expr, *inputs: Floats) -> Floats:
    values = dict(zip("ab", inputs))
    return np.asarray(evaluate(root, lambda leaf: values[leaf.attr]))


def linear(low: float, high: float) -> Floats:
    return np.linspace(low, high, COUNT, dtype=np.float64).astype(np.float32)


def by_exponent(least: float, most: float, signed: bool = True) -> Floats:
    """Every exponent alike often, both signs."""
    size = np.exp2(np.linspace(math.log2(least), math.log2(most), COUNT)).astype(np.float32)
    size = np.clip(size, np.float32(least), np.float32(most))
    return size * np.resize(np.array([1, -1], np.float32), COUNT) if signed else size


@dataclass(frozen=True)
class Subject:
    """A function, its inputs, its exact values, and the ulps that it must keep to."""

    name: str
    inputs: Callable[[], tuple[Floats, ...]]
    exact: Callable[..., Any]
    bound: float
    domain: str


def _joined(*parts: Floats) -> tuple[Floats]:
    return (np.concatenate(parts),)


def _atan2_inputs() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(1)
    size = np.exp2(rng.uniform(-40, 40, (2, COUNT))) * rng.choice([-1.0, 1.0], (2, COUNT))
    near = np.exp2(rng.uniform(-3, 3, (2, COUNT))) * rng.choice([-1.0, 1.0], (2, COUNT))
    both = np.concatenate([size, near], axis=1).astype(np.float32)
    return both[0], both[1]


def _pow_inputs() -> tuple[Floats, Floats]:
    """Any base with any exponent whose power is a normal number, bases near 1 with exponents up to 1e9 among them."""
    rng = np.random.default_rng(2)
    size = np.exp2(rng.uniform(-126, 127, COUNT)).astype(np.float32)
    near = (1 + rng.choice([-1, 1], COUNT) * np.exp2(rng.uniform(-23, -1.5, COUNT))).astype(np.float32)
    base = np.concatenate([size, near])
    log = np.log2(base.astype(np.float64))
    exponent = rng.uniform(-125.9, 127.9, base.shape) / np.where(log == 0, 1, log)
    return base, exponent.astype(np.float32)


def _angles() -> tuple[Floats]:
    """Sweeps, and what is hardest: the neighbours of every multiple of π/2 up to 1e5."""
    multiples = (np.arange(1, 63662) * (math.pi / 2)).astype(np.float32)
    spacing = np.spacing(multiples)
    return _joined(linear(-10, 10), linear(-1e5, 1e5), by_exponent(1e-37, 1e5), multiples, multiples + spacing)


def _positive() -> tuple[Floats]:
    return _joined(linear(0.25, 4), by_exponent(1e-44, 3e38, signed=False))


def _above_minus_one() -> tuple[Floats]:
    return _joined(linear(-0.9999, 4), by_exponent(1e-37, 3e38, signed=False), by_exponent(1e-37, 0.999))


def _above_one() -> tuple[Floats]:
    near = np.float32(1) + by_exponent(1e-7, 1e3, signed=False)
    return _joined(linear(1, 10), near, by_exponent(1, 3e38, signed=False))


def _sweep(low: float, high: float, most: float, least: float = 1e-37) -> Callable[[], tuple[Floats]]:
    return lambda: _joined(linear(low, high), by_exponent(least, most))


_erf = np.vectorize(math.erf, otypes=[np.float64])

SUBJECTS = [
    Subject("exp", _sweep(-104, 89, 88), np.exp, 2.0, "all, subnormal results too"),
    Subject("exp2", _sweep(-150, 128, 127), np.exp2, 2.0, "all, subnormal results too"),
    Subject("expm1", _sweep(-20, 89, 88), np.expm1, 2.0, "all"),
    Subject("log", _positive, np.log, 1.0, "x > 0, subnormals too"),
    Subject("log2", _positive, np.log2, 1.5, "x > 0, subnormals too"),
    Subject("log1p", _above_minus_one, np.log1p, 2.0, "x > -1"),
    Subject("sin", _angles, np.sin, 3.5, "abs(x) ≤ 1e5"),
    Subject("cos", _angles, np.cos, 3.5, "abs(x) ≤ 1e5"),
    Subject("tan", _angles, np.tan, 4.0, "abs(x) ≤ 1e5"),
    Subject("asin", _sweep(-1, 1, 1), np.arcsin, 2.5, "abs(x) ≤ 1"),
    Subject("acos", _sweep(-1, 1, 1), np.arccos, 2.0, "abs(x) ≤ 1"),
    Subject("atan", _sweep(-10, 10, 3e38), np.arctan, 2.0, "all"),
    Subject("atan2", _atan2_inputs, np.arctan2, 2.0, "all with a normal result"),
    Subject("sinh", _sweep(-89, 89, 88), np.sinh, 3.0, "all"),
    Subject("cosh", _sweep(-89, 89, 88), np.cosh, 2.5, "all"),
    Subject("tanh", _sweep(-10, 10, 3e38), np.tanh, 2.5, "all"),
    Subject("asinh", _sweep(-10, 10, 3e38), np.arcsinh, 2.5, "all"),
    Subject("acosh", _above_one, np.arccosh, 3.0, "x ≥ 1"),
    Subject("atanh", _sweep(-0.999, 0.999, 0.9999), np.arctanh, 2.5, "abs(x) < 1"),
    Subject("erf", _sweep(-4.5, 4.5, 3e38), _erf, 2.5, "all"),
    Subject("pow", _pow_inputs, np.power, 4.0, "normal results"),
]


def ulps(actual: Floats, exact: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distance from the exact value in units of the last place of float32 there."""
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(exact), 2.0**-126)
        unit = np.exp2(np.floor(np.log2(size)) - 23)
        error = np.abs(actual.astype(np.float64) - exact) / unit
        overflow = np.abs(exact) >= (2 - 2.0**-24) * 2.0**127
        return np.where(overflow, np.where(actual == np.sign(exact) * np.inf, 0, np.inf), error)


def measure(subject: Subject) -> tuple[float, Any]:
    """The largest error in ulps and the inputs that give it."""
    inputs = subject.inputs()
    actual = run(legal(subject.name), *inputs)
    with np.errstate(all="ignore"):
        error = ulps(actual, subject.exact(*(x.astype(np.float64) for x in inputs)))
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    return float(error[worst]), tuple(float(x[worst]) for x in inputs)


def main() -> None:
    print("# Errors of the elementary functions\n")
    print(
        "Made by `python tools/maths_error.py > docs/design/maths.md`; held by `tests/codegen/scalar/test_maths.py`.\n"
    )
    print("Largest error in ulps of float32 against float64, over at least 2^18 points, where `fma` rounds twice (no")
    print("FMA unit) and once; the bound that the test holds; the number of simple instructions, without constants.\n")
    print("| function | domain | two roundings | one rounding | bound | instructions |\n|---|---|---|---|---|---|")
    for subject in SUBJECTS:
        twice, _ = measure(subject)
        with fused():
            once, _ = measure(subject)
        size = sum(node.kind not in ("const", "leaf", "bitcast") for node in walk([legal(subject.name)]))
        print(f"| {subject.name} | {subject.domain} | {twice:.2f} | {once:.2f} | {subject.bound} | {size} |")


if __name__ == "__main__":
    main()
