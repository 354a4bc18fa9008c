"""Backends whose programs are of one size each: weights are arguments of them, and a size is made ready once."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.ir.graph import Graph


@pytest.mark.devices("xla", "mlx")
def test_weights_may_be_set_anew_and_sizes_are_made_ready_once_each(device: str) -> None:
    graph = Graph("net")
    graph.output(rlx.relu(graph.input("x", ("n", 4), "f32") @ graph.param("w", (4, 4), "f32")), name="y")
    compiled = rlx.Session(device).compile(graph)
    if compiled.capabilities.dynamic_dims:
        pytest.skip(f"{device} takes all sizes with one program")
    x = np.ones((2, 4), np.float32)
    for factor in (1, 3):
        compiled.set_param("w", np.eye(4, dtype=np.float32) * factor)
        np.testing.assert_array_equal(compiled.run([x])[0], x * factor)
    assert compiled.compile_count == 1
    compiled.run([np.ones((5, 4), np.float32)])
    compiled.run([x])
    assert compiled.compile_count == 2
