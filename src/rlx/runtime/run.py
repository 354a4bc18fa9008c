"""One run of a program in a mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx import interrupt
from rlx.backends.executable import Bound, deliver
from rlx.backends.memory import DeviceArray, Where
from rlx.errors import InputError
from rlx.ir.literal import Array
from rlx.runtime.mode import Mode, Observer
from rlx.runtime.output_buffers import check_slots
from rlx.runtime.program import Inputs, Program


def run_once(
    program: Program,
    mode: Mode,
    inputs: Inputs,
    out_arrays: Sequence[Array] | None = None,
    where: Sequence[Where] | None = None,
) -> list[Any]:
    """The program's outputs, next values of states among them, in the arrays given for the others if there are any.

    where   each of the outputs is wanted, where the program has a `place`; the host if that is not said

    Raises InputError, and RunTimeout or RunCancelled within this thread's limit.
    """
    if mode.handles:
        inputs = _merged(program, mode, inputs)
    if mode.observers:
        return _run_observed(program, mode, inputs, out_arrays, where)
    bound, arrays = program.ready(inputs, mode.extents, mode.states)
    out = None if out_arrays is None else _all_outputs(program, out_arrays, bound.shapes, arrays)
    return _call(program, bound, arrays, out, where)


def _call(
    program: Program,
    bound: Bound,
    arrays: list[Array],
    out: Sequence[Array | None] | None = None,
    where: Sequence[Where] | None = None,
) -> list[Any]:
    limit = interrupt.limit()
    if where is not None and "unchecked" in where and (not bound.late or program.signature.random is not None):
        where = ["device" if place == "unchecked" else place for place in where]

    def call(out: Sequence[Array | None] | None) -> list[Any]:
        return bound(arrays, out) if where is None else bound.deliver_to(where, arrays, out)

    try:
        if limit is None or (bound.looks and not program.writes_states):
            return call(out)
        if program.writes_states:
            # a write cannot be undone: such a run is not interrupted once it has begun
            interrupt.check()
            with interrupt.unlimited():
                return call(out)
        # what continues after the limit must not write to the caller's arrays
        results = interrupt.within(limit, lambda: call(None))
        return results if out is None else deliver(results, out)
    except Exception as error:
        program.failed(error, arrays)


def _all_outputs(
    program: Program, out_arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None, arrays: Sequence[Any]
) -> Sequence[Array | None]:
    """The arrays given for outputs, with none for next values of states between them. Raises InputError."""
    known = shapes and [shapes[at] for at in program.output_at]
    slots = check_slots(out_arrays, program.output_types, known, [a for a in arrays if not isinstance(a, DeviceArray)])
    if not program.next_at:
        return slots
    everything: list[Array | None] = [None] * len(program.interface.outputs)
    for at, slot in zip(program.output_at, slots):
        everything[at] = slot
    return everything


def _merged(program: Program, mode: Mode, inputs: Inputs) -> Inputs:
    """The inputs of a call with handles in the place of those that it leaves out. Raises InputError."""
    merged: Inputs = mode.merge(inputs, program.signature.names)
    if merged is inputs and isinstance(inputs, (list, tuple)) and len(inputs) != len(program.signature.names):
        raise InputError(program.signature.refusal(len(inputs), mode.handles))
    return merged


def observed(program: Program, observers: Sequence[Observer]) -> Program:
    """The program that also gives what these watch. Raises CapabilityError, CompileError."""
    values = program.graph.results
    for observer in observers:
        values |= observer.watched
    budget = next((observer.budget for observer in observers if observer.budget is not None), None)
    return program.part(tuple(values), list(values.values()), advances=True, budget=budget)


def _run_observed(
    program: Program, mode: Mode, inputs: Inputs, out_arrays: Sequence[Array] | None, where: Sequence[Where] | None
) -> list[Any]:
    part = observed(program, mode.observers)
    bound, arrays = part.ready(inputs, mode.extents, mode.states)
    count = len(program.output_names)
    if out_arrays is not None:
        shapes = bound.shapes and bound.shapes[:count]
        hosted = [a for a in arrays if not isinstance(a, DeviceArray)]
        out_arrays = check_slots(out_arrays, program.output_types, shapes, hosted)
    there: list[Where] | None = None
    if where is not None:
        watched: list[Where] = ["host"] * (len(part.output_names) - count)
        there = [*(where[at] for at in program.output_at), *watched, *(where[at] for _, at in program.next_at)]
    results = _call(part, bound, arrays, where=there)
    rest = iter(results[count:])
    for observer in mode.observers:
        observer.see([next(rest) for _ in observer.watched])
    everything: list[Any] = [None] * len(program.interface.outputs)
    for at, result in zip(program.output_at, deliver(results[:count], out_arrays)):
        everything[at] = result
    for (_, at), (_, number) in zip(program.next_at, part.next_at):
        everything[at] = results[number]
    return everything
