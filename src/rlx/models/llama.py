"""Decoders of the Llama kind, as programs: Llama, Mistral, Qwen, SmolLM and Gemma by their configurations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlx.errors import ModelError
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.models.blocks import Weights, join_heads, named, split_heads
from rlx.models.llama_config import Config, Layer
from rlx.models.rope import Rope
from rlx.ops.build import (
    argmax,
    attention,
    cos,
    dims_tensor,
    gather_elements,
    gelu,
    iota,
    reduce_max,
    relu,
    rms_norm,
    rotary_embedding,
    silu,
    sin,
    tanh,
    update_slice,
)
from rlx.ops.build import slice as cut

KEYS, VALUES = "cache.{}.keys", "cache.{}.values"
"""Names of the states of a layer."""
CACHED, TOKEN = "cached", "token"
PART = 512
"""About as many logits are looked at together, and about so many parts there are; eight are read at once."""
_NOT_READ = ("rotary_emb.inv_freq", "lm_head.weight")
"""Ends of names of tensors that a checkpoint may have beside what is read: what follows from the configuration, and the
head of a model whose embeddings are tied."""


def decoder(
    config: Config, arrays: Mapping[str, Array], keep_dtype: bool = True, caches: bool = False, likeliest: bool = False
) -> Graph:
    """The program: ids of tokens in, logits of the tokens that follow out.

    input_ids   i64[batch, seq]
    logits      f32[batch, seq, vocab]

    With `caches` it goes on with what it saw before. Keys and values are states, [batch, heads, capacity, size] each,
    of which the first rows are of the tokens so far; a run writes those of its own tokens behind them.

    cached      u8[past]: its extent alone counts, that of the tokens so far
    logits      f32[batch, vocab]: of the last token
    token       with `likeliest`, i64[batch, 1]: the first of the tokens with the greatest logit

    Raises ModelError for a tensor that is missing, misshapen, or not of the model.
    """
    graph = Graph(config.family)
    ids = graph.input("input_ids", ("batch", "seq"), "i64")
    past = graph.input(CACHED, ("past",), "u8").shape[0] if caches else 0
    graph.bounds["seq"] = (1, config.max_positions)
    if caches:
        graph.bounds["past"] = (0, config.max_positions)
    weights = _Named(graph, arrays, keep_dtype)
    builder = _Builder(config, weights, past, caches)
    logits = builder.logits(ids)
    graph.output(logits, name="logits")
    if caches and likeliest:
        graph.output(_likeliest(logits, config.vocab_size), name=TOKEN)
    others = [name for name in weights.unused if not name.endswith(_NOT_READ)]
    if others:
        raise ModelError(
            f"[llama] expected tensors of {config.family!r} alone, got {len(others)} others, at {others[0]!r}"
        )
    return graph


def _likeliest(logits: Value, vocab: int) -> Value:
    """Where the greatest logit of each row stands, by parts: a row is long, and rows are few."""
    divisors = [n for n in range(1, vocab + 1) if vocab % n == 0]
    parts = min(divisors, key=lambda n: (vocab // n % 8 > 0, abs(n - PART) + abs(vocab // n - PART)))
    split = logits.reshape(logits.shape[0], parts, vocab // parts)
    best = argmax(reduce_max(split, axes=(2,)), axis=1, keepdims=True)
    return best * (vocab // parts) + gather_elements(argmax(split, axis=2), best, axis=1)


class _Named(Weights):
    """The weights of a checkpoint, whose names may begin with that of the part that is not the head."""

    def __init__(self, graph: Graph, arrays: Mapping[str, Array], keep_dtype: bool) -> None:
        self.body = "model." if "model.embed_tokens.weight" in arrays or "lm_head.weight" in arrays else ""
        super().__init__(graph, arrays, "", keep_dtype, "llama")

    def of(self, like: Value, name: str, *shape: int) -> Value:
        """The weight, in the dtype of a value that it goes with."""
        return self(self.body + name, *shape).cast(like.dtype)


class _Builder:
    """The nodes of a decoder. `past` tokens are in the caches, if it has them."""

    def __init__(self, config: Config, weights: _Named, past: dims.Dim, caches: bool) -> None:
        self.config = config
        self.weights = weights
        self.graph = weights.graph
        self.past = past
        self.caches = caches
        self._tables: dict[Rope, tuple[Value, Value]] = {}

    def logits(self, ids: Value) -> Value:
        config, weights = self.config, self.weights
        words = weights.matrix(f"{weights.body}embed_tokens.weight", config.vocab_size, config.hidden_size)
        with named(self.graph, "embed_tokens"):
            x = words.rows(ids)
            x = x.cast("f32") if weights.are_packed else x  # what packed weights are exact in
            if config.embedding_scale is not None:
                x = x * config.embedding_scale
        for index, layer in enumerate(config.layers):
            x = self._layer(f"layers.{index}", index, layer, x)
        if self.caches:
            x = x[:, -1]
        x = self._norm("norm", x, config.hidden_size)
        with named(self.graph, "lm_head"):
            head = words if config.tied else weights.matrix("lm_head.weight", config.vocab_size, config.hidden_size)
            logits = head.applied(x).cast("f32")
            cap = config.logit_softcap
            return logits if cap is None else tanh(logits / cap) * cap

    def _layer(self, name: str, index: int, layer: Layer, x: Value) -> Value:
        size = self.config.hidden_size
        mixed = self._attention(f"{name}.self_attn", index, layer, self._norm(f"{name}.input_layernorm", x, size))
        if not self.config.post_norms:
            x = x + mixed
            return x + self._feed_forward(f"{name}.mlp", self._norm(f"{name}.post_attention_layernorm", x, size))
        x = x + self._norm(f"{name}.post_attention_layernorm", mixed, size)
        wide = self._feed_forward(f"{name}.mlp", self._norm(f"{name}.pre_feedforward_layernorm", x, size))
        return x + self._norm(f"{name}.post_feedforward_layernorm", wide, size)

    def _attention(self, name: str, index: int, layer: Layer, x: Value) -> Value:
        config = self.config
        size, inner = config.head_size, config.hidden_size
        counts = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
        q, k, v = (
            split_heads(self._linear(f"{name}.{part}_proj", x, inner, count * size, config.qkv_bias), count)
            for part, count in counts.items()
        )
        if config.head_norms:
            q, k = self._norm(f"{name}.q_norm", q, size), self._norm(f"{name}.k_norm", k, size)
        with named(self.graph, name):
            if layer.rope is not None:
                cosines, sines = self._turns(layer.rope, x.shape[1])
                # The angles are exact in f32 only, so that narrower queries and keys turn in it too.
                q, k = (rotary_embedding(part.cast("f32"), cosines, sines).cast(part.dtype) for part in (q, k))
            if self.caches:
                k, v = self._appended(KEYS.format(index), k), self._appended(VALUES.format(index), v)
            mixed = attention(
                q, k, v, scale=config.attention_scale, causal=True, window=layer.window, offset=self.past,
                softcap=config.attention_softcap,
            )  # fmt: skip
            mixed = join_heads(mixed)
        return self._linear(f"{name}.o_proj", mixed, config.heads * size, inner, config.output_bias)

    def _appended(self, name: str, rows: Value) -> Value:
        """Keys or values of all tokens so far, those of the run among them."""
        batch, heads, seq, size = rows.shape
        cache = self.graph.state(name, (batch, heads, "capacity", size), rows.dtype)
        start = dims_tensor(self.graph, values=(self.past,)).reshape(())
        written = update_slice(cache, rows, start, axis=2)
        self.graph.set_next(cache, written)
        stops = (batch, heads, dims.add(self.past, seq), size)
        return cut(written, starts=(0, 0, 0, 0), stops=stops, steps=(1, 1, 1, 1))

    def _turns(self, rope: Rope, seq: dims.Dim) -> tuple[Value, Value]:
        """Cosines and sines of the angles by which the tokens of a run turn, [seq, pairs]."""
        if rope not in self._tables:
            places = iota(self.graph, shape=(seq, 1), dtype="i64", axis=0)
            places = places + dims_tensor(self.graph, values=(self.past,)).reshape(())
            angles = places.cast("f32") * self.graph.constant(np.array(rope.angles, np.float32))
            self._tables[rope] = (cos(angles) * rope.magnitude, sin(angles) * rope.magnitude)
        return self._tables[rope]

    def _feed_forward(self, name: str, x: Value) -> Value:
        inner, outer, bias = self.config.hidden_size, self.config.intermediate_size, self.config.mlp_bias
        gate = self._linear(f"{name}.gate_proj", x, inner, outer, bias)
        up = self._linear(f"{name}.up_proj", x, inner, outer, bias)
        with named(self.graph, name):
            both = _active(self.config.activation, gate) * up
        return self._linear(f"{name}.down_proj", both, outer, inner, bias)

    def _linear(self, name: str, x: Value, inner: int, outer: int, bias: bool) -> Value:
        """x Wᵀ, and + b if there is a bias."""
        with named(self.graph, name):
            y = self.weights.matrix(f"{self.weights.body}{name}.weight", outer, inner).applied(x)
            return y + self.weights.of(x, f"{name}.bias", outer) if bias else y

    def _norm(self, name: str, x: Value, size: int) -> Value:
        """RMS norm over the last axis."""
        with named(self.graph, name):
            if not self.config.offset_norms:
                return rms_norm(x, self.weights.of(x, f"{name}.weight", size), epsilon=self.config.epsilon)
            wide = x.cast("f32")  # 1 + w has more digits than narrow floats
            scale = self.weights.of(wide, f"{name}.weight", size) + 1.0
            return rms_norm(wide, scale, epsilon=self.config.epsilon).cast(x.dtype)


def _active(name: str, x: Value) -> Value:
    if name in ("silu", "swish"):
        return silu(x)
    return relu(x) if name == "relu" else gelu(x, approximate=name != "gelu")
