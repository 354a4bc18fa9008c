"""Every op has every slot, or is listed here with the reason why not."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pkgutil
from pathlib import Path

import pytest

import rlx.ops
from ops.cases import cases_of
from rlx.ir.cost import cost_of
from rlx.ir.op import REGISTRY, Composite, Cost, Elementwise, Op, Primitive
from rlx.ir.type import TensorType

OPS = list(REGISTRY.values())
BUILT = [name for module in rlx.ops.BUILDERS for name in module.__all__]
NO_REFERENCE = {"input": "the run brings it", "state": "it is an input", "param": "set_param brings it"}
NO_CASE = {
    "input": "the run brings it",
    "state": "tests/runtime/test_states.py",
    "param": "set_param brings it",
    "if": "tests/ops/test_control.py",
    "while": "tests/ops/test_control.py",
    "scan": "tests/ops/test_control.py",
    "measured": "tests/runtime/test_stages.py",
}


@pytest.mark.parametrize("cls", OPS, ids=lambda c: c.name)
def test_op_has_its_slots(cls: type[Op]) -> None:
    assert issubclass(cls, (Primitive, Composite))
    assert dataclasses.is_dataclass(cls)
    assert callable(cls.infer)
    assert hasattr(cls, "reference") != (cls.name in NO_REFERENCE)
    assert hasattr(cls, "decompose") == issubclass(cls, Composite)
    assert hasattr(cls, "scalar") == issubclass(cls, Elementwise)
    assert cls.__doc__ and not cls.__doc__.startswith(cls.__name__ + "("), "a docstring of its own"


@pytest.mark.parametrize("cls", OPS, ids=lambda c: c.name)
def test_op_has_cases(cls: type[Op]) -> None:
    assert bool(cases_of(cls)) != (cls.name in NO_CASE)


@pytest.mark.parametrize("cls", [c for c in OPS if c.name not in NO_CASE], ids=lambda c: c.name)
def test_cost_is_worked_out(cls: type[Op]) -> None:
    case = cases_of(cls)[0]
    graph = case.graph()
    node = graph.nodes[-1]
    cost = cost_of(node)
    assert isinstance(cost.bytes, int) and cost.bytes >= 0
    assert isinstance(cost.flops, int) and cost.flops >= 0


def cost_at(name: str, *shapes: tuple[object, ...], **attributes: object) -> Cost:
    graph = rlx.Graph()
    values = [graph.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    return cost_of(getattr(rlx.ops, name)(*values, **attributes).node)


def test_costs_count_work() -> None:
    n = rlx.Graph().input("x", ("n",)).shape[0]
    assert cost_at("add", (3, 4), (4,)) == Cost(12, 0, 4 * (12 + 4 + 12))
    assert cost_at("exp", ("n", 4)) == Cost(0, 4 * n, 32 * n)
    assert cost_at("dot_general", (5, 7), (7, 3), lhs_contract=(1,), rhs_contract=(0,)).flops == 2 * 5 * 7 * 3
    assert cost_at("reshape", (3, 4), shape=(12,)) == Cost()
    assert cost_at("transpose", (3, 4), permutation=(1, 0)) == Cost(bytes=96)
    softmax = cost_at("softmax", (2, 10), axis=1)
    assert (softmax.transcendentals, softmax.bytes) == (20, 160)
    q, k = (1, 2, 5, 8), (1, 2, 7, 8)
    attention = cost_at("attention", q, k, k)
    assert attention.flops > 2 * 2 * (2 * 5 * 7 * 8) and attention.transcendentals == 2 * 5 * 7


def test_no_module_hides_an_op() -> None:
    modules = {module.name for module in pkgutil.iter_modules(rlx.ops.__path__)}
    assert not modules & (set(REGISTRY) | set(BUILT))
    assert not set(REGISTRY) & set(BUILT)
    assert len(BUILT) == len(set(BUILT))


def test_every_op_builds_by_name() -> None:
    for name in REGISTRY:
        assert callable(getattr(rlx.ops, name))
    for name in BUILT:
        assert inspect.isfunction(getattr(rlx.ops, name))


def test_typed_builders_are_ops() -> None:
    """`rlx.ops.build` makes a builder of any name; a misspelt one would be found only when it runs."""
    for file in Path(rlx.ops.__file__).parent.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "rlx.ops.build":
                assert {alias.name for alias in node.names} <= set(REGISTRY), file
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "build":
                used = "from rlx.ops import build" in file.read_text()
                assert not used or node.attr in REGISTRY or node.attr == "op", f"{file}: build.{node.attr}"


def test_dtype_errors_name_op_and_operand() -> None:
    graph = rlx.Graph()
    x = graph.input("x", (2,), "i32")
    with pytest.raises(rlx.DTypeError, match=r"\[exp\] expected operand 0 to be of kind float, got i32.*inputs 'x'"):
        rlx.ops.exp(x)
    assert x.type == TensorType.of((2,), "i32")
