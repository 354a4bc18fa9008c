"""A decoder on a GPU, step by step, in rlx and in torch, with the same random weights.

    python -m benchmarks.gpu_decoders [--only NAME] [--context 1024] [--steps 64] [--rounds 3] [--peers] [--kernels]
    python -m benchmarks.gpu_decoders --only Qwen3 --peers --rounds 2       # 120 s
    python -m benchmarks.gpu_decoders --only SmolLM2 --peers --rounds 2     # 100 s

A step has one token: its number comes from the host, and logits go there. `prompt` is 512 tokens at once. torch is
transformers with a cache of fixed size, eagerly and, with --peers, by `torch.compile(mode="reduce-overhead")`. `limit`
is the time in which memory gives all weights and the cache once. --kernels lists the kernels of a step of rlx. A peer
that fails is told and left out, and the exit is 1. --layers takes fewer, and --device cpu tries the program itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import rlx
from benchmarks.gpu_models import print_kernels
from benchmarks.random_weights import QWEN3_06B, SMOLLM2, decoder_weights
from rlx.models.context import Context
from rlx.models.llama import decoder
from rlx.models.llama_config import Config

Array = np.ndarray[Any, Any]
BANDWIDTH = 4.8e12
"""Bytes a second of an H200's memory."""
PROMPT = 512
CASES = {"Qwen3-0.6B": QWEN3_06B, "SmolLM2-135M": SMOLLM2}


class OfRlx:
    """The decoder in rlx."""

    def __init__(
        self, config: dict[str, Any], arrays: dict[str, Array], profile: bool = False, device: str = "cuda"
    ) -> None:
        parsed = Config.of(config)
        graph = decoder(parsed, arrays, caches=True)
        session = rlx.Session(device)
        self.program = session.with_options(replace(session.options, profile=profile)).compile(graph)
        self.context = Context(self.program, parsed.max_positions)

    def feed(self, ids: Array) -> Array:
        return self.context.feed(ids)

    def forget(self) -> None:
        self.context.length = 0


class OfTorch:
    """The decoder in transformers, with a cache of fixed size."""

    def __init__(self, config: dict[str, Any], arrays: dict[str, Array], compiled: bool, device: str = "cuda") -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

        made = AutoConfig.for_model(**config)
        with torch.device(device):
            self.model = AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16).eval()
        tensors = {name: torch.from_numpy(a.view(np.uint16)).view(torch.bfloat16) for name, a in arrays.items()}
        self.model.load_state_dict(tensors, strict=False)
        self.cache = StaticCache(config=made, max_cache_len=config["max_position_embeddings"])
        self.step = self.model
        self.length, self.device = 0, device
        self.feed(np.zeros((1, 1), np.int64))  # outside of graphs, so that the cache is no graph's own
        if compiled:
            self.step = torch.compile(self.model, mode="reduce-overhead")
        self.length = 0

    def feed(self, ids: Array) -> Array:
        given = torch.from_numpy(ids).to(self.device)
        places = torch.arange(self.length, self.length + ids.shape[1], device=self.device)
        call = self.step if ids.shape[1] == 1 else self.model
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            out = call(
                given, past_key_values=self.cache, cache_position=places, position_ids=places[None], use_cache=True,
                logits_to_keep=1,
            )  # fmt: skip
        self.length += ids.shape[1]
        return np.asarray(out.logits[:, -1].float().cpu())

    def forget(self) -> None:
        self.length = 0
        self.cache.reset()


def timed(model: Any, ids: Array) -> float:
    before = time.perf_counter()
    model.feed(ids)
    return (time.perf_counter() - before) * 1e3


def ready(name: str, makers: dict[str, Callable[[], Any]]) -> tuple[dict[str, Any], int]:
    """What could be made and gave logits, and how many could not."""
    made: dict[str, Any] = {}
    for kind, maker in makers.items():
        before = time.perf_counter()
        try:
            model = maker()
            for _ in range(2):
                model.feed(np.zeros((1, 1), np.int64))
        except Exception as error:  # of whatever kind a peer's are
            print(f"{name}: {kind} left out: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        made[kind] = model
        print(f"{name}: {kind} ready after {time.perf_counter() - before:.1f} s", flush=True)
    return made, len(makers) - len(made)


def measure(name: str, config: dict[str, Any], given: argparse.Namespace) -> int:
    """How many of the peers failed."""
    arrays = decoder_weights(config)
    makers: dict[str, Callable[[], Any]] = {
        "rlx": lambda: OfRlx(config, arrays, device=given.device),
        "torch eager": lambda: OfTorch(config, arrays, False, given.device),
    }
    if given.peers:
        makers["torch compile"] = lambda: OfTorch(config, arrays, True, given.device)
    made, failed = ready(name, makers)
    if "rlx" not in made:
        return failed
    random = np.random.default_rng(1)
    ids = random.integers(0, config["vocab_size"], (1, given.context))
    steps: dict[str, list[float]] = {kind: [] for kind in made}
    prompts: dict[str, list[float]] = {kind: [] for kind in made}
    logits: dict[str, Any] = {}
    for _ in range(given.rounds):
        for kind, model in made.items():
            model.forget()
            model.feed(ids[:, :PROMPT])
            model.forget()
            prompts[kind].append(timed(model, ids[:, :PROMPT]))
            model.feed(ids[:, PROMPT:])
            logits[kind] = model.feed(ids[:, :1])
            model.feed(ids[:, :1])
            steps[kind] += [timed(model, ids[:, :1]) for _ in range(given.steps)]
    heads = config["num_key_value_heads"] * config.get(
        "head_dim", config["hidden_size"] // config["num_attention_heads"]
    )
    nbytes = sum(a.nbytes for a in arrays.values()) + 4 * config["num_hidden_layers"] * heads * given.context
    told = ", ".join(
        f"{kind} {statistics.median(taken):.3f} (least {min(taken):.3f}), prompt {min(prompts[kind]):.2f} ms"
        for kind, taken in steps.items()
    )
    print(f"{name}, one token at {given.context}: {told}; limit {nbytes / BANDWIDTH * 1e3:.3f} ms")
    for kind in list(made)[1:]:
        gap = np.abs(logits["rlx"] - logits[kind]).max()
        print(f"  greatest difference of logits to {kind}: {gap:.3f} of {np.abs(logits[kind]).max():.2f}", flush=True)
    return failed


def list_kernels(config: dict[str, Any], context: int) -> None:
    model = OfRlx(config, decoder_weights(config), profile=True)
    for _ in range(context // 512):
        model.feed(np.zeros((1, 512), np.int64))
    step = {"input_ids": np.zeros((1, 1), np.int64), "cached": np.zeros(model.context.length, np.uint8)}
    print_kernels(model.program, step)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--layers", type=int, default=0, help="in place of all")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    card = torch.cuda.get_device_name() if given.device == "cuda" else given.device
    print(f"{card}, torch {torch.__version__}, CUDA {torch.version.cuda}, rlx {rlx.__version__}")
    failed = 0
    for name, whole in CASES.items():
        config = whole | ({"num_hidden_layers": given.layers} if given.layers else {})
        if given.only not in name:
            continue
        if given.kernels:
            list_kernels(config, given.context)
        else:
            failed += measure(name, config, given)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
