"""Small Fourier transforms on registers: the arithmetic of one step of a transform, written out.

Numbers carry a sign that costs nothing until they are stored, so that products with -1 and ±i are no instructions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlx.codegen.simd.function import Function
from rlx.codegen.simd.registers import float_literal
from rlx.ops.fourier_plan import roots


@dataclass(frozen=True)
class Number:
    """A vector register, or its negative."""

    name: str
    negative: bool = False

    def __neg__(self) -> Number:
        return Number(self.name, not self.negative)


Complex = tuple[Number, Number]


class Arithmetic:
    """Instructions on vectors of `width` elements of an LLVM type (float or double)."""

    def __init__(self, f: Function, scalar: str, width: int) -> None:
        self.f = f
        self.scalar = scalar
        self.width = width
        self.kind = f"<{width} x {scalar}>"
        self.has_fma = f.module.target.has_fma
        self.suffix = f"v{width}{'f32' if scalar == 'float' else 'f64'}"

    def constant(self, value: float) -> str:
        """A literal with the value, rounded to the element type, in every lane."""
        rounded = float(np.float32(value)) if self.scalar == "float" else value
        return "<" + ", ".join([f"{self.scalar} {float_literal(rounded)}"] * self.width) + ">"

    def add(self, a: Number, b: Number) -> Number:
        if a.negative == b.negative:
            return Number(self.f.value(f"fadd {self.kind} {a.name}, {b.name}"), a.negative)
        first, second = (b, a) if a.negative else (a, b)
        return Number(self.f.value(f"fsub {self.kind} {first.name}, {second.name}"))

    def sub(self, a: Number, b: Number) -> Number:
        return self.add(a, -b)

    def mul(self, a: Number, by: str) -> Number:
        return Number(self.f.value(f"fmul {self.kind} {a.name}, {by}"), a.negative)

    def fma(self, a: Number, by: str, c: Number) -> Number:
        """a · by + c, in one rounding where the target can."""
        if not self.has_fma:
            return self.add(self.mul(a, by), c)
        left = self._negated(a.name) if a.negative else a.name
        right = self._negated(c.name) if c.negative else c.name
        name, kind = f"@llvm.fma.{self.suffix}", self.kind
        self.f.module.declare(f"declare {kind} {name}({kind}, {kind}, {kind})")
        return Number(self.f.value(f"call {kind} {name}({kind} {left}, {kind} {by}, {kind} {right})"))

    def plain(self, a: Number) -> str:
        """The register of a number as it is."""
        return self._negated(a.name) if a.negative else a.name

    def _negated(self, name: str) -> str:
        return self.f.value(f"fneg {self.kind} {name}")

    def times(self, a: Complex, real: str, imaginary: str) -> Complex:
        """A complex product with vectors."""
        re = self.fma(a[0], real, -self.mul(a[1], imaginary))
        return re, self.fma(a[0], imaginary, self.mul(a[1], real))

    def plus(self, a: Complex, b: Complex) -> Complex:
        return self.add(a[0], b[0]), self.add(a[1], b[1])

    def minus(self, a: Complex, b: Complex) -> Complex:
        return self.sub(a[0], b[0]), self.sub(a[1], b[1])

    # transforms

    def transform(self, x: list[Complex]) -> list[Complex]:
        """Σₜ x[t] · e^(-2πi·k·t/n) for k from 0 to n-1."""
        n = len(x)
        if n == 1:
            return x
        if n == 2:
            return [self.plus(x[0], x[1]), self.minus(x[0], x[1])]
        if n == 4:
            return self._four(x)
        factor = next((r for r in (4, 2, 3, 5, 7) if n % r == 0 and n > r), n)
        return self._prime(x) if factor == n else self._split(x, factor)

    def _four(self, x: list[Complex]) -> list[Complex]:
        a, b = self.plus(x[0], x[2]), self.plus(x[1], x[3])
        c, d = self.minus(x[0], x[2]), self.minus(x[1], x[3])
        rotated = d[1], -d[0]  # -i · d
        return [self.plus(a, b), self.plus(c, rotated), self.minus(a, b), self.minus(c, rotated)]

    def _split(self, x: list[Complex], first: int) -> list[Complex]:
        """As `ops.fourier` splits: transforms of length `first`, twiddles, transforms of the rest."""
        n, rest = len(x), len(x) // first
        rows = [self.transform(x[t::rest]) for t in range(rest)]
        bins: list[Complex] = [x[0]] * n
        for k in range(first):
            column = [self._turned(rows[t][k], t * k, n) for t in range(rest)]
            bins[k::first] = self.transform(column)
        return bins

    def _turned(self, a: Complex, numerator: int, length: int) -> Complex:
        """a · e^(-2πi · numerator / length)."""
        eighths, rest = divmod(8 * (numerator % length), length)
        if rest:
            real, imaginary = roots(np.array(numerator), length, -1)
            return self.times(a, self.constant(float(real)), self.constant(float(imaginary)))
        for _ in range(eighths // 2):
            a = a[1], -a[0]
        if eighths % 2:
            half = self.constant(math.sqrt(0.5))
            a = self.mul(self.add(a[0], a[1]), half), self.mul(self.sub(a[1], a[0]), half)
        return a

    def _prime(self, x: list[Complex]) -> list[Complex]:
        """Elements t and n-t meet the same cosine and opposite sines: half the products."""
        n = len(x)
        places = range(1, n // 2 + 1)
        sums = [self.plus(x[t], x[n - t]) for t in places]
        differences = [self.minus(x[t], x[n - t]) for t in places]
        whole = x[0]
        for part in sums:
            whole = self.plus(whole, part)
        bins = [whole] * n
        for k in places:
            cosines, sines = roots(np.array([k * t for t in places]), n, 1)
            even, odd = x[0], None
            for cosine, sine, both, apart in zip(cosines, sines, sums, differences):
                c, s = self.constant(float(cosine)), self.constant(float(sine))
                even = self.fma(both[0], c, even[0]), self.fma(both[1], c, even[1])
                if odd is None:
                    odd = self.mul(apart[0], s), self.mul(apart[1], s)
                else:
                    odd = self.fma(apart[0], s, odd[0]), self.fma(apart[1], s, odd[1])
            assert odd is not None  # a prime above 2 has such places
            rotated = odd[1], -odd[0]  # -i · odd
            bins[k], bins[n - k] = self.plus(even, rotated), self.minus(even, rotated)
        return bins
