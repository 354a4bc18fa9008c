"""The checks between a caller's arrays and compiled code: names, dtypes, ranks, dims.

Nothing is cast silently. Arrays that fit are passed on without a copy; those that fit but have an unsuitable memory
layout (strided, foreign byte order, unaligned) are copied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.arguments import is_iterable
from rlx.backends.memory import AdoptingPlace, DeviceArray, HostArray, Where
from rlx.errors import InputError, ShapeError, did_you_mean
from rlx.ir import dim as dims
from rlx.ir.dim import Dim, Poly
from rlx.ir.expect import UnequalDims
from rlx.ir.literal import Array
from rlx.ir.names import RANDOM_STATE
from rlx.ir.type import TensorType
from rlx.runtime.dlpack import handed_over
from rlx.runtime.interface import Interface
from rlx.runtime.misfit import told
from rlx.runtime.random_state import RandomState
from rlx.runtime.typed import Typed

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

_ndarray = np.ndarray
_CONTIGUOUS = 0x1  # NPY_ARRAY_C_CONTIGUOUS; enough for weights, which lie anywhere in a mapped file
_GOOD_LAYOUT = 0x101  # … | NPY_ARRAY_ALIGNED


class Signature:
    """The inputs of a graph by name and type.

    `names` are those that a caller must bring. A program that draws random numbers has one more, RANDOM_STATE, which
    comes from `random` where the caller leaves it out; `states` are those that the runtime brings. `types` have all of
    them in their places, the arrays of a caller all but states: `with_states` puts these in. Arrays on a device whose
    memory is `place` stay there.
    """

    def __init__(self, of: Graph | Interface, place: object = None, graph: Callable[[], Graph] | None = None) -> None:
        """`graph` gives the graph that an interface is of, for messages."""
        interface = of if isinstance(of, Interface) else Interface.of(of)
        self.interface = interface
        self._graph = graph if isinstance(of, Interface) else lambda: of
        self.place = place
        self._adopt = place.adopt if isinstance(place, AdoptingPlace) else None
        self.types: dict[str, TensorType] = dict(interface.inputs)
        self.states: dict[str, TensorType] = {name: self.types[name] for name in interface.states}
        self._brought = {name: of for name, of in self.types.items() if name not in self.states}
        self._states_at = [(list(self.types).index(name), name) for name in self.states]
        self.names = tuple(name for name in self._brought if name != RANDOM_STATE)
        self.random = RandomState() if RANDOM_STATE in self.types else None
        self._random_at = list(self._brought).index(RANDOM_STATE) if self.random else 0
        self._dtypes = tuple(self.types[name].dtype.numpy for name in self.names)
        # computed once: a new size must not cost a walk over the graph
        self._symbols = interface.symbols
        self._symbolic_params = {name: of for name, of in interface.params.items() if not of.is_static}

    def quick(self, inputs: Any) -> list[Array] | None:
        """The arrays in order if each can be used as it is; None says that `arrays` has to look closely."""
        if type(inputs) is dict:
            if len(inputs) != len(self.names):
                return None
            try:
                arrays = [inputs[name] for name in self.names]
            except KeyError:
                return None
        elif type(inputs) in (list, tuple) and len(inputs) == len(self.names):
            arrays = list(inputs)
        else:
            return None
        for at, (array, dtype) in enumerate(zip(arrays, self._dtypes)):
            if type(array) is not _ndarray:
                there = self._there(array)
                if there is None or there.dtype != dtype:
                    return None
                arrays[at] = there
                continue
            if array.dtype is not dtype:
                return None
            if array.flags.num & _GOOD_LAYOUT != _GOOD_LAYOUT:
                return None
        if self.random is not None:
            arrays.insert(self._random_at, self.random.next())
        return arrays

    def _there(self, value: Any) -> DeviceArray | None:
        """A value as an array in the memory of the program's device, if it lies there; no array of the host does, of
        whatever class. Raises InputError."""
        if self.place is None:
            return None
        array = value if isinstance(value, DeviceArray) else self._adopt(value) if self._adopt is not None else None
        return array if array is not None and array.place is self.place else None

    def arrays(self, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Array]:
        """The arrays in the graph's order, checked but for dims. Raises InputError."""
        named = self._told(inputs)
        own = self.random is not None and RANDOM_STATE not in named
        names = self.names if own else self._brought
        arrays = [self._checked(name, named[name], self.types[name]) for name in names]
        if own and self.random is not None:
            arrays.insert(self._random_at, self.random.next())
        return arrays

    def _checked(self, name: str, value: Any, of: TensorType) -> Any:
        value = adopted(value, self.place)
        if isinstance(value, DeviceArray):
            if value.place is self.place and self.place is not None and value.dtype == of.dtype.numpy:
                return value
            value = value.numpy()
        return checked("run", "input", name, value, of)

    def with_states(self, arrays: list[Array], states: Mapping[str, Any]) -> list[Array]:
        """The arrays of all inputs, of those that a caller brings and of states. Raises InputError for a state that is
        neither bound nor zeros."""
        unbound = [name for name in self.states if name not in states]
        if unbound:
            state = f"the state {unbound[0]!r} ({self.states[unbound[0]]})"
            raise InputError(f"[run] expected a value of {state}, got none: bind_handle gives it")
        for at, name in self._states_at:
            arrays.insert(at, states[name])
        return arrays

    def take_back(self, arrays: Sequence[Array]) -> None:
        """The random numbers of a run that failed are there for the next, unless another run has had some since."""
        if self.random is not None:
            among = self.types if len(arrays) == len(self.types) else self._brought
            self.random.take_back(arrays[list(among).index(RANDOM_STATE)])

    def _told(self, inputs: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            missing = [n for n in self.names if n not in inputs]
            unknown = [n for n in inputs if n not in self._brought]
            if missing or unknown:
                actual = [f"{what} {', '.join(map(repr, which))}" for what, which in
                       (("missing", missing), ("unknown", unknown)) if which]  # fmt: skip
                near = did_you_mean(str(unknown[0]), missing) if unknown else ""
                raise InputError(f"[run] expected the inputs {list(self.names)}, got {' and '.join(actual)}{near}")
            return inputs
        if not isinstance(inputs, (list, tuple)):
            raise InputError(
                f"[run] expected a mapping of names to arrays or a list of arrays, got {type(inputs).__name__}"
            )
        if len(inputs) != len(self.names):
            raise InputError(self.refusal(len(inputs), ()))
        return dict(zip(self.names, inputs))

    def refusal(self, count: int, handles: Iterable[str]) -> str:
        """What is said of so many inputs by position, where some have a handle."""
        handled = [name for name in self.names if name in set(handles)]
        if not handled:
            return f"[run] expected {len(self.names)} inputs {list(self.names)}, got {count}"
        open_ = [name for name in self.names if name not in handled]
        return (
            f"[run] expected {len(open_)} inputs {open_} (a handle stands for {handled}), or all {len(self.names)} "
            f"{list(self.names)}, got {count}"
        )

    def binding(self, arrays: Sequence[Array], params: Mapping[str, Array]) -> dict[str, int]:
        """Values of the named dims. Raises InputError that names both sides of a contradiction."""
        solver = _Solver()
        taken: set[tuple[object, ...]] = set()
        for (name, of), array in zip(self.types.items(), arrays):
            same = (of.shape, array.shape)  # decoders have dozens of states that are alike
            if same not in taken:
                taken.add(same)
                solver.take("input", name, of, array.shape)
        for name, of in self._symbolic_params.items():
            if name in params:
                solver.take("param", name, of, params[name].shape)
        sizes = solver.solve()
        unbound = [name for name in self._symbols if name not in sizes]
        if unbound:
            raise InputError(f"[run] expected values of the dims {unbound}, got none: no input of rank enough has them")
        try:
            self.interface.check_dims(sizes)
        except UnequalDims as error:
            raise InputError(f"[run] {told(error.equality, sizes, solver.origins(), self._graph)}") from None
        except ShapeError as error:
            raise InputError(f"[run] {error}; {', '.join(solver.origins().values())}") from None
        return sizes

    def active(self, binding: Mapping[str, int], extents: Mapping[str, int]) -> dict[str, int]:
        """The binding with active extents in it. Raises InputError for those beyond the inputs' sizes."""
        beyond = {name: n for name, n in extents.items() if n > binding[name]}
        if beyond:
            extents_text = ", ".join(f"{name} = {n} of {binding[name]}" for name, n in beyond.items())
            raise InputError(f"[run] expected active extents within the sizes of the inputs, got {extents_text}")
        active = {**binding, **extents}
        try:
            # results are as large as types say, which is not so where a dim of 1 is broadcast
            self.interface.bind(binding)
            self.interface.bind(active)
        except ShapeError as error:
            raise InputError(f"[run] {error}, at the active extents {dict(extents)}") from None
        return active


class _Solver:
    """Named dims out of shapes: plain names first, then polynomials in one unknown, then everything is checked."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[Dim, int], str] = {}  # what was declared and came, and where first
        self.found: dict[str, int] = {}
        self.origin: dict[str, str] = {}

    def take(self, kind: str, name: str, of: TensorType, shape: tuple[int, ...]) -> None:
        if len(shape) != of.rank:
            actual = f"{of.dtype}[{', '.join(map(str, shape))}] (rank {len(shape)})"
            raise InputError(f"[run] expected {kind} {name!r} of {of} (rank {of.rank}), got {actual}")
        for axis, (declared, size) in enumerate(zip(of.shape, shape)):
            if isinstance(declared, Poly):
                if (declared, size) not in self.pairs:
                    self.pairs[declared, size] = f"{kind} {name!r} axis {axis}"
            elif declared != size:
                actual = f"{of.dtype}[{', '.join(map(str, shape))}]"
                raise InputError(f"[run] expected {kind} {name!r} of {of}, got {actual}: axis {axis} is {size}")

    def solve(self) -> dict[str, int]:
        for plain in (True, False):
            for (declared, size), where in self.pairs.items():
                self._learn(where, declared, size, plain)
        for (declared, size), where in self.pairs.items():
            if dims.symbols(declared) <= self.found.keys() and dims.evaluate(declared, self.found) != size:
                name = str(declared)
                expected = dims.evaluate(declared, self.found)
                origin = ", ".join(self.origin[s] for s in sorted(dims.symbols(declared)))
                raise InputError(
                    f"[run] expected the dim {name!r} to be one size, got {expected} in {origin} and {size} in {where}"
                )
        return self.found

    def _learn(self, where: str, declared: Dim, size: int, plain: bool) -> None:
        unknown = dims.symbols(declared) - self.found.keys()
        if len(unknown) != 1:
            return
        (name,) = unknown
        if not plain:
            value = _solve_linear(declared, name, size, self.found)
        else:
            value = size if declared == dims.symbol(name) else None
        if value is not None:
            self.found[name] = value
            self.origin[name] = where

    def origins(self) -> dict[str, str]:
        """Of each dim, what it comes from."""
        return {name: f"{name} = {size} by {self.origin[name]}" for name, size in self.found.items()}


def _solve_linear(declared: Dim, name: str, size: int, known: Mapping[str, int]) -> int | None:
    """The value ≥ 0 of `name` that makes `declared` equal to `size`, if it occurs linearly and there is one."""
    at = [dims.evaluate(declared, {**known, name: value}) for value in (0, 1, 2)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope or (size - at[0]) % slope:
        return None
    value = (size - at[0]) // slope
    return value if value >= 0 and dims.evaluate(declared, {**known, name: value}) == size else None


def checked(where: str, kind: str, name: str, value: Any, of: TensorType, layout: int = _GOOD_LAYOUT) -> Array:
    """`value` as an array of the dtype of `of` with this layout; dims are checked elsewhere. Raises InputError."""
    array = _as_array(where, kind, name, value, of)
    if array.dtype != of.dtype.numpy:
        if array.dtype.newbyteorder("=") == of.dtype.numpy:
            return array.astype(of.dtype.numpy)
        actual = f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"
        raise InputError(
            f"[{where}] expected {kind} {name!r} of {of}, got {actual}: "
            f"dtypes are never cast silently, .astype({of.dtype.numpy.name!r}) does it"
        )
    if array.flags.num & layout != layout:
        return np.array(array, order="C", copy=True).reshape(array.shape)
    return array


def _as_array(where: str, kind: str, name: str, value: Any, of: TensorType) -> Array:
    # the check of the module table avoids importing numpy.ma in programs without masked arrays
    if "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray):
        raise InputError(f"[{where}] expected {kind} {name!r} of {of}, got a masked array: .filled(…) unmasks it")
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, Typed):
        return value.array(where, kind, name, of)
    if hasattr(value, "__dlpack__"):
        return handed_over(where, kind, name, value, of)
    raise InputError(
        f"[{where}] expected {kind} {name!r} of {of} as an array (NumPy or DLPack), got {type(value).__name__}: "
        f"np.asarray(…, {of.dtype.numpy.name!r}) makes one, of bytes rlx.Typed(…, dtype)"
    )


def adopted(value: Any, place: object) -> Any:
    """An array of another library that lies in this memory as one of ours; anything else as it is."""
    if not isinstance(place, AdoptingPlace) or isinstance(value, (DeviceArray, np.ndarray, np.generic, Typed)):
        return value
    array = place.adopt(value)
    return value if array is None else array


def check_param(name: str, array: Any, of: TensorType) -> Array:
    """A weight that fits its declaration; named dims are open. Raises InputError."""
    data = checked("set_param", "param", name, array, of, layout=_CONTIGUOUS)
    fits = len(data.shape) == of.rank and all(isinstance(d, Poly) or d == n for d, n in zip(of.shape, data.shape))
    if not fits:
        raise InputError(f"[set_param] expected param {name!r} of {of}, got {of.dtype}{list(data.shape)}")
    return data


def check_handle(name: str, array: Any, of: TensorType, place: object = None) -> Array | DeviceArray:
    """A copy, read-only, of an array that fits an input's declaration; named dims are open. One in the memory `place`
    is copied there. Raises InputError."""
    value: Array | DeviceArray
    array = adopted(array, place)
    if isinstance(array, DeviceArray) and place is not None and array.place is place and array.dtype == of.dtype.numpy:
        value = array.copy()
    else:
        host = array.numpy() if isinstance(array, DeviceArray) else array
        value = np.array(checked("bind_handle", "input", name, host, of), order="C")
    fits = len(value.shape) == of.rank and all(isinstance(d, Poly) or d == n for d, n in zip(of.shape, value.shape))
    if not fits:
        raise InputError(f"[bind_handle] expected input {name!r} of {of}, got {of.dtype}{list(value.shape)}")
    if not isinstance(value, DeviceArray):
        value.flags.writeable = False
    return value


def names_of(outputs: Iterable[str], known: Sequence[str]) -> list[int]:
    """Positions of outputs. Raises InputError on an unknown name."""
    if isinstance(outputs, Mapping):  # in the order of onnxruntime
        raise InputError("[run] expected names of outputs, got a mapping: run(inputs, outputs) has the inputs first")
    if not is_iterable(outputs):
        raise InputError(f"[run] expected names of outputs among {list(known)}, got {outputs!r}")
    chosen = [outputs] if isinstance(outputs, str) else list(outputs)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        near = did_you_mean(str(unknown[0]), known)
        raise InputError(f"[run] expected outputs among {list(known)}, got {unknown}{near}")
    return [list(known).index(name) for name in chosen]


def destinations_of(wanted: Mapping[str, Where], known: Sequence[str]) -> tuple[list[int], list[Where]]:
    """Positions of outputs that are wanted somewhere, and where each of those known goes: others nowhere. Raises
    InputError."""
    chosen = names_of(list(wanted), known)
    destinations: list[Where] = ["nowhere"] * len(known)
    for at, where in zip(chosen, wanted.values()):
        destinations[at] = where
    return chosen, destinations


def where_wanted(result: Any, where: Where) -> Any:
    """A result of a run, as an array on a device if it is wanted there: devices without memory give those of the
    host."""
    return HostArray(result) if where == "device" and not isinstance(result, DeviceArray) else result
