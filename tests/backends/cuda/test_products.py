"""Products whose sums lanes share, with as many slices as few, several and many blocks have. Their rows are no pieces
of 16 bytes, as those of `team_contraction.py` are."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import sliced, tiled
from rlx.codegen.simt.module import NVIDIA, cpp_module
from rlx.ir.graph import Graph
from support import cubin

from .emulated_driver import EmulatedDriver
from .graphs import compiled

FEW, SEVERAL, MANY = (1 << 20, 1 << 21), (1, 1 << 21), (1, 1)


@pytest.fixture(params=(FEW, SEVERAL, MANY), ids=("few", "several", "many"))
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many there are."""
    monkeypatch.setattr(sliced, "FEW_BLOCKS", request.param[0])
    monkeypatch.setattr(sliced, "MANY_BLOCKS", request.param[1])
    monkeypatch.setattr(sliced, "TILED_BLOCKS", request.param[1])
    return {FEW: 16, SEVERAL: 4, MANY: 1}[request.param]


def whole(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Small whole numbers: sums are exact in any order."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def test_products_with_weights_and_of_inputs(slices: int, driver: EmulatedDriver) -> None:
    graph = Graph("products")
    x, y = graph.input("x", ("n", 1101)), graph.input("y", (2, 19, "n"))
    graph.output(x @ graph.param("w", (1101, 70)) + graph.param("bias", (70,)))
    graph.output(ops.matmul(y, x[:, :21]))
    w, bias = whole((1101, 70), 1), whole((70,), 2)
    executable = compiled(graph, {"w": w, "bias": bias})
    variants = [executable.plan.module.variants[id(kernel)] for kernel in executable.plan.program.main]
    assert any(tiled.SHARED in executable.plan.module.kernels[each.name] for row in variants for each in row)
    for n in (17, 3, 1):
        x_given, y_given = whole((n, 1101), n), whole((2, 19, n), n + 1)
        results = executable.bind({"n": n})([x_given, y_given])
        np.testing.assert_array_equal(results[0], x_given @ w + bias)
        np.testing.assert_array_equal(results[1], y_given @ x_given[:, :21])


def test_convolutions(slices: int, driver: EmulatedDriver) -> None:
    graph = Graph("convolution")
    graph.output(
        ops.conv(
            graph.input("x", (2, 25, 7)),
            graph.param("w", (10, 25, 3)),
            strides=(1,),
            dilations=(1,),
            low=(1,),
            high=(1,),
        )
    )
    x, w = whole((2, 25, 7), 1), whole((10, 25, 3), 2)
    (result,) = compiled(graph, {"w": w}).bind({})([x])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=2)
    np.testing.assert_array_equal(result, np.einsum("bcpk,ock->bop", windows, w))


@pytest.mark.parametrize(
    ("blocks", "is_tiled", "several", "many"),
    [
        (1, False, 0, 0), (8191, False, 0, 0), (8192, False, 1, 0), (65535, False, 1, 0), (65536, False, 1, 1),
        (8192, True, 1, 0), (16383, True, 1, 0), (16384, True, 1, 1),
    ],
)  # fmt: skip
def test_few_blocks_have_many_slices(blocks: int, is_tiled: bool, several: int, many: int) -> None:
    assert sliced.how_many(blocks, is_tiled) == (several, many)


@pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_products_of_no_rows_are_texts_that_compile(dtype: str) -> None:
    """An array of nothing is none in CUDA C++."""
    graph = Graph("empty")
    graph.output(graph.input("x", (0, 64), dtype) @ graph.param("w", (64, 24), dtype))
    module = cpp_module([program_of(graph)], target=NVIDIA.on("sm_90a"))
    assert cubin(module.text, "sm_90a").startswith(b"\x7fELF")
