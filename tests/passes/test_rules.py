"""Every named rewrite happens somewhere, and on or off the graph gives the same."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx.backends
import rlx.passes
from passes.rule_graphs import GRAPHS, SIZES
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from rlx.ir.verify import verify
from rlx.ops.packed import PackedMatmul
from rlx.ops.transcendental import Exp
from rlx.passes import raise_integers
from rlx.passes.driver import Pass, Report, Rules
from rlx.passes.hoist import Hoist
from rlx.passes.narrow_activations import NarrowActivations
from rlx.passes.narrow_rows import NarrowRows
from rlx.passes.pipeline import joined, layout, optimise, standard
from rlx.passes.precision import Policy
from rlx.passes.quantise import Quantise, Range, products
from rlx.passes.transpose_weights import TransposeWeights
from support import assert_close

CLOSE = Tolerance(64, scale=1)
"""What another order of the same sums may change."""
STEPS = Tolerance(2**19, scale=1)
"""What bytes in place of floats may change: some hundredths."""
HALVES = Tolerance(2**14, scale=1)
"""What f16 in place of f32 may change: some thousandths."""


def modules(package: Any) -> list[str]:
    return [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]


def rules_of_all() -> set[str]:
    """Names of the rules of every `Rules` in the package."""
    names: set[str] = set()
    for name in [*modules(rlx.passes), "rlx.backends.mlx.packed"]:
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, Rules):
                names |= {f"{value.name}/{rule.name}" for rule in value.rules}
    return names


def other_rewrites() -> set[str]:
    """Names that the code of other passes counts, as it says them: `context.spend(self.name, "merge", …)`."""
    names: set[str] = set()
    for path in Path(rlx.passes.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for cls in ast.walk(tree):
            if isinstance(cls, ast.ClassDef):
                named = [
                    n.value.value for n in cls.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)
                    and isinstance(n.targets[0], ast.Name) and n.targets[0].id == "name"
                ]  # fmt: skip
                for node in ast.walk(cls):
                    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "spend":
                        owner, rewrite = node.args[:2]
                        if isinstance(rewrite, ast.Constant):
                            of = owner.value if isinstance(owner, ast.Constant) else named[0]
                            names.add(f"{of}/{rewrite.value}")
    return names


def test_every_rewrite_has_a_graph() -> None:
    """A new rule comes with a graph on which it happens (`rule_graphs.py`)."""
    rewrites = rules_of_all() | other_rewrites()
    assert len(rewrites) > 70
    assert set(GRAPHS) == rewrites


def test_rules_lie_where_they_are_looked_for() -> None:
    folder = Path(rlx.__file__).parent
    makers = {p.relative_to(folder).parts[:2] for p in folder.rglob("*.py") if "= Rules(" in p.read_text("utf-8")}
    assert {part[0] for part in makers} <= {"passes", "backends"}
    assert {part for part in makers if part[0] == "backends"} == {("backends", "mlx")}


def made(name: str) -> Graph:
    graph = Graph(name.replace("/", "-"))
    results = GRAPHS[name](graph)
    graph.output(*(results if isinstance(results, tuple) else (results,)))
    return graph


def optimised(graph: Graph, name: str, off: str = "") -> tuple[Graph, Report]:
    """The graph made ready in the way in which the rewrite may happen."""
    from rlx.backends.mlx import packed

    of = name.partition("/")[0]
    mlx = of.startswith("mlx-")
    policies: dict[str, Policy] = {
        "precision": lambda node: dtypes.f64 if isinstance(node.op, Exp) else None,
        "narrow-norms": lambda node: None,
    }
    passes: list[Pass] = standard(
        (lambda node: mlx and isinstance(node.op, PackedMatmul)), policies.get(of), narrows=dtypes.f16
    )
    more: dict[str, list[Pass]] = {
        "layout": layout(), "joins": joined(), "transpose-weights": [TransposeWeights()], "hoist": [Hoist()],
        "narrow-activations": [NarrowActivations()], "narrow-rows": [NarrowRows()],
    }  # fmt: skip
    passes = [packed.weights, *passes, packed.normal] if mlx else [*passes, *more.get(of, [])]
    if of == "raise-integers":  # before constants fold
        passes = [raise_integers.rules, *passes]
    if of == "quantise":  # before all others, as it changes what is meant
        passes = [Quantise({node.name: Range(-4.0, 4.0) for node in products(graph)}), *passes]
    return optimise(graph, passes, disable={off} if off else ())


def numbers(value: Value, seed: int) -> Array:
    """An array for an input, of both signs where it has one."""
    random = np.random.default_rng(seed)
    shape = tuple(dims.evaluate(d, SIZES) for d in value.shape)
    kind = value.dtype.kind
    if kind == "bool":
        flags: Array = random.integers(0, 2, shape).astype(np.bool_)
        flags.reshape(-1)[:1] = True
        return flags
    low, high = {"uint": (0, 255), "int": (-9, 9)}.get(kind, (0, 0))
    if kind in ("uint", "int"):
        return random.integers(low, high, shape).astype(value.dtype.numpy)
    return random.standard_normal(shape).astype(value.dtype.numpy)


def run(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    return evaluate(graph, dict(inputs), dict(graph.data), {str(s): SIZES[str(s)] for s in graph.symbols})


@pytest.mark.parametrize("name", GRAPHS)
def test_a_rewrite_happens_and_changes_no_result(name: str) -> None:
    graph = made(name)
    inputs = {v.name: numbers(v, seed) for seed, v in enumerate(graph.inputs)}
    expected = run(graph, inputs)
    on, report = optimised(graph, name)
    verify(on)
    assert report.rewrites.get(name, 0) >= 1, f"it does not happen; what does: {report.rewrites}"
    off, without = optimised(graph, name, off=name)
    verify(off)
    assert name not in without.rewrites
    close = {"quantise": STEPS, "narrow-norms": HALVES, "narrow-rows": STEPS}.get(name.partition("/")[0], CLOSE)
    for each_graph in (on, off):
        for a, b in zip(run(each_graph, inputs), expected, strict=True):
            assert_close(a, b, close)
