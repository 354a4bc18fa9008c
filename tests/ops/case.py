"""What a case of an op is, arrays for it, and the table that files of cases register in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import Op, lookup

FLOATS = (dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16)
DTYPES: dict[str, tuple[DType, ...]] = {
    "bool": (dtypes.bool_,),
    "int": (dtypes.i32, dtypes.i64, dtypes.i8),
    "uint": (dtypes.u8, dtypes.u32),
    "float": FLOATS,
    "complex": (dtypes.c64,),
}
NARROW: dict[str, tuple[DType, ...]] = {
    "int": (dtypes.i4, dtypes.i2), "uint": (dtypes.u4, dtypes.u2), "float": (dtypes.f8e4m3,)
}  # fmt: skip
"""What only elementwise ops are tried with."""
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-6, 20.0, -20.0, np.inf, -np.inf, np.nan)


@dataclass(frozen=True)
class Case:
    """An op on arrays."""

    op: Op
    arrays: tuple[Array, ...]
    what: str

    def __str__(self) -> str:
        shapes = "-".join(f"{dtypes.of(a.dtype)}{list(a.shape)}".replace(" ", "") for a in self.arrays)
        return f"{self.op.name}-{self.what}-{shapes}"

    def graph(self) -> Graph:
        """A graph of this one op; operand i is the input `x<i>`, result i the output `y<i>`."""
        graph = Graph(self.op.name)
        values = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(self.arrays)]
        results = graph.add(self.op, *values)
        for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
            graph.output(value, name=f"y{i}")
        return graph

    def inputs(self) -> dict[str, Array]:
        return {f"x{i}": a for i, a in enumerate(self.arrays)}

    def reference(self) -> tuple[Array, ...]:
        """What the op's own reference says, in the dtypes of its type rule."""
        results = self.op.reference(*self.arrays)
        return tuple(np.asarray(a) for a in (results if isinstance(results, tuple) else (results,)))


def array(shape: tuple[int, ...], dtype: DType = dtypes.f32, seed: int = 0, special: bool = False) -> Array:
    """Numbers of every sign and some size; with `special`, floats begin with the values that break things."""
    random = np.random.default_rng(seed + 1)
    size = int(np.prod(shape))
    if dtype.kind == "bool":
        return random.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        info = ml_dtypes.iinfo(dtype.numpy)
        low, high = (0, min(9, info.max + 1)) if dtype.kind == "uint" else (max(-8, info.min), min(9, info.max + 1))
        flat = random.integers(low, high, size).astype(dtype.numpy)
        if special and size > 4:
            flat[:4] = (0, 1, info.max, info.min)
        return flat.reshape(shape)
    numbers = random.normal(size=size) * 3
    if special:
        count = min(size, len(SPECIAL))
        numbers[:count] = SPECIAL[:count]
    if dtype.is_complex:
        return (numbers + 1j * random.normal(size=size)).astype(dtype.numpy).reshape(shape)
    return numbers.astype(dtype.numpy).reshape(shape)


Specimen = Callable[[], Iterator[Case]]
SPECIMENS: dict[str, Specimen] = {}


def specimen(*names: str) -> Callable[[Callable[[str], Iterator[Case]]], Callable[[str], Iterator[Case]]]:
    """Registers cases of these ops; the function gets the op's name."""

    def register(make: Callable[[str], Iterator[Case]]) -> Callable[[str], Iterator[Case]]:
        for name in names:
            SPECIMENS[name] = lambda name=name: make(name)
        return make

    return register


def case(name: str, what: str, *arrays: Array, **attributes: Any) -> Case:
    """A case of an op by name."""
    return Case(lookup(name)(**attributes), arrays, what)
