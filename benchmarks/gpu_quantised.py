"""Quantised nets on a GPU against the same nets in floats of 16 bits: ms a call, errors, and bytes of weights.

    python -m benchmarks.gpu_quantised [--only NAME] [--layers N] [--context 1024] [--rounds 64] [--kernels] [--list]
    python -m benchmarks.gpu_quantised --only MiniLM --rounds 16      # 60 s
    python -m benchmarks.gpu_quantised --only BERT-base --rounds 16   # 90 s; --layers 4 if it does not end in its time
    python -m benchmarks.gpu_quantised --only decoder --rounds 32     # 90 s; --layers 8

MiniLM and BERT-base run in f16, and with products of bytes or of floats of 8 bits, whose ranges are those of a
calibration or of each row. A `call` begins and ends with NumPy, `in a row` is the time of one of many calls whose
results stay on the device. Errors are those of the last hidden state of one sentence of 128 tokens against f64, as
parts of its norm.

A decoder of the shape of Qwen3-0.6B has weights of 4 or 8 bits, in blocks with a scale each, for all its products,
bf16, or bytes and floats of 8 bits made of f32; a call is a step of one token, or a prompt of 512.

Programs take turns, and are told of when they are ready: ranges of a calibration are constants of kernels, so that no
two layers share any, and NVRTC has five times as many to compile. Those that fail are left out, and the exit is 1.
--only encoders, --only decoder, --only BERT-base and the like choose some. --list needs no
device: kernels of each program, of two layers, and bytes of weights that `main` reads. --kernels shows those that take
longest.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np

import rlx
from benchmarks.few_bits import in_blocks
from benchmarks.random_weights import BERT, MINILM, QWEN3_06B, decoder_weights, encoder_weights
from benchmarks.turns import measure
from rlx.backends.base import Options
from rlx.backends.cuda.build import build
from rlx.backends.cuda.weights import kept_buffers
from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.models.bert import Config as EncoderConfig
from rlx.models.bert import encoder
from rlx.models.context import Context
from rlx.models.llama import decoder
from rlx.models.llama_config import Config
from rlx.ops.transcendental import Erf
from rlx.runtime.quantised import quantised

PROMPT = 512
DECODERS: dict[str, tuple[int, int, Literal["f32", "int8", "f8"]]] = {
    "bf16": (16, 0, "f32"), "4 bits, 32": (4, 32, "f32"), "4 bits, 128": (4, 128, "f32"), "8 bits, 32": (8, 32, "f32"),
    "int8": (32, 0, "int8"), "f8": (32, 0, "f8"),
}  # fmt: skip
"""Bits of weights as they are given, elements of a block, and the precision."""
ENCODERS = {"MiniLM": MINILM, "BERT-base": BERT}
KINDS: dict[str, tuple[Literal["f16", "int8", "f8"], bool]] = {
    "f16": ("f16", False), "int8 static": ("int8", True), "int8 dynamic": ("int8", False),
    "f8 static": ("f8", True), "f8 dynamic": ("f8", False),
}  # fmt: skip
"""Precision, and whether there is a calibration."""
SHAPES = ((1, 128), (32, 128))
CALIBRATION = (2, 64)
"""Sentences and tokens of the runs that ranges come from."""
IN_A_ROW = 20


@cache
def _decoder_weights(layers: int, wide: bool) -> dict[str, Array]:
    """Of which layers share arrays."""
    arrays = decoder_weights(QWEN3_06B | {"num_hidden_layers": layers})
    widened = {id(array): array.astype(np.float32) if wide else array for array in arrays.values()}
    return {name: widened[id(array)] for name, array in arrays.items()}


def decoder_graph(kind: str, layers: int) -> Graph:
    config = QWEN3_06B | {"num_hidden_layers": layers}
    bits, block, _ = DECODERS[kind]
    graph = decoder(Config.of(config), _decoder_weights(layers, bits == 32), caches=True)
    return in_blocks(graph, bits, block) if block else graph


def exact(config: EncoderConfig, w: dict[str, Array], ids: Array) -> Array:
    """The last hidden state in f64."""
    heads, size = config.num_attention_heads, config.hidden_size

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return np.asarray(centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"])

    def linear(x: Array, name: str) -> Array:
        return np.asarray(x @ w[f"{name}.weight"].astype(np.float64).T + w[f"{name}.bias"])

    x = w["embeddings.word_embeddings.weight"].astype(np.float64)[ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x + w["embeddings.position_embeddings.weight"][: ids.shape[1]], "embeddings.LayerNorm")
    for layer in range(config.num_hidden_layers):
        at = f"encoder.layer.{layer}"
        parts = (linear(x, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
        q, k, v = (part.reshape(*ids.shape, heads, size // heads).transpose(0, 2, 1, 3) for part in parts)
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(size // heads)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (powers / powers.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(x + linear(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        hidden = linear(x, f"{at}.intermediate.dense")
        hidden = hidden * 0.5 * (1 + Erf().reference(hidden / np.sqrt(2)))
        x = norm(x + linear(hidden, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    return x


def given(config: EncoderConfig, batch: int, length: int, seed: int = 1) -> list[Array]:
    """Tokens by chance, all of which count."""
    ids = np.random.default_rng(seed).integers(0, config.vocab_size, (batch, length))
    return [ids, np.ones_like(ids)]


def told(name: str, graph: Graph, options: Options) -> str:
    """Kernels of a program by their kind, and the bytes of its weights."""
    program = build(graph, options).program
    kinds = Counter(type(kernel.work).__name__ for kernel in program.main)
    nbytes = sum(dims.evaluate(program.buffers[number].nbytes, {}) for number in kept_buffers(program))
    return f"{name:28} {nbytes / 1e6:8.1f} MB, " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def show_kernels(model: Any, inputs: Any) -> None:
    """The kernels that take longest, in us."""
    runs = [model.kernel_times(inputs) for _ in range(10)]
    totals: Counter[str] = Counter()
    for kernels in zip(*runs, strict=True):
        totals[kernels[0].name] += min(kernel.total_ns for kernel in kernels) // 100
    for name, tenths in totals.most_common(12):
        print(f"  {tenths / 10:9.1f} us  {name}")


def ready(name: str, make: Callable[[], Any], failed: list[str]) -> Any:
    """What is made, with the time until then; None for what fails, which is told."""
    start = time.perf_counter()
    try:
        made = make()
    except (RlxError, MemoryError) as error:
        failed.append(name)
        print(f"{name}: left out: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return None
    print(f"{name}: ready after {time.perf_counter() - start:.1f} s", flush=True)
    return made


def measure_decoders(chosen: argparse.Namespace, failed: list[str]) -> None:
    random = np.random.default_rng(1)
    ids = random.integers(0, QWEN3_06B["vocab_size"], (1, chosen.context))
    layers = chosen.layers or QWEN3_06B["num_hidden_layers"]

    def context_of(kind: str) -> Context:
        session = rlx.Session("cuda", precision=DECODERS[kind][2])
        session = session.with_options(replace(session.options, profile=chosen.kernels))
        context = Context(session.compile(decoder_graph(kind, layers)), QWEN3_06B["max_position_embeddings"])
        context.feed(ids[:, :PROMPT])
        context.feed(ids[:, :1])
        return context

    kinds = [kind for kind in DECODERS if chosen.only in f"decoder {kind}"]
    made = {kind: ready(f"decoder {kind}", partial(context_of, kind), failed) for kind in kinds}
    contexts = {kind: context for kind, context in made.items() if context is not None}
    if chosen.kernels:
        for kind, context in contexts.items():
            print(f"decoder {kind}")
            cached = np.zeros(context.length, np.uint8)
            show_kernels(context.program, {"input_ids": ids[:, :1], "cached": cached})
        return

    def prompt(context: Context) -> None:
        context.length = 0
        context.feed(ids[:, :PROMPT])

    def step(context: Context) -> None:
        context.length = chosen.context - 1
        context.feed(ids[:, :1])

    for what, call in (("prompt", prompt), ("step", step)):
        calls = {kind: (lambda context=context, call=call: call(context)) for kind, context in contexts.items()}
        measure(calls, 3)
        tokens = PROMPT if what == "prompt" else 1
        for kind, ms in measure(calls, chosen.rounds).items():
            print(f"decoder {kind:12} {what:7} {ms:.3f} ms, {1e3 * tokens / ms:.0f} tokens/s", flush=True)


def measure_encoders(chosen: argparse.Namespace, failed: list[str]) -> None:
    for net, whole in ENCODERS.items():
        config = replace(whole, num_hidden_layers=chosen.layers or whole.num_hidden_layers)
        kinds = [kind for kind in KINDS if chosen.only in f"encoders {net} {kind}"]
        if not kinds:
            continue
        weights = encoder_weights(config)
        graph = encoder(config, weights)
        examples = [given(config, *CALIBRATION, seed=2)]

        def model_of(kind: str, graph: Graph = graph, examples: Any = examples) -> Any:
            precision, calibrated = KINDS[kind]
            session = rlx.Session("cuda", precision=precision, calibration=examples if calibrated else None)
            session = session.with_options(replace(session.options, profile=chosen.kernels))
            return session.compile(graph).select(["last_hidden_state"])

        made = {kind: ready(f"{net} {kind}", partial(model_of, kind), failed) for kind in kinds}
        models = {kind: model for kind, model in made.items() if model is not None}
        if chosen.kernels:
            for (batch, length), kind in itertools.product(SHAPES, models):
                print(f"{net} {batch}x{length} {kind}")
                show_kernels(models[kind], given(config, batch, length))
            continue
        sentence = given(config, 1, 128)
        wanted = exact(config, weights, sentence[0])
        for kind, model in models.items():
            result = np.asarray(model.run(sentence)[0])
            error = np.linalg.norm(result - wanted) / np.linalg.norm(wanted)
            print(f"{net} {kind:12} error {error:.1e}", flush=True)
        for batch, length in SHAPES:
            for what, times in _times(models, given(config, batch, length), chosen.rounds).items():
                shown = ", ".join(f"{kind} {ms:.3f}" for kind, ms in times.items())
                print(f"{net} {batch}x{length} {what:8} {shown} ms", flush=True)


def _times(models: dict[str, Any], inputs: list[Array], rounds: int) -> dict[str, dict[str, float]]:
    """Medians in ms, of calls with NumPy and of many in a row."""
    calls = {kind: (lambda model=model: model.run(inputs)) for kind, model in models.items()}
    rows = {kind: (lambda model=model: _in_a_row(model, inputs)) for kind, model in models.items()}
    measure(calls, 3)
    measure(rows, 2)
    row_ms = {kind: ms / IN_A_ROW for kind, ms in measure(rows, -(-rounds // 4)).items()}
    return {"call": measure(calls, rounds), "in a row": row_ms}


def _in_a_row(model: Any, inputs: list[Array]) -> None:
    for _ in range(IN_A_ROW):
        results = model.run(inputs, outputs="device")
    np.asarray(results[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose names hold this")
    parser.add_argument("--layers", type=int, default=0, help="of each net, in place of all")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=64)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    if not chosen.list:
        failed: list[str] = []
        measure_encoders(chosen, failed)
        measure_decoders(chosen, failed)
        return 1 if failed else 0
    for net, config in ENCODERS.items():
        small = replace(config, num_hidden_layers=2)
        graph = encoder(small, encoder_weights(small))
        for kind, (precision, calibrated) in KINDS.items():
            if chosen.only in f"encoders {net} {kind}":
                examples = [given(config, *CALIBRATION, seed=2)] if calibrated else []
                meant = graph if precision == "f16" else quantised(graph, examples, precision=precision)
                print(told(f"{net} {kind}", meant, Options(precision=precision)), flush=True)
    for kind in DECODERS:
        if chosen.only in f"decoder {kind}":
            of = DECODERS[kind][2]
            meant = decoder_graph(kind, chosen.layers or 2)
            meant = meant if of == "f32" else quantised(meant, (), precision=of)
            print(told(f"decoder {kind}", meant, Options(precision=of)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
