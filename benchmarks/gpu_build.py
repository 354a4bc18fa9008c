"""Seconds from nothing to a first answer on a GPU and to a compiled program, in rlx and in torch.

    python -m benchmarks.gpu_build --peer rlx --rounds 3      # 60 s: three nets, twice in each round
    python -m benchmarks.gpu_build --only MiniLM              # 110 s, most of it torch's; BERT-base takes 140 s
    python -m benchmarks.gpu_build --only decoder             # 140 s

Each start is a process of its own: `cold` with empty folders for caches (RLX_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR,
TRITON_CACHE_DIR, CUDA_CACHE_PATH), `stored` once more with the same folders. Starts take turns; medians of rounds are
shown. Times begin with the process, without the drawing of weights: `imported` is the end of the import, `made` that of
`compile` and what else is done once, `first` that of the first answer on the host, `settled` that of the last run that
took a fourth longer than the quickest: captured graphs are there then. `compiling` is from the import to the first
answer. The nets are MiniLM and BERT-base in f16 with a sentence of 128 tokens, and a decoder of the shape of Qwen3-0.6B
with --layers in bf16, a prompt of 64 tokens and steps, of which `second` is the first: torch's prompts are eager, and
only its steps compiled. A peer that fails is told and left out, and the exit is 1.
`--device cpu` tries the program itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.random_weights import BERT, MINILM, QWEN3_06B, decoder_weights, encoder_weights

ROOT = Path(__file__).parents[1]
NETS = ("MiniLM", "BERT-base", "decoder")
KINDS = ("rlx", "torch eager", "torch reduce-overhead", "torch compile")
FOLDERS = ("RLX_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
LENGTH, PROMPT = 128, 64
RUNS = 12
LONGER = 1.25
Run = Callable[[], Any]


def encoder_of(kind: str, name: str, device: str) -> Callable[[], Run]:
    """What makes a run of an encoder, which begins and ends with NumPy."""
    config = {"MiniLM": MINILM, "BERT-base": BERT}[name]
    arrays = encoder_weights(config)
    ids = np.random.default_rng(1).integers(0, config.vocab_size, (1, LENGTH))

    def of_rlx() -> Run:
        import rlx
        from rlx.models.bert import encoder

        session = rlx.Session(device, precision="f16", compile="before")
        model = session.compile(encoder(config, arrays)).select(["last_hidden_state"])
        return lambda: model.run([ids, np.ones_like(ids)])[0]

    def of_torch() -> Run:
        import torch

        from benchmarks.gpu_models import of_torch as written

        run: Any = in_mode(kind, written(config, arrays, torch.float16, device))

        def call() -> Any:
            with torch.no_grad():
                return run(torch.from_numpy(ids).to(device)).cpu()

        return call

    return of_rlx if kind == "rlx" else of_torch


def decoder_of(kind: str, layers: int, device: str) -> Callable[[], Run]:
    """What makes a run of a decoder: a prompt at first, then steps."""
    config = QWEN3_06B | {"num_hidden_layers": layers}
    arrays = decoder_weights(config)
    ids = np.random.default_rng(1).integers(0, config["vocab_size"], (1, PROMPT))

    def make() -> Run:
        model: Any
        if kind == "rlx":  # without the other's modules, which import torch
            import rlx
            from rlx.models.context import Context
            from rlx.models.llama import decoder
            from rlx.models.llama_config import Config

            graph = decoder(Config.of(config), arrays, caches=True)
            session = rlx.Session(device, compile="before")
            model = Context(session.compile(graph), config["max_position_embeddings"])
        else:
            from benchmarks.gpu_decoders import OfTorch

            model = OfTorch(config, arrays, False, device)
            model.step = in_mode(kind, model.model)
        given = iter([ids])
        return lambda: model.feed(next(given, ids[:, :1]))

    return make


def in_mode(kind: str, run: Any) -> Any:
    import torch

    if kind == "torch eager":
        return run
    return torch.compile(run, mode="default" if kind == "torch compile" else "reduce-overhead")


def child(kind: str, name: str, layers: int, device: str, began: float) -> dict[str, float]:
    """A start, in seconds since the process began, without those in which weights are drawn."""
    before = time.time()
    make = decoder_of(kind, layers, device) if name == "decoder" else encoder_of(kind, name, device)
    began += time.time() - before
    __import__("rlx" if kind == "rlx" else "torch")
    imported = time.time() - began
    run = make()
    made = time.time() - began
    if not np.isfinite(np.asarray(run(), np.float32)).all():
        raise ValueError("expected finite numbers as the first answer")
    ends, took = [time.time() - began], [float("inf")]
    for _ in range(RUNS):
        before = time.perf_counter()
        run()
        took.append(time.perf_counter() - before)
        ends.append(time.time() - began)
    settled = max(end for end, seconds in zip(ends, took) if seconds > LONGER * min(took))
    return {
        "imported": imported, "made": made, "first": ends[0], "second": ends[1], "compiling": ends[0] - imported,
        "settled": settled, "least_ms": min(took) * 1e3,
    }  # fmt: skip


def start(kind: str, name: str, given: argparse.Namespace, folder: Path, limit_s: float) -> dict[str, float]:
    """One process. Raises RuntimeError with what it said."""
    variables = {each: str(folder / each.lower()) for each in FOLDERS}
    command = [sys.executable, "-m", "benchmarks.gpu_build", "--child", kind, "--only", name, "--began"]
    command += [str(time.time()), "--layers", str(given.layers), "--device", given.device]
    said, errors = folder / "said", folder / "errors"
    with said.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=out, stderr=err, cwd=ROOT, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not done after {limit_s:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # compilers that it started go with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code:
        raise RuntimeError((errors.read_text().strip().splitlines() or [f"exit {code}"])[-1][:300])
    record: dict[str, float] = json.loads(said.read_text().strip().splitlines()[-1])
    return record


def rounds(given: argparse.Namespace) -> Iterator[tuple[str, str, str, dict[str, float] | str]]:
    """Starts by turns: net, peer, whether caches are there, and what it took or why it failed. A peer that failed on a
    net does not start on it again; nothing starts when the time is over."""
    out: set[tuple[str, str]] = set()
    end = time.monotonic() + given.seconds
    for number in range(given.rounds):
        for name in (name for name in NETS if given.only in name):
            for kind in (kind for kind in KINDS if given.peer in kind and (name, kind) not in out):
                with tempfile.TemporaryDirectory() as folder:
                    for state in ("cold", "stored"):
                        left = end - time.monotonic()
                        if left < 5:
                            yield name, kind, state, f"no time for round {number + 1}"
                            continue
                        try:
                            yield name, kind, state, start(kind, name, given, Path(folder), left)
                        except RuntimeError as error:
                            out.add((name, kind))
                            yield name, kind, state, str(error)
                            break


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="nets whose names hold this")
    parser.add_argument("--peer", default="", help="peers whose names hold this")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4, help="of the decoder")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=140.0, help="behind which nothing starts or goes on")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.child, given.only, given.layers, given.device, given.began)))
        return 0
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    failed = 0
    for name, kind, state, record in rounds(given):
        if isinstance(record, str):
            failed += 1
            print(f"{name:10} {kind:22} {state:7} left out: {record}", flush=True)
            continue
        found.setdefault((name, kind, state), []).append(record)
        print(f"{name:10} {kind:22} {state:7} " + shown(record), flush=True)
    print("medians of rounds" if found else "nothing ran")
    for (name, kind, state), records in sorted(found.items(), key=lambda entry: entry[0][0]):
        medians = {key: statistics.median(record[key] for record in records) for key in records[0]}
        print(f"{name:10} {kind:22} {state:7} {shown(medians)}, {len(records)} starts")
    return 1 if failed else 0


def shown(record: dict[str, float]) -> str:
    times = ", ".join(f"{key} {seconds:.2f}" for key, seconds in record.items() if key != "least_ms")
    return f"{times} s; least {record['least_ms']:.3f} ms"


if __name__ == "__main__":
    sys.exit(main())
