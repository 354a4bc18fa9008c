"""Lengths of all kinds through few programs: inputs are padded up to a bucket, results are cut back.

Where one program runs at every size nothing is padded: a run at the length itself is what a padded run with an active
extent comes to. Elsewhere each bucket has a program of its own, compiled when it is first needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlx import locks
from rlx.arguments import methods_checked
from rlx.backends.executable import shapes_at
from rlx.errors import InputError, ShapeError, did_you_mean
from rlx.interrupt import CancelToken
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.passes.specialise import assume_equal, specialise
from rlx.records import dataclass
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.program import Inputs
from rlx.runtime.session import Session
from rlx.runtime.signature import Signature, check_param

Bucket = tuple[int, ...]
MAX_BYTES = 1 << 30
MAX_NOTES = 1024


def power_of_two_ladder(least: int, most: int) -> tuple[int, ...]:
    """Powers of two from the first that is no less than `least` to the first that is no less than `most`."""
    if not 1 <= least <= most:
        raise InputError(f"[buckets] expected 1 ≤ least ≤ most, got {least} and {most}")
    first, last = (least - 1).bit_length(), (most - 1).bit_length()
    return tuple(1 << n for n in range(first, last + 1))


@dataclass(frozen=True)
class Compile:
    """A compile that a run led to: the sizes of its bucket by dim (none: all sizes), and why there was no program."""

    bucket: Mapping[str, int]
    reason: str

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={n}" for name, n in self.bucket.items())
        return f"{sizes or 'all sizes'}: {self.reason}"


@methods_checked()
class BucketedCache:
    """A graph for lengths in buckets. Every method may be called from many threads.

    ladders     dim → the sizes that it is padded to, ascending; `power_of_two_ladder` makes some
    pad_values  input → what it is padded with; 0 for the others. Padded entries are computed with, so a mask that is 0
                there, or a graph in which they do not meet others, is the caller's affair
    max_bytes   of code, packed weights and buffers; the programs that were not used for longest go first
    static      a program for each bucket (True), or one for all (False); None takes what the device can
    """

    def __init__(
        self,
        graph: Graph,
        session: Session,
        ladders: Mapping[str, Sequence[int]],
        pad_values: Mapping[str, Any] | None = None,
        max_bytes: int = MAX_BYTES,
        static: bool | None = None,
    ) -> None:
        self.graph = graph
        self.session = session
        self.max_bytes = max_bytes
        self.hits = 0
        self.compiles = 0
        self.evictions = 0
        self._signature = Signature(graph)
        self._outputs = {name: value.type for name, value in assume_equal(graph).outputs.items()}
        self._ladders = {name: _checked_ladder(name, ladder) for name, ladder in ladders.items()}
        self._pads = _checked_pads(pad_values or {}, self._signature.types)
        self._check_dims()
        self._static = static
        self._whole: CompiledGraph | None = None  # the program of all sizes, where there is one
        self._param_types = {value.name: value.type for value in graph.params}
        self._params: dict[str, Array] = dict(graph.data)
        self._programs: OrderedDict[Bucket, CompiledGraph] = OrderedDict()
        self._dropped: set[Bucket] = set()
        self._notes: list[Compile] = []
        self._lock = locks.rlock()

    def _check_dims(self) -> None:
        known = set(self.graph.symbols)
        for name in self._ladders:
            if name not in known:
                raise InputError(f"[buckets] expected ladders of dims among {sorted(known)}, got {name!r}")
        values = [(v.name, v.type) for v in (*self.graph.inputs, *self.graph.params)]
        values += self._outputs.items()
        for name, of in values:
            for axis, d in enumerate(of.shape):
                if dims.symbols(d) & self._ladders.keys() and str(d) not in self._ladders:
                    rule = "dims with a ladder alone on an axis"
                    raise InputError(f"[buckets] expected {rule}, got {d} on axis {axis} of {name!r}")

    def set_params(self, params: Mapping[str, Any]) -> None:
        """As `CompiledGraph.set_params`, of all programs; named dims of weights have no ladder. Raises InputError."""
        unknown = [name for name in params if name not in self._param_types]
        if unknown:
            near = did_you_mean(str(unknown[0]), self._param_types)
            raise InputError(f"[set_param] expected names among {list(self._param_types)}, got {unknown}{near}")
        arrays = {name: check_param(name, array, self._param_types[name]) for name, array in params.items()}
        with self._lock:
            for program in self._programs.values():
                program.set_params(arrays)
            self._params = {**self._params, **arrays}

    def bucket_of(self, inputs: Inputs) -> dict[str, int]:
        """The sizes that these inputs are padded to. Raises InputError."""
        return dict(zip(self._ladders, self._bucket(self._binding(self._signature.arrays(inputs)))))

    def run_padded(
        self, inputs: Inputs, timeout: float | None = None, cancel: CancelToken | None = None
    ) -> list[Array]:
        """Runs at any sizes within the ladders; results have the sizes that the inputs ask for.

        Raises InputError, for sizes beyond a ladder too; what a compile raises.
        """
        arrays = self._signature.arrays(inputs)
        binding = self._binding(arrays)
        bucket = self._bucket(binding)
        if self._is_static():
            self._check_equal(binding)
            arrays = [self._padded(name, array, bucket) for name, array in zip(self._signature.types, arrays)]
        results = self._program(bucket).run(dict(zip(self._signature.types, arrays)), None, timeout, cancel)
        shapes = shapes_at(self._outputs.values(), binding)
        if not self._is_static() or shapes is None:
            return results
        return [np.ascontiguousarray(r[tuple(slice(n) for n in shape)]) for r, shape in zip(results, shapes)]

    def _check_equal(self, binding: Mapping[str, int]) -> None:
        """Raises InputError for a dim of 1 that is broadcast: padded it would be one of its bucket's size."""
        try:
            self.graph.bind(binding)
        except ShapeError as error:
            raise InputError(f"[buckets] expected dims of one size, as each is padded, got {error}") from None

    def _binding(self, arrays: list[Array]) -> dict[str, int]:
        return self._signature.binding(arrays, self._params)

    def _bucket(self, binding: Mapping[str, int]) -> Bucket:
        sizes = []
        for name, ladder in self._ladders.items():
            at = bisect_left(ladder, binding[name])
            if at == len(ladder):
                raise InputError(f"[buckets] expected the dim {name!r} to be at most {ladder[-1]}, got {binding[name]}")
            sizes.append(ladder[at])
        return tuple(sizes)

    def _padded(self, name: str, array: Array, bucket: Bucket) -> Array:
        sizes = dict(zip(self._ladders, bucket))
        of = self._signature.types[name]
        shape = tuple(sizes.get(str(d), n) if not isinstance(d, int) else n for d, n in zip(of.shape, array.shape))
        if shape == array.shape:
            return array
        padded = np.full(shape, self._pads.get(name, 0), array.dtype)
        padded[tuple(slice(n) for n in array.shape)] = array
        return padded

    def _is_static(self) -> bool:
        if self._static is None:
            with self._lock:
                if self._static is None:
                    whole = self.session.compile(self.graph)
                    self._static = not whole.capabilities.dynamic_dims
                    self._whole = None if self._static else whole
        return self._static

    def _program(self, bucket: Bucket) -> CompiledGraph:
        """The program of a bucket, compiled if there is none."""
        key = bucket if self._is_static() else ()
        with self._lock:
            program = self._programs.get(key)
            if program is not None:
                self.hits += 1
                self._programs.move_to_end(key)
            else:
                program = self._compiled(key)
            self._trim(key)
            return program

    def _compiled(self, key: Bucket) -> CompiledGraph:
        sizes = dict(zip(self._ladders, key))
        note = Compile(sizes, self._reason(key))
        compiled = self._whole or self.session.compile(specialise(self.graph, sizes))
        compiled.set_params(self._params)
        self._programs[key] = compiled
        self.compiles += 1
        self._notes = [*self._notes[1 - MAX_NOTES :], note]
        return compiled

    def _reason(self, bucket: Bucket) -> str:
        if not self._programs and not self._dropped:
            return "the first run"
        if bucket in self._dropped:
            return f"it was dropped to keep all within {self.max_bytes} bytes"
        seen = [*self._programs, *self._dropped]
        new = [
            f"{name}={n} (there were {', '.join(map(str, sorted({b[i] for b in seen})))})"
            for i, (name, n) in enumerate(zip(self._ladders, bucket))
            if n not in {b[i] for b in seen}
        ]
        return f"a new size of {' and '.join(new)}" if new else "known sizes in a new combination"

    def _trim(self, key: Bucket) -> None:
        total = self.nbytes
        for old in [k for k in self._programs if k != key]:
            if total <= self.max_bytes:
                return
            total -= self._programs.pop(old).nbytes
            self._dropped.add(old)
            self.evictions += 1

    @property
    def nbytes(self) -> int:
        """Bytes of code, packed weights and buffers of all programs."""
        with self._lock:
            return sum(program.nbytes for program in self._programs.values())

    def __len__(self) -> int:
        return len(self._programs)

    def explain_recompiles(self) -> list[Compile]:
        """Every compile so far (the last MAX_NOTES) with its reason."""
        return list(self._notes)


