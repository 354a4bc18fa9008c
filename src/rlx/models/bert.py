"""BERT encoders, as text embedders use them: from a folder with config.json and model.safetensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlx.errors import ModelError
from rlx.frontends import safetensors
from rlx.frontends.files import read_json
from rlx.frontends.registry import Imported
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.models.blocks import Weights, join_heads, linear, named, norm, split_heads
from rlx.ops.build import attention, gather, gelu, maximum, ne, reduce_sum, relu, silu
from rlx.ops.build import l2_normalize as normalize
from rlx.ops.build import slice as cut
from rlx.records import dataclass

MAX_LAYERS = 1024
_ACTIVATIONS = {"gelu": {}, "gelu_new": {"approximate": True}, "gelu_pytorch_tanh": {"approximate": True}}
_OTHERS = {"relu": relu, "silu": silu, "swish": silu}


@dataclass(frozen=True)
class Config:
    """The numbers of an encoder; the names are those of its config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"

    @staticmethod
    def of(json_object: Mapping[str, Any]) -> Config:
        """From the contents of a config.json. Raises ModelError."""
        if json_object.get("model_type") != "bert":
            raise _wrong("a model_type of bert", json_object.get("model_type"))
        if json_object.get("position_embedding_type", "absolute") != "absolute" or json_object.get("is_decoder"):
            raise _wrong("an encoder with absolute positions", "another kind")
        read: dict[str, Any] = {}
        for field in dataclasses.fields(Config):
            value = json_object.get(field.name, field.default)
            kinds = {"int": (int,), "float": (float, int), "str": (str,)}[str(field.type)]
            if type(value) not in kinds or (field.type == "int" and not 0 < value < 1 << 31):
                raise _wrong(f"{field.name} to be of type {field.type} and positive", value)
            read[field.name] = value
        config = Config(**read)
        if config.hidden_size % config.num_attention_heads or config.num_hidden_layers > MAX_LAYERS:
            raise _wrong("heads that divide the hidden size, and a sane number of layers", config)
        if config.hidden_act not in _ACTIVATIONS and config.hidden_act not in _OTHERS:
            raise _wrong(f"hidden_act among {[*_ACTIVATIONS, *_OTHERS]}", config.hidden_act)
        return config


def read(source: Path, token_types: bool = False, keep_dtype: bool = True) -> Imported:
    """The encoder in a folder, its weights mapped.

    token_types   True makes token_type_ids an input; else they count as zeros
    keep_dtype    False computes in f32 where weights are f16 or bf16, which stay that narrow in memory
    Raises ModelError.
    """
    config = Config.of(read_json(source / "config.json"))
    path = source / "model.safetensors"
    if not path.is_file():
        raise ModelError(f"[bert] expected weights in {path.name!r}, got a folder without it: {str(source)!r}")
    pooling_file = source / "1_Pooling" / "config.json"
    pooling = read_json(pooling_file) if pooling_file.is_file() else {}
    first = bool(pooling.get("pooling_mode_cls_token")) and not pooling.get("pooling_mode_mean_tokens")
    pool = "first" if first else "mean"
    graph = encoder(config, safetensors.read(path), token_types, pool, keep_dtype)
    return Imported(graph, "bert", {"folder": source.name, "config": str(config)})


def encoder(
    config: Config,
    arrays: Mapping[str, Array],
    token_types: bool = False,
    pool: str = "mean",
    keep_dtype: bool = True,
) -> Graph:
    """The program: ids and mask in, hidden states and one embedding of unit length a text out.

    input_ids, attention_mask (and token_type_ids)   i64[batch, seq]
    last_hidden_state                                f32[batch, seq, hidden]
    sentence_embedding                               f32[batch, hidden]: mean over tokens that the mask keeps, or the
                                                     first token
    Raises ModelError for a weight that is missing or misshapen.
    """
    graph = Graph("bert")
    ids = graph.input("input_ids", ("batch", "seq"), "i64")
    mask = graph.input("attention_mask", ("batch", "seq"), "i64")
    types = graph.input("token_type_ids", ("batch", "seq"), "i64") if token_types else None
    graph.bounds["seq"] = (1, config.max_position_embeddings)
    prefix = "bert." if "bert.embeddings.word_embeddings.weight" in arrays else ""
    weights = Weights(graph, arrays, prefix, keep_dtype)
    attended = ne(mask, 0)
    x = _embeddings(config, weights, ids, types)
    mask_4d = attended[:, None, None, :]
    for index in range(config.num_hidden_layers):
        x = _layer(config, weights, f"encoder.layer.{index}", x, mask_4d)
    graph.output(x, name="last_hidden_state")
    with named(graph, "pooling"):
        graph.output(normalize(x[:, 0] if pool == "first" else _mean(x, attended), axis=-1), name="sentence_embedding")
    return graph


def _embeddings(config: Config, weights: Weights, ids: Value, types: Value | None) -> Value:
    size = config.hidden_size
    words = weights("embeddings.word_embeddings.weight", config.vocab_size, size)
    places = weights("embeddings.position_embeddings.weight", config.max_position_embeddings, size)
    kinds = weights("embeddings.token_type_embeddings.weight", config.type_vocab_size, size)
    with named(weights.graph, "embeddings"):
        kind = kinds[0] if types is None else gather(kinds, types, axis=0)
        # No clamping: the bound of seq keeps the slice inside.
        first = cut(places, starts=(0, 0), stops=(ids.shape[1], size), steps=(1, 1))
        x = gather(words, ids, axis=0) + kind + first
    return norm(weights, "embeddings.LayerNorm", x, size, config.layer_norm_eps)


def _layer(config: Config, weights: Weights, name: str, x: Value, mask_4d: Value) -> Value:
    size, inner, epsilon = config.hidden_size, config.intermediate_size, config.layer_norm_eps
    q, k, v = (
        split_heads(linear(weights, f"{name}.attention.self.{part}", x, size, size), config.num_attention_heads)
        for part in ("query", "key", "value")
    )
    with named(weights.graph, f"{name}.attention.self"):
        mixed = join_heads(attention(q, k, v, mask_4d))
    x = x + linear(weights, f"{name}.attention.output.dense", mixed, size, size)
    x = norm(weights, f"{name}.attention.output.LayerNorm", x, size, epsilon)
    wide = linear(weights, f"{name}.intermediate.dense", x, size, inner)
    with named(weights.graph, f"{name}.intermediate"):
        active = _OTHERS[config.hidden_act](wide) if config.hidden_act in _OTHERS else None
        active = gelu(wide, **_ACTIVATIONS[config.hidden_act]) if active is None else active
    x = x + linear(weights, f"{name}.output.dense", active, inner, size)
    return norm(weights, f"{name}.output.LayerNorm", x, size, epsilon)


def _mean(x: Value, mask: Value) -> Value:
    """The mean over the tokens that the mask keeps."""
    share = mask.cast(x.dtype)[:, :, None]
    return reduce_sum(x * share, axes=(1,)) / maximum(reduce_sum(share, axes=(1,)), 1.0)


def _wrong(expected: str, actual: Any) -> ModelError:
    return ModelError(f"[bert] expected {expected}, got {actual!r}, in config.json")
