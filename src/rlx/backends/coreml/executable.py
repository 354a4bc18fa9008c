"""Executables of Core ML: the graph is converted for every size, with its weights. On macOS Core ML runs the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import flags, locks
from rlx.backends.coreml import folding
from rlx.backends.coreml.build import Port, build, worked_out
from rlx.backends.coreml.library import GREATEST, LEAST, at_work, fits, on_macos, tools
from rlx.backends.coreml.package import Contents, Converted, convert, save, units
from rlx.backends.executable import Bound, Capabilities, Executable, deliver, shapes_at
from rlx.errors import DeviceUnavailable, InputError, ShapeError, UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.passes.specialise import specialise

KEPT = 8
"""Sizes whose models are kept."""


class CoremlExecutable(Executable):
    """Weights are constants of a model: other weights are other models, and so are other sizes.

    legalise   makes a graph ready for the conversion, at known dims
    """

    def __init__(self, graph: Graph, legalise: Callable[[Graph], Graph]) -> None:
        self.graph = graph
        self.legalise = legalise
        self.compile_count = 0
        self._lock = locks.rlock()
        self._params: dict[str, Array] = {}
        self._models: dict[tuple[str, tuple[tuple[str, int], ...]], Converted] = {}

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self._lock:
            self._params = {**self._params, **params}
            self._models = {}

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return CoremlBound(self, dict(binding))

    def model(self, binding: Mapping[str, int]) -> Converted:
        """The model at these dims, converted once. Raises UnsupportedOp, CompileError, InputError, ShapeError."""
        key = flags.coreml_precision(), tuple(sorted(binding.items()))
        with self._lock:
            if key not in self._models:
                missing = [v.name for v in self.graph.params if v.name not in self._params]
                if missing:
                    raise InputError(f"[run] expected params to be set, got none for {', '.join(missing)}")
                ready = self.legalise(self._at(binding))
                while len(self._models) >= KEPT:
                    del self._models[next(iter(self._models))]
                with at_work():
                    self._models[key] = convert(build(*worked_out(ready, self._params)))
                self.compile_count += 1
            return self._models[key]

    def _at(self, binding: Mapping[str, int]) -> Graph:
        """The graph at these dims. A side of a conditional that does not fit at them would have to be left out, and
        whoever asks for it would get numbers of the other: that is refused."""
        try:
            return specialise(self.graph, binding)
        except ShapeError as error:
            self.graph.bind(binding)  # dims that are wrong at any size are the caller's error
            if not any(node.regions for node in self.graph.nodes):
                raise
            raise UnsupportedOp(
                f"[coreml] expected conditionals of which both sides fit at {dict(binding)}, as a model has both, "
                f"got {error}"
            ) from error

    def write_package(self, path: str | os.PathLike[str], binding: Mapping[str, int]) -> Contents:
        """Converts at these dims and writes a package. Raises InputError for dims that are missing or unknown."""
        symbols = set(self.graph.symbols)
        if symbols != set(binding):
            expected = ", ".join(sorted(symbols)) or "none"
            raise InputError(f"[save] expected sizes of the dims {expected}, got {dict(binding) or 'none'}")
        return save(self.model(binding), path)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(dynamic_dims=False, active_extent=False, package=True)

    @property
    def weight_bytes(self) -> int:
        """Every model has them in it."""
        each = sum(dims.evaluate(v.type.size, {}) * v.dtype.itemsize for v in self.graph.params if v.type.is_static)
        return each * len(self._models)

    def describe(self) -> dict[str, Any]:
        return {"platform": "Core ML", "precision": flags.coreml_precision(), "programs": self.compile_count}


class CoremlBound(Bound):
    """The model of one size."""

    def __init__(self, executable: CoremlExecutable, binding: dict[str, int]) -> None:
        self.executable = executable
        self.binding = binding
        self.shapes = shapes_at((v.type for v in executable.graph.outputs.values()), binding)
        self._loaded: tuple[Converted, Any] | None = None

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        fold = flags.coreml_run() == "fold"
        if not fold and not on_macos():
            raise DeviceUnavailable(
                "[run] expected macOS, whose Core ML runs models; on this system rlx converts and saves them "
                "(CompiledGraph.save, rlx convert)"
            )
        converted = self.executable.model(self.binding)
        features = {port.name: entering(array, port) for array, port in zip(inputs, converted.inputs)}
        if fold:
            results = folding.run(converted.model._mil_program, features, [port.name for port in converted.outputs])
        else:
            predictions = self._predictor(converted).predict(features)
            results = [np.asarray(predictions[port.name]) for port in converted.outputs]
        return deliver([leaving(array, port) for array, port in zip(results, converted.outputs)], out)

    def _predictor(self, converted: Converted) -> Any:
        """The model as Core ML loaded it."""
        if self._loaded is None or self._loaded[0] is not converted:
            path = converted.model.package_path
            self._loaded = converted, tools().models.MLModel(path, compute_units=units())
        return self._loaded[1]


def entering(array: Array, port: Port) -> Array:
    """An input as the model takes it. Raises InputError for integers that 32 bits do not hold."""
    if not fits(array):
        raise InputError(
            f"[run] expected integers in [{LEAST}, {GREATEST}] for {port.name!r}, as Core ML's have 32 bits"
        )
    dtype = {"int32": np.int32, "fp32": np.float32}.get(port.mil, array.dtype)
    return array.astype(dtype, copy=False).reshape(port.shape)


def leaving(array: Array, port: Port) -> Array:
    """An output as the graph gives it."""
    shape = tuple(dims.evaluate(d, {}) for d in port.type.shape)
    values = array != 0 if port.type.dtype is dtypes.bool_ else array.astype(port.type.dtype.numpy)
    return np.array(values).reshape(shape)
