"""Executables whose programs tell, by one more result, what data of a run must be (`passes/checks.py`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx import flags
from rlx.backends.base import Backend, Bound, Capabilities, Executable, KernelTime, Options
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.passes.checks import Check, Checked, add_checks

FEW = 16  # numbers that are compared one by one: what NumPy does with so few takes longer


def checked(graph: Graph, options: Options) -> Checked:
    """The graph as a backend compiles it, with what is looked at behind every run. Raises GraphError."""
    return add_checks(graph, options.check_indices, flags.loop_trips())


def compile_checked(graph: Graph, backend: Backend, options: Options, ordinal: int) -> Executable:
    """The executable of a graph without measured dims. Raises UnsupportedOp, DeviceUnavailable, CompileError."""
    made = checked(graph, options)
    return with_checks(backend.compile(made.graph, options, ordinal), made.checks)


def with_checks(executable: Executable, checks: Sequence[Check]) -> Executable:
    """An executable of a graph with checks, as one of the graph without them."""
    return CheckedExecutable(executable, tuple(checks)) if checks else executable


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
    def nbytes(self) -> int:
        return self.inner.nbytes

    @property
    def weight_bytes(self) -> int:
        return self.inner.weight_bytes

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
        self.shapes = None if inner.shapes is None else inner.shapes[:-1]
        self._ends = [(dims.evaluate(c.low, binding), dims.evaluate(c.high, binding)) for c in checks]
        # -1 - n ≤ -1 - low, and n ≤ high - 1
        self._most = [end for low, high in self._ends for end in (-1 - low, high - 1)]
        self._limits = np.array([min(max(end, _LEAST), _MOST) for end in self._most], np.int64)

    @property
    def nbytes(self) -> int:  # type: ignore[override]  # it may grow
        return self.inner.nbytes

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> list[Array]:
        if out is None:
            results = self.inner(inputs)
        else:
            results = self.inner(inputs, [*out, np.empty(len(self._most), np.int64)])
        numbers = results.pop()
        if len(self._most) > FEW:
            if (numbers > self._limits).any():
                self._fail(numbers.tolist())
        else:
            for number, most in zip(numbers.tolist(), self._most):
                if number > most:
                    self._fail(numbers.tolist())
        return results

    def _fail(self, numbers: list[int]) -> None:
        """Raises InputError for the first check that does not hold."""
        for i, (check, (low, high)) in enumerate(zip(self.checks, self._ends)):
            least, most = -1 - numbers[2 * i], numbers[2 * i + 1]
            if most >= high or least < low:
                raise check.words.error(low, high, most if most >= high else least)

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        return self.inner.profile(inputs)


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
