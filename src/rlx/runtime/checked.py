"""What is looked at around a program: sizes before it runs, and behind it what data of the run had to be.

Its last result tells that (`passes/checks.py`). Backends see only sizes that are none too large and not negative.
"""

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
