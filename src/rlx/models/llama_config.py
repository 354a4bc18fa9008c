"""What a decoder of the Llama kind is, and how the configurations of its families say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from rlx.models.config_keys import Keys
from rlx.models.rope import Rope, rope_of
from rlx.records import dataclass

MAX_LAYERS = 1024
MAX_HEAD_SIZE = 1 << 16
MAX_POSITIONS = 1 << 26
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Layer:
    """What differs between the layers of a decoder.

    window   how many tokens attention reaches back, the token itself among them; None is to the first
    rope     how queries and keys turn; None leaves them as they are
    """

    window: int | None = None
    rope: Rope | None = None


@dataclass(frozen=True)
class Config:
    """A decoder.

    max_positions     tokens of a context at most
    tied              the embeddings are also what logits are products with
    qkv_bias, output_bias, mlp_bias   whether these projections have biases
    head_norms        queries and keys are normalised, head by head
    offset_norms      the weights of norms are what they exceed 1 by
    post_norms        the results of attention and of the feed-forward part are normalised before they are added
    embedding_scale   factor of embeddings
    attention_scale   factor of the scores of attention
    attention_softcap, logit_softcap   bounds of scores and of logits, approached by tanh
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_size: int
    max_positions: int
    epsilon: float
    activation: str
    tied: bool
    layers: tuple[Layer, ...] = field(repr=False)
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    offset_norms: bool = False
    post_norms: bool = False
    embedding_scale: float | None = None
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None

    @staticmethod
    def of(json_object: Mapping[str, Any], where: str = "config.json") -> Config:
        """From the contents of a config.json, or of what else says it (`where`, for messages). Raises ModelError for
        numbers that do not go together, and for anything that would change the result and is not implemented."""
        family = FAMILIES[json_object["model_type"]]
        return family.config(Keys(json_object, "llama", where))