def _checked_ladder(name: str, ladder: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(ladder)
    fits = sizes and all(type(n) is int and n >= 1 for n in sizes) and all(a < b for a, b in pairwise(sizes))
    if not fits:
        raise InputError(f"[buckets] expected ascending sizes from 1 on as the ladder of {name!r}, got {list(sizes)}")
    return sizes


def _checked_pads(pads: Mapping[str, Any], types: Mapping[str, TensorType]) -> dict[str, Any]:
    """Pad values as their inputs' dtypes have them. Raises InputError for one that a dtype cannot hold."""
    values: dict[str, Any] = {}
    for name, value in pads.items():
        if name not in types:
            near = did_you_mean(name, types)
            raise InputError(f"[buckets] expected pad values of inputs among {list(types)}, got {name!r}{near}")
        of = types[name].dtype
        fits = isinstance(value, (bool, int, float, np.generic))
        try:
            with np.errstate(all="ignore"):
                values[name] = np.asarray(float(value) if fits and of.is_float else value).astype(of.numpy)
            fits = fits and (of.is_float or bool(values[name] == value))
        except (OverflowError, TypeError, ValueError):
            fits = False
        if not fits:
            raise InputError(f"[buckets] expected a pad value of {of} for input {name!r}, got {value!r}")
    return values
