"""Decoders in GGUF files: their configuration from metadata, and their weights under the names of Hugging Face.

Facts of the format: the converters of llama.cpp and the package `gguf`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlx import mapped
from rlx.frontends.gguf import File, Tensor
from rlx.frontends.gguf_blocks import numbers, packed
from rlx.frontends.registry import Imported
from rlx.ir.literal import Array
from rlx.models.blocks import MINIMA, SCALES
from rlx.models.config_keys import Keys
from rlx.models.generation import Source
from rlx.models.gguf_text import GgufOrigin
from rlx.models.llama import decoder
from rlx.models.llama_config import Config
from rlx.records import dataclass


@dataclass(frozen=True)
class Architecture:
    """What a file's general.architecture means.

    model_type    that Hugging Face calls it
    turned        rows of queries and keys lie in the order of rotary positions that turn neighbours
    offset_norms  norms have 1 added
    scalars       the number of layers of the one model whose scores are not divided by √head size, but by the root of
                  the hidden size a head; -1 if there is none
    """

    model_type: str
    turned: bool = False
    offset_norms: bool = False
    scalars: int = -1

    @property
    def has_post_norms(self) -> bool:
        return self.scalars >= 0


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", turned=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "smollm3": Architecture("smollm3", turned=True),
    "gemma": Architecture("gemma", offset_norms=True),
    "gemma2": Architecture("gemma2", offset_norms=True, scalars=46),
    "gemma3": Architecture("gemma3_text", offset_norms=True, scalars=62),
}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_LAYERS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_POST_NORMS = {
    "ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_NAME = re.compile(r"(?:blk\.(\d{1,4})\.)?([a-z_]+)\.(weight|bias)")
_WORDS, _FACTORS = "token_embd.weight", "rope_freqs.weight"


def read(source: Path | bytes, keep_dtype: bool = False) -> Imported:
    """The decoder in a GGUF file, its floats mapped, its blocks of few bits laid out as products take them.

    keep_dtype    True computes in f16 or bf16 where all weights are; else what is computed is f32, and narrower weights
                  stay as narrow as they are in memory
    Raises ModelError.
    """
    source = source.absolute() if isinstance(source, Path) else source
    file = File(source)
    name = file.get("general.architecture")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise file.wrong(f"a decoder of {', '.join(ARCHITECTURES)}", repr(name), "general.architecture")
    if file.get("split.count", 1) != 1:
        merge = f"{file.get('split.count')} parts of one: llama-gguf-split --merge joins them"
        raise file.wrong("a whole model", merge, "split.count")
    config = config_of(file, architecture)
    graph = decoder(config, arrays_of(file, architecture, config), keep_dtype)
    notes = {"file": file.where, "config": str(config), "weights": _told(file)}
    return Imported(
        graph, "gguf", notes, files=(file.bytes,), generator=Source(config, GgufOrigin.of(file), keep_dtype)
    )


def _told(file: File) -> str:
    """How many tensors of each type there are."""
    counts: dict[str, int] = {}
    for tensor in file.tensors.values():
        counts[tensor.type.name] = counts.get(tensor.type.name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


# configuration


def config_of(file: File, architecture: Architecture) -> Config:
    """What the metadata say. Raises ModelError for what is missing, out of range, or not implemented."""
    prefix = f"{file.get('general.architecture')}."
    where = f"the metadata of {file.where!r}"
    keys = Keys({k.removeprefix(prefix): file.get(k) for k in file if k.startswith(prefix)}, "gguf", where)
    hidden, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    kv_heads = keys.whole("attention.head_count_kv", heads)
    size = keys.whole("attention.key_length", keys.whole("rope.dimension_count", hidden // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        keys.neutral(key, size)
    layers = keys.whole("block_count")
    words = file.tensors.get(_WORDS)
    if words is None:
        raise file.wrong(f"a tensor {_WORDS!r}", "none")
    json: dict[str, Any] = {
        "model_type": architecture.model_type,
        "vocab_size": words.shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "max_position_embeddings": keys.whole("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_scaling(keys),
        **_windows(keys, architecture),
    }
    if architecture.has_post_norms:
        json["query_pre_attn_scalar"] = hidden / heads if layers == architecture.scalars else size
    for key, value in (("expert_count", 0), ("expert_used_count", 0), ("attention.causal", True)):
        keys.neutral(key, value)
    keys.skip("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
    keys.finish()
    config = Config.of(json, where)
    qkv, output, mlp = (f"blk.0.{part}.bias" in file.tensors for part in ("attn_q", "attn_output", "ffn_gate"))
    return replace(config, qkv_bias=qkv, output_bias=output, mlp_bias=mlp, layers=_with_factors(file, config))


def _scaling(keys: Keys) -> dict[str, Any]:
    """How rotary positions are stretched."""
    kind = keys.one_of("rope.scaling.type", ("none", "linear", "yarn"), "none")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0), least=0.0) or 1.0
    gain = keys.number("rope.scaling.attn_factor", keys.number("rope.scaling.yarn_attn_factor", 1.0))
    old = keys.get("rope.scaling.original_context_length")
    fast, slow = keys.get("rope.scaling.yarn_beta_fast", 32.0), keys.get("rope.scaling.yarn_beta_slow", 1.0)
    keys.neutral("rope.scaling.yarn_ext_factor", 1.0)
    keys.neutral("rope.scaling.yarn_log_multiplier", 0.0)
    if kind != "yarn":
        keys.neutral("rope.scaling.attn_factor", 1.0)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {}
    if kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    scaling = {"rope_type": "yarn", "factor": factor, "beta_fast": fast, "beta_slow": slow}
    if old is not None:
        scaling["original_max_position_embeddings"] = old
    if gain != 1.0:
        scaling["attention_factor"] = gain * (1.0 + 0.1 * float(np.log(factor)))
    return {"rope_scaling": scaling}


def _windows(keys: Keys, architecture: Architecture) -> dict[str, Any]:
    """Sliding windows, and bounds of scores and logits."""
    window = keys.get("attention.sliding_window")
    if architecture.has_post_norms:
        caps = {name: keys.get(name) for name in ("attn_logit_softcapping", "final_logit_softcapping")}
        found = {"sliding_window": window, **caps}
        if architecture.model_type == "gemma3_text":
            found["sliding_window_pattern"] = keys.get("attention.sliding_window_pattern", 6)
            found["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10_000.0)
        return {name: value for name, value in found.items() if value is not None}
    if window is not None and architecture.model_type == "llama":
        return {"model_type": "mistral", "sliding_window": window}
    keys.neutral("attention.sliding_window", None)
    return {}


def _with_factors(file: File, config: Config) -> tuple[Any, ...]:
    """The layers, with angles divided by the factors that a file may have for them."""
    tensor = file.tensors.get(_FACTORS)
    if tensor is None:
        return config.layers
    if tensor.shape != (config.head_size // 2,) or tensor.type.dtype != np.float32:
        expected = f"F32[{config.head_size // 2}]"
        raise file.wrong(expected, f"{tensor.type.name}{list(tensor.shape)}", _FACTORS)
    factors = numbers(tensor.type, tensor.data, tensor.shape).astype(np.float64)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise file.wrong("positive factors", "others", _FACTORS)

    def turned(layer: Any) -> Any:
        if layer.rope is None:
            return layer
        angles = (np.array(layer.rope.angles) / factors).astype(np.float32)
        return replace(layer, rope=replace(layer.rope, angles=tuple(angles.tolist())))

    return tuple(turned(layer) for layer in config.layers)


# weights


def arrays_of(file: File, architecture: Architecture, config: Config) -> dict[str, Array]:
    """The weights by the names of Hugging Face; those of matrices in blocks have scales and minima beside them, as
    `Weights.matrix` takes them. Raises ModelError for tensors that no decoder has."""
    tensors = [tensor for tensor in file.tensors.values() if tensor.name != _FACTORS]
    for tensor in tensors:
        if len(tensor.shape) > 2 or (len(tensor.shape) == 1 and tensor.type.dtype is None):
            expected = "matrices, and vectors of plain numbers"
            raise file.wrong(expected, f"{tensor.type.name}{list(tensor.shape)}", tensor.name)
    names = [_named(file, tensor, architecture) for tensor in tensors]

    def made(tensor: Tensor, name: str) -> dict[str, Array]:
        return _laid_out(file, tensor, name, architecture, config)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8), "rlx-gguf") as pool:
        arrays: dict[str, Array] = {}
        for part in pool.map(made, tensors, names):
            arrays |= part
    return arrays


def _named(file: File, tensor: Tensor, architecture: Architecture) -> str:
    match = _NAME.fullmatch(tensor.name)
    layer, part, kind = match.groups() if match is not None else (None, "", "")
    of_layers = {**_OF_LAYERS, **_POST_NORMS} if architecture.has_post_norms else _OF_LAYERS
    name = (_WHOLE if layer is None else of_layers).get(part)
    if name is None:
        kinds = f"tensors of {file.get('general.architecture')!r} alone"
        raise file.wrong(kinds, f"{tensor.type.name}{list(tensor.shape)}", tensor.name)
    return f"{name}.{kind}" if layer is None else f"model.layers.{int(layer)}.{name}.{kind}"


def _laid_out(file: File, tensor: Tensor, name: str, architecture: Architecture, config: Config) -> dict[str, Array]:
    """A weight, and what goes with it."""
    if tensor.type.dtype is not None:
        parts = {name: numbers(tensor.type, tensor.data, tensor.shape)}
    else:
        rows, inner = tensor.shape
        integers, scales, minima = packed(tensor.type, mapped.private(tensor.data), (rows, inner))
        parts = {name: integers, SCALES.format(name): scales}
        parts |= {} if minima is None else {MINIMA.format(name): minima}
        mapped.release([tensor.data])
    if architecture.offset_norms and name.endswith("norm.weight"):
        return {key: part - np.float32(1) for key, part in parts.items()}
    heads = {"self_attn.q_proj": config.heads, "self_attn.k_proj": config.kv_heads}
    count = heads.get(name.rpartition(".")[0].partition("layers.")[2].partition(".")[2])
    if not architecture.turned or count is None:
        return parts
    if tensor.shape[0] != count * config.head_size:
        raise file.wrong(f"{count * config.head_size} rows", tensor.shape[0], tensor.name)
    order = np.arange(tensor.shape[0]).reshape(count, -1, 2).swapaxes(1, 2).reshape(-1)
    return {key: part[order] for key, part in parts.items()}
