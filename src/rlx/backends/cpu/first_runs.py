"""Runs before a program is compiled. They go through the graph node by node in NumPy (`numpy_kernels`), from the first
moment on, while another process compiles (`arrival`). A run that is under way when the code arrives starts again in it,
unless it should end before weights would be packed for the code, and so does a first run that comes behind the code:
none takes longer than waiting for the code would.

NumPy adds up in another order than compiled code does, so the last bits of a result may change once, when the code
arrives. `compile="before"` and `RLX_TIERS=0` compile before the first run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import flags, locks
from rlx.backends.base import Options
from rlx.backends.checked import look
from rlx.backends.cpu import build
from rlx.backends.cpu.executable import CpuExecutable
from rlx.backends.executable import Bound, Capabilities, Executable, KernelTime, deliver, shapes_at
from rlx.backends.stored_weights import Source
from rlx.codegen.simd.isa import Isa
from rlx.ir import dim as dims
from rlx.ir.check import Check
from rlx.ir.literal import Array

if TYPE_CHECKING:
    from rlx.backends.cpu.arrival import Arrival
    from rlx.ir.graph import Graph, Node

LEAST_WORK = 32
"""Of compiling a graph, in nodes of one op each, that takes longer than another process needs to start."""
MOST_FLOPS = 3_000_000_000
"""Of a run in NumPy that takes less time than any compile, whose process has to start."""
FLOPS_OF_WORK = 20_000_000
"""Of a run in NumPy that takes as long as a unit of work of compiling: about a millisecond."""
PACKED_BYTES_A_SECOND = 250e6
"""Of weights for compiled code: their memory is new, and whoever touches a page first waits for the system."""
NOTICED_S = 0.1
"""That a first run should not wait for weights longer than."""
NUMPY_FLOPS_A_SECOND, LEAST_DONE = 30e9, 0.1
"""Of a run of which less than this part is done; from there on it tells itself how long the rest takes."""
_WORK_OF_KERNEL = 6
"""Of a node that becomes a large kernel or several."""
_KEPT_BYTES = (32 << 20) - (64 << 10)
"""The largest array whose memory the C library keeps when it is freed, once such an array was freed."""


def executable_of(graph: Graph, isa: Isa, options: Options) -> Executable:
    """The executable of a graph: from the cache on disk, with its code on its way, or compiled here. Raises
    UnsupportedOp, CompileError."""
    key = build.cache_key(graph, isa, options)
    kept = build.from_disk(key, isa, options)
    if kept is not None:
        return kept
    if options.tiered and not options.profile and flags.debug() < 3:
        from rlx.backends.cpu import tiers

        if tiers.can_start() and worth(graph, options):
            from rlx.backends.cpu.arrival import Arrival

            return InterpretedExecutable(graph, Arrival(graph, isa, options, key), key, isa, options.threads)
    return build.built(graph, isa, options, key)


def worth(graph: Graph, options: Options) -> bool:
    """Whether the first runs of a graph should not wait for its code."""
    plain = options.dispatch == Options().dispatch and not graph.states and not graph.given
    return plain and options.precision == "f32" and _work(graph) >= LEAST_WORK and _compiles(graph)


def _compiles(graph: Graph) -> bool:
    """Whether code for the graph will probably arrive: no number is complex."""
    real = not any(of.dtype.is_complex for node in graph.nodes for of in node.types)
    return real and all(_compiles(region) for node in graph.nodes for region in node.regions)


def _work(graph: Graph) -> int:
    from rlx.ir.op import LEAVES, Composite
    from rlx.ops.convolution import Conv
    from rlx.ops.linalg import DotGeneral

    work = 0
    for node in graph.nodes:
        if not isinstance(node.op, LEAVES):
            work += _WORK_OF_KERNEL if isinstance(node.op, (Composite, Conv, DotGeneral)) else 1
        work += sum(map(_work, node.regions))
    return work


def _flops_of(node: Node, binding: Mapping[str, int]) -> int:
    """Of a product or a convolution; 0 of others."""
    from rlx.ops.convolution import Conv, ConvTranspose
    from rlx.ops.linalg import DotGeneral, Matmul

    if not isinstance(node.op, (Conv, ConvTranspose, DotGeneral, Matmul)):
        return 0
    flops = node.op.cost(tuple(v.type for v in node.inputs), tuple(node.types)).flops
    return dims.evaluate(flops, binding)


class _Progress:
    """How much of a run in NumPy is done.

    steps   flops of its nodes in order; none where that is not told
    """

    def __init__(self, steps: Sequence[int], packing_s: float) -> None:
        self._steps = steps
        self._whole = sum(steps)
        self.packing_s = packing_s
        self._nodes, self._flops = 0, 0
        self._start = time.perf_counter()

    def step(self) -> None:
        """A node begins: the one before has ended."""
        if 0 < self._nodes <= len(self._steps):
            self._flops += self._steps[self._nodes - 1]
        self._nodes += 1

    @property
    def ends_soon(self) -> bool:
        """Whether the rest should take less time than packing the weights."""
        if not self._whole:
            return False
        if self._flops <= LEAST_DONE * self._whole:
            return self._whole / NUMPY_FLOPS_A_SECOND < self.packing_s
        elapsed = time.perf_counter() - self._start
        return elapsed * (self._whole / self._flops - 1) < self.packing_s


class _CodeArrived(Exception):
    """Ends a run in NumPy whose program can go on in compiled code."""


class InterpretedExecutable(Executable):
    """A program whose code is on its way. All of its copies wait for the same code.

    Whatever but a run asks for the code waits until it is there.
    """

    def __init__(
        self, graph: Graph, arrival: Arrival, key: str | None, isa: Isa, threads: int | None,
        checks: Sequence[Check] = (), params: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.checks = checks
        self.params = dict(params or {})
        self._arrival, self._key, self._isa, self._threads = arrival, key, isa, threads
        self._compiled: CpuExecutable | None = None
        self._is_asked = False
        self._lock = locks.lock()

    def now(self) -> CpuExecutable | None:
        """The compiled program, if it is there. Raises CompileError, UnsupportedOp where there will be none."""
        return self._compiled if self._compiled is not None else self._take(self._arrival.now())

    def compiled(self) -> CpuExecutable:
        """The compiled program, as soon as it is there. Raises CompileError, UnsupportedOp."""
        made = self._take(self._arrival.wait())
        assert made is not None  # `wait` gives code
        return made

    def _take(self, arrived: CpuExecutable | None) -> CpuExecutable | None:
        with self._lock:
            if self._compiled is None and arrived is not None:
                made = arrived.clone(weights=False)
                made.checks = self.checks
                made.set_params(self.params)
                self._compiled = made
            return self._compiled

    def awaits_weights(self) -> bool:
        """Whether the other process may still pack the weights. Those that it has packed are taken."""
        with self._lock:
            entry = self._arrival.packed
            if self._is_asked and entry is not None and self._compiled is not None:
                self._is_asked = False
                self._compiled.take_packed(entry)
            return self._is_asked and self._arrival.packs

    def set_params(self, params: Mapping[str, Array]) -> None:
        with self._lock:
            self._is_asked = False
            self.params = {**self.params, **params}
            if self._compiled is not None:
                self._compiled.set_params(params)

    def keep_packed(self, source: Source) -> None:
        with self._lock:
            if self._compiled is not None:
                self._compiled.keep_packed(source)
            else:
                self._is_asked = self._arrival.keep_packed(source)

    def bind(self, binding: Mapping[str, int]) -> Bound:
        made = self.now()
        if made is None or self.awaits_weights() or (not made.weight_bytes and self.packing_s > NOTICED_S):
            return InterpretedBound(self, binding)  # which knows what is sooner while weights are not packed
        return made.bind(binding)

    @property
    def packing_s(self) -> float:
        """How long packing all weights should take."""
        return sum(array.nbytes for array in self.params.values()) / PACKED_BYTES_A_SECOND

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(zero_copy_outputs=True, shared_code=True, saved_code=True)

    @property
    def nbytes(self) -> int:
        return self._arrival.nbytes if self._compiled is None else self._compiled.nbytes

    @property
    def weight_bytes(self) -> int:
        return 0 if self._compiled is None else self._compiled.weight_bytes

    @property
    def loaded(self) -> Any:
        """The machine code."""
        return self.compiled().loaded

    @property
    def stored(self) -> tuple[str, dict[str, Any], Sequence[Check]] | None:
        return None if self._key is None else (self._key, asdict(self._isa), self.checks)

    @property
    def is_pending(self) -> bool:
        return self._compiled is None

    def with_checks(self, checks: Sequence[Check]) -> InterpretedExecutable:
        return self._copy(checks, self.params)

    def clone(self, weights: bool = True) -> InterpretedExecutable:
        return self._copy(self.checks, self.params if weights else {})

    def _copy(self, checks: Sequence[Check], params: Mapping[str, Array]) -> InterpretedExecutable:
        copy = InterpretedExecutable(self.graph, self._arrival, self._key, self._isa, self._threads, checks, params)
        copy.compile_ns, copy.from_cache = self.compile_ns, self.from_cache
        return copy

    def finish(self) -> None:
        self.compiled().finish()

    def code(self) -> bytes:
        return self.compiled().code()

    def describe(self) -> dict[str, Any]:
        return self.compiled().describe()


class InterpretedBound(Bound):
    """The program at one size, in NumPy until its code is there."""

    def __init__(self, executable: InterpretedExecutable, binding: Mapping[str, int]) -> None:
        self.executable = executable
        self._binding = dict(binding)
        self._compiled: Bound | None = None
        self._is_first, self._is_settled = True, False
        self._patience_ends = math.inf
        types = [value.type for value in executable.graph.outputs.values()]
        self.shapes = shapes_at(types[:-1] if executable.checks else types, binding)
        self._names = [value.name for value in executable.graph.inputs]
        self._most = [check.most(binding) for check in executable.checks]
        nodes = executable.graph.nodes
        flops = [_flops_of(node, binding) for node in nodes]
        self._steps = [] if any(node.regions for node in nodes) else flops
        self._waits = sum(flops) > max(MOST_FLOPS, FLOPS_OF_WORK * _work(executable.graph))

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        bound = self._compiled or (self._code() if self._waits else self._now())
        if bound is None or (not self._is_settled and self._is_sooner_in_numpy()):
            self._is_first = False
            try:
                return deliver(self._in_numpy(inputs), out)
            except _CodeArrived:
                bound = self._code()
        return bound(inputs, out)

    def _is_sooner_in_numpy(self) -> bool:
        """Whether a run should end before weights are packed, if they are not: the first run, and those while another
        process packs, for as long as packing should take. The next one packs them."""
        progress, now = self._progress(), time.monotonic()
        self._patience_ends = min(self._patience_ends, now + progress.packing_s)
        awaits = self.executable.awaits_weights() and now <= self._patience_ends
        may_be, self._is_settled = self._is_first or awaits, not awaits
        return may_be and not (self._waits or self.executable.weight_bytes) and progress.ends_soon

    def _progress(self) -> _Progress:
        return _Progress(self._steps, self.executable.packing_s)

    @property
    def looks(self) -> bool:
        return self._compiled is not None and self._compiled.looks

    def profile(self, inputs: Sequence[Array]) -> list[KernelTime]:
        return self._code().profile(inputs)

    def _now(self) -> Bound | None:
        made = self.executable.now()
        if made is not None:
            self._compiled = made.bind(self._binding)
        return self._compiled

    def _code(self) -> Bound:
        self.executable.compiled()
        bound = self._now()
        assert bound is not None  # the code is there
        return bound

    def _in_numpy(self, inputs: Sequence[Array]) -> list[Array]:
        from rlx.backends.cpu import blas_threads, topology
        from rlx.backends.cpu.numpy_kernels import KERNELS
        from rlx.ir.interpreter import evaluate

        executable = self.executable
        # glibc keeps the memory of arrays as large as the largest that it saw freed; others get new pages each, which
        # take a sixth of a run
        np.empty(_KEPT_BYTES, np.uint8)

        progress = self._progress()

        def stop_for_code() -> None:
            progress.step()
            if executable.now() is not None and not progress.ends_soon:
                raise _CodeArrived

        named = dict(zip(self._names, inputs))
        with blas_threads.at_most(max(1, topology.usable() // 2)):  # the other processors compile
            made = evaluate(
                executable.graph, named, executable.params, self._binding, kernels=KERNELS, between=stop_for_code
            )
        results = [array.copy() for array in made]
        if executable.checks:
            look(results.pop().tolist(), self._most, executable.checks, self._binding)
        return results
