"""`rlx run FOLDER --prompt TEXT`: what a decoder says after a prompt, as it comes."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import rlx
from rlx.cli.console import emit_json, progress, say

if TYPE_CHECKING:
    from rlx.models.sampling import Choices
    from rlx.runtime.session import Precision


def generate_text(
    path: Path,
    prompt: str,
    chat: bool,
    max_new_tokens: int | None,
    temperature: float | None,
    device: str,
    threads: int,
    precision: Precision,
    seed: int,
    as_json: bool,
) -> None:
    """Writes the text to stdout, and tokens per second to stderr."""
    with progress("reading"):
        model = rlx.load(path, device=device, threads=threads or None, precision=precision)
    with progress("compiling"):
        start_ns = time.perf_counter_ns()
        program = model.decoder.program
        compile_ms = (time.perf_counter_ns() - start_ns) / 1e6
    said = [{"role": "user", "content": prompt}] if chat else prompt
    choices: Choices = {"temperature": temperature, "seed": seed}
    if as_json:
        result = model.generate(said, max_new_tokens, **choices)
        emit_json({"model": str(path), "device": program.device, "compile_ms": compile_ms, **asdict(result)})
        return
    start_s = first_s = time.perf_counter()
    count = 0
    for piece in model.stream(said, max_new_tokens, **choices):
        first_s = first_s if count else time.perf_counter()
        count += 1
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    end_s = time.perf_counter()
    sys.stdout.write("\n")
    tokens = len(model.decoder.ids_of(said))
    say(
        f"{tokens} tokens read at {tokens / (first_s - start_s):.1f} a second, {count} generated at "
        f"{(count - 1) / max(end_s - first_s, 1e-9):.1f} a second, on {program.device}; compiled in {compile_ms:.0f} ms"
    )
