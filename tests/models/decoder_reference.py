"""Decoders of the Llama kind in plain NumPy, in f64: small configurations of each family, random weights, logits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from rlx.frontends import safetensors

Array = np.ndarray[Any, Any]
_SMALL = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LOCAL = {
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}
_OWN: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-of-old-keys": {"model_type": "llama", "rope_theta": 500.0,
                          "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True, "hidden_act": "gelu"},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama3": {"model_type": "llama", "rope_parameters": _LLAMA3},
    "dynamic": {"model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "rope_theta": 99.0, "factor": 4.0}},
    "yarn": {"model_type": "llama", "rope_parameters": _YARN},
    "mistral": {"model_type": "mistral", "sliding_window": 5, "head_dim": 16},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "smollm3": {"model_type": "smollm3", "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 1,
                "eos_token_id": 2},
    "gemma": {"model_type": "gemma", "head_dim": 16, "tie_word_embeddings": True},
    "gemma2": {"model_type": "gemma2", "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 12,
               "tie_word_embeddings": True},
    "gemma3": {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 4, "sliding_window_pattern": 3,
               "query_pre_attn_scalar": 12, "rope_parameters": _LOCAL, "tie_word_embeddings": True},
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {name: {**_SMALL, **own} for name, own in _OWN.items()}


def head_size(config: dict[str, Any]) -> int:
    return int(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]))


def weights(config: dict[str, Any], seed: int = 0) -> dict[str, Array]:
    """Random weights under the names of transformers, f32."""
    random = np.random.default_rng(seed)
    kind, hidden, inner = config["model_type"], config["hidden_size"], config["intermediate_size"]
    size = head_size(config)
    heads, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    qkv_bias, bias = kind == "qwen2" or config.get("attention_bias"), config.get("attention_bias")
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        name = f"model.layers.{i}"
        linear = {
            "self_attn.q_proj": (heads, hidden, qkv_bias), "self_attn.k_proj": (kv, hidden, qkv_bias),
            "self_attn.v_proj": (kv, hidden, qkv_bias), "self_attn.o_proj": (hidden, heads, bias),
            "mlp.gate_proj": (inner, hidden, config.get("mlp_bias")),
            "mlp.up_proj": (inner, hidden, config.get("mlp_bias")),
            "mlp.down_proj": (hidden, inner, config.get("mlp_bias")),
        }  # fmt: skip
        for part, (rows, columns, has_bias) in linear.items():
            shapes[f"{name}.{part}.weight"] = (rows, columns)
            shapes |= {f"{name}.{part}.bias": (rows,)} if has_bias else {}
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += (
            ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if kind in ("gemma2", "gemma3_text") else []
        )
        shapes |= {f"{name}.{norm}.weight": (hidden,) for norm in norms}
        if kind in ("qwen3", "gemma3_text"):
            shapes |= {f"{name}.self_attn.{norm}.weight": (size,) for norm in ("q_norm", "k_norm")}
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    scale = {name: 0.2 if len(shape) == 1 else 0.3 for name, shape in shapes.items()}
    arrays = {
        name: random.standard_normal(shape).astype("f4") * np.float32(scale[name]) for name, shape in shapes.items()
    }
    if "gemma" not in kind:
        arrays |= {name: a + np.float32(1) for name, a in arrays.items() if "norm" in name}
    return arrays


def write_folder(folder: Path, config: dict[str, Any], arrays: dict[str, Array], shards: int = 1) -> Path:
    """A folder as transformers writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        safetensors.write(folder / safetensors.WHOLE, arrays, {"format": "pt"})
        return folder
    places = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(arrays)}
    for file in set(places.values()):
        safetensors.write(folder / file, {n: arrays[n] for n, place in places.items() if place == file}, {})
    (folder / safetensors.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def angles(parameters: dict[str, Any], size: int) -> tuple[Array, float]:
    """Radians a token of each pair, and the factor of what turned."""
    theta, kind = parameters["rope_theta"], parameters.get("rope_type", parameters.get("type"))
    plain = theta ** -(np.arange(0, size, 2) / size)
    factor = parameters.get("factor", 1.0)
    if kind == "linear":
        return plain / factor, 1.0
    old = parameters.get("original_max_position_embeddings", 64)
    if kind == "llama3":
        low, high = old / parameters["low_freq_factor"], old / parameters["high_freq_factor"]
        made = []
        for angle in plain:
            length = 2 * math.pi / angle
            smooth = (old / length - parameters["low_freq_factor"]) / (
                parameters["high_freq_factor"] - parameters["low_freq_factor"]
            )
            between = (1 - smooth) * angle / factor + smooth * angle
            made.append(angle if length < high else angle / factor if length > low else between)
        return np.array(made), 1.0
    if kind == "yarn":
        low, high = (size * math.log(old / (beta * 2 * math.pi)) / (2 * math.log(theta)) for beta in (32, 1))
        low, high = max(math.floor(low), 0), min(math.ceil(high), size - 1)
        ramp = np.clip((np.arange(size // 2) - low) / (high - low), 0, 1)
        return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1
    return plain, 1.0


def layer_of(config: dict[str, Any], i: int) -> tuple[int | None, dict[str, Any] | None]:
    """The window of a layer, and the parameters of its rotary positions."""
    kind, window = config["model_type"], config.get("sliding_window")
    theta = {"smollm3": 2e6}.get(kind, 10_000.0)
    rope = config.get("rope_parameters") or {
        "rope_theta": config.get("rope_theta", theta),
        **config.get("rope_scaling", {}),
    }
    if kind == "gemma3_text":
        local = (i + 1) % config["sliding_window_pattern"] != 0
        return (window if local else None), rope["sliding_attention" if local else "full_attention"]
    if kind == "smollm3":
        return None, None if (i + 1) % 4 == 0 else rope
    slides = {"mistral": True, "gemma2": i % 2 == 0, "qwen2": i >= config.get("max_window_layers", 28)}.get(kind, False)
    return (window if slides else None), rope


def logits(config: dict[str, Any], arrays: dict[str, Array], ids: Array) -> Array:
    """f64[batch, seq, vocab], one layer after another as papers write them."""
    w = {name.removeprefix("model."): a.astype(np.float64) for name, a in arrays.items()}
    kind, gemma = config["model_type"], "gemma" in config["model_type"]
    heads, kv, size = config["num_attention_heads"], config["num_key_value_heads"], head_size(config)

    def norm(name: str, x: Array) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (w[f"{name}.weight"] + gemma)

    def linear(name: str, x: Array) -> Array:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def act(x: Array) -> Array:
        if gemma:
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        if config.get("hidden_act") == "gelu":
            return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        return x / (1 + np.exp(-x))

    def attend(name: str, i: int, x: Array) -> Array:
        window, rope = layer_of(config, i)
        q, k, v = (
            linear(f"{name}.{part}_proj", x).reshape(*ids.shape, count, size).swapaxes(1, 2)
            for part, count in (("q", heads), ("k", kv), ("v", kv))
        )
        if f"{name}.q_norm.weight" in w:
            q, k = norm(f"{name}.q_norm", q), norm(f"{name}.k_norm", k)
        place = np.arange(ids.shape[1])
        if rope is not None:
            turns, factor = angles(rope, size)
            c, s = (f(place[:, None] * turns) * factor for f in (np.cos, np.sin))
            q, k = (
                np.concatenate([a * c - b * s, b * c + a * s], -1)
                for a, b in ((part[..., : size // 2], part[..., size // 2 :]) for part in (q, k))
            )
        k, v = (np.repeat(part, heads // kv, axis=1) for part in (k, v))
        scores = q @ k.swapaxes(2, 3) * config.get("query_pre_attn_scalar", size) ** -0.5
        scores = 50 * np.tanh(scores / 50) if kind == "gemma2" else scores
        far = place[:, None] - place[None, :]
        scores = np.where((far >= 0) & (far < (window or 1 << 30)), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ v
        return linear(f"{name}.o_proj", mixed.swapaxes(1, 2).reshape(*ids.shape, heads * size))

    def feed(name: str, x: Array) -> Array:
        return linear(f"{name}.down_proj", act(linear(f"{name}.gate_proj", x)) * linear(f"{name}.up_proj", x))

    x = w["embed_tokens.weight"][ids] * (math.sqrt(config["hidden_size"]) if gemma else 1)
    for i in range(config["num_hidden_layers"]):
        name = f"layers.{i}"
        mixed = attend(f"{name}.self_attn", i, norm(f"{name}.input_layernorm", x))
        if kind in ("gemma2", "gemma3_text"):
            x = x + norm(f"{name}.post_attention_layernorm", mixed)
            wide = feed(f"{name}.mlp", norm(f"{name}.pre_feedforward_layernorm", x))
            x = x + norm(f"{name}.post_feedforward_layernorm", wide)
        else:
            x = x + mixed
            x = x + feed(f"{name}.mlp", norm(f"{name}.post_attention_layernorm", x))
    out = norm("norm", x) @ w.get("lm_head.weight", w["embed_tokens.weight"]).T
    return 30 * np.tanh(out / 30) if kind == "gemma2" else out
