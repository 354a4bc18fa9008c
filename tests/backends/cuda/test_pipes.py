"""Products whose operands one group of warps brings while others multiply: ragged ends, batches, rows that a run tells,
windows, and epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.codegen.simt import piped_contraction
from rlx.codegen.simt.piped_contraction import PipedLayout
from rlx.ir.graph import Graph

from .emulated_driver import EmulatedDriver
from .graphs import compiled
from .test_tiles import whole, wide

NARROW = PipedLayout(16, 64, (8, 1, 1), 64, 4, together=True)
WIDE = PipedLayout(16, 192, (8, 1, 1), 64, 3, together=True)


def force(monkeypatch: pytest.MonkeyPatch, layout: PipedLayout) -> None:
    monkeypatch.setattr(piped_contraction, "layout_of", lambda work, target, language: layout)


@pytest.mark.parametrize("layout", [NARROW, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [(64, 64, 64, "f16"), (130, 200, 72, "bf16"), (300, 520, 136, "f16"), (65, 104, 33, "bf16")],
)
def test_products_with_weights(
    layout: PipedLayout, m: int, k: int, n: int, dtype: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, layout)
    monkeypatch.setattr(piped_contraction, "MULTIPROCESSORS", 4)
    graph = Graph("product")
    graph.output(graph.input("x", ("m", k), dtype) @ graph.param("w", (k, n), dtype))
    x, w = whole((m, k), 1, dtype), whole((k, n), 2, dtype)
    executable = compiled(graph, {"w": w})
    assert any("await_phase" in text for text in executable.plan.module.kernels.values())
    (result,) = executable.bind({"m": m})([x])
    np.testing.assert_array_equal(wide(result), wide(x) @ wide(w))
