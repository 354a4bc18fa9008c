"""What results of few rows are made of beside sums: loaded before these are there."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt.module import NVIDIA, cpp_module
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction

from .emulated_driver import EmulatedDriver
from .fused_graphs import WIDTH, graph_dtype, graph_of, inputs_of, normed_product, weight
from .machine_code import LOAD, MULTIPLY, WAIT, operations

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())
COLUMNS = 44
"""That fill no tiles."""


def layer(dtype: str, rows: int | str = "n") -> Graph:
    """A product with a bias, a residual, a factor for each row, and one for all."""
    graph = Graph("layer")
    x, residual = graph.input("x", (rows, WIDTH), dtype), graph.input("residual", (rows, COLUMNS), dtype)
    of_row, of_all = graph.input("of_row", (rows, 1)), graph.input("of_all", (1,))
    bias = weight(graph, "bias", COLUMNS, dtype=dtype).cast("f32")
    y = (x @ weight(graph, "w", WIDTH, COLUMNS, dtype=dtype)).cast("f32") + bias
    graph.output(ops.gelu(y * of_row * of_all) + residual.cast("f32"), name="y")
    return graph


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_results_are_those_of_the_processor(dtype: str, driver: EmulatedDriver) -> None:
    graph = layer(dtype)
    on_device = rlx.Session("cuda", precision="f32_fast").compile(graph)
    exact = rlx.Session("cpu").compile(graph)
    for rows in (1, 9, 16, 20, 32):
        given = inputs_of(graph, rows)
        (made,), (expected,) = on_device.run(given), exact.run(given)
        tolerance = {"f16": 4e-3, "bf16": 3e-2, "f32": 1e-5}[dtype]
        np.testing.assert_allclose(np.asarray(made), np.asarray(expected), rtol=tolerance, atol=tolerance)


def test_what_a_kernel_writes_is_read_no_sooner(driver: EmulatedDriver) -> None:
    """A state that a product adds to."""
    graph = Graph("sums")
    x, state = graph.input("x", (16, WIDTH), "f16"), graph.state("sums", (16, COLUMNS))
    added = state + (x @ weight(graph, "w", WIDTH, COLUMNS, dtype="f16")).cast("f32")
    graph.set_next(state, added)
    graph.output(ops.reduce_sum(added, axes=(0,)), name="y")
    drawn = np.random.default_rng(0).standard_normal((16, WIDTH)).astype(graph_dtype("f16"))
    made, expected = (
        [np.asarray(program.run([drawn])[0]) for _ in range(3)]
        for program in (rlx.Session(device).compile(graph) for device in ("cuda", "cpu"))
    )
    np.testing.assert_allclose(made, expected, rtol=1e-3, atol=1e-2)


def test_weights_come_before_earlier_kernels_have_ended_and_all_else_before_the_sums() -> None:
    program = program_of(layer("f16"))
    (kernel,) = (kernel for kernel in program.main if isinstance(kernel.work, Contraction))
    slots = {program.buffers[number].name: slot for slot, number in enumerate(kernel.slots)}
    module = cpp_module([program])
    variant = next(each for each in module.variants[id(kernel)] if each.most_rows == 32)
    before, behind = module.kernels[variant.name].split("follow();\n  ")
    asked, finished = behind.split("mma_f16", 1)
    assert before.count("element_ahead(") == 1 and asked.count("element_ahead(") == 3
    for name in ("residual", "of_row", "of_all"):
        assert f"element_ahead(slot{slots[name]} +" in asked and f"slot{slots[name]}" not in finished


def machine_code(graph: Graph, rows: int) -> list[list[int]]:
    """Operations of the kernels that multiply so many rows."""
    program = program_of(graph)
    module = cpp_module([program], target=NVIDIA.on("sm_90a"))
    found = []
    for kernel in program.main:
        variant = module.variant(kernel, {"n": rows})
        if dims.evaluate(variant.shader.positions, {"n": rows}):
            source = f"{module.prelude}\n{module.kernels[variant.name]}"
            found.append(operations(nvrtc.compile_cubin(source, "sm_90a")))
    return found


@needs_nvrtc
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_assemblers_leave_loads_of_norms_weights_before_the_wait(rows: int) -> None:
    """Blocks without rows wait at the very beginning; all others have asked for both weights when they wait."""
    (code,) = machine_code(graph_of(normed_product, "n", "f16", 256), rows)
    first = code.index(WAIT)
    assert code[first : code.index(WAIT, first + 1)].count(LOAD) >= 4


@needs_nvrtc
def test_assemblers_have_all_rows_on_their_way_before_the_first_product() -> None:
    """A warp has six steps, each of two loads."""
    graph = Graph("long")
    graph.output(graph.input("x", ("n", 1536), "f16") @ graph.param("w", (1536, 384), "f16"), name="y")
    (code,) = machine_code(graph, 16)
    assert code.count(LOAD) == 12 and code[: code.index(MULTIPLY)].count(LOAD) == 12
