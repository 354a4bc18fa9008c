"""How well a GPU and the processor are told apart by predictions, batch by batch, and where one begins to be faster.

    python -m benchmarks.gpu_choice --keep --seconds 0                         # calibrates, and tells how long it takes
    python -m benchmarks.gpu_choice --keep --only MLP,convnet --seconds 70     # 80 s
    python -m benchmarks.gpu_choice --keep --only MiniLM,BERT --seconds 130    # 140 s; the same with --precision f16

Devices are calibrated first, which is timed; with `--keep` they stay so, and are not calibrated again. Inputs and
results are NumPy's: copies count, in predictions as in measurements, which take turns. Predictions are those of the
calibrations alone: runs correct none. --device takes another device than cuda.

Of each net: what its start takes on each device, predicted (the compile) and measured (the compile and what its first
run takes longer than later ones, with rlx's caches empty; those of drivers are not). Of each batch: what a run is
predicted to take on each device and takes, how far off that is, and two choices with what they cost. `cost_model` is
asked for so many runs that compiles do not count: its cost is that of the run alone. `auto` is asked as it is, for a
thousand runs: its cost is that of a run with a thousandth of the start that was measured. At the end of a net: the
least batch from which on the GPU's runs are shorter, as predicted and as measured.

Judged are predictions of runs: it ends with 1 if a crossover is off by more than a factor of two, a choice of
`cost_model` costs more than half, or a case fails. Starts, and what `auto` costs, are shown only: `auto` stays with the
processor until another device is clearly faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import rlx
from benchmarks.random_weights import BERT, MINILM, encoder_weights
from rlx import ops
from rlx.backends.base import Options
from rlx.device import calibration, registry
from rlx.device.choice import EXPECTED_RUNS
from rlx.device.policy import DevicePolicy
from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.models.bert import Config, encoder
from rlx.runtime.compiler import CODE
from rlx.runtime.graph_devices import GraphDevices

SLICE_S = 0.25
"""Of a device at a batch, at most, once it has had a few runs."""
MOST_S = 2.0
"""Predicted of a run, beyond which a device is not measured."""
WORST_REGRET = 0.5


@dataclass
class Net:
    """A graph whose batch is open, batches in rising order, and the inputs at each."""

    name: str
    make: Callable[[], Graph]
    batches: tuple[int, ...]
    inputs: Callable[[int], dict[str, Array]]


def doublings(first: int, last: int) -> tuple[int, ...]:
    return tuple(first << step for step in range((last // first).bit_length()))


def _tokens(config: Config, length: int, batch: int) -> dict[str, Array]:
    ids = np.random.default_rng(1).integers(0, config.vocab_size, (batch, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _encoder(config: Config) -> Graph:
    return encoder(config, encoder_weights(config))


def _weight(graph: Graph, name: str, *shape: int) -> Any:
    drawn = np.random.default_rng(len(graph.nodes)).standard_normal(shape).astype(np.float32)
    return graph.param(name, shape, data=drawn * np.float32(np.prod(shape[1:] or shape) ** -0.5))


def _mlp() -> Graph:
    graph = Graph("mlp")
    x = graph.input("x", ("n", 64))
    for number, (depth, width) in enumerate(((64, 256), (256, 256), (256, 10))):
        x = x @ _weight(graph, f"w{number}", depth, width) + _weight(graph, f"b{number}", width)
        x = ops.relu(x) if number < 2 else x
    graph.output(x, name="y")
    return graph


def _convnet() -> Graph:
    graph = Graph("convnet")
    x = graph.input("x", ("n", 3, 32, 32))
    for number, (channels, outputs, stride) in enumerate(((3, 16, 1), (16, 32, 2), (32, 64, 2))):
        window = _weight(graph, f"w{number}", outputs, channels, 3, 3)
        x = ops.conv(x, window, strides=(stride, stride), dilations=(1, 1), low=(1, 1), high=(1, 1))
        x = ops.relu(x + _weight(graph, f"b{number}", outputs, 1, 1))
    graph.output(ops.reduce_mean(x, axes=(2, 3)) @ _weight(graph, "w", 64, 10), name="y")
    return graph


def _drawn(shape: tuple[int, ...], batch: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(batch).standard_normal((batch, *shape), np.float32)}


def nets() -> Iterator[Net]:
    yield Net("MLP", _mlp, doublings(1, 1 << 15), partial(_drawn, (64,)))
    yield Net("convnet", _convnet, doublings(1, 512), partial(_drawn, (3, 32, 32)))
    for name, config, length, last in (("MiniLM x16", MINILM, 16, 32), ("MiniLM x128", MINILM, 128, 16),
                                       ("BERT-base x128", BERT, 128, 8)):  # fmt: skip
        yield Net(name, partial(_encoder, config), doublings(1, last), partial(_tokens, config, length))


def measured(programs: dict[str, Any], inputs: dict[str, Array]) -> dict[str, float]:
    """Medians in ns, of runs that take turns."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for program in programs.values():
        for _ in range(3):  # the third replays what the second noted
            program.run(inputs)
    for _ in range(200):
        rest = {name: program for name, program in programs.items()
                if len(times[name]) < 3 or sum(times[name]) < SLICE_S * 1e9}  # fmt: skip
        if not rest:
            break
        for name, program in rest.items():
            before = time.perf_counter_ns()
            program.run(inputs)
            times[name].append(float(time.perf_counter_ns() - before))
    return {name: statistics.median(taken) for name, taken in times.items()}


