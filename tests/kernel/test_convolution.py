"""Convolutions as products: which axis gives the rows, and that windows over one channel are products too."""

from __future__ import annotations

from rlx import ops
from rlx.backends.claims import PREFER_NATIVE
from rlx.backends.cpu import claims
from rlx.backends.cpu.isa import widest
from rlx.codegen.simd import gemm
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.passes.pack import Pack
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import layout, optimise, standard


def product(x: tuple[str | int, ...], w: tuple[int, ...], stride: int) -> Contraction:
    """The contraction that the CPU makes of a convolution."""
    graph = Graph("conv")
    rank = len(w) - 2
    sizes = {
        "strides": (stride,) + (1,) * (rank - 1),
        "dilations": (1,) * rank,
        "low": (0,) * rank,
        "high": (0,) * rank,
    }
    graph.output(ops.conv(graph.input("x", x), graph.param("w", w), **sizes))
    ready, _ = optimise(graph, [*standard(PREFER_NATIVE.claims(claims.claim)), *layout()])
    program = to_kernels(ready, passes=[Pack(lambda work: (16 if gemm.form_of(work, widest()) else 0, 1))])
    (contraction,) = [k.work for k in program.main if isinstance(k.work, Contraction)]
    return contraction


def test_rows_lie_along_an_axis_that_has_some() -> None:
    work = product(("n", 8, 100, 1), (16, 8, 5, 1), 1)
    assert (work.m, work.packed) == (96, 16)
    assert product(("n", 8, 1, 100), (16, 8, 1, 5), 1).m == 96


def test_a_window_over_samples_is_one_long_sum() -> None:
    """Frames of a signal: rows of A overlap, and all of the window is multiplied in one go."""
    work = product(("n", 1, "t"), (257, 1, 512), 160)
    assert work.packed == 16
    scheduled = gemm.schedule(work, widest())
    assert (scheduled.taps, work.taps, work.k) == ((), (), 512)
