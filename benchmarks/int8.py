"""int8 of rlx against f32, and against what onnxruntime's own quantisation makes of the same nets.

    python -m benchmarks.int8 [--only NAME] [--rounds N] [--isa avx2]

Every runtime and mode has a process of its own; all share one core, and run in turns. A time is the least of all
rounds, in ms of the processor, which a busy machine does not lengthen as it does those of a clock. Errors are against
the net in f64: the largest as a part of the largest number, and the cosine. Ranges of static quantisation come from
the same inputs for all, and the run that is timed has one of them; weights have a scale for each channel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks import shaped
from benchmarks.models import exported
from benchmarks.zoo import Absent, nets

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]
ROOT = Path(__file__).parents[1]
CASES = ("minilm-1x128", "resnet-50", "mobilenet-v3", "vit-b16", "detector")
KINDS = ("rlx f32", "rlx dynamic", "rlx static", "ort f32", "ort dynamic", "ort static")
SLICE_S = 0.3
"""Of a turn."""


def case_of(name: str) -> tuple[Path, list[Inputs]]:
    """A model's file, and inputs of typical runs, of which the first is timed. Raises Absent."""
    if name == "minilm-1x128":
        random = np.random.default_rng(0)
        ids = [random.integers(1000, 20000, (1, 128)) for _ in range(3)]
        return exported(), [{"input_ids": each, "attention_mask": np.ones_like(each)} for each in ids]
    if name in shaped.NETS:
        return shaped.path(name), [shaped.inputs(name)]
    net = nets()[name]
    return net.path(), [net.inputs()]


def rlx_runner(path: Path, inputs: list[Inputs], mode: str, isa: str) -> Callable[[], list[Array]]:
    import rlx

    options: dict[str, Any] = {} if mode == "f32" else {"precision": "int8"}
    if mode == "static":
        options["calibration"] = inputs
    model = rlx.load(str(path), device="cpu", threads=1, compile="before", isa=isa or None, **options)
    model(**inputs[0])
    compiled = model.compiled
    return lambda: compiled.run(inputs[0])


def ort_runner(path: Path, inputs: list[Inputs], mode: str, folder: Path) -> Callable[[], list[Array]]:
    import onnxruntime

    if mode != "f32":
        path = ort_quantised(path, inputs, mode, folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: cast(list[Array], session.run(None, inputs[0]))


def ort_quantised(path: Path, inputs: list[Inputs], mode: str, folder: Path) -> Path:
    """The file that onnxruntime's tools make of a model."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready, made = folder / f"{os.getpid()}-ready.onnx", folder / f"{os.getpid()}-{mode}.onnx"
    quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
    weights: dict[str, Any] = {"per_channel": True, "weight_type": quantization.QuantType.QInt8}
    if mode == "dynamic":
        quantization.quantize_dynamic(str(ready), str(made), **weights)
        return made

    class Examples(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(inputs)

        def get_next(self) -> Inputs | None:
            return next(self.left, None)

    quantization.quantize_static(
        str(ready), str(made), Examples(), quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8, **weights,
    )  # fmt: skip
    return made


def worker(name: str, kind: str, folder: Path, isa: str) -> None:
    """Makes a model ready, leaves its results in a file, and times it whenever a line comes."""
    from rlx.cli.baselines import limit_threads
    from rlx.cli.compare import pin_to_one_core

    limit_threads(1)
    pin_to_one_core()
    path, inputs = case_of(name)
    runtime, mode = kind.split()
    out, sys.stdout = sys.stdout, sys.stderr  # tools of onnxruntime print
    run = rlx_runner(path, inputs, mode, isa) if runtime == "rlx" else ort_runner(path, inputs, mode, folder)
    np.save(folder / f"{kind}.npy", run()[0])
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        least, end = float("inf"), time.perf_counter() + SLICE_S
        while time.perf_counter() < end:
            start = time.process_time()
            run()
            least = min(least, time.process_time() - start)
        print(json.dumps(least * 1e3), file=out, flush=True)


def in_turns(name: str, folder: Path, rounds: int, isa: str) -> dict[str, float]:
    """The least time of each kind that runs, ms."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    workers: dict[str, subprocess.Popen[str]] = {}
    for kind in KINDS:
        argv = [sys.executable, "-m", "benchmarks.int8", "--worker", name, kind, str(folder), "--isa", isa]
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if process.stdout is not None and process.stdout.readline().strip() == "ready":
            workers[kind] = process
    times = dict.fromkeys(workers, float("inf"))
    for _ in range(rounds):
        for kind, process in workers.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            times[kind] = min(times[kind], json.loads(process.stdout.readline()))
    for process in workers.values():
        process.communicate()
    return times


def exact_of(path: Path, inputs: Inputs) -> Array:
    """The first output in f64."""
    from rlx.ir.interpreter import evaluate
    from rlx.model import read
    from rlx.runtime.signature import Signature

    graph = read(str(path)).graph
    signature = Signature(graph)
    arrays = signature.arrays(inputs)
    named = dict(zip(signature.types, arrays))
    return evaluate(graph, named, dict(graph.data), signature.binding(arrays, graph.data), doubles=True)[0]


def measure(name: str, rounds: int, isa: str) -> None:
    """Prints the lines of one net."""
    from rlx.cli.check import error_of

    path, inputs = case_of(name)
    exact = exact_of(path, inputs[0])
    with tempfile.TemporaryDirectory() as folder:
        times = in_turns(name, Path(folder), rounds, isa)
        for kind in KINDS:
            if kind not in times:
                print(f"{name:14} {kind:12} does not run")
                continue
            error = error_of(np.load(Path(folder) / f"{kind}.npy"), exact)
            print(f"{name:14} {kind:12} {times[kind]:9.2f} ms  error {error.relative:.1e}  cosine {error.cosine:.6f}")
    ours = min((times[kind] for kind in ("rlx dynamic", "rlx static") if kind in times), default=float("nan"))
    best = min((times[kind] for kind in ("ort dynamic", "ort static") if kind in times), default=float("nan"))
    print(f"{name:14} int8 against our f32 {times['rlx f32'] / ours:.2f}, against their better int8 {best / ours:.2f}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.int8", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"cases whose name holds this: {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each process")
    parser.add_argument("--isa", default="", help="instruction set of rlx; this machine's best if not given")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, kind, folder = args.worker
        worker(name, kind, Path(folder), args.isa)
        return
    import onnxruntime

    from rlx.backends.cpu import isa

    print(
        f"one thread of {isa.describe()}, rlx on {args.isa or isa.detect().name}, onnxruntime {onnxruntime.__version__}"
    )
    for name in CASES:
        if args.only in name:
            try:
                measure(name, args.rounds, args.isa)
            except Absent as why:
                print(f"{name:14} {why}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
