"""Recurrent nets on the processor against onnxruntime: LSTM, GRU and RNN as torch exports them.

    python -m benchmarks.recurrent [--only PART] [--threads 1,2] [--rounds N] [--least]

A line a case: medians of a call in ms, in turns, and onnxruntime's time over ours; at the end the geometric mean and
the least ratio of each number of threads. Every number of threads has a process of its own. One thread shares one core,
and its times are the processor's, which a busy machine does not lengthen as it does those of a clock. The workers of
each runtime spin for a while after a call: before the other's turn there is a short sleep, and the first call of a turn
is not timed. On a machine that others use, `--least` compares the least times, not the medians.
A case is kind-directions-layers-batch-hidden-steps; the input is as wide as the hidden state.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
CASES = [
    *(f"lstm-1-{layers}-{batch}-{hidden}-{steps}"
      for layers in (1, 2) for batch in (1, 8) for hidden, steps in ((64, 200), (128, 100), (256, 50), (512, 50))),
    *(f"{kind}-2-1-{batch}-{hidden}-{steps}"
      for kind in ("lstm", "gru", "rnn") for batch in (1, 4, 32) for hidden, steps in ((64, 50), (256, 100))),
    *(f"{kind}-1-1-{batch}-{hidden}-100"
      for kind in ("gru", "rnn") for batch in (1, 4, 32) for hidden in (128, 512)),
]  # fmt: skip
SLICE_S = 0.1
"""Of a turn."""
REST_S = 0.03
"""Between turns with several threads."""


def model_of(case: str) -> tuple[bytes, dict[str, np.ndarray[Any, Any]]]:
    """The file of a case, and its input."""
    from onnx import TensorProto, helper, numpy_helper

    kind, *numbers = case.split("-")
    directions, layers, batch, hidden, steps = map(int, numbers)
    random = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    shape = np.array([0, 0, -1])
    weights.append(numpy_helper.from_array(shape, "shape"))
    for layer in range(layers):
        size = hidden if layer == 0 else hidden * directions
        rows = GATES[kind] * hidden
        for of, dims in (("w", (rows, size)), ("r", (rows, hidden)), ("b", (2 * rows,))):
            values = random.uniform(-1, 1, (directions, *dims)) / math.sqrt(hidden)
            weights.append(numpy_helper.from_array(values.astype(np.float32), f"{of}{layer}"))
        attributes: dict[str, Any] = {"linear_before_reset": 1} if kind == "gru" else {}
        nodes += [
            helper.make_node(
                kind.upper(), [name, f"w{layer}", f"r{layer}", f"b{layer}"], [f"y{layer}", f"h{layer}"],
                hidden_size=hidden, direction="bidirectional" if directions == 2 else "forward", **attributes,
            ),
            helper.make_node("Transpose", [f"y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{layer}", "shape"], [f"z{layer}"]),
        ]  # fmt: skip
        name = f"z{layer}"
    graph = helper.make_graph(
        nodes, case,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, batch, hidden))],
        [helper.make_tensor_value_info(of, TensorProto.FLOAT, None) for of in (name, f"h{layers - 1}")],
        weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(), {"x": random.standard_normal((steps, batch, hidden)).astype(np.float32)}


def runners(case: str, threads: int, isa: str) -> dict[str, Callable[[], Any]]:
    """A call of each runtime, whose results agree."""
    import onnxruntime

    import rlx

    file, inputs = model_of(case)
    compiled = rlx.load(file, device="cpu", threads=threads, compile="before", isa=isa or None).compiled
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    for ours, theirs in zip(compiled.run(inputs), session.run(None, inputs)):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    return {"rlx": lambda: compiled.run(inputs), "onnxruntime": lambda: session.run(None, inputs)}


def turn(call: Callable[[], Any], threads: int) -> list[float]:
    """Times of calls in ms, for a while."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    call()
    times: list[float] = []
    end = time.perf_counter() + SLICE_S
    while time.perf_counter() < end or len(times) < 3:
        start = clock()
        call()
        times.append((clock() - start) * 1e3)
    return times


def worker(names: list[str], args: argparse.Namespace) -> None:
    """Times cases with one number of threads."""
    from rlx.cli.compare import pin_to_one_core

    threads = int(args.threads)
    if threads == 1:
        pin_to_one_core()
    of = min if args.least else statistics.median
    ratios = []
    print(f"{'case':24} {'threads':>7} {'rlx ms':>9} {'ort ms':>9} {'ratio':>6}")
    for name in names:
        calls = runners(name, threads, args.isa)
        times: dict[str, list[float]] = {each: [] for each in calls}
        for _ in range(args.rounds):
            for each, call in calls.items():
                if threads > 1:
                    time.sleep(REST_S)
                times[each] += turn(call, threads)
        ours, theirs = (of(times[each]) for each in calls)
        ratios.append(theirs / ours)
        print(f"{name:24} {threads:7} {ours:9.3f} {theirs:9.3f} {theirs / ours:6.2f}", flush=True)
    print(f"{threads} threads: geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names contain this; several apart by commas")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", action="store_true", help="compare least times, not medians")
    parser.add_argument("--isa", default="", help="of rlx alone")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    parts = args.only.split(",")
    names = [name for name in CASES if any(part in name for part in parts)]
    if not names:
        parser.error(f"no case has {args.only!r} in its name: {', '.join(CASES)}")
    if args.worker:
        worker(names, args)
        return
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    for threads in args.threads.split(","):
        command = [sys.executable, "-m", "benchmarks.recurrent", "--worker", "--threads", threads]
        command += ["--only", args.only, "--rounds", str(args.rounds), "--isa", args.isa]
        command += ["--least"] if args.least else []
        if (code := subprocess.run(command, cwd=ROOT, env=environment).returncode) != 0:
            sys.exit(code)


if __name__ == "__main__":
    main()