@dataclass(frozen=True)
class Family:
    """How the configurations of a model_type are read: defaults of keys, and what has no key.

    windows   which layers have a sliding window if no `layer_types` tells: "all", "none", "from" max_window_layers on,
              "alternating", "pattern" (all but each sixth), "unturned" (those without rotary positions)
    """

    name: str
    defaults: Mapping[str, Any]
    windows: str = "none"
    qkv_bias: bool = False
    has_attention_bias: bool = False
    has_mlp_bias: bool = False
    head_norms: bool = False
    is_gemma: bool = False
    post_norms: bool = False

    def config(self, keys: Keys) -> Config:
        default = self.defaults.get
        _refuse_others(keys)
        hidden, heads = keys.whole("hidden_size", default("hidden_size")), keys.whole("num_attention_heads")
        kv_heads = keys.whole("num_key_value_heads", default("num_key_value_heads", heads))
        if heads % kv_heads:
            raise keys.wrong("num_key_value_heads that divide num_attention_heads", [kv_heads, heads])
        if keys.get("head_dim", default("head_dim")) is None and hidden % heads:
            raise keys.wrong("num_attention_heads that divide hidden_size, or a head_dim", [heads, hidden])
        head_size = keys.whole("head_dim", default("head_dim", hidden // heads), most=MAX_HEAD_SIZE)
        if head_size % 2:
            raise keys.wrong("an even head_dim", head_size)
        positions = keys.whole("max_position_embeddings", default("max_position_embeddings", 2048), most=MAX_POSITIONS)
        bias = self.has_attention_bias and keys.flag("attention_bias", False)
        keys.neutral("attention_bias", bias)
        mlp_bias = self.has_mlp_bias and keys.flag("mlp_bias", False)
        keys.neutral("mlp_bias", mlp_bias)
        act = keys.one_of(self._act, ACTIVATIONS, default("hidden_act", "silu"), also="hidden_act")
        config = Config(
            family=self.name,
            vocab_size=keys.whole("vocab_size", default("vocab_size")),
            hidden_size=hidden,
            intermediate_size=keys.whole("intermediate_size", default("intermediate_size")),
            heads=heads, kv_heads=kv_heads, head_size=head_size, max_positions=positions,
            epsilon=keys.number("rms_norm_eps", 1e-6),
            activation=act,
            tied=keys.flag("tie_word_embeddings", default("tie_word_embeddings", False)),
            layers=self._layers(keys, head_size, positions),
            qkv_bias=self.qkv_bias or bias, output_bias=bias, mlp_bias=mlp_bias,
            head_norms=self.head_norms, offset_norms=self.is_gemma, post_norms=self.post_norms,
            embedding_scale=hidden**0.5 if self.is_gemma else None,
            **self._scales(keys),
        )  # fmt: skip
        keys.finish()
        return config

    @property
    def _act(self) -> str:
        return "hidden_activation" if self.is_gemma else "hidden_act"

    def _scales(self, keys: Keys) -> dict[str, float | None]:
        """Scales and bounds of scores and logits, of the families that have them."""
        if not self.post_norms:
            return {}
        scalar = keys.number("query_pre_attn_scalar", 256)
        if self.windows == "pattern":
            keys.neutral("attn_logit_softcapping", None)
        caps = {}
        for name, key in (
            ("attention_softcap", "attn_logit_softcapping"),
            ("logit_softcap", "final_logit_softcapping"),
        ):
            cap = keys.get(key, self.defaults.get(key))
            caps[name] = None if cap is None else keys.number(key, cap)
        return {"attention_scale": scalar**-0.5, **caps}

    def _layers(self, keys: Keys, head_size: int, positions: int) -> tuple[Layer, ...]:
        count = keys.whole("num_hidden_layers", most=MAX_LAYERS)
        turned = self._turned(keys, count)
        kinds = self._kinds(keys, count, turned)
        ropes = {kind: self._rope(keys, kind, head_size, positions) for kind in (FULL, SLIDING)}
        window = keys.get("sliding_window", self.defaults.get("sliding_window"))
        if SLIDING in kinds:
            window = keys.whole("sliding_window", window)
            window = None if window >= positions else window  # it reaches all that a context can hold
        return tuple(
            Layer(window if kind == SLIDING else None, ropes[kind] if turns else None)
            for kind, turns in zip(kinds, turned)
        )

    def _turned(self, keys: Keys, count: int) -> Sequence[bool]:
        """Which layers have rotary positions."""
        if self.windows != "unturned":
            return [True] * count
        interval = keys.whole("no_rope_layer_interval", 4)
        listed = keys.get("no_rope_layers")
        if listed is None:
            return [(i + 1) % interval != 0 for i in range(count)]
        if not isinstance(listed, list) or len(listed) != count or any(n not in (0, 1) for n in listed):
            raise keys.wrong(f"no_rope_layers to be {count} numbers, 1 for layers that turn and 0 for others", listed)
        return [n == 1 for n in listed]

    def _kinds(self, keys: Keys, count: int, turned: Sequence[bool]) -> Sequence[str]:
        """FULL or SLIDING, of each layer."""
        first = keys.whole("max_window_layers", 28, least=0)
        pattern = keys.whole("sliding_window_pattern", 6)
        has_window = keys.get("sliding_window", self.defaults.get("sliding_window")) is not None
        if self.windows in ("from", "unturned"):
            has_window = keys.flag("use_sliding_window", False) and has_window
        listed = keys.get("layer_types")
        if listed is not None:
            if not isinstance(listed, list) or len(listed) != count or any(k not in (FULL, SLIDING) for k in listed):
                raise keys.wrong(f"layer_types to be {count} of {FULL!r} and {SLIDING!r}", listed)
            return listed if has_window else [FULL] * count
        slides = {
            "none": [False] * count,
            "all": [True] * count,
            "from": [i >= first for i in range(count)],
            "alternating": [i % 2 == 0 for i in range(count)],
            "pattern": [(i + 1) % pattern != 0 for i in range(count)],
            "unturned": [not turns for turns in turned],
        }[self.windows]
        return [SLIDING if has_window and slid else FULL for slid in slides]

    def _rope(self, keys: Keys, kind: str, head_size: int, positions: int) -> Rope:
        """`rope_parameters`, or what was written before there was that key: `rope_theta` and `rope_scaling`."""
        theta = self.defaults.get("rope_theta", 10_000.0)
        is_local = self.windows == "pattern" and kind == SLIDING
        theta = keys.number("rope_theta", theta)
        local = keys.number("rope_local_base_freq", 10_000.0)
        parameters, scaling = keys.get("rope_parameters", {}), keys.get("rope_scaling", {})
        for value, name in ((parameters, "rope_parameters"), (scaling, "rope_scaling")):
            if not isinstance(value, dict):
                raise keys.wrong(f"{name} to be an object", value)
        own = parameters.get(kind, parameters if kind not in parameters and FULL not in parameters else {})
        if not isinstance(own, dict):
            raise keys.wrong(f"rope_parameters of {kind} to be an object", own)
        merged = {**({} if is_local else scaling), **own}
        inner = Keys(merged, keys.family, f"the {'rope_scaling' if scaling else 'rope_parameters'} of {keys.where}")
        keys.neutral("partial_rotary_factor", 1.0)
        return rope_of(inner, local if is_local else theta, head_size, positions)


def _refuse_others(keys: Keys) -> None:
    """Keys that must say what is implemented, and those that say nothing about the result."""
    for name, value in (
        ("rope_interleaved", False), ("use_bidirectional_attention", False), ("is_encoder_decoder", False),
        ("add_cross_attention", False), ("parallel_attn", False),
    ):  # fmt: skip
        keys.neutral(name, value)
    if keys.get("quantization_config") is not None:
        raise keys.wrong("weights that are floats", {"quantization_config": keys.get("quantization_config")})
    keys.skip(*_READ_ELSEWHERE, *_WITHOUT_EFFECT)


_READ_ELSEWHERE = (
    "model_type", "rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "use_sliding_window",
    "sliding_window", "max_window_layers", "sliding_window_pattern", "_sliding_window_pattern", "hidden_act",
    "hidden_activation", "layer_types", "no_rope_layer_interval", "original_max_position_embeddings",
    "query_pre_attn_scalar",
)  # fmt: skip
"""Keys that count for some families or layers alone."""
_WITHOUT_EFFECT = (
    "architectures", "attention_dropout", "hidden_dropout", "initializer_range", "use_cache", "pretraining_tp",
    "bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "torch_dtype", "dtype", "output_attentions",
    "output_hidden_states", "chunk_size_feed_forward", "pruned_heads", "cache_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "attn_implementation", "is_llama_config",
)  # fmt: skip
_GEMMA = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "head_dim": 256}
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("llama", {}, has_attention_bias=True, has_mlp_bias=True),
        Family("mistral", {"sliding_window": 4096, "max_position_embeddings": 4096 * 32, "num_key_value_heads": 8},
               "all"),
        Family("qwen2", {"sliding_window": 4096, "max_position_embeddings": 32768}, "from", qkv_bias=True),
        Family("qwen3", {"sliding_window": 4096, "max_position_embeddings": 32768, "head_dim": 128}, "from",
               has_attention_bias=True, head_norms=True),
        Family("smollm3", {"rope_theta": 2e6, "max_position_embeddings": 32768, "tie_word_embeddings": True,
                           "num_key_value_heads": 4}, "unturned", has_attention_bias=True, has_mlp_bias=True),
        Family("gemma", {**_GEMMA, "max_position_embeddings": 8192}, has_attention_bias=True, is_gemma=True),
        Family("gemma2", {**_GEMMA, "max_position_embeddings": 8192, "sliding_window": 4096,
                          "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
               "alternating", has_attention_bias=True, is_gemma=True, post_norms=True),
        Family("gemma3_text", {**_GEMMA, "max_position_embeddings": 131072, "sliding_window": 4096, "rope_theta": 1e6},
               "pattern", has_attention_bias=True, head_norms=True, is_gemma=True, post_norms=True),
    )
}  # fmt: skip
"""By model_type."""
