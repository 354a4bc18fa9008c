"""Rows of which the same lanes have two: where there are many, for what is the same for all rows."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import piece_nests
from rlx.codegen.simt.module import cpp_module
from rlx.ir.graph import Graph

from .emulated_driver import EmulatedDriver

WIDTH = 256
BOTH = "const auto row1 = position / 32ll * 2ll"


def norm(rows: int | str, extra: bool = False) -> Graph:
    """A norm with weights; with `extra`, something that is stored once a row beside it."""
    graph = Graph("norm")
    x = graph.input("x", (2, rows, WIDTH), "f16").cast("f32")
    middle = ops.reduce_mean(x, axes=(-1,), keepdims=True)
    spread = ops.reduce_mean(ops.square(x - middle), axes=(-1,), keepdims=True)
    w, b = (
        graph.param(name, (WIDTH,), "f32", data=np.linspace(k, 2, WIDTH, dtype=np.float32))
        for k, name in enumerate("wb")
    )
    graph.output(((x - middle) * ops.rsqrt(spread + 1e-5) * w + b).cast("f16"), name="y")
    if extra:
        graph.output(middle, name="middle")
    return graph


def texts(graph: Graph) -> list[str]:
    return list(cpp_module([program_of(graph)]).kernels.values())


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
@pytest.mark.parametrize("extra", [False, True], ids=["norm", "norm and mean"])
def test_any_number_of_rows(rows: int, extra: bool, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece_nests, "MOST_ALONE", 0)
    graph = norm("n", extra)
    assert any(BOTH in text for text in texts(graph))
    x = np.random.default_rng(rows).standard_normal((2, rows, WIDTH)).astype(np.float16)
    made, expected = (rlx.Session(device).compile(graph).run([x]) for device in ("cuda", "cpu"))
    for ours, theirs in zip(made, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(theirs, np.float32), rtol=2e-3, atol=2e-3)


def test_few_rows_have_lanes_of_their_own() -> None:
    few, many = piece_nests.MOST_ALONE // WIDTH // 2, piece_nests.MOST_ALONE // WIDTH
    assert not any(BOTH in text for text in texts(norm(few)))
    assert any(BOTH in text for text in texts(norm(many)))
    both = texts(norm("n"))
    assert any(BOTH in text for text in both) and not all(BOTH in text for text in both)


def test_rows_without_weights_have_lanes_of_their_own() -> None:
    graph = Graph("softmax")
    graph.output(ops.softmax(graph.input("x", ("n", WIDTH), "f32"), axis=-1))
    assert not any(BOTH in text for text in texts(graph))
