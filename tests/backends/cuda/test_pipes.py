"""Products whose operands the copy engine brings while others multiply: ragged ends, batches, rows that a run tells,
epilogues, and sums that wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlx import ops
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import program_of
from rlx.backends.cuda.executable import CudaExecutable
from rlx.codegen.simt import piped_contraction, team_layouts, tile_layouts
from rlx.codegen.simt.language.cuda import CUDA, prelude
from rlx.codegen.simt.module import NVIDIA, cpp_module
from rlx.codegen.simt.piped_contraction import LAYOUTS, PipedLayout
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import leaves
from support import cubin

from .emulated_driver import EmulatedDriver
from .graphs import compiled
from .test_tiles import whole, wide

NARROW = PipedLayout(16, 64, (8, 1, 1), 64, 4, together=True)
WIDE = PipedLayout(16, 192, (8, 1, 1), 64, 3, together=True)
WAITING = {f"{name}, waits": replace(layout, waits=True) for name, layout in (("narrow", NARROW), ("wide", WIDE))}
KINDS = {"narrow": NARROW, "wide": WIDE, **WAITING}
SM90 = NVIDIA.on("sm_90a")


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PipedLayout:
    """Has all products that can be of a layout be of it, on a device of four multiprocessors."""
    layout: PipedLayout = request.param

    def layout_of(work: Contraction, target: object, language: object) -> PipedLayout | None:
        taken = piped_contraction.takes(work, CUDA)
        return replace(layout, paired=work.paired) if taken else None

    monkeypatch.setattr(piped_contraction, "layout_of", layout_of)
    monkeypatch.setattr(piped_contraction, "MULTIPROCESSORS", 4)
    return layout


def pipes(executable: CudaExecutable) -> int:
    return sum("bring_tile" in text for text in executable.plan.module.kernels.values())


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [(64, 64, 64, "f16"), (130, 200, 72, "bf16"), (300, 520, 136, "f16"), (65, 104, 33, "bf16"), (700, 48, 200, "f16")],
)
def test_products_with_weights(layout: PipedLayout, m: int, k: int, n: int, dtype: str, driver: EmulatedDriver) -> None:
    """With ends of every side that are no multiple of a tile; the rows are known to a run alone."""
    graph = Graph("product")
    graph.output(graph.input("x", ("m", k), dtype) @ graph.param("w", (k, n), dtype))
    x, w = whole((m, k), 1, dtype), whole((k, n), 2, dtype)
    executable = compiled(graph, {"w": w})
    assert pipes(executable) > 0 or (layout.waits and n % 8)  # what waits is stored by pieces
    (result,) = executable.bind({"m": m})([x])
    np.testing.assert_array_equal(wide(result), wide(x) @ wide(w))


def test_epilogues(layout: PipedLayout, driver: EmulatedDriver) -> None:
    """A bias for each column, a residual of each row, and a sum of f32."""
    graph = Graph("epilogue")
    x, bias = graph.input("x", ("m", 72), "f16"), graph.param("bias", (136,), "f16")
    graph.output(x @ graph.param("w", (72, 136), "f16") + bias + graph.input("more", ("m", 136), "f16"), name="y")
    graph.output((x @ graph.param("v", (72, 40), "f16")).cast("f32") * 0.5, name="z")
    given = [whole((300, 72), 1), whole((300, 136), 2)]
    w, v, b = whole((72, 136), 3), whole((72, 40), 4), whole((136,), 5)
    executable = compiled(graph, {"w": w, "v": v, "bias": b})
    assert pipes(executable) >= 2
    y, z = executable.bind({"m": 300})(given)
    np.testing.assert_array_equal(wide(y), wide(given[0]) @ wide(w) + wide(b) + wide(given[1]))
    np.testing.assert_array_equal(z, wide(given[0]) @ wide(v) / 2)


def test_nothing_is_read_behind_rows_and_columns(layout: PipedLayout, driver: EmulatedDriver) -> None:
    """Of arrays that are read where they lie: behind each there is no memory. A number for each row is no piece."""
    graph = Graph("ragged")
    x, w = graph.input("x", (130, 72), "f16"), graph.param("w", (72, 72), "f16")
    scale, more = graph.input("scale", (130, 1), "f16"), graph.input("more", (130, 72), "f16")
    graph.output((x @ w) * scale + more)
    weight, given = whole((72, 72), 3), [whole(shape, n) for n, shape in enumerate(((130, 72), (130, 1), (130, 72)))]
    executable = compiled(graph, {"w": weight})
    assert pipes(executable) == 1
    here = [executable.put(name, array) for name, array in zip(("x", "scale", "more"), given)]
    bound = executable.bind({})
    for _ in range(5):
        (result,) = bound.deliver_to(["device"], here)
        exact = wide(given[0]) @ wide(weight) * wide(given[1]) + wide(given[2])
        np.testing.assert_array_equal(wide(np.asarray(result)), exact)


def test_products_of_two_values_of_a_run(layout: PipedLayout, driver: EmulatedDriver) -> None:
    """Of batches, whose right sides lie contiguous along k, too."""
    graph = Graph("scores")
    x, y = graph.input("x", (3, "m", 72), "f16"), graph.input("y", (3, "n", 72), "f16")
    graph.output(x @ y.transpose(0, 2, 1))
    executable = compiled(graph)
    assert pipes(executable) == (0 if layout.waits else 1)  # nobody knows whether its rows are pieces
    for m, n in ((70, 100), (200, 64)):
        x_given, y_given = whole((3, m, 72), 1), whole((3, n, 72), 2)
        (result,) = executable.bind({"m": m, "n": n})([x_given, y_given])
        np.testing.assert_array_equal(wide(result), wide(x_given) @ wide(y_given).transpose(0, 2, 1))


def test_weights_that_a_batch_has_one_of_for_each(layout: PipedLayout, driver: EmulatedDriver) -> None:
    graph = Graph("several")
    graph.output(graph.input("x", (3, 266, 96), "f16") @ graph.param("w", (3, 96, 40), "f16"))
    x, w = whole((3, 266, 96), 1), whole((3, 96, 40), 2)
    executable = compiled(graph, {"w": w})
    assert pipes(executable) == 1
    (result,) = executable.bind({})([x])
    np.testing.assert_array_equal(wide(result), wide(x) @ wide(w))


def test_both_sides_of_gates(layout: PipedLayout, driver: EmulatedDriver) -> None:
    """One kernel has both sums of a result."""
    graph = Graph("gate")
    x = graph.input("x", ("m", 64), "f16")
    gate, up = x @ graph.param("gate", (64, 104), "f16"), x @ graph.param("up", (64, 104), "f16")
    graph.output(ops.relu(gate) * up)
    params = {"gate": whole((64, 104), 1), "up": whole((64, 104), 2)}
    executable = compiled(graph, params)
    given = whole((300, 64), 3)
    (result,) = executable.bind({"m": 300})([given])
    sides = [wide(given) @ wide(w) for w in params.values()]
    np.testing.assert_array_equal(wide(result), wide((np.maximum(sides[0], 0) * sides[1]).astype(np.float16)))


def contraction(m: int, k: int, n: int) -> Contraction:
    graph = Graph("product")
    graph.output(graph.input("x", (m, k), "f16") @ graph.param("w", (k, n), "f16"))
    (kernel,) = leaves(program_of(graph).main)
    assert isinstance(kernel.work, Contraction)
    return kernel.work


def test_large_products_are_chosen_by_price() -> None:
    """On devices that have a copy engine, and products together."""
    large, small = contraction(4096, 768, 2304), contraction(128, 768, 2304)
    assert piped_contraction.layout_of(large, SM90, CUDA) is not None
    assert piped_contraction.layout_of(small, SM90, CUDA) is None
    assert piped_contraction.layout_of(large, NVIDIA.on("sm_80"), CUDA) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_have_room(layout: PipedLayout) -> None:
    waiting = [replace(layout, waits=True), replace(layout, waits=True, paired=True)]
    for each in (layout, *(waiting if layout.columns <= piped_contraction.MOST_WAITING else ())):
        assert each.shared_bytes <= tile_layouts.SHARED_BYTES


@pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())
def test_they_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for number, layout in enumerate(LAYOUTS):
        of = replace(layout, waits=number % 2 == 0)
        monkeypatch.setattr(piped_contraction, "layout_of", lambda work, target, language, of=of: of)
        graph = Graph("product")
        graph.output(graph.input("x", (300, 96), "f16") @ graph.param("w", (96, 104), "f16"))
        texts += [text for text in cpp_module([program_of(graph)], target=SM90).kernels.values() if "bring" in text]
    assert len(texts) == len(LAYOUTS)
    assert cubin("\n".join([prelude(), *texts]), "sm_90a")


def test_tiles_of_pairs_have_the_columns_of_both_sums() -> None:
    graph = Graph("gate")
    both = graph.input("x", (512, 64), "f16") @ graph.param("w", (64, 768), "f16")
    graph.output(ops.silu(both[:, :384]) * both[:, 384:])
    works = [kernel.work for kernel in leaves(program_of(graph).main)]
    (work,) = (work for work in works if isinstance(work, Contraction))
    assert work.paired
    known, layout = team_layouts.with_rows(work, 512), replace(LAYOUTS[0], paired=True)
    assert piped_contraction._tiles(known, layout) == (512 // 128) * (768 // 192)
