"""Small random decoders as GGUF files, written by the package `gguf` as llama.cpp's converters have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

Array = np.ndarray[Any, Any]
Kind = gguf.GGMLQuantizationType
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "gemma3_text": "gemma3"}
"""By model_type, where the two differ."""
_SCALES = {
    Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,), Kind.IQ4_NL: (0,),
    Kind.IQ4_XS: (0,),
}  # fmt: skip
"""Where the scales of blocks are, of the types that the package does not make."""


def blocks(kind: Kind, shape: tuple[int, int], random: np.random.Generator) -> Array:
    """Random blocks, u8 [rows, bytes], with small scales."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    made = random.integers(0, 256, (shape[0] * shape[1] // elements, size), np.uint8)
    for at in _SCALES[kind]:
        scales = (5e-5 if kind is Kind.Q6_K else 0.002) * random.uniform(0.5, 1.5, (len(made), 1))
        made[:, at : at + 2] = scales.astype("<f2").view(np.uint8)
    return np.asarray(made.reshape(shape[0], -1))


def quantised(kind: Kind, array: Array, random: np.random.Generator) -> Array:
    """The rows of a matrix in a type; of types that the package does not make, others."""
    return blocks(kind, array.shape, random) if kind in _SCALES else gguf.quants.quantize(array, kind)


def _turned(array: Array, heads: int) -> Array:
    """Rows of queries and keys as files of llama have them."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _back(array: Array, heads: int) -> Array:
    return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def write(path: Path, config: dict[str, Any], arrays: dict[str, Array], kind: Kind) -> dict[str, Array]:
    """Writes a decoder, its matrices in this type; returns the weights that the file stands for."""
    random = np.random.default_rng(3)
    family = config["model_type"]
    name = ARCHITECTURES.get(family, family)
    writer = gguf.GGUFWriter(path, name)
    _write_metadata(writer, config)
    (architecture,) = (each for each, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    meant = {}
    for key, array in arrays.items():
        heads = 0
        if name in ("llama", "smollm3") and ".q_proj." in key:
            heads = config["num_attention_heads"]
        elif name in ("llama", "smollm3") and ".k_proj." in key:
            heads = config["num_key_value_heads"]
        array = _turned(array, heads) if heads else array
        array = array + np.float32(1) if "gemma" in name and "norm" in key else array
        data = quantised(kind, array, random) if array.ndim == 2 else array
        writer.add_tensor(names.get_name(key, (".weight", ".bias")), data, raw_dtype=kind if array.ndim == 2 else None)
        array = gguf.quants.dequantize(data, kind).reshape(array.shape) if array.ndim == 2 else array
        array = array - np.float32(1) if "gemma" in name and "norm" in key else array
        meant[key] = _back(array, heads) if heads else array
    factors = _factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    parameters = config.get("rope_parameters", config.get("rope_scaling", {}))
    parameters = parameters.get("full_attention", parameters)
    theta = 2e6 if config["model_type"] == "smollm3" else 10_000.0
    return {"rope_theta": config.get("rope_theta", theta), **parameters}


def _factors(config: dict[str, Any]) -> Array | None:
    """What divides the angles of Llama 3."""
    from models.decoder_reference import angles, head_size

    rope = _rope(config)
    if rope.get("rope_type") != "llama3":
        return None
    plain, _ = angles({"rope_theta": rope["rope_theta"]}, head_size(config))
    return np.asarray(plain / angles(rope, head_size(config))[0], np.float32)


def _write_metadata(writer: Any, config: dict[str, Any]) -> None:
    from models.decoder_reference import head_size

    size = head_size(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    if writer.arch == "llama":
        writer.add_rope_dimension_count(size)
    rope = _rope(config)
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
    if writer.arch == "gemma2":
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)
    if writer.arch == "gemma3":
        writer.add_sliding_window_pattern(config["sliding_window_pattern"])
        writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
