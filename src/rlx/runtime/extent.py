"""Runs in which only the first n entries along a dim count: inputs are cut, and results are filled up with zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.executable import Bound, KernelTime
from rlx.backends.memory import DeviceArray, Where
from rlx.errors import InputError, did_you_mean
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.literal import Array
from rlx.ir.type import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

Extents = Mapping[str, int]


def check_extent(graph: Graph, dim: str, extent: int) -> None:
    """Raises InputError for a dim that no input has as an axis, or along which arrays have no first entries."""
    from rlx.passes.specialise import assume_equal

    known = {name for value in graph.inputs for d in value.shape for name in dims.symbols(d)}
    if not isinstance(dim, str) or dim not in known:
        near = did_you_mean(dim, known)
        raise InputError(f"[set_active_extent] expected a dim of an input among {sorted(known)}, got {dim!r}{near}")
    low, high = graph.bounds.get(dim, (0, None))
    if type(extent) is not int or extent < max(low, 0) or (high is not None and extent > high):
        limits = f"[{max(low, 0)}, {'inf' if high is None else high}]"
        raise InputError(f"[set_active_extent] expected a number of {dim!r} in {limits}, got {extent!r}")
    for kind, values in (("param", graph.params), ("input", graph.inputs)):
        for value in values:
            for axis, d in enumerate(value.shape):
                if dim in dims.symbols(d) and (kind == "param" or d != dims.symbol(dim)):
                    wanted = f"{dim!r} as an axis of inputs, alone" if kind == "input" else f"no param that has {dim!r}"
                    raise InputError(f"[set_active_extent] expected {wanted}, got {d} on axis {axis} of {value.name!r}")
    for name, value in assume_equal(graph).outputs.items():
        for axis, d in enumerate(value.type.shape):
            if not is_prefix(d, dim):
                wanted = f"{dim!r} not multiplied by other dims in outputs"
                raise InputError(f"[set_active_extent] expected {wanted}, got {d} on axis {axis} of {name!r}")


def is_prefix(d: Dim, dim: str) -> bool:
    """Whether an axis of `d` entries is shorter, and otherwise the same, at a smaller value of the dim."""
    if isinstance(d, int):
        return True
    for monomial, _ in d.terms:
        inside = [{f} if isinstance(f, str) else dims.symbols(f.left) | dims.symbols(f.right) for f in monomial]
        if any(dim in symbols for symbols in inside) and (len(monomial) > 1 or inside[0] != {dim}):
            return False
    return True


def cuts_of(types: Sequence[TensorType], extents: Extents) -> list[tuple[slice, ...] | None]:
    """What to take of arrays of these types; None of those that are taken whole."""
    stops = [[extents.get(str(d)) if not isinstance(d, int) else None for d in of.shape] for of in types]
    return [tuple(slice(s) for s in each) if any(s is not None for s in each) else None for each in stops]


class ActiveBound(Bound):
    """A program at two bindings: what the caller's arrays have, and what is run.

    inner    the program at the active extents
    inputs   types of the inputs
    outputs  types of the outputs
    put      a copy of an array where results that are wanted on the device lie
    """

    def __init__(
        self,
        inner: Bound,
        inputs: Sequence[TensorType],
        outputs: Sequence[TensorType],
        binding: Mapping[str, int],
        extents: Extents,
        put: Callable[[Array], Array | DeviceArray],
    ) -> None:
        self.inner = inner
        self.put = put
        self.nbytes = inner.nbytes
        self.outputs = list(outputs)
        self.binding = dict(binding)
        self.cuts = cuts_of(inputs, extents)
        if inner.shapes is not None:
            self.shapes = tuple(self._full(of, shape) for of, shape in zip(outputs, inner.shapes))

    def _full(self, of: TensorType, shape: Sequence[int]) -> tuple[int, ...]:
        """The caller's shape of a result; axes that the run measured are as long as they came."""
        known = self.binding.keys()
        return tuple(dims.evaluate(d, self.binding) if dims.symbols(d) <= known else n for d, n in zip(of.shape, shape))

    def _cut(self, inputs: Sequence[Array]) -> list[Array]:
        return [a if cut is None else np.ascontiguousarray(a[cut]) for a, cut in zip(inputs, self.cuts)]

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        arrays = self._cut(inputs)
        if self.shapes is None or self.inner.shapes is None:
            return [self._padded(of, result) for of, result in zip(self.outputs, self.inner(arrays))]
        given = [None] * len(self.outputs) if out is None else out
        full = [
            np.zeros(shape, of.dtype.numpy) if whole is None else whole
            for of, shape, whole in zip(self.outputs, self.shapes, given)
        ]
        fronts = [whole[_front(shape)] for whole, shape in zip(full, self.inner.shapes)]
        # a front that is contiguous takes its result at once, others a copy
        direct = [front if front.flags.c_contiguous else np.empty(front.shape, front.dtype) for front in fronts]
        self.inner(arrays, direct)
        for whole, front, result in zip(full, fronts, direct):
            if result is not front:
                np.copyto(front, result)
            if out is not None:
                _clear_behind(whole, front.shape)
        return full

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        """Arrays are cut and filled up on the host."""
        results = super().deliver_to(where, inputs, out)
        return [self.put(r) if place == "device" else r for place, r in zip(where, results)]

    def _padded(self, of: TensorType, result: Array) -> Array:
        made = np.zeros(self._full(of, result.shape), result.dtype)
        made[_front(result.shape)] = result
        return made

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        return self.inner.profile(self._cut(inputs))


def _front(shape: Sequence[int]) -> tuple[Any, ...]:
    """The index of what lies in front; of an array without axes too it gives a view, not a number."""
    return (*(slice(n) for n in shape), ...)


def _clear_behind(whole: Array, shape: Sequence[int]) -> None:
    """Zeros wherever an index lies beyond the shape."""
    if math.prod(shape) == whole.size:
        return
    for axis, n in enumerate(shape):
        whole[(*(slice(m) for m in shape[:axis]), slice(n, None))] = 0
