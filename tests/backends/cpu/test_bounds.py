"""What a program writes lies within its results: memory around them stays as it was."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.errors import DeviceUnavailable
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.runtime.session import Session

AROUND = 64


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("features", [1, 2, 15, 16, 17, 33])
@pytest.mark.parametrize("isa", ["avx512", "avx2", "sse", "neon"])
def test_attention_writes_its_results_alone(dtype: str, features: int, isa: str) -> None:
    """The last lanes of a row are stored under masks that are known when the code is made."""
    graph = Graph()
    shape = (1, 2, 3, features)
    q, k, v = (graph.input(name, shape, dtype) for name in "qkv")
    graph.output(ops.attention(q, k, v), name="y")
    try:
        compiled = Session("cpu", isa=isa, threads=1).compile(graph)
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    size = 6 * features
    memory = np.full(size + 2 * AROUND, 7, dtypes.parse(dtype).numpy)
    arrays = [np.ones(shape, memory.dtype) for _ in "qkv"]
    compiled.run_slots(arrays, [memory[AROUND:-AROUND].reshape(shape)])
    assert (memory[:AROUND] == 7).all() and (memory[-AROUND:] == 7).all()
    assert (memory[AROUND:-AROUND] == 1).all()
