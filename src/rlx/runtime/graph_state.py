"""What a graph on several devices keeps between runs, for users: the methods of `CompiledGraph` by the same names, and
the checks of inputs that may leave out what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlx.arguments import methods_checked
from rlx.backends.memory import DeviceArray
from rlx.errors import InputError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.runtime.program import Inputs
from rlx.runtime.shared_state import SharedState
from rlx.runtime.signature import Signature

_KEPT = object()
"""The place of values that are kept, wherever they are."""


class _KeptValue(DeviceArray):
    """Stands for a handle or a state where only dtype and shape count: nothing moves for a choice of a device."""

    place = _KEPT
    device = "any"

    def __init__(self, of: TensorType, shape: tuple[int, ...]) -> None:
        self.dtype = of.dtype.numpy
        self.shape = shape

    def numpy(self) -> Array:
        return np.zeros(self.shape, self.dtype)

    def copy(self) -> _KeptValue:
        return self

    def read(self, index: tuple[int, ...]) -> Array:
        return np.array(self.numpy()[index])


@methods_checked(but=("set_active_extent",))
class GraphState:
    """The state of a graph, wherever it is. Every method may be called from many threads."""

    def __init__(self, graph: Graph) -> None:
        self._shared = SharedState(graph)
        self._signature = Signature(graph, _KEPT)

    def bind_handle(self, name: str, array: Any) -> None:
        """Gives an input a persistent value, or a state its value, for the following runs on all devices.

        The array is copied. Raises InputError.
        """
        self._shared.holder.bind_handle(name, array)

    def read_handle(self, name: str) -> Array:
        """The value of a handle or of a state, read-only; later runs do not change it. Raises InputError, and StateLost
        for one that a device does not give any more."""
        return self._shared.holder.read_handle(name)

    def has_handle(self, name: str) -> bool:
        """Whether an input has a handle, or a state a value."""
        return name in self.handles()

    def handles(self) -> tuple[str, ...]:
        """Names of the inputs that have a handle, and of the states that have a value."""
        return self._shared.holder.handles()

    def unbind_handle(self, name: str) -> None:
        """Removes the handle: runs must bring the input again. Raises InputError if it has no handle, or has a feed."""
        self._shared.holder.unbind_handle(name)

    def set_feeds(self, feeds: Mapping[str, str]) -> None:
        """Makes the value of an output the handle of an input after each successful run, on whichever device that is.
        Raises InputError for types that do not match."""
        self._shared.holder.set_feeds(feeds)

    def set_active_extent(self, dim: str, extent: int | None) -> None:
        """As `CompiledGraph.set_active_extent`, for all devices; those that cannot do it are refused when they run."""
        self._shared.holder.set_active_extent(dim, extent)

    def seed(self, seed: int | None) -> None:
        """Makes the random numbers of the following runs depend on this seed, whichever devices they are on; None draws
        a new key. Raises InputError."""
        if self._shared.random is not None:
            self._shared.random.seed(seed)

    # the inputs of a call

    def _arrays(self, inputs: Inputs) -> list[Any]:
        """All inputs in the graph's order, checked but for dims; what is kept is told by shape only. Raises
        InputError, StateLost."""
        self._shared.refuse_lost()
        mode, types, names = self._shared.holder.mode, self._signature.types, self._signature.names
        kept = {name: _KeptValue(types[name], value.shape) for name, value in mode.handles.items()}
        merged = replace(mode, handles=kept).merge(inputs, names) if kept else inputs
        if isinstance(merged, (list, tuple)) and len(merged) != len(names):
            raise InputError(self._signature.refusal(len(merged), kept))
        arrays: list[Any] = self._signature.arrays(merged)
        return self._signature.with_states(arrays, self._kept_states())

    def _kept_states(self) -> dict[str, _KeptValue]:
        types = self._signature.states
        return {name: _KeptValue(types[name], value.shape) for name, value in self._shared.holder.mode.states.items()}

    def _brought(self, arrays: list[Any]) -> dict[str, Array]:
        """Those among checked arrays that a run is to bring, with the state of random numbers if there is one."""
        return {n: a for n, a in zip(self._signature.types, arrays) if not isinstance(a, _KeptValue)}
