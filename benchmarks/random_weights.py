"""Shapes of models that benchmarks measure, and random weights for them, by the names of checkpoints."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from rlx.models.bert import Config

MINILM = Config(30522, 384, 6, 12, 1536)
BERT = Config(30522, 768, 12, 12, 3072)
QWEN3_06B: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True,
    "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip
SMOLLM2: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 1e5, "tie_word_embeddings": True, "hidden_act": "silu",
}  # fmt: skip

DRAWN_ROWS = 8192
"""Of a matrix, behind which they come again: a vocabulary's are drawn for longer than all else takes."""


def decoder_weights(config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Those of a decoder, in bf16; matrices of one shape are the same array, of which rows come again."""
    random = np.random.default_rng(0)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim", hidden // config["num_attention_heads"])
    heads, kv_heads = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    @cache
    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        drawn = random.standard_normal((min(rows, DRAWN_ROWS), columns), np.float32) / np.float32(np.sqrt(columns))
        return np.resize(drawn.astype(ml_dtypes.bfloat16), (rows, columns))

    arrays = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    ones = {"model.norm.weight": hidden}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (heads, hidden), "self_attn.k_proj": (kv_heads, hidden),
            "self_attn.v_proj": (kv_heads, hidden), "self_attn.o_proj": (hidden, heads),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        arrays |= {f"{at}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        ones |= {f"{at}.input_layernorm.weight": hidden, f"{at}.post_attention_layernorm.weight": hidden}
        if config["model_type"] == "qwen3":
            ones |= {f"{at}.self_attn.q_norm.weight": size, f"{at}.self_attn.k_norm.weight": size}
    return arrays | {name: np.ones(width, ml_dtypes.bfloat16) for name, width in ones.items()}


def encoder_weights(config: Config) -> dict[str, np.ndarray[Any, Any]]:
    """Those of an encoder, in f32; rows of large matrices come again."""
    random = np.random.default_rng(0)
    size, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings": (config.vocab_size, size),
        "embeddings.position_embeddings": (config.max_position_embeddings, size),
        "embeddings.token_type_embeddings": (config.type_vocab_size, size),
    }

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
        drawn = random.standard_normal((min(shape[0], DRAWN_ROWS), *shape[1:]), np.float32) * np.float32(scale)
        return np.resize(drawn, shape)

    arrays = {f"{name}.weight": normal(*shape) for name, shape in shapes.items()}
    linears: dict[str, tuple[int, int]] = {}
    norms = ["embeddings.LayerNorm"]
    for layer in range(config.num_hidden_layers):
        prefix = f"encoder.layer.{layer}"
        linears |= {f"{prefix}.attention.self.{part}": (size, size) for part in ("query", "key", "value")}
        linears |= {f"{prefix}.attention.output.dense": (size, size), f"{prefix}.intermediate.dense": (inner, size)}
        linears |= {f"{prefix}.output.dense": (size, inner)}
        norms += [f"{prefix}.attention.output.LayerNorm", f"{prefix}.output.LayerNorm"]
    for name, shape in linears.items():
        arrays[f"{name}.weight"] = normal(*shape, scale=shape[1] ** -0.5)
        arrays[f"{name}.bias"] = normal(shape[0], scale=0.02)
    for name in norms:
        arrays[f"{name}.weight"] = np.float32(1) + normal(size, scale=0.02)
        arrays[f"{name}.bias"] = normal(size, scale=0.02)
    return arrays
