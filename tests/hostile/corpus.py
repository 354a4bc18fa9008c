"""Files to damage: models of many ops, graphs and programs that rlx saved, a folder with an encoder in safetensors."""

from __future__ import annotations

import json
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import rlx
from gguf_files import small_decoder
from hostile import mutate
from hostile.case import Gives
from hostile.tables import CASES

Array = np.ndarray[Any, Any]
KINDS = ("bytes", "model", "model", "saved", "header", "compiled", "folder", "gguf")
"""What is damaged: a model's bytes, its fields, a saved graph's bytes or header, a saved program, safetensors, GGUF."""


@cache
def models() -> list[tuple[bytes, tuple[Array, ...]]]:
    """Models that run right, small ones, with inputs for them."""
    samples = [(c.build(), c.inputs) for c in CASES.values() if isinstance(c.want, Gives)]
    return [(data, inputs) for data, inputs in samples if len(data) < 4000]


@cache
def model_bytes() -> list[bytes]:
    return [data for data, _ in models()]


@cache
def parsed_models() -> list[int]:
    """Numbers of the models that the protobuf library itself reads."""
    return [i for i, data in enumerate(model_bytes()) if onnx.ModelProto.FromString(data).IsInitialized()]


@cache
def folder() -> Path:
    """Where saved files lie, for as long as the process lives."""
    _folders.append(tempfile.TemporaryDirectory(prefix="rlx-fuzz-"))
    return Path(_folders[0].name)


_folders: list[tempfile.TemporaryDirectory[str]] = []


def _net() -> rlx.Graph:
    """A graph with weights, constants, symbols, a loop and a measured dim."""
    graph = rlx.Graph("net")
    x = graph.input("x", ("n", 4))
    w = graph.param("w", (4, 6), data=np.ones((4, 6), "f4"))
    h = rlx.gelu(x @ w)
    rows = rlx.gather(h, graph.constant(np.array([0, -1])), axis=1)
    graph.output(rlx.softmax(h, axis=1), name="y")
    graph.output(rlx.nonzero(rows), name="where")
    return graph


@cache
def saved() -> bytes:
    path = folder() / "net.rlx"
    from rlx.ir.serial import save_graph

    save_graph(_net(), path)
    return path.read_bytes()


@cache
def compiled() -> bytes:
    graph = rlx.Graph("net")
    x, w = graph.input("x", ("n", 4)), graph.param("w", (4, 6), data=np.ones((4, 6), "f4"))
    graph.output(rlx.gelu(x @ w), name="y")
    path = folder() / "net.rlxc"
    rlx.Session("cpu", cache=False).compile(graph).save(path)
    return path.read_bytes()


@cache
def encoder() -> tuple[dict[str, Any], bytes]:
    """Config and weights of a very small BERT."""
    config = {
        "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8, "num_attention_heads": 2,
        "num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": 20, "max_position_embeddings": 12,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "position_embedding_type": "absolute",
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (20, 8), "embeddings.position_embeddings.weight": (12, 8),
        "embeddings.token_type_embeddings.weight": (2, 8), "embeddings.LayerNorm.weight": (8,),
        "embeddings.LayerNorm.bias": (8,),
    }  # fmt: skip
    layer = "encoder.layer.0."
    for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        shapes |= {f"{layer}{part}.weight": (8, 8), f"{layer}{part}.bias": (8,)}
    shapes |= {f"{layer}intermediate.dense.weight": (16, 8), f"{layer}intermediate.dense.bias": (16,)}
    shapes |= {f"{layer}output.dense.weight": (8, 16), f"{layer}output.dense.bias": (8,)}
    for part in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes |= {f"{layer}{part}.weight": (8,), f"{layer}{part}.bias": (8,)}
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return config, len(text).to_bytes(8, "little") + text + np.full(at // 4, 0.1, "f4").tobytes()


def attempt(number: int, seconds: float) -> None:
    """Makes the file of this number, opens it, and runs what comes of it. Raises what rlx raises."""
    rng = random.Random(number)
    kind = rng.choice(KINDS)
    device = "cpu" if rng.random() < 0.15 else "reference"
    x = np.ones((3, 4), "f4")
    if kind in ("bytes", "model"):
        place = rng.choice(parsed_models()) if kind == "model" else rng.randrange(len(models()))
        data, inputs = models()[place]
        damage = mutate.mutated_model if kind == "model" else mutate.mutated
        rlx.load(damage(rng, data, model_bytes()), device=device, cache=False).run(list(inputs), timeout=seconds)
        return
    path = folder() / "damaged"
    if kind in ("saved", "header"):
        path.write_bytes(
            mutate.mutated_header(rng, saved()) if kind == "header" else mutate.mutated(rng, saved(), [saved()])
        )
        rlx.load(path, device=device, cache=False).run([x], timeout=seconds)
    elif kind == "gguf":
        path.write_bytes(mutate.mutated(rng, small_decoder(), [small_decoder()]))
        model = rlx.load(path, device=device, cache=False)
        model.run([np.array([[1, 2, 3]])], timeout=seconds)
        model.decoder.text.encode("abc")
    elif kind == "compiled":
        path.write_bytes(mutate.mutated(rng, compiled(), [compiled()]))
        rlx.load_compiled(path).run([x], timeout=seconds)
    else:
        config, weights = encoder()
        place = folder() / "encoder"
        place.mkdir(exist_ok=True)
        config = dict(config)
        if rng.random() < 0.5:
            mutate._change_json(rng, config)
        else:
            weights = (
                mutate.mutated_header(rng, weights) if rng.random() < 0.6 else mutate.mutated(rng, weights, [weights])
            )
        (place / "config.json").write_text(json.dumps(config))
        (place / "model.safetensors").write_bytes(weights)
        ids = np.array([[1, 2, 3]])
        rlx.load(place, device=device, cache=False).run(
            [ids, np.ones_like(ids), np.zeros_like(ids)][:2], timeout=seconds
        )
