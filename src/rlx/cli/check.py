"""`rlx check`: compares a compiled model with the reference backend and finds the first node that differs.

It looks closer in three steps:
1. the model's own outputs, as it is compiled for use;
2. every node as an output: each is checked against the reference *on the compiled program's own operands*, so that an
   error of an earlier node does not count;
3. if only the fused program is wrong: programs that end at one node, bisected to the first node that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx import mapped
from rlx.cli.console import emit_json, out, progress, table
from rlx.cli.inputs import calibration_of, gather, parse_dims
from rlx.ir import dim as dims
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.interpreter import bind_op, evaluate
from rlx.ir.literal import Array
from rlx.ir.op import LEAVES, Measured, State
from rlx.passes.cut import ending_at
from rlx.runtime.session import Precision, Session
from rlx.runtime.signature import Signature

Values = dict[Value, Array]
Step = Callable[[], None]
TOLERANCES: dict[Precision, tuple[float, float]] = {
    "f32": (1e-3, 1e-4),
    "f32_fast": (1e-3, 1e-4),
    "f16": (4e-3, 4e-3),
    "bf16": (3e-2, 3e-2),
    "int8": (1e-1, 1e-1),
    "f8": (2e-1, 2e-1),
}
"""What is admitted if nothing else is said, as `--rtol` and `--atol`: of narrow operands 8 times their rounding; of
bytes, whose steps are of the greatest number in a row, a tenth of the greatest result, and of floats of 8 bits, which
are rounded by a sixteenth of themselves, a fifth."""


@dataclass(frozen=True)
class Difference:
    """How far an array is from what it should be. `excess` is the worst error over what is admitted; above 1 fails."""

    name: str
    source: str
    op: str
    excess: float
    max_error: float

    @property
    def fails(self) -> bool:
        return not self.excess <= 1


@dataclass(frozen=True)
class Error:
    """Of an output against the graph in f64: the largest, absolute and as a part of the largest number, and the cosine
    of the angle between both."""

    max_error: float
    relative: float
    cosine: float


def check_model(
    path: Path,
    input_options: Sequence[str],
    device: str,
    sizes: Sequence[str],
    precision: Precision,
    calibration_files: Sequence[Path],
    rtol: float | None,
    atol: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """Prints the verdict; raises SystemExit(1) if the compiled model differs."""
    chosen, examples = parse_dims(sizes), calibration_of(calibration_files, precision)
    with progress("reading"):
        graph = rlx.load(path, device=device).graph
    inputs = gather(graph, input_options, chosen, seed)
    usual = TOLERANCES[precision]
    tolerances = usual[0] if rtol is None else rtol, usual[1] if atol is None else atol
    session = Session(device, compile="before", precision=precision, calibration=examples)
    checker = Checker(graph, session, inputs, *tolerances)
    verdict = checker.verdict()
    if as_json:
        emit_json(verdict)
    else:
        _print(verdict)
    if not verdict["equal"]:
        raise SystemExit(1)


class Checker:
    """Compares a graph on a device with the reference, for given inputs."""

    def __init__(
        self, graph: Graph, session: Session, inputs: Mapping[str, Array], rtol: float = 1e-3, atol: float = 1e-4
    ) -> None:
        self.graph = graph
        self.session = session
        self.inputs = dict(inputs)
        self.rtol = rtol
        self.atol = atol
        self.binding = Signature(graph).binding(list(self.inputs.values()), graph.data)
        self.truth: Values = {}
        self.results: dict[str, Array] = {}
        self.device = session.device

    def verdict(self) -> dict[str, Any]:
        """What was compared and how far apart it is; `first` is the first node that differs, or None."""
        with progress("reference", len(self.graph.nodes)) as step:
            self._learn(step)
        with progress("compiling and running"):
            outputs = self._outputs()
        exact = {} if self.session.options.precision == "f32" else self.exact()
        verdict: dict[str, Any] = {
            "device": self.device,
            "dims": self.binding,
            "errors": {name: vars(error_of(self.results[name], exact[name])) for name in exact},
            "outputs": {name: vars(d) | {"fails": d.fails} for name, d in outputs.items()},
            "equal": not any(d.fails for d in outputs.values()),
            "first": None,
            "how": "the outputs of the compiled model",
        }
        with progress("node by node", len(self.graph.nodes)) as step:
            nodes = self.every_node(step)
        worst = sorted(nodes, key=lambda d: -d.excess)[:5]
        verdict |= {"nodes": len(nodes), "worst_nodes": [vars(d) for d in worst]}
        wrong = next((d for d in nodes if d.fails), None)
        if wrong is not None:
            verdict |= {"equal": False, "first": vars(wrong), "how": "every node as an output, on its own operands"}
        elif not verdict["equal"]:
            with progress("by halves") as step:
                difference = self.by_halves(step)
            verdict |= {
                "first": vars(difference) if difference else None,
                "how": "programs that end at one node, by halves",
            }
        return verdict

    def _learn(self, step: Step) -> None:
        def watch(node: Node, results: tuple[Array, ...]) -> None:
            self.truth.update(zip(node.outputs, results))
            if isinstance(node.op, Measured):
                self.binding = {**self.binding, node.op.symbol: int(results[0])}
            step()

        weights = {name: mapped.private(array) for name, array in self.graph.data.items()}
        evaluate(self.graph, {**self.inputs, **self._states()}, weights, self.binding, watch)

    def _states(self) -> dict[str, Array]:
        """What states are in a first run."""
        values = [value for value in self.graph.inputs if isinstance(value.op, State)]
        shapes = [tuple(dims.evaluate(d, self.binding) for d in value.shape) for value in values]
        return {value.name: np.zeros(shape, value.dtype.numpy) for value, shape in zip(values, shapes)}

    def _outputs(self) -> dict[str, Difference]:
        compiled = self.session.compile(self.graph)
        self.device = compiled.device
        self.results = dict(zip(compiled.output_names, compiled.run(self.inputs)))
        return {name: self._differ(v, self.results[name], self.truth[v]) for name, v in self.graph.results.items()}

    def exact(self) -> dict[str, Array]:
        """The outputs of the graph in f64, those of numbers."""
        weights = {name: mapped.private(array) for name, array in self.graph.data.items()}
        made = evaluate(self.graph, {**self.inputs, **self._states()}, weights, self.binding, doubles=True)
        named = dict(zip(self.graph.outputs, made))
        return {name: named[name] for name, value in self.graph.results.items() if value.dtype.is_float}

    def every_node(self, step: Step = lambda: None) -> list[Difference]:
        """Each node's results against the reference on the compiled program's own operands, in order."""
        values = [v for node in _work(self.graph) for v in node.outputs]
        results = dict(zip(values, self._run_to(values)))
        differences: list[Difference] = []
        for node in _work(self.graph):
            step()
            operands = [results.get(v, self.truth[v]) for v in node.inputs]
            if node.regions:
                expected: tuple[Array, ...] = tuple(self.truth[v] for v in node.outputs)
            else:
                result = bind_op(node.op, self.binding).reference(*operands)
                expected = result if isinstance(result, tuple) else (result,)
            differences += [
                self._differ(v, results[v], np.asarray(w, v.dtype.numpy)) for v, w in zip(node.outputs, expected)
            ]
        return differences

    def by_halves(self, step: Step = lambda: None) -> Difference | None:
        """The first node at which a program that ends there comes out wrong, if being wrong lasts to the end."""
        values = [v for node in _work(self.graph) for v in node.outputs]
        low, high = 0, len(values) - 1
        first = None
        while low <= high:
            middle = (low + high) // 2
            value = values[middle]
            difference = self._differ(value, self._run_to([value])[0], self.truth[value])
            step()
            if difference.fails:
                first, high = difference, middle - 1
            else:
                low = middle + 1
        return first

    def _run_to(self, values: Sequence[Value]) -> list[Array]:
        """What a program gives whose outputs are these values."""
        return self.session.compile(ending_at(self.graph, values)).run(self.inputs)

    def _differ(self, value: Value, actual: Array, expected: Array) -> Difference:
        excess, error = excess_of(actual, expected, self.rtol, self.atol)
        node = value.node
        return Difference(value.name, node.source or node.name, node.op.name, excess, error)


def _work(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if not isinstance(node.op, LEAVES)]


def excess_of(actual: Array, expected: Array, rtol: float, atol: float) -> tuple[float, float]:
    """The worst error as a multiple of what is admitted, and the worst absolute error.

    Floats may be rtol · |wanted| + atol · max |wanted| apart; NaN equals NaN; everything else must be equal.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf"), float("inf")
    if actual.size == 0 or np.array_equal(actual, expected):
        return 0.0, 0.0
    if expected.dtype.kind in "biu":
        return float("inf"), float(np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max())
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = actual.astype(wide), expected.astype(wide)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        error = np.where(same, 0.0, np.abs(a - b))
        finite = np.abs(b[np.isfinite(b)])
        admitted = rtol * np.abs(b) + atol * (finite.max() if finite.size else 0.0)
        # A subnormal may have become zero.
        admitted = np.maximum(admitted, np.finfo(np.float32).tiny if expected.dtype.itemsize >= 4 else 1e-7)
        excess = np.where(same, 0.0, error / admitted)
    excess = np.where(np.isnan(excess), np.inf, excess)
    error = np.where(np.isnan(error), np.inf, error)
    return float(excess.max()), float(error.max())


