"""Encoders on a GPU, in rlx and in torch, with the same random weights: ms a call, and how far results are from f64.

    python -m benchmarks.gpu_models [--only NAME] [--device cuda] [--compile] [--kernels]

Each call gives inputs that lie on the device and waits for results there (`call`), or begins and ends with NumPy
(`numpy`). `in a row` is the time a call of many that are waited for once. torch runs eagerly and as a CUDA graph of the
same calls, and with --compile by `torch.compile(mode="reduce-overhead")`. All take turns. --kernels shows kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

import rlx
from benchmarks.random_weights import BERT, MINILM, encoder_weights
from benchmarks.turns import measure
from rlx.models.bert import Config, encoder

Precision = Literal["f32", "f32_fast", "f16", "bf16"]
CASES: dict[str, tuple[Config, int, int, Precision]] = {
    f"{name} {batch}x{length} {precision}": (config, batch, length, precision)
    for name, config in (("MiniLM", MINILM), ("BERT-base", BERT))
    for precision in ("f16", "f32_fast", "f32")
    for batch, length in ((1, 16), (1, 128), (32, 128))
    if (name, length) != ("BERT-base", 16)
}
IN_A_ROW = 20
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f32_fast": torch.float32}


def of_torch(
    config: Config, arrays: Mapping[str, Any], dtype: torch.dtype, device: str = "cuda"
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The encoder's last hidden state, as one writes it in torch."""
    w = {name: torch.from_numpy(array).to(device, dtype) for name, array in arrays.items()}
    joined = []
    for layer in range(config.num_hidden_layers):
        parts = [f"encoder.layer.{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        joined.append([torch.cat([w[f"{part}.{kind}"] for part in parts]) for kind in ("weight", "bias")])
    function, size, heads = torch.nn.functional, config.hidden_size, config.num_attention_heads

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return function.layer_norm(x, (size,), w[f"{name}.weight"], w[f"{name}.bias"], config.layer_norm_eps)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return function.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def run(ids: torch.Tensor) -> torch.Tensor:
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
        x = norm(x + w["embeddings.position_embeddings.weight"][: ids.shape[1]], "embeddings.LayerNorm")
        for layer in range(config.num_hidden_layers):
            prefix = f"encoder.layer.{layer}"
            qkv = function.linear(x, *joined[layer]).view(*ids.shape, 3, heads, size // heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            mixed = function.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = norm(x + linear(mixed, f"{prefix}.attention.output.dense"), f"{prefix}.attention.output.LayerNorm")
            active = function.gelu(linear(x, f"{prefix}.intermediate.dense"))
            x = norm(x + linear(active, f"{prefix}.output.dense"), f"{prefix}.output.LayerNorm")
        return x

    return run


def graphed(run: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The calls of a run as one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(ids)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = run(ids)

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


def in_a_row(run: Callable[[], Any], wait: Callable[[Any], None]) -> Callable[[], None]:
    """Many calls, of which the last one's end is waited for."""

    def all_of_them() -> None:
        for _ in range(IN_A_ROW):
            result = run()
        wait(result)

    return all_of_them


Call = Callable[[], Any]


def compared(
    ours: Call, with_numpy: Call, eager: Call, replay: Call, made: Call | None, rounds: int
) -> dict[str, float]:
    """Medians in ms of calls of rlx and of torch, each waited for, and of calls in a row. `made` is what torch.compile
    made of the eager call."""

    def wait(result: Any) -> None:
        torch.cuda.synchronize()

    calls: dict[str, Call] = {
        "rlx call": lambda: wait(ours()),
        "rlx numpy": with_numpy,
        "torch eager": lambda: wait(eager()),
        "torch graph": lambda: wait(replay()),
    }
    if made is not None:
        calls["torch compile"] = lambda: wait(made())
    for call in calls.values():
        for _ in range(3):
            call()
    times = measure(calls, rounds)
    rows = {"rlx in a row": ours, "torch graph in a row": replay}
    for run in rows.values():  # what comes with others' memory in turns has its graphs noted first
        for _ in range(2):
            in_a_row(run, wait)()
    for label, ms in measure({label: in_a_row(run, wait) for label, run in rows.items()}, -(-rounds // 4)).items():
        times[label] = ms / IN_A_ROW
    return times


def case(name: str, device: str, compiled: bool, kernels: bool, rounds: int) -> None:
    config, batch, length, precision = CASES[name]
    arrays = encoder_weights(config)
    graph = encoder(config, arrays)
    host = np.random.default_rng(1).integers(0, config.vocab_size, (batch, length))
    mask = np.ones_like(host)
    ids = torch.from_numpy(host).cuda()
    model = rlx.Session(device, precision=precision).compile(graph).select(["last_hidden_state"])
    on_device = [ids, torch.ones_like(ids)]
    run = of_torch(config, arrays, DTYPES[precision])
    replay = graphed(run, ids)
    with torch.no_grad():
        exact = of_torch(config, arrays, torch.float64)(ids).cpu().numpy()
        made = torch.compile(run, mode="reduce-overhead") if compiled else None
        times = compared(
            lambda: model.run(on_device, outputs="device"), lambda: model.run([host, mask]), lambda: run(ids), replay,
            made and (lambda: made(ids)), rounds,
        )  # fmt: skip
        theirs = run(ids).float().cpu().numpy()
    ours = np.asarray(model.run([host, mask])[0])
    errors = [float(np.abs(result - exact).max() / np.abs(exact).max()) for result in (ours, theirs)]
    shown = ", ".join(f"{label} {ms:.3f}" for label, ms in times.items())
    print(f"{name:24} {shown} ms; error {errors[0]:.1e} (torch {errors[1]:.1e})", flush=True)
    if kernels:
        profiled = rlx.Session(device, precision=precision)
        profiled = profiled.with_options(replace(profiled.options, profile=True))
        print_kernels(profiled.compile(graph).select(["last_hidden_state"]), [host, mask])


def print_kernels(model: Any, inputs: Any) -> None:
    runs = [model.kernel_times(inputs) for _ in range(20)]
    best = [min(run[i].total_ns for run in runs) for i in range(len(runs[0]))]
    totals: dict[str, tuple[int, float]] = {}
    for kernel, ns in zip(runs[0], best, strict=True):
        count, total = totals.get(kernel.name, (0, 0.0))
        totals[kernel.name] = count + 1, total + ns
    print(f"  {len(best)} kernels, {sum(best) / 1e3:.1f} us")
    for kernel_name, (count, total) in sorted(totals.items(), key=lambda entry: -entry[1][1])[:14]:
        print(f"  {count:4} {total / 1e3:8.1f} us  {kernel_name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args()
    driver = torch.cuda.get_device_name(0)
    print(f"{driver}, torch {torch.__version__}, CUDA {torch.version.cuda}, rlx {rlx.__version__}")
    for name in CASES:
        if chosen.only in name:
            case(name, chosen.device, chosen.compile, chosen.kernels, chosen.rounds)


if __name__ == "__main__":
    main()
