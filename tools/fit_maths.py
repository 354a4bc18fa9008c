"""Fits the coefficients of `rlx.codegen.scalar.maths` and prints `src/rlx/codegen/scalar/coefficients.py`.

    python tools/fit_maths.py > src/rlx/codegen/scalar/coefficients.py

Each function is written as leading terms that float32 holds exactly, plus a correction; the correction is a minimax
polynomial, weighted so that the *relative* error of the whole function is levelled. Lawson's iteration (least squares,
reweighted by the error) finds it on a Chebyshev grid. Float32 rounding is part of the fit: the coefficient that matters
most is rounded and fixed, then the others are fitted again.
Samples come from mpmath, so the cancellation in the corrections costs nothing. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import numpy as np
from numpy.typing import NDArray

mp.mp.dps = 60

Vector = NDArray[np.float64]
Sample = Callable[[mp.mpf], mp.mpf]

POINTS = 800
ROUNDS = 400


@dataclass(frozen=True)
class Fit:
    """`correction(x)` is approximated on [low, high] in powers of `variable(x)`; an error there counts `weight(x)`."""

    name: str
    says: str
    correction: Sample
    weight: Sample
    low: float
    high: float
    degree: int
    variable: Sample = lambda x: x


def chebyshev_grid(low: float, high: float) -> list[mp.mpf]:
    """Points dense at the ends; an even count, so that zero (where the corrections are 0/0) is not among them."""
    half, middle = mp.mpf(high - low) / 2, mp.mpf(high + low) / 2
    return [middle + half * mp.cos(mp.pi * (mp.mpf(i) + 0.5) / POINTS) for i in range(POINTS)]


def lawson(basis: NDArray[np.float64], target: Vector, weight: Vector) -> Vector:
    """The coefficients that minimise the largest |weight · (basis @ c - target)|."""
    scale = np.abs(basis * weight[:, None]).max(axis=0)
    rows, goal = basis * weight[:, None] / scale, target * weight
    measure = np.full(len(goal), 1.0 / len(goal))
    best, least = np.zeros(basis.shape[1]), np.inf
    for _ in range(ROUNDS):
        root = np.sqrt(measure)
        coefficients = np.linalg.lstsq(rows * root[:, None], goal * root, rcond=None)[0]
        error = np.abs(rows @ coefficients - goal)
        if error.max() < least:
            best, least = coefficients, error.max()
        measure = measure * error
        measure /= measure.sum()
    return np.asarray(best / scale)


def samples(fit: Fit) -> tuple[Vector, Vector, Vector]:
    """The grid in the polynomial's variable, the correction and the weight there."""
    grid = chebyshev_grid(fit.low, fit.high)
    return tuple(np.array([float(f(x)) for x in grid]) for f in (fit.variable, fit.correction, fit.weight))  # type: ignore[return-value]


def polynomial(fit: Fit) -> tuple[list[float], float]:
    """Float32 coefficients, constant first, and the largest relative error of the function that they make."""
    z, target, weight = samples(fit)
    fixed: list[float] = []
    rest = target
    for power in range(fit.degree + 1):
        basis = np.stack([z**p for p in range(power, fit.degree + 1)], axis=1)
        coefficient = float(np.float32(lawson(basis, rest, weight)[0]))
        fixed.append(coefficient)
        rest = rest - coefficient * z**power
    return fixed, float(np.abs(rest * weight).max())


def relative_to(function: Sample, factor: Sample) -> Sample:
    """The weight of a correction that is multiplied by `factor` before it is added to give `function`."""
    return lambda x: abs(factor(x) / function(x))


LN2 = mp.log(2)
LOG2E = 1 / LN2
ROOT = float(mp.sqrt(0.5))
SQUARE: Sample = lambda x: x * x  # noqa: E731


def odd(name: str, says: str, function: Sample, high: float, degree: int) -> Fit:
    """x + x³·Q(x²), which is an odd function with slope 1 at zero."""
    cube: Sample = lambda x: x**3  # noqa: E731
    return Fit(name, says, lambda x: (function(x) - x) / x**3, relative_to(function, cube), 0.0, high, degree, SQUARE)


def erfc_root(x: mp.mpf) -> mp.mpf:
    return mp.erfc(x) ** (mp.mpf(1) / 8)


