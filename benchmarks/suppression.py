"""Non-maximum suppression on the processor against onnxruntime, one thread, f32, overlap 0.5.

    python -m benchmarks.suppression [--only PART] [--rounds N]

A line a case: the least processor times of a call in ms, in turns, and onnxruntime's time over ours; at the end the
geometric mean and the least ratio. A case is classes-boxes-most-kind-boxes kept, where the kind says how boxes are
given: `corners`, or `middle`. A threshold leaves the `few` best in 1,000 scores, or `all` take part. Boxes lie as a
detector's do: around some objects of a picture of 640 by 640.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SIZES = ((1, 1000, "all"), (1, 1000, "few"), (1, 8400, "all"), (80, 1000, "all"), (80, 1000, "few"), (80, 8400, "few"))
CASES = [
    f"{classes}-{boxes}-{most}-{kind}-{left}"
    for classes, boxes, left in SIZES
    for most in (100, 300)
    for kind in ("corners", "middle")
]
SLICE_S = 0.1
"""Of a turn."""
SCORED = 0.001
"""Share of scores above the threshold where few are; of one class ten times as many."""


def model_of(case: str) -> tuple[bytes, dict[str, Array]]:
    """The file of a case, and its inputs."""
    from onnx import TensorProto, helper, numpy_helper

    classes, boxes, most, kind, left = case.split("-")
    c, n, few, centered = int(classes), int(boxes), left == "few", kind == "middle"
    random = np.random.default_rng(0)
    objects = np.concatenate([random.uniform(50, 590, (20, 2)), random.uniform(30, 200, (20, 2))], 1)
    given = objects[random.integers(0, 20, n)] + random.normal(0, 12, (n, 4))
    given[:, 2:] = np.maximum(given[:, 2:], 4)
    if not centered:
        given = np.concatenate([given[:, 1::-1] - given[:, :1:-1] / 2, given[:, 1::-1] + given[:, :1:-1] / 2], 1)
    scores = random.random((1, c, n), np.float32) ** 2
    constants = {"most": np.array([int(most)]), "overlap": np.array([0.5], np.float32)}
    if few:
        share = SCORED * (10 if c == 1 else 1)
        constants["least"] = np.array([np.quantile(scores, 1 - share)], np.float32)
    node = helper.make_node(
        "NonMaxSuppression", ["boxes", "scores", *constants], ["kept"], center_point_box=int(centered)
    )
    inputs = {"boxes": given[None].astype(np.float32), "scores": scores}
    graph = helper.make_graph(
        [node], case,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in inputs.items()],
        [helper.make_tensor_value_info("kept", TensorProto.INT64, ("kept", 3))],
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(), inputs


def runners(case: str) -> tuple[dict[str, Callable[[], Any]], int]:
    """A call of each runtime, whose results are the same, and how many boxes are kept."""
    import onnxruntime

    import rlx

    file, inputs = model_of(case)
    compiled = rlx.load(file, device="cpu", threads=1, compile="before").compiled
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = 1, 1, 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    (ours,), (theirs,) = compiled.run(inputs), session.run(None, inputs)
    np.testing.assert_array_equal(ours, theirs)
    return {"rlx": lambda: compiled.run(inputs), "onnxruntime": lambda: session.run(None, inputs)}, len(theirs)


def turn(call: Callable[[], Any]) -> float:
    """The least time of calls in ms, for a while."""
    call()
    least = float("inf")
    end = time.perf_counter() + SLICE_S
    while time.perf_counter() < end:
        start = time.thread_time()
        call()
        least = min(least, (time.thread_time() - start) * 1e3)
    return least


def main() -> None:
    from rlx.cli.compare import pin_to_one_core

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names contain this; several apart by commas")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    names = [name for name in CASES if any(part in name for part in args.only.split(","))]
    if not names:
        parser.error(f"no case has {args.only!r} in its name: {', '.join(CASES)}")
    pin_to_one_core()
    ratios = []
    print(f"{'case':24} {'kept':>6} {'rlx ms':>9} {'ort ms':>9} {'ratio':>6}")
    for name in names:
        calls, kept = runners(name)
        turns = [{each: turn(call) for each, call in calls.items()} for _ in range(args.rounds)]
        ours, theirs = (min(times[each] for times in turns) for each in calls)
        ratios.append(theirs / ours)
        print(f"{name:24} {kept:6} {ours:9.3f} {theirs:9.3f} {theirs / ours:6.2f}", flush=True)
    print(f"geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
