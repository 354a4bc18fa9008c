"""A compiled graph on a CUDA device: kernels, weights on the device, and programs bound to sizes (`bound.py`)."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from rlx.backends.cuda import blas
from rlx.backends.cuda.arrays import CudaArray, place_of
from rlx.backends.cuda.bound import CudaBound
from rlx.backends.cuda.build import Plan
from rlx.backends.cuda.device import Device, Function, open_device
from rlx.backends.cuda.moving import MovingBound, Sizes
from rlx.backends.cuda.weights import Weights
from rlx.backends.executable import Bound, Capabilities, Executable
from rlx.backends.memory import DeviceArray
from rlx.backends.simt_unroll import depends_on_data
from rlx.errors import InputError
from rlx.ir.literal import Array
from rlx.kernel.ir.program import buffers_used, leaves

MOST_BUCKETS = 8
"""Of which the memory is kept."""


class CudaExecutable(Executable):
    """Runs a plan. Calls from many threads take turns: the device's stream is one.

    codes   machine code of the kernels, by name
    timed   whether its bounds tell the times of kernels
    cache   whether what is found when it runs is kept on disk
    """

    def __init__(
        self, plan: Plan, device: Device, codes: Mapping[str, bytes], timed: bool = False, cache: bool = False
    ) -> None:
        self.plan = plan
        self.device = device
        self.codes = codes
        self.timed = timed
        self.cache = cache
        self.functions: dict[str, Function] = dict(zip(codes, device.functions(list(codes.items()))))
        self.branching = "the host decides in the first run of a size"
        """Who decides what data decide, by the last run that another had come before."""
        self._params: dict[str, Array] = {}
        self._reserved: frozenset[str] = frozenset()
        self._dirty = True
        self._weights: Weights | None = None
        self._buckets: OrderedDict[tuple[int, ...], CudaBound] = OrderedDict()

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self.device.lock:
            self._params = {**self._params, **params}
            self._dirty = True

    def renew(self) -> None:
        """Goes on with the device opened anew, where it was lost: what was in its memory comes again from the host.
        Raises DeviceUnavailable."""
        if self.device.lost:
            device = open_device(self.device.ordinal, type(self.device.driver))
            self.functions = dict(zip(self.codes, device.functions(list(self.codes.items()))))
            self.device, self._weights, self._dirty = device, None, True

    def weights(self) -> Weights:
        """The weights on the device, uploaded at the first call after `set_params`. Call it within `Device.work`."""
        if self._weights is None or self._dirty:
            program = self.plan.program
            names = {n: program.buffers[n].name for n in program.params}
            reserved = [n for n, name in names.items() if name in self._reserved]
            names = {n: name for n, name in names.items() if name not in self._reserved}
            missing = [name for name in names.values() if name not in self._params]
            if missing:
                raise InputError(f"[run] expected params to be set, got none for {', '.join(missing)}")
            arrays = {n: self._params[name] for n, name in names.items()} | program.constants
            with self.device.work("weights"):
                self._weights = Weights.of(self.plan, self.device, arrays, reserved, self.functions, self._weights)
            self._dirty = False
        return self._weights

    def reserve(self, name: str) -> bool:
        if self._number(name) in buffers_used(self.plan.program, self.plan.program.prepare):
            return False
        self._reserved |= {name}
        return True

    def _number(self, name: str) -> int:
        return next(n for n in self.plan.program.params if self.plan.program.buffers[n].name == name)

    def write_part(self, name: str, at: int, array: Array) -> None:
        with self.device.work("weights"):
            self.weights().write_part(self._number(name), at, array)

    def give_back(self) -> None:
        with self.device.work("weights"):
            self._weights, self._dirty = None, True
            self._buckets.clear()
            self.device.trim()

    @property
    def place(self) -> object:
        return place_of(self.device)

    @property
    def writes_states(self) -> bool:
        return bool(self.plan.program.written_states())

    def put(self, name: str, array: Array) -> Array | DeviceArray:
        self.renew()
        return CudaArray.of_host(self.device, array, f"the input {name!r}")

    def bind(self, binding: Mapping[str, int]) -> Bound:
        known = {s: binding[s] for s in self.plan.program.symbols}
        if not self.plan.moving:
            return CudaBound(self, Sizes(known))
        return MovingBound(self._bucket(Sizes.of(known, self.plan.moving)), known)

    def _bucket(self, sizes: Sizes) -> CudaBound:
        """What all sizes of a bucket share."""
        with self.device.lock:
            key = tuple(sizes.binding.values())
            bucket = self._buckets.pop(key, None) or CudaBound(self, sizes)
            self._buckets[key] = bucket
            while len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
            return bucket

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(profiling=self.timed, shared_code=True)

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.codes.values()))

    @property
    def weight_bytes(self) -> int:
        return self._weights.nbytes if self._weights else 0

    def clone(self, weights: bool = True) -> CudaExecutable:
        """Shares kernels, and the memory of each weight on the device until one of the two gets another."""
        with self.device.lock:
            clone = copy.copy(self)
            clone._buckets = OrderedDict()
            if not weights:
                clone._params, clone._weights, clone._dirty = {}, None, True
            return clone

    def describe(self) -> dict[str, Any]:
        program = self.plan.program
        return {
            "written_in_place": [program.buffers[program.inputs[at]].name for at in program.written_states().values()],
            "device": self.device.name,
            "architecture": self.device.architecture,
            "kernels": len(leaves(program.main)),
            "prepare_kernels": len(leaves(program.prepare)),
            "functions": len(self.functions),
            "products": blas.told(self.device),
            "branches": self.branching or "the host decides in the first run"
            if depends_on_data(program.main)
            else "none",
            "weight_bytes": self.weight_bytes,
        }
