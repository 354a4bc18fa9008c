"""The place of the greatest or least of a row: vectors of the best values so far and of their places.

A NaN beats all else; of equals the first or the last wins, as the statement says.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.codegen.simd.body import Body
from rlx.codegen.simd.function import register_type
from rlx.codegen.simd.registers import Reg
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.loops import Reduce

Best = tuple[str, str]
"""The best value so far, and its place."""


@dataclass(frozen=True)
class Extremum:
    """How a statement's best values and places are kept: places in 32 bits where these suffice."""

    body: Body
    stage: Reduce
    extent: Dim

    @property
    def dtype(self) -> DType:
        return self.stage.body.dtype

    @property
    def place(self) -> str:
        """LLVM type of a place."""
        return "i32" if isinstance(self.extent, int) and self.extent < 1 << 31 else "i64"

    @property
    def kinds(self) -> tuple[str, str]:
        """LLVM types of what loops carry."""
        return self.body.kind(register_type(self.dtype), True), self.body.kind(self.place, True)

    def start(self, worst: str, first: int, apart: int) -> list[tuple[str, str]]:
        """What loops begin with; `first` and `apart` as in `places`. Where nothing beats the worst value, the first
        place stands already; the last one always takes its place, as an equal does."""
        kind, place = self.kinds
        at = [-1 if self.stage.last else first + lane * apart for lane in range(self.body.lanes)]
        return [(kind, worst), (place, "<" + ", ".join(f"{self.place} {i}" for i in at) + ">")]

    def places(self, first: str, apart: int) -> str:
        """The places of the lanes of a vector that begins at `first`, so many elements apart from lane to lane."""
        f = self.body.f
        start = first if self.place == "i64" else f.value(f"trunc i64 {first} to i32")
        kind = self.kinds[1]
        one = f.value(f"insertelement {kind} poison, {self.place} {start}, i64 0")
        every = f.value(f"shufflevector {kind} {one}, {kind} poison, <{self.body.lanes} x i32> zeroinitializer")
        if not apart:
            return every
        steps = ", ".join(f"{self.place} {i * apart}" for i in range(self.body.lanes))
        return f.value(f"add {kind} {every}, <{steps}>")

    def taken(self, best: Best, value: str, places: str, mask: str | None = None) -> Best:
        """The best of what was and of values behind it; lanes that a mask leaves out stay."""
        f = self.body.f
        if self.stage.last:
            wins = f.value(f"xor {self._test} {self._beats(best[0], value)}, {self._ones()}")
        else:
            wins = self._beats(value, best[0])
        if mask is not None:
            wins = f.value(f"and {self._test} {wins}, {mask}")
        return self._chosen(wins, (value, places), best)

    def joined(self, a: Best, b: Best) -> Best:
        """The better of two, of equals the first or the last in the row."""
        f = self.body.f
        order = "sgt" if self.stage.last else "slt"
        beats, beaten = self._beats(b[0], a[0]), self._beats(a[0], b[0])
        earlier = f.value(f"icmp {order} {self.kinds[1]} {b[1]}, {a[1]}")
        equal = f.value(f"xor {self._test} {beaten}, {self._ones()}")
        wins = f.value(f"or {self._test} {beats}, {f.value(f'and {self._test} {equal}, {earlier}')}")
        return self._chosen(wins, b, a)

    def across_lanes(self, best: Best) -> str:
        """The place of the best of all lanes."""
        f, lanes = self.body.f, self.body.lanes
        width = lanes
        while width > 1:
            width //= 2
            order = ", ".join(f"i32 {(i + width) % lanes}" for i in range(lanes))
            value, place = (
                f.value(f"shufflevector {kind} {part}, {kind} poison, <{lanes} x i32> <{order}>")
                for kind, part in zip(self.kinds, best)
            )
            best = self.joined(best, (value, place))
        return f.value(f"extractelement {self.kinds[1]} {best[1]}, i64 0")

    def result(self, place: str, vector: bool) -> Reg:
        """A place as the register of the statement's result."""
        if self.place == "i32":
            wide, narrow = (self.body.kind(kind, vector) for kind in ("i64", "i32"))
            place = self.body.f.value(f"sext {narrow} {place} to {wide}")
        return Reg(place, dtypes.i64, vector)

    @property
    def _test(self) -> str:
        return self.body.kind("i1", True)

    def _ones(self) -> str:
        return "<" + ", ".join(["i1 true"] * self.body.lanes) + ">"

    def _chosen(self, wins: str, new: Best, old: Best) -> Best:
        value, place = (
            self.body.f.value(f"select {self._test} {wins}, {kind} {a}, {kind} {b}")
            for kind, a, b in zip(self.kinds, new, old)
        )
        return value, place

    def _beats(self, new: str, best: str) -> str:
        """Whether `new` is really better than `best`."""
        body = self.body
        left, right = (Expr("register", self.dtype, (), (name, what)) for name, what in ((new, "new"), (best, "best")))
        body.push()
        body.remember(left, Reg(new, self.dtype, True))
        body.remember(right, Reg(best, self.dtype, True))
        better = body.gen(_beats(self.stage.combine, left, right)).name
        body.pop()
        return better


def _beats(combine: str, new: Expr, best: Expr) -> Expr:
    wins = ex.apply("lt", *((best, new) if combine == "max" else (new, best)))
    if not new.dtype.is_float:
        return wins
    new_nan, best_nan = ex.apply("ne", new, new), ex.apply("ne", best, best)
    return ex.apply("and", ex.apply("or", wins, new_nan), ex.apply("not", best_nan))