@dataclass
class Row:
    """A batch: ns of runs on each device, predicted and measured, and the choices of both strategies; and ns of starts,
    which are those of the net."""

    batch: int
    predicted: dict[str, float]
    taken: dict[str, float]
    auto: str
    fastest: str
    starts_predicted: dict[str, float]
    starts_taken: dict[str, float]

    def cost(self, choice: str, runs: float = float("inf")) -> float:
        """By how much the choice takes longer than the fastest, with its part of the start where that is one of so many
        runs; NaN where the choice was not measured."""
        taken = {name: ns + self.starts_taken[name] / runs for name, ns in self.taken.items()}
        return taken[choice] / min(taken.values()) - 1 if choice in taken else float("nan")

    def __str__(self) -> str:
        told = ", ".join(
            f"{name} {self.predicted[name] / 1e6:.3f} / {self.taken.get(name, float('nan')) / 1e6:.3f} ms"
            f" ({self.predicted[name] / self.taken[name] - 1:+.0%})" if name in self.taken else f"{name} not measured"
            for name in self.predicted
        )  # fmt: skip
        usual = f"{self.auto} {self.cost(self.auto, EXPECTED_RUNS):+.0%} with its start"
        return f"{self.batch:6}  {told}; cost_model: {self.fastest} {self.cost(self.fastest):+.0%}, auto: {usual}"

    def starts(self) -> str:
        told = ", ".join(
            f"{name} {ns / 1e9:.2f} / {self.starts_taken[name] / 1e9:.2f} s ({ns / self.starts_taken[name] - 1:+.0%})"
            for name, ns in self.starts_predicted.items() if name in self.starts_taken
        )  # fmt: skip
        return f"start, predicted / measured {told}"


def rows_of(net: Net, names: list[str], options: Options, end: float) -> Iterator[Row]:
    """Rows of a net, until the time is over."""
    graph = net.make()
    policy = DevicePolicy().only(*names)
    devices = GraphDevices(graph, policy, options)
    by_cost = GraphDevices(graph, policy.with_strategy("cost_model"), options, float("inf"))
    starts: dict[str, float] = {}
    for batch in net.batches:
        if time.monotonic() > end:
            print(f"{net.name}: no time for a batch of {batch}", flush=True)
            return
        inputs = net.inputs(batch)
        decision, fastest = devices.report(inputs), by_cost.decide(inputs=inputs)
        viable = [c for c in decision.candidates if not c.blocker]
        predicted = {str(c.device): c.run_ns() for c in sorted(viable, key=lambda c: names.index(str(c.device)))}
        compiles = {str(c.device): c.estimate.compile_ns for c in viable if c.estimate is not None}
        short = [name for name, ns in predicted.items() if ns < MOST_S * 1e9]
        begun = {name: started(devices, name, inputs) for name in short if name not in starts}
        taken = measured({name: devices.compile(name) for name in short}, inputs)
        starts |= {name: max(ns - taken[name], 1.0) for name, ns in begun.items()}
        expected = {name: compiles[name] for name in predicted if name in compiles}
        yield Row(batch, predicted, taken, str(decision.chosen), str(fastest.chosen), expected, starts)


def started(devices: GraphDevices, name: str, inputs: dict[str, Array]) -> float:
    """ns from the graph to the first results: some devices compile in the first run."""
    before = time.perf_counter_ns()
    program = devices.compile(name)
    program.finish()
    program.run(inputs)
    return float(time.perf_counter_ns() - before)


