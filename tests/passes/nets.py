"""Small nets of convolutions."""

from __future__ import annotations

import numpy as np

from rlx import ops
from rlx.ir.graph import Graph, Value


def conv(graph: Graph, x: Value, outputs: int, name: str) -> Value:
    """With a bias."""
    data = np.random.default_rng(len(name)).standard_normal((outputs, x.shape[1], 3, 3)).astype(np.float32) / 8
    w, bias = (
        graph.param(name, data.shape, "f32", data=data),
        graph.param(f"{name}.bias", (outputs, 1, 1), "f32", data=data[:, :1, 0, :1]),
    )
    y: Value = ops.conv(x, w, strides=(1, 1), dilations=(1, 1), low=(1, 1), high=(1, 1))
    return y + bias


def residual_net(graph: Graph) -> Value:
    """A pool, two branches and a mean."""
    x = ops.relu(conv(graph, graph.input("x", (1, 8, 6, 6)), 8, "first"))
    size = {"window": (2, 2), "strides": (2, 2), "dilations": (1, 1), "low": (0, 0), "high": (0, 0)}
    x = ops.reduce_window(x, combine="max", **size)
    branch = conv(graph, ops.relu(conv(graph, x, 16, "inner")), 24, "outer")
    x = ops.relu(branch + conv(graph, x, 24, "skip"))
    y: Value = ops.reduce_mean(x, axes=(2, 3))
    return y