def error_of(actual: Array, exact: Array) -> Error:
    """How far an array is from another of its shape; where either has no number, both do not count."""
    a, b = (np.asarray(each, np.float64).reshape(-1) for each in (actual, exact))
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    worst, largest = (float(np.abs(each).max(initial=0.0)) for each in (a - b, b))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / lengths if lengths else float(not a.any() and not b.any())
    return Error(worst, worst / largest if largest else worst, cosine)


def _print(verdict: dict[str, Any]) -> None:
    console = out()
    rows = [
        (name, f"{d['max_error']:.3g}", f"{d['excess']:.3g}", "differs" if d["fails"] else "equal")
        for name, d in verdict["outputs"].items()
    ]
    at = ", ".join(f"{name} = {size}" for name, size in verdict["dims"].items())
    title = f"on {verdict['device']}{' at ' + at if at else ''}"
    console.print(table(title, ("output", "error", "of tolerance", ""), rows))
    console.print()
    if verdict["errors"]:
        exact = [
            (name, f"{e['max_error']:.3g}", f"{e['relative']:.3g}", f"{e['cosine']:.6f}")
            for name, e in verdict["errors"].items()
        ]
        heads = ("output", "largest error", "of the largest number", "cosine")
        console.print(table("against the graph in f64", heads, exact, right=(1, 2, 3)))
        console.print()
    worst = [(d["source"], d["op"], f"{d['max_error']:.3g}", f"{d['excess']:.3g}") for d in verdict["worst_nodes"]]
    console.print(table(f"largest errors of {verdict['nodes']} values", ("node", "op", "error", "of tolerance"), worst))
    console.print()
    first = verdict["first"]
    if verdict["equal"]:
        console.print("equal: every node is within tolerance")
    elif first is None:
        console.print("differs, but every program that ends at one node is within tolerance")
    else:
        console.print(f"differs first at node {first['source']!r} ({first['op']}), found by {verdict['how']}")
