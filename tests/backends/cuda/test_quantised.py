"""`precision="int8"` and `"f8"` on the emulated driver: the same integers as everywhere, and floats as near."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda.build import build
from rlx.ir.graph import Graph
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Kernel, leaves
from rlx.runtime.quantised import quantised
from rlx.runtime.session import Precision, Session
from runtime.test_quantised import NETS, normal, weight

from .emulated_driver import EmulatedDriver

PRECISIONS: tuple[Precision, ...] = ("int8", "f8")


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NETS)
def test_results_are_those_of_the_reference(
    driver: EmulatedDriver, name: str, precision: Precision, calibrated: bool
) -> None:
    make, shape = NETS[name]
    x = normal(*shape)
    calibration = [[x]] if calibrated else None
    expected = Session("reference", precision=precision, calibration=calibration).compile(make(0)).run([x])[0]
    actual = Session("cuda", precision=precision, calibration=calibration).compile(make(0)).run([x])[0]
    step = 0.02 if precision == "int8" else 0.04
    assert np.abs(actual - expected).max() <= step * np.abs(expected).max()  # where it meets a tie
    assert driver.calls


def post_norm_encoder() -> Graph:
    """Two layers of an encoder whose norms stand behind sums, as BERT's do."""
    graph = Graph("encoder")
    x = graph.input("x", (2, "n", 64))
    for layer in range(2):
        q, k, v = (x @ weight(graph, f"{name}{layer}", 64, 64) for name in ("q", "kk", "vvv"))
        heads = [part.reshape(2, x.shape[1], 4, 16).transpose(0, 2, 1, 3) for part in (q, k, v)]
        mixed = ops.attention(*heads).transpose(0, 2, 1, 3).reshape(2, x.shape[1], 64)
        x = norm(graph, f"first{layer}", x + mixed @ weight(graph, f"oooo{layer}", 64, 64))
        hidden = ops.gelu(x @ weight(graph, f"uuuuu{layer}", 64, 128))
        x = norm(graph, f"second{layer}", x + hidden @ weight(graph, f"dddddd{layer}", 128, 64))
    graph.output(x, name="y")
    return graph


def norm(graph: Graph, name: str, x: rlx.Value) -> rlx.Value:
    y: rlx.Value = ops.layer_norm(x, graph.param(name, (64,), data=1 + normal(64, seed=3) / 10))
    return y


def kernels(precision: str, calibrated: bool) -> list[tuple[Kernel, list[str]]]:
    """Those of a run, and the dtypes that they write."""
    x = {"x": normal(2, 9, 64)}
    graph = quantised(post_norm_encoder(), [x] if calibrated else (), precision=precision)
    program = build(graph, Options(precision=precision)).program
    return [(k, [str(program.buffers[n].dtype) for n in k.slots[: k.writes]]) for k in leaves(program.main)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_known_ranges_cost_no_kernels(precision: Precision) -> None:
    """What makes a value rounds it: of nests there are the norms, and one that rounds the input."""
    nests = [kernel for kernel, _ in kernels(precision, calibrated=True) if isinstance(kernel.work, LoopNest)]
    assert sum(kernel.work.reduces for kernel in nests) == 4
    assert len(nests) == 5


@pytest.mark.parametrize("precision", PRECISIONS)
def test_ranges_of_rows_are_found_where_rows_are_made_or_read_in_16_bits(precision: Precision) -> None:
    """A norm knows its row; behind attention and a gelu a nest reads rows, once."""
    made = kernels(precision, calibrated=False)
    nests = [kernel for kernel, _ in made if isinstance(kernel.work, LoopNest)]
    assert len(nests) == 4 + 2 * 2 + 1
    wide = [kernel.name for kernel, written in made if not isinstance(kernel.work, LoopNest) and "f32" in written]
    assert all("parts" in name for name in wide)  # of attention, which are joined


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_norms_and_attention_in_16_bits_are_as_near(
    driver: EmulatedDriver, precision: Precision, calibrated: bool
) -> None:
    """As bytes are to floats: nothing is lost by what lies in memory in 16 bits."""
    x, graph = normal(2, 9, 64), post_norm_encoder()
    (exact,) = rlx.Session("reference").compile(graph).run([x])
    calibration = [[x]] if calibrated else None
    errors = []
    for device in ("reference", "cuda"):
        (made,) = Session(device, precision=precision, calibration=calibration).compile(graph).run([x])
        errors.append(np.linalg.norm(made - exact) / np.linalg.norm(exact))
    assert errors[1] < 1.1 * errors[0] + 1e-3
