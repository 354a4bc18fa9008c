"""Every op has every slot, or is listed here with the reason why not."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil

import pytest

import rlx.ops
from ops.cases import cases_of
from rlx.ir.op import REGISTRY, Composite, Elementwise, Op, Primitive
from rlx.ir.type import TensorType
from rlx.ops import shorthand

OPS = list(REGISTRY.values())
NO_REFERENCE = {"input": "the run brings it", "param": "set_param brings it"}
NO_CASE = {
    "input": "the run brings it",
    "param": "set_param brings it",
    "if": "tests/ops/test_control.py",
    "while": "tests/ops/test_control.py",
    "scan": "tests/ops/test_control.py",
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
    cost = case.op.cost(tuple(v.type for v in node.inputs), node.types)
    assert isinstance(cost.bytes, int) and cost.bytes >= 0
    assert isinstance(cost.flops, int) and cost.flops >= 0


def test_no_module_hides_an_op() -> None:
    modules = {module.name for module in pkgutil.iter_modules(rlx.ops.__path__)}
    assert not modules & (set(REGISTRY) | set(shorthand.__all__))
    assert not set(REGISTRY) & set(shorthand.__all__)


def test_every_op_builds_by_name() -> None:
    for name in REGISTRY:
        assert callable(getattr(rlx.ops, name))
    for name in shorthand.__all__:
        assert inspect.isfunction(getattr(rlx.ops, name))


def test_dtype_errors_name_op_and_operand() -> None:
    graph = rlx.Graph()
    x = graph.input("x", (2,), "i32")
    with pytest.raises(rlx.DTypeError, match=r"\[exp\] expected operand 0 to be of kind float, got i32.*inputs 'x'"):
        rlx.ops.exp(x)
    assert x.type == TensorType.of((2,), "i32")
