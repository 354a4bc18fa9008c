"""Quantised nets on a GPU against the same nets in floats of 16 bits: ms a call, and bytes of weights.

    python -m benchmarks.gpu_quantised [--only NAME] [--context 1024] [--rounds 64] [--kernels] [--list]

A decoder of the shape of Qwen3-0.6B has weights of 4 or 8 bits, in blocks with a scale each, for all its products, or
bf16; a call is a step of one token, or a prompt of 512. MiniLM runs in f16 and with products of bytes. Programs take
turns. --list compiles nothing for a device and needs none: kernels of each program, of two layers, and bytes of weights
that `main` reads.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

import rlx
from benchmarks.random_weights import MINILM, QWEN3_06B, decoder_weights, encoder_weights
from benchmarks.turns import measure
from rlx.backends.base import Options
from rlx.backends.cuda.build import build
from rlx.backends.cuda.weights import kept_buffers
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Array
from rlx.ir.op import Param
from rlx.models.bert import encoder
from rlx.models.context import Context
from rlx.models.llama import decoder
from rlx.models.llama_config import Config
from rlx.ops.linalg import Matmul
from rlx.ops.shape import Transpose
from rlx.passes.driver import Rebuild
from rlx.runtime.quantised import quantised

PROMPT = 512
DECODERS = {"bf16": (16, 0), "4 bits, 32": (4, 32), "4 bits, 128": (4, 128), "8 bits, 32": (8, 32)}
"""Bits, and elements of a block."""
ENCODERS = ("f16", "int8")
SHAPES = ((1, 16), (1, 128), (32, 128))


def in_blocks(graph: Graph, bits: int, block: int) -> Graph:
    """The graph with weights of few bits in place of those that products read."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        weight = _weight(node)
        if weight is None:
            rebuild.keep(node)
            continue
        first = len(rebuild.new.nodes)
        packed, scale = _packed(graph.data[weight.name].astype(np.float32), bits, block)
        scale = scale.astype(weight.dtype.numpy)
        x, new = rebuild[node.inputs[0]], rebuild.new
        parameters = [
            new.param(f"{weight.name}.{node.name}.{kind}", array.shape, dtype, data=array)
            for kind, array, dtype in (("bits", packed, "u8"), ("scale", scale, weight.dtype))
        ]
        y = rlx.ops.packed_matmul(x, *parameters, depth=x.shape[-1], bits=bits, block=block)
        rebuild.replace(node, y, first=first)
    return rebuild.finish()


def _weight(node: Node) -> Value | None:
    """The weight that a product reads turned."""
    if not isinstance(node.op, Matmul) or not isinstance(node.inputs[1].op, Transpose):
        return None
    source = node.inputs[1].node.inputs[0]
    return source if isinstance(source.op, Param) and source.rank == 2 else None


def _packed(weight: Array, bits: int, block: int) -> tuple[Array, Array]:
    """Bytes, the low bits first, and the scale of each block of a row."""
    columns, depth = weight.shape
    blocks = weight.reshape(columns, depth // block, block)
    half = 1 << (bits - 1)
    scale = np.abs(blocks).max(-1, keepdims=True) / (half - 1)
    whole = (np.clip(np.rint(blocks / scale), -half, half - 1) + half).astype(np.uint8).reshape(columns, depth)
    packed = whole if bits == 8 else whole[:, ::2] | whole[:, 1::2] << 4
    return packed, scale[..., 0]


def decoder_graph(kind: str, layers: int) -> Graph:
    config = QWEN3_06B | {"num_hidden_layers": layers}
    graph = decoder(Config.of(config), decoder_weights(config), caches=True)
    bits, block = DECODERS[kind]
    return in_blocks(graph, bits, block) if block else graph


def encoder_graph() -> Graph:
    return encoder(MINILM, encoder_weights(MINILM))


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


def measure_decoders(given: argparse.Namespace) -> None:
    contexts: dict[str, Context] = {}
    random = np.random.default_rng(1)
    ids = random.integers(0, QWEN3_06B["vocab_size"], (1, given.context))
    for kind in DECODERS:
        if given.only in f"decoder {kind}":
            session = rlx.Session("cuda")
            session = session.with_options(replace(session.options, profile=given.kernels))
            program = session.compile(decoder_graph(kind, QWEN3_06B["num_hidden_layers"]))
            contexts[kind] = Context(program, QWEN3_06B["max_position_embeddings"])
            contexts[kind].feed(ids[:, :PROMPT])
            contexts[kind].feed(ids[:, :1])
    if given.kernels:
        for kind, context in contexts.items():
            print(f"decoder {kind}")
            cached = np.zeros(context.length, np.uint8)
            show_kernels(context.program, {"input_ids": ids[:, :1], "cached": cached})
        return

    def prompt(context: Context) -> None:
        context.length = 0
        context.feed(ids[:, :PROMPT])

    def step(context: Context) -> None:
        context.length = given.context - 1
        context.feed(ids[:, :1])

    for what, call in (("prompt", prompt), ("step", step)):
        calls = {kind: (lambda context=context, call=call: call(context)) for kind, context in contexts.items()}
        measure(calls, 3)
        for kind, ms in measure(calls, given.rounds).items():
            print(f"decoder {kind:12} {what:7} {ms:.3f} ms", flush=True)


def measure_encoders(given: argparse.Namespace) -> None:
    graph = encoder_graph()
    models = {
        precision: rlx.Session("cuda", precision=precision).compile(graph).select(["last_hidden_state"])
        for precision in ENCODERS
        if given.only in f"MiniLM {precision}"
    }
    for batch, length in SHAPES if models else ():
        ids = np.random.default_rng(1).integers(0, MINILM.vocab_size, (batch, length))
        inputs = [ids, np.ones_like(ids)]
        calls = {name: (lambda model=model, inputs=inputs: model.run(inputs)) for name, model in models.items()}
        measure(calls, 3)
        for name, ms in measure(calls, given.rounds).items():
            print(f"MiniLM {batch}x{length} {name:6} {ms:.3f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose names hold this")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=64)
    parser.add_argument("--kernels", action="store_true", help="of a decoder's step")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if not given.list:
        measure_decoders(given)
        if not given.kernels:
            measure_encoders(given)
        return
    for kind in DECODERS:
        if given.only in f"decoder {kind}":
            print(told(f"decoder {kind}", decoder_graph(kind, 2), Options()), flush=True)
    graph = encoder_graph()
    for precision in ENCODERS:
        if given.only in f"MiniLM {precision}":
            meant = quantised(graph) if precision == "int8" else graph
            options = Options() if precision == "int8" else Options(precision=precision)
            print(told(f"MiniLM {precision}", meant, options), flush=True)


if __name__ == "__main__":
    main()
