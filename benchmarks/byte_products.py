"""Products of bytes of two values of a run against onnxruntime's MatMulInteger, one thread.

    python -m benchmarks.byte_products [--rounds N] [--isa avx2]

Both share one core and run in turns. A time is the least of all rounds, µs of the processor for a call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SLICE_S = 0.01
"""Of a turn."""


@dataclass(frozen=True)
class Case:
    """batch x [m, k] · [k, n] of these dtypes; the right side lies as [n, k] if `turned`, and is transposed in the
    graph."""

    batch: int
    m: int
    k: int
    n: int
    dtypes: tuple[str, str] = ("uint8", "int8")
    turned: bool = False

    def __str__(self) -> str:
        turned = ", k along rows" if self.turned else ""
        return f"{self.batch}x {self.m}x{self.k}x{self.n} {' by '.join(self.dtypes)}{turned}"


CASES = (
    Case(1, 256, 256, 256),
    Case(12, 512, 64, 512),
    Case(12, 512, 64, 512, turned=True),
    Case(12, 512, 512, 64),
    Case(12, 128, 64, 128),
    Case(12, 128, 64, 128, turned=True),
    Case(12, 128, 64, 128, ("uint8", "uint8")),
    Case(12, 128, 64, 128, ("int8", "int8")),
    *(Case(1, m, 256, 256) for m in (1, 2, 4, 8, 16)),
    *(Case(1, m, 256, 256, turned=True) for m in (1, 2, 4, 8, 16)),
)


def model_of(case: Case) -> bytes:
    """An ONNX file of one product, with zero points of 0."""
    from onnx import TensorProto, helper

    kinds = [{"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}[name] for name in case.dtypes]
    right = (case.batch, case.n, case.k) if case.turned else (case.batch, case.k, case.n)
    nodes = [helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1])] if case.turned else []
    nodes.append(helper.make_node("MatMulInteger", ["a", "t" if case.turned else "b"], ["y"]))
    graph = helper.make_graph(
        nodes, "product",
        [
            helper.make_tensor_value_info("a", kinds[0], (case.batch, case.m, case.k)),
            helper.make_tensor_value_info("b", kinds[1], right),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT32, (case.batch, case.m, case.n))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def inputs_of(case: Case) -> dict[str, Array]:
    random = np.random.default_rng(0)
    right = (case.batch, case.n, case.k) if case.turned else (case.batch, case.k, case.n)
    shapes = {"a": (case.batch, case.m, case.k), "b": right}
    limits = [np.iinfo(name) for name in case.dtypes]
    return {
        name: random.integers(limit.min, limit.max, shape, limit.dtype, endpoint=True)
        for (name, shape), limit in zip(shapes.items(), limits)
    }


def runners(case: Case, isa: str) -> dict[str, Callable[[], list[Array]]]:
    import onnxruntime

    import rlx

    data, inputs = model_of(case), inputs_of(case)
    model = rlx.load(data, device="cpu", threads=1, compile="before", isa=isa or None)
    model(**inputs)
    compiled = model.compiled
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return {"rlx": lambda: compiled.run(inputs), "onnxruntime": lambda: session.run(None, inputs)}


def in_turns(calls: dict[str, Callable[[], list[Array]]], rounds: int) -> dict[str, float]:
    """The least time of a call of each, µs."""
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            end = time.perf_counter() + SLICE_S
            while time.perf_counter() < end:
                start = time.process_time_ns()
                call()
                times[name] = min(times[name], (time.process_time_ns() - start) / 1e3)
    return times


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.byte_products", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=30, help="turns of each")
    parser.add_argument("--isa", default="", help="instruction set of rlx; this machine's best if not given")
    args = parser.parse_args()
    import onnxruntime

    from rlx.backends.cpu import isa
    from rlx.cli.compare import pin_to_one_core

    pin_to_one_core()
    print(
        f"one thread of {isa.describe()}, rlx on {args.isa or isa.detect().name}, onnxruntime {onnxruntime.__version__}"
    )
    for case in CASES:
        calls = runners(case, args.isa)
        ours, theirs = (call() for call in calls.values())
        same = np.array_equal(ours[0], theirs[0])
        times = in_turns(calls, args.rounds)
        ratio = times["onnxruntime"] / times["rlx"]
        line = f"{case!s:48} rlx {times['rlx']:8.1f}  onnxruntime {times['onnxruntime']:8.1f}  times {ratio:5.2f}"
        print(line + ("" if same else "  results differ"), flush=True)


if __name__ == "__main__":
    main()
