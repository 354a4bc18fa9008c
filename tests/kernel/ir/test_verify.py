"""The rules of programs: what keeps them passes, and each of them, broken alone, is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from ops.case import Case
from ops.cases import cases_of_every_op
from rlx import ops
from rlx.errors import CompileError, UnsupportedOp
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, accumulated, axis, linear, load, row
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.verify import verify
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise


def softmax_of_product() -> Program:
    graph = Graph("verified")
    x, w = graph.input("x", ("b", 64)), graph.param("w", (64, 32))
    graph.output(ops.softmax(ops.relu(x @ w + graph.param("c", (32,)) * 2.0), axis=-1))
    return to_kernels(optimise(graph)[0])


def change(program: Program, kind: type, made_of: Callable[[Kernel], Kernel]) -> None:
    """Puts something else in the place of the first kernel of `main` with this kind of work."""
    position = next(i for i, kernel in enumerate(program.main) if isinstance(kernel.work, kind))
    program.main[position] = made_of(program.main[position])


def with_store(kernel: Kernel, **fields: object) -> Kernel:
    """The kernel, its last statement changed."""
    work = kernel.work
    assert isinstance(work, LoopNest)
    last = dataclasses.replace(work.statements[-1], **fields)
    return dataclasses.replace(kernel, work=dataclasses.replace(work, statements=(*work.statements[:-1], last)))


def unknown_buffer(program: Program) -> None:
    change(program, LoopNest, lambda k: dataclasses.replace(k, slots=(*k.slots, 99)))


def unbound_slot(program: Program) -> None:
    change(program, Contraction, lambda k: dataclasses.replace(k, slots=k.slots[:2]))


def write_to_an_input(program: Program) -> None:
    change(program, LoopNest, lambda k: dataclasses.replace(k, slots=(program.inputs[0], *k.slots[1:])))


def write_to_a_slot_that_is_read(program: Program) -> None:
    change(program, LoopNest, lambda k: with_store(k, slot=1))


def read_before_write(program: Program) -> None:
    program.main.reverse()


def prepare_reads_an_input(program: Program) -> None:
    program.prepare.append(program.main[0])


def other_dtype(program: Program) -> None:
    change(program, LoopNest, lambda k: with_store(k, body=load(1, linear(axis(0)), dtypes.f64)))


def other_axis(program: Program) -> None:
    change(program, LoopNest, lambda k: with_store(k, body=ex.cast(axis(7), dtypes.f32)))


def later_statement(program: Program) -> None:
    change(program, LoopNest, lambda k: with_store(k, body=row(9, dtypes.f32)))


def second_sum_of_one(program: Program) -> None:
    def changed(kernel: Kernel) -> Kernel:
        work = kernel.work
        assert isinstance(work, Contraction)
        (store,) = work.epilogue
        second = dataclasses.replace(store, body=accumulated(store.body.dtype, second=True))
        return dataclasses.replace(kernel, work=dataclasses.replace(work, epilogue=(second,)))

    change(program, Contraction, changed)


def beyond_the_end(program: Program) -> None:
    def moved(kernel: Kernel) -> Kernel:
        work = kernel.work
        assert isinstance(work, Contraction)
        return dataclasses.replace(kernel, work=dataclasses.replace(work, b=work.b.plus(Linear(1))))

    change(program, Contraction, moved)


def alias_beyond_its_buffer(program: Program) -> None:
    part = program.new_buffer("alias", dtypes.f32, 32, "part")
    (weight,) = (n for n in program.params if program.buffers[n].name == "w")
    program.holds[part.number], program.aliases[part.number] = (weight,), (weight, 64 * 32 - 31)


def alias_of_another_dtype(program: Program) -> None:
    part = program.new_buffer("alias", dtypes.i32, 32, "part")
    program.holds[part.number] = (program.params[0],)


def output_that_nothing_writes(program: Program) -> None:
    program.main.pop()


BROKEN = {
    unknown_buffer: "expected one of .* buffers, got number 99",
    unbound_slot: "expected a slot below 2",
    write_to_an_input: "expected to write an output or a temporary, got the input",
    write_to_a_slot_that_is_read: "expected to write 1 slots, got a write to slot 1",
    read_before_write: "to be written before it is read",
    prepare_reads_an_input: "to be written before it is read",
    other_dtype: "expected f32 in slot 0",
    other_axis: "expected an axis below 2, got 7",
    later_statement: "to be an earlier Reduce",
    second_sum_of_one: "expected a second sum in the epilogue of a paired contraction",
    beyond_the_end: "expected offsets within 2048 elements",
    alias_beyond_its_buffer: "to lie in buffer .* of 2048 elements",
    alias_of_another_dtype: "to lie in one of i32",
    output_that_nothing_writes: "expected the output .* to be written",
}


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda f: f.__name__.replace("_", "-"))
def test_a_broken_rule_is_named(spoil: Callable[[Program], None]) -> None:
    program = softmax_of_product()
    verify(program)
    spoil(program)
    with pytest.raises(CompileError, match=rf"\[kernel/lowering\] .*{BROKEN[spoil]}"):
        verify(program)


@pytest.mark.parametrize("case", cases_of_every_op()[::11], ids=str)
def test_programs_of_op_cases_keep_the_rules(case: Case) -> None:
    try:
        program = to_kernels(optimise(case.graph())[0])
    except UnsupportedOp:
        pytest.skip("no kernel computes it")
    verify(program)
