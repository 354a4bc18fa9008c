"""Tokens per second of a decoder, in rlx and in torch, on the processor.

    python -m benchmarks.decoders FOLDER [FOLDER …] [--context 512] [--steps 32] [--rounds 3] [--threads N]

Folders are those of Hugging Face (`tools/export_smollm.py` writes one). Each round starts a process for rlx, then one
for torch (transformers, eager). A process reads a prompt of random tokens twice, and times the second; then it takes
steps of one token. Of all rounds the best prompt, and the median and the least step, are shown; `GB/s` is the bytes of
all weights by the least step: what a step reads at least.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rlx

Feed = Callable[[Any], None]


def of_rlx(folder: Path, threads: int) -> tuple[Feed, Callable[[], None]]:
    """What takes tokens, and what forgets them."""
    context = rlx.load(folder, device="cpu", threads=threads, compile="before").decoder.new_context()

    def feed(ids: Any) -> None:
        context.feed(ids)

    def forget() -> None:
        context.length = 0

    return feed, forget


def of_torch(folder: Path, threads: int) -> tuple[Feed, Callable[[], None]]:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    cache: list[Any] = [None]

    def feed(ids: Any) -> None:
        with torch.no_grad():
            out = model(torch.tensor(ids), past_key_values=cache[0], use_cache=True, logits_to_keep=1)
            np.asarray(out.logits[:, -1].float())

    def forget() -> None:
        cache[0] = DynamicCache(config=model.config)

    forget()
    return feed, forget


MAKERS = {"rlx": of_rlx, "torch": of_torch}


def measure(name: str, folder: Path, context: int, steps: int, threads: int) -> dict[str, Any]:
    feed, forget = MAKERS[name](folder, threads)
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    ids = np.random.default_rng(0).integers(0, vocab, (1, context))
    feed(ids)
    forget()
    start_s = time.perf_counter()
    feed(ids)
    prompt_s = time.perf_counter() - start_s
    times = []
    for _ in range(steps):
        start_s = time.perf_counter()
        feed(ids[:, :1])
        times.append((time.perf_counter() - start_s) * 1e3)
    return {"prompt": context / prompt_s, "steps_ms": times}


def in_process(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.decoders", str(folder), "--only", name]
    for option in ("context", "steps", "threads"):
        command += [f"--{option}", str(getattr(options, option))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=[*MAKERS], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args.only, args.folders[0], args.context, args.steps, args.threads)))
        return
    print(f"python -m benchmarks.decoders --context {args.context} --steps {args.steps} --rounds {args.rounds}")
    load = " ".join(f"{n:.2f}" for n in os.getloadavg())
    print(f"Python {platform.python_version()}, rlx {rlx.__version__}; {args.threads} threads; load {load}")
    print(f"{'weights':>12}{'':>8}{'prompt, tokens/s':>20}{'step, ms':>12}{'least':>10}{'tokens/s':>10}{'GB/s':>8}")
    for folder in args.folders:
        rounds = [{name: in_process(name, folder, args) for name in MAKERS} for _ in range(args.rounds)]
        weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        for name in MAKERS:
            times = [ms for each in rounds for ms in each[name]["steps_ms"]]
            step, least = statistics.median(times), min(times)
            prompt = max(each[name]["prompt"] for each in rounds)
            rates = f"{1e3 / least:>10.1f}{weights / least / 1e6:>8.1f}"
            print(f"{folder.name:>12}{name:>8}{prompt:>20.0f}{step:>12.1f}{least:>10.1f}{rates}", flush=True)


if __name__ == "__main__":
    main()