FITS = [
    Fit("EXP", "exp(r) = 1 + r·(1 + r·Q(r)), |r| ≤ ln 2",
        lambda r: (mp.exp(r) - 1 - r) / r**2, relative_to(mp.exp, lambda r: r**2), -0.6935, 0.6935, 5),
    Fit("EXP2", "2^f = 1 + f·Q(f), |f| ≤ 1.07",
        lambda f: (mp.mpf(2) ** f - 1) / f, relative_to(lambda f: mp.mpf(2) ** f, lambda f: f), -1.07, 1.07, 7),
    Fit("EXPM1", "expm1(r) = r + r²·Q(r), |r| ≤ ln 2 / 2",
        lambda r: (mp.expm1(r) - r) / r**2, relative_to(mp.expm1, lambda r: r**2), -0.347, 0.347, 5),
    Fit("LOG", "log(1 + f) = f - f²/2 + f³·Q(f), √½ ≤ 1 + f ≤ √2",
        lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3, relative_to(mp.log1p, lambda f: f**3),
        ROOT - 1, 2 * ROOT - 1, 8),
    Fit("LOG2", "log2(1 + f) = f + f·Q(f), √½ ≤ 1 + f ≤ √2",
        lambda f: mp.log1p(f) * LOG2E / f - 1, relative_to(lambda f: mp.log1p(f) * LOG2E, lambda f: f),
        ROOT - 1, 2 * ROOT - 1, 9),
    Fit("LOG2_RATIO", "log2((1 + s) / (1 - s)) = 2/ln 2 · s + s³·Q(s²), |s| ≤ 0.1716",
        lambda s: (2 * mp.atanh(s) * LOG2E - 2 * LOG2E * s) / s**3,
        relative_to(mp.atanh, lambda s: s**3), 0.0, 0.17159, 3, SQUARE),
    odd("SIN", "sin(r) = r + r³·Q(r²), |r| ≤ π/4", mp.sin, 0.786, 3),
    Fit("COS", "cos(r) = 1 - r²/2 + r⁴·Q(r²), |r| ≤ π/4",
        lambda r: (mp.cos(r) - 1 + r**2 / 2) / r**4, relative_to(mp.cos, lambda r: r**4), 0.0, 0.786, 2, SQUARE),
    odd("TAN", "tan(r) = r + r³·Q(r²), |r| ≤ π/4", mp.tan, 0.786, 6),
    odd("ASIN", "asin(x) = x + x³·Q(x²), 0 ≤ x ≤ ½", mp.asin, 0.5, 4),
    odd("ATAN", "atan(x) = x + x³·Q(x²), 0 ≤ x ≤ 1", mp.atan, 1.0, 8),
    odd("SINH", "sinh(x) = x + x³·Q(x²), |x| ≤ 1", mp.sinh, 1.0, 3),
    odd("TANH", "tanh(x) = x + x³·Q(x²), |x| ≤ 0.6", mp.tanh, 0.6, 4),
    Fit("EXP_TWICE", "e^2r = 1 + r·(2 + r·Q(r)), |r| ≤ ln 2 / 4, for tanh beyond that",
        lambda r: (mp.exp(2 * r) - 1 - 2 * r) / r**2, relative_to(lambda r: mp.exp(2 * r), lambda r: r**2),
        -0.1735, 0.1735, 3),
    Fit("ERF", "erf(x) = x + x·Q(x²), |x| ≤ 1",
        lambda x: mp.erf(x) / x - 1, relative_to(mp.erf, lambda x: x), 0.0, 1.0, 5, SQUARE),
    Fit("ERFC_ROOT", "erf(x) = 1 - Q(x)^8, 1 ≤ x ≤ 3.93",
        erfc_root, lambda x: 8 * erfc_root(x) ** 7 / mp.erf(x), 1.0, 3.93, 6),
    Fit("ERF_BY_TANH", "erf(x) = tanh(x·Q(x²)), |x| ≤ 4, where there is a quick tanh",
        lambda x: mp.atanh(mp.erf(x)) / x, lambda x: (1 - mp.erf(x) ** 2) * x / mp.erf(x), 0.0, 4.0, 6, SQUARE),
]  # fmt: skip


def table(values: list[float]) -> str:
    """The numbers from the highest power to the lowest, shortest form that float32 reads back."""
    return "(" + ", ".join(repr(float(str(np.float32(v)))) for v in reversed(values)) + ")"


def show(name: str, value: str) -> None:
    line = f"{name} = {value}"
    print(line if len(line) <= 120 else f"{name} = (\n    " + ",\n    ".join(value[1:-1].split(", ")) + ",\n)")


def main() -> None:
    print('"""Coefficients of the functions in `maths.py`, from the highest power to the lowest; made by')
    print('`tools/fit_maths.py`, which says how. Each error is the relative one before float32 arithmetic rounds."""')
    for fit in FITS:
        coefficients, error = polynomial(fit)
        print(f"\n# {fit.says}; error {error:.1e}")
        show(fit.name, table(coefficients))


if __name__ == "__main__":
    main()
