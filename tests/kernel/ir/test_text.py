"""The text of programs: what a test or a person can read, of every kind of work."""

from __future__ import annotations

from textwrap import dedent

from ops.cases import cases_of_every_op
from rlx import ops
from rlx.errors import UnsupportedOp
from rlx.ir.graph import Graph
from rlx.kernel.ir import attention, contraction, control, irregular, loops, winograd
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.ir.text import describe, text_of
from rlx.kernel.ir.work import Work
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise

MODULES = (attention, contraction, control, irregular, loops, winograd)
KINDS = {
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Work) and kind.__module__ == module.__name__
} - {control.Owner}


def test_a_program_reads_as_loops() -> None:
    graph = Graph("shown")
    x, w = graph.input("x", ("b", 64)), graph.param("w", (64, 32))
    graph.output(ops.softmax(ops.relu(x @ w + 1.0), axis=-1), name="y")
    assert text_of(to_kernels(optimise(graph)[0])) == dedent("""\
        %0 input f32[64*b] 'x'
        %1 param f32[2048] 'w'
        %2 temp f32[32*b] 'relu_3'
        %3 output f32[32*b] 'softmax_4'
        main:
          dot_general_add_maximum(%2 <- %0, %1): contraction
            for a0 in b, a1 in 32:
              sum = f32 sum of %0[a0*64 + a2] * %1[a1 + a2*32] over a2 in 64
              %2[a0*32 + a1] = max(add(sum, 1.0), 0.0)
          reduce_max_sub_exp_reduce_sum_div(%3 <- %2): loop nest
            for a0 in b:
              s0 = max(%2[a0*32 + a1]) over a1 in 32
              s1 = exp(sub(%2[a0*32 + a1], s0)) over a1 in 32
              s2 = add(s1) over a1 in 32
              %3[a0*32 + a1] = div(s1, s2) over a1 in 32""")


def test_every_kind_of_work_has_a_text() -> None:
    lacking = {kind for kind in KINDS if describe.dispatch(kind) is describe.dispatch(Work)}
    assert not lacking


def test_every_op_case_has_a_text() -> None:
    for case in cases_of_every_op()[::5]:
        try:
            program = to_kernels(optimise(case.graph())[0])
        except UnsupportedOp:
            continue
        text = text_of(program)
        assert all(f"{kernel.name}(" in text for kernel in _all(program)), text


def _all(program: Program) -> list[Kernel]:
    kernels = [*program.prepare, *program.main]
    for kernel in kernels:
        kernels.extend(kernel.children)
    return kernels
