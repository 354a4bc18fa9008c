"""Checks around a program: sizes before it runs, and afterwards its last result, which shows whether the data of the
run were valid (`passes/checks.py`). Backends therefore see only sizes that are neither too large nor negative."""

from __future__ import annotations

from rlx import flags
from rlx.backends.base import Backend, Options
from rlx.backends.checked import with_checks
from rlx.backends.executable import Executable
from rlx.ir.graph import Graph
from rlx.passes.checks import Checked, add_checks
from rlx.passes.state import guarded
from rlx.runtime.demands import Demands


def compile_checked(graph: Graph, backend: Backend, options: Options, ordinal: int) -> Executable:
    """The executable of a graph without measured dims. Raises UnsupportedOp, DeviceUnavailable, CompileError, and
    OutOfMemory for a value that no machine of this size holds."""
    Demands.of(graph).check()
    if not backend.tells_checks:
        return backend.compile(guarded(Checked(graph, ()), False).graph, options, ordinal)
    program = guarded(add_checks(graph, options.check_indices, most_trips(backend)), backend.writes_states)
    return with_checks(backend.compile(program.graph, options, ordinal), program.checks)


def most_trips(backend: Backend) -> int:
    """That loops which data end may take in a run."""
    return flags.loop_trips() or backend.loop_trips