def crossover(rows: list[Row], times: Callable[[Row], dict[str, float]], gpu: str, cpu: str = "cpu") -> float:
    """The least batch from which on a GPU is faster; twice the last where it is not faster there."""
    found = 2.0 * rows[-1].batch
    for row in reversed(rows):
        if not times(row).get(gpu, float("inf")) < times(row).get(cpu, float("inf")):
            break
        found = row.batch
    return found


def _from(rows: list[Row], batch: float) -> str:
    return f"from a batch of {batch:g} on" if batch <= rows[-1].batch else f"at none up to {rows[-1].batch}"


def told(net: Net, rows: list[Row], gpu: str) -> bool:
    """Prints how a net went; whether all is as it should be."""
    if not rows:
        return True  # there was no time, as was told
    predicted, found = (crossover(rows, of, gpu) for of in (lambda row: row.predicted, lambda row: row.taken))
    near = predicted == found or max(predicted, found) <= 2 * min(predicted, found)
    worst = max((row.cost(row.fastest) for row in rows), default=0.0)
    usual = max((row.cost(row.auto, EXPECTED_RUNS) for row in rows), default=0.0)
    print(f"{net.name}: {rows[-1].starts()}")
    print(
        f"{net.name}: {gpu} is faster {_from(rows, found)}, predicted {_from(rows, predicted)}: "
        f"{'within' if near else 'NOT within'} a factor of two; the worst choice of cost_model costs {worst:+.0%} of a "
        f"run, of auto {usual:+.0%} of {EXPECTED_RUNS:g} runs and the start",
        flush=True,
    )
    return near and worst <= WORST_REGRET


def calibrate(names: list[str], keep: bool) -> None:
    for name in names:
        device, steps = registry.parse(name), list[tuple[str, float]]()
        if keep and (known := calibration.known(device)) is not None:
            print(f"{registry.full_name(device)}: was calibrated in {known.took_s:.1f} s", flush=True)
            continue
        start = time.perf_counter()
        calibration.measure(device, lambda step, steps=steps: steps.append((step, time.perf_counter())))  # type: ignore[misc]
        ends = [at for _, at in steps[1:]] + [time.perf_counter()]
        longest = sorted(((end - at, step) for (step, at), end in zip(steps, ends)), reverse=True)[:4]
        shown = ", ".join(f"{step} {seconds:.1f}" for seconds, step in longest)
        took = time.perf_counter() - start
        print(f"{registry.full_name(device)}: calibrated in {took:.1f} s (the longest: {shown})", flush=True)


def forget_programs(folder: str, names: list[str]) -> None:
    """Has the next compile find nothing in caches, whose folder is another one from now on; calibrations stay."""
    known = [calibration.known(registry.parse(name)) for name in names]
    os.environ["RLX_CACHE_DIR"] = folder
    CODE.clear()
    for each in known:
        if each is not None:
            calibration.replace(each)


def open_devices(names: list[str]) -> None:
    """Runs a little on each: what a process does once belongs to no net's start."""
    graph = Graph("first")
    graph.output(graph.input("x", (8,)) + 1.0)
    devices = GraphDevices(graph, DevicePolicy().only(*names))
    for name in names:
        devices.run(name, {"x": np.zeros(8, np.float32)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma list of what names of nets hold")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="f32", choices=("f32", "f32_fast", "f16"))
    parser.add_argument("--seconds", type=float, default=140.0, help="behind which no batch begins")
    parser.add_argument("--keep", action="store_true", help="take calibrations that there are, and leave others")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    names = ["cpu", given.device]
    print(f"rlx {rlx.__version__}, {os.cpu_count()} processors, {given.precision}, {' and '.join(names)}", flush=True)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        if not given.keep:
            os.environ["RLX_CACHE_DIR"] = folder
        calibrate(names, given.keep)
        open_devices(names)
        for number, net in enumerate(nets()):
            if not any(part in net.name for part in given.only.split(",")):
                continue
            forget_programs(os.path.join(folder, str(number)), names)
            rows: list[Row] = []
            try:
                for row in rows_of(net, names, Options(precision=given.precision), end):
                    rows.append(row)
                    print(f"{net.name:14} {row}", flush=True)
            except (RlxError, MemoryError) as error:
                print(f"{net.name}: failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
                wrong.append(net.name)
                continue
            if not told(net, rows, given.device):
                wrong.append(net.name)
    print("all choices are as they should be" if not wrong else f"not as they should be: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
