"""One run of a program in a mode."""

from __future__ import annotations

from collections.abc import Sequence

from rlx import interrupt
from rlx.backends.executable import Bound, deliver
from rlx.errors import InputError
from rlx.ir.literal import Array
from rlx.runtime.mode import Mode, Observer
from rlx.runtime.program import Inputs, Program
from rlx.runtime.slots import check_slots


def run_once(program: Program, mode: Mode, inputs: Inputs, given: Sequence[Array] | None = None) -> list[Array]:
    """The results, in the arrays given for them if there are any. Raises InputError, and RunTimeout or RunCancelled
    within this thread's limit."""
    if mode.handles:
        inputs = _merged(program, mode, inputs)
    if mode.observers:
        return _run_observed(program, mode, inputs, given)
    bound, arrays = program.ready(inputs, mode.extents)
    out = None if given is None else check_slots(given, program.output_types, bound.shapes, arrays)
    return _call(program, bound, arrays, out)


def _call(program: Program, bound: Bound, arrays: list[Array], out: Sequence[Array] | None = None) -> list[Array]:
    limit = interrupt.limit()
    try:
        if limit is None or bound.looks:
            return bound(arrays, out)
        # what goes on behind the limit must not write to arrays of the caller
        return deliver(interrupt.within(limit, lambda: bound(arrays)), out)
    except Exception as error:
        program.failed(error, arrays)


def _merged(program: Program, mode: Mode, inputs: Inputs) -> Inputs:
    """The inputs of a call with handles in the place of those that it leaves out. Raises InputError."""
    made: Inputs = mode.merge(inputs, program.signature.names)
    if made is inputs and isinstance(inputs, (list, tuple)) and len(inputs) != len(program.signature.names):
        raise InputError(program.signature.refusal(len(inputs), mode.handles))
    return made


def observed(program: Program, observers: Sequence[Observer]) -> Program:
    """The program that also gives what these watch. Raises CapabilityError, CompileError."""
    values = dict(program.graph.outputs)
    for observer in observers:
        values |= observer.watched
    return program.part(tuple(values), list(values.values()))


def _run_observed(program: Program, mode: Mode, inputs: Inputs, given: Sequence[Array] | None) -> list[Array]:
    watched = observed(program, mode.observers)
    bound, arrays = watched.ready(inputs, mode.extents)
    count = len(program.output_names)
    if given is not None:
        shapes = bound.shapes and bound.shapes[:count]
        given = check_slots(given, program.output_types, shapes, arrays)
    results = _call(watched, bound, arrays)
    rest = iter(results[count:])
    for observer in mode.observers:
        observer.see([next(rest) for _ in observer.watched])
    return deliver(results[:count], given)
