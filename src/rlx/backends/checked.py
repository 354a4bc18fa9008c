"""Executables that check the data of each run, by an extra result of their program (`passes/checks.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import locks
from rlx.backends.executable import Bound, Capabilities, Executable, KernelTime
from rlx.backends.memory import DeviceArray, Late, Where
from rlx.errors import InputError
from rlx.ir.check import Check
from rlx.ir.literal import Array


def with_checks(executable: Executable, checks: Sequence[Check]) -> Executable:
    """The program of a graph whose last output is for checks, as one of the graph without it."""
    if not checks:
        return executable
    own = executable.with_checks(checks)
    return CheckedExecutable(executable, tuple(checks)) if own is None else own


FEW = 16  # compared one by one: NumPy would take longer for so few numbers


class CheckedExecutable(Executable):
    """The program, and the checks of its last result. Runs that fail them fail as a whole."""

    def __init__(self, inner: Executable, checks: tuple[Check, ...]) -> None:
        self.inner = inner
        self.checks = checks
        self.compile_ns = inner.compile_ns
        self.from_cache = inner.from_cache

    @property
    def compile_count(self) -> int:  # type: ignore[override]  # it may grow with every size
        return self.inner.compile_count

    def set_params(self, params: Mapping[str, Array]) -> None:
        self.inner.set_params(params)

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return _CheckedBound(self.inner.bind(binding), self.checks, binding)

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def place(self) -> object:
        return self.inner.place

    @property
    def writes_states(self) -> bool:
        return self.inner.writes_states

    def put(self, name: str, array: Array) -> Array | DeviceArray:
        return self.inner.put(name, array)

    def give_back(self) -> None:
        self.inner.give_back()

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    @property
    def weight_bytes(self) -> int:
        return self.inner.weight_bytes

    @property
    def is_pending(self) -> bool:
        return self.inner.is_pending

    def finish(self) -> None:
        self.inner.finish()

    def clone(self, weights: bool = True) -> CheckedExecutable:
        return CheckedExecutable(self.inner.clone(weights), self.checks)

    def code(self) -> bytes:
        return self.inner.code()

    def write_package(self, path: str | os.PathLike[str], sizes: Mapping[str, int]) -> None:
        self.inner.write_package(path, sizes)

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "checks": len(self.checks)}


class _CheckedBound(Bound):
    """A bound whose last result is looked at and kept back."""

    def __init__(self, inner: Bound, checks: tuple[Check, ...], binding: Mapping[str, int]) -> None:
        self.inner = inner
        self.checks = checks
        self.binding = dict(binding)
        self.shapes = None if inner.shapes is None else inner.shapes[:-1]
        self._most = [check.most(binding) for check in checks]
        self._limits = np.array([max(most, 0) for most in self._most], np.uint64)
        self.lock = locks.lock()
        self._few = len(checks) <= FEW or min(self._most) < 0

    @property
    def nbytes(self) -> int:  # type: ignore[override]  # it may grow
        return self.inner.nbytes

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        if out is None:
            results = self.inner(inputs)
        else:
            results = self.inner(inputs, [*out, np.empty(len(self._most), np.uint64)])
        self.look(results.pop())
        return results

    def begin(self, inputs: Sequence[Any]) -> Callable[[], list[Array]] | None:
        end = self.inner.begin(inputs)
        if end is None:
            return None

        def checked() -> list[Array]:
            results = end()
            self.look(results.pop())
            return results

        return checked

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        buffers = None if out is None else [*out, None]
        late: Where = "soon" if "unchecked" in where and "host" not in where else "host"
        results = self.inner.deliver_to([*where, late], inputs, buffers)
        numbers = results.pop()
        if not isinstance(numbers, Late):
            self.look(numbers)
            return results
        check = _LateCheck(self, numbers)
        for result in results:
            if isinstance(result, DeviceArray):
                result.checks = (*result.checks, check)
        return results

    @property
    def late(self) -> bool:  # type: ignore[override]  # it is that of what it wraps
        return self.inner.late

    def look(self, numbers: Array) -> None:
        if self._few or (numbers > self._limits).any():
            look(numbers.tolist(), self._most, self.checks, self.binding)

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        return self.inner.profile(inputs)


class _LateCheck:
    """The checks of a run whose numbers are under way."""

    def __init__(self, bound: _CheckedBound, numbers: Late) -> None:
        """Checks of one bound have one lock: to make one takes longer than all else here."""
        self._bound = bound
        self._numbers: Late | None = numbers
        self._error: InputError | None = None

    def holds(self) -> bool:
        numbers = self._numbers
        if numbers is not None:
            if not numbers.is_there():
                return False
            self._look()
        return self._error is None

    def settle(self) -> None:
        self._look()
        if self._error is not None:
            raise InputError(*self._error.args)

    def _look(self) -> None:
        with self._bound.lock:
            if self._numbers is None:
                return
            try:
                self._bound.look(self._numbers.numpy())
            except InputError as error:
                self._error = error.with_traceback(None)  # whose frames have this check, and results with it
            self._numbers = None


def look(numbers: Sequence[int], most: Sequence[int], checks: Sequence[Check], binding: Mapping[str, int]) -> None:
    """Raises InputError for the first of the checks that does not hold."""
    for number, limit, check in zip(numbers, most, checks):
        if number > limit:
            raise check.error(number, binding)
