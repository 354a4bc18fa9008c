"""What a call on a GPU costs beside its kernels.

    python -m benchmarks.gpu_calls [--device cuda] [--model MiniLM] [--size 1x16] [--precision f16]

Of inputs as NumPy's arrays, as arrays of rlx and as tensors of torch: the time until `run` returns while the device has
nothing to do, and what of it is in taking inputs, in the backend and in calls of the driver (with what it costs to look
at the clock, some 0.2 us each); then the time of a call of many in a row, and of its graph alone in a row.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import rlx
from benchmarks.random_weights import BERT, MINILM, encoder_weights
from rlx.backends.cuda.arrays import CudaArray
from rlx.backends.cuda.bound import CudaBound
from rlx.backends.cuda.device import Device
from rlx.models.bert import encoder
from rlx.runtime.program import Program

CONFIGS = {"MiniLM": MINILM, "BERT-base": BERT}
CALLS, IN_A_ROW = 300, 200
OF_RUNS = ("enter", "replay", "record", "wait", "copy", "copy_in", "copy_out", "synchronise", "allocate", "free")
"""Calls of the driver that a run may make."""


@contextmanager
def timed(parts: dict[str, tuple[object, str]]) -> Iterator[dict[str, list[int]]]:
    """The times in ns of calls of functions, by what they are called here."""
    times: dict[str, list[int]] = {label: [] for label in parts}
    before = {label: (owner.__dict__.get(name), getattr(owner, name)) for label, (owner, name) in parts.items()}

    def looked_at(call: Callable[..., Any], taken: list[int]) -> Callable[..., Any]:
        def look(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return call(*arguments, **options)
            finally:
                taken.append(time.perf_counter_ns() - start)

        return look

    for label, (owner, name) in parts.items():
        setattr(owner, name, looked_at(before[label][1], times[label]))
    try:
        yield times
    finally:
        for label, (owner, name) in parts.items():
            own, _ = before[label]
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def us(times: list[int]) -> float:
    return statistics.median(times) / 1e3


def show(label: str, device: Device, run: Callable[[], Any]) -> None:
    driver = device.driver

    def wait() -> None:
        with device.work("run"):
            driver.synchronise_all()

    def in_a_row(call: Callable[[], Any]) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(IN_A_ROW):
            result = call()  # noqa: F841  # results are dropped when the next ones are there
        wait()
        return (time.perf_counter() - start) / IN_A_ROW * 1e3

    def calls() -> list[int]:
        taken = []
        for _ in range(CALLS):
            wait()
            start = time.perf_counter_ns()
            result = run()  # noqa: F841
            taken.append(time.perf_counter_ns() - start)
        return taken

    calls()
    alone = us(calls())
    parts: dict[str, tuple[object, str]] = {"inputs": (Program, "ready"), "backend": (CudaBound, "_run")}
    with timed({**parts, **{name: (driver, name) for name in OF_RUNS}}) as times:
        calls()
    ours = {name: taken for name, taken in times.items() if len(taken) >= CALLS}
    ours["enter"] = ours["enter"][1::2]  # of two, one is that of waiting here
    shown = ", ".join(f"{name} {us(taken):.1f}" for name, taken in ours.items())
    last: list[tuple[Any, Any]] = []
    replay = driver.replay
    driver.replay = lambda *what: last.append(what) or replay(*what)  # type: ignore[method-assign,func-returns-value]
    run()
    del driver.replay
    graph = "no graph"
    if last:
        with device.work("run"):
            graph = f"its graph alone {min(in_a_row(lambda: replay(*last[-1])) for _ in range(5)):.4f}"
    row = min(in_a_row(run) for _ in range(5))
    print(f"{label:8} returns after {alone:.1f} us ({shown}); in a row {row:.4f} ms, {graph}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="MiniLM", choices=CONFIGS)
    parser.add_argument("--size", default="1x16", help="rows and tokens")
    parser.add_argument("--precision", default="f16")
    chosen = parser.parse_args(arguments)
    config = CONFIGS[chosen.model]
    rows, tokens = map(int, chosen.size.split("x"))
    graph = encoder(config, encoder_weights(config))
    model = rlx.Session(chosen.device, precision=chosen.precision).compile(graph).select(["last_hidden_state"])
    ids = np.random.default_rng(1).integers(0, config.vocab_size, (rows, tokens))
    host = [ids, np.ones_like(ids)]
    own = [model.executable.put(name, array) for name, array in zip(model.input_names, host)]
    assert isinstance(own[0], CudaArray)
    device = own[0].owner
    print(f"{device.name}: {chosen.model} {chosen.size} {chosen.precision}, rlx {rlx.__version__}")
    show("numpy", device, lambda: model.run(host))
    show("rlx", device, lambda: model.run(own, outputs="device"))
    try:
        import torch
    except ImportError:
        return
    if torch.cuda.is_available():
        tensors = [torch.from_numpy(array).cuda() for array in host]
        show("torch", device, lambda: model.run(tensors, outputs="device"))


if __name__ == "__main__":
    main()
