"""What goes into the prepare program: all that params decide, and nothing that needs a dim of a run."""

from __future__ import annotations

from rlx import ops
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import Program
from rlx.kernel.passes.pack import Pack
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise


def lowered(graph: Graph) -> Program:
    return to_kernels(optimise(graph)[0], passes=[Pack(lambda work: (4, 1))])


def test_a_stride_of_a_run_keeps_a_kernel_out_of_prepare() -> None:
    """A slice of known extents of a param whose rows are as long as a run says."""
    graph = Graph("strides")
    x, w = graph.input("x", ("b", 4)), graph.param("w", (4, "n"))
    part = ops.slice(w, starts=(0, 0), stops=(4, 2), steps=(1, 1))
    graph.output(x @ part, x @ (part * 2.0 + graph.param("v", (4, 2))))
    assert not lowered(graph).prepare


def test_slices_of_one_weight_are_packed_apart() -> None:
    graph = Graph("slices")
    w = graph.param("w", (4, 12))
    x, y, z = (graph.input(name, ("b", 4)) for name in "xyz")
    graph.output(x @ w[:, :3], y @ w, (z @ w[:, :3]) * 2.0)
    program = lowered(graph)
    packed = {}
    for kernel in program.main:
        if isinstance(kernel.work, Contraction):
            assert kernel.work.packed == 4
            packed.setdefault(kernel.work.n, set()).add(kernel.slots[kernel.work.b_slot])
    assert {n: len(buffers) for n, buffers in packed.items()} == {3: 1, 12: 1}
    assert packed[3] != packed[12]


def test_a_packed_weight_takes_the_place_of_the_plain_one() -> None:
    graph = Graph("place")
    x, w = graph.input("x", ("b", 4)), graph.param("w", (4, 12))
    graph.output(x @ w)
    (kernel,) = lowered(graph).main
    assert all(lowered(graph).buffers[n].name != "w" for n in kernel.slots)
