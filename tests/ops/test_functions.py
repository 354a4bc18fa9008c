"""Ops as functions: by position, by name, by NumPy's names, and what wrong calls are told."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import rlx
from ops.cases import Case, cases_of
from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.op import ANY_NUMBER, LEAVES, REGISTRY, Op
from rlx.ops.functions import function, function_name
from rlx.ops.numpy_names import SAME

NAMES = sorted(REGISTRY)
CALLABLE = [name for name in NAMES if not REGISTRY[name].regions]


def last_op(graph: Graph) -> tuple[Op, tuple[Value, ...]]:
    return graph.nodes[-1].op, graph.nodes[-1].inputs


def given(case: Case) -> tuple[Graph, list[Value]]:
    graph = Graph()
    return graph, [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(case.arrays)]


@pytest.mark.parametrize("name", CALLABLE)
def test_an_op_is_called_by_position_and_by_name(name: str) -> None:
    cls, build = REGISTRY[name], function(name)
    if cls in LEAVES or issubclass(cls, LEAVES):
        return
    for case in list(cases_of(cls))[:40]:
        attributes = case.op.attributes()
        graph, values = given(case)
        if cls.arity[1] >= ANY_NUMBER:
            build(*values, **attributes)
            assert last_op(graph) == (case.op, tuple(values))
            if name != "einsum":
                build(values, *attributes.values())
        else:
            leading: list[Any] = [*values, *[None] * (len(cls.operand_names) - len(values))] or [graph]
            build(*leading, *attributes.values())
            assert last_op(graph) == (case.op, tuple(values))
            by_name = dict(zip(cls.operand_names or ("graph",), values or [graph]))
            build(**by_name, **attributes)
        assert last_op(graph) == (case.op, tuple(values))


@pytest.mark.parametrize("name", NAMES)
def test_an_op_tells_its_name_doc_and_signature(name: str) -> None:
    cls, build = REGISTRY[name], getattr(ops, function_name(name))
    assert build.__name__ == function_name(name)
    assert build.__doc__ and build.__doc__ == inspect.getdoc(cls)
    signature = inspect.signature(build)
    parameters = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL]
    expected = [*(cls.operand_names or ("graph",) * (cls.arity[1] == 0)), *(field for field, _, _ in cls.fields)]
    assert parameters == expected + ["regions"] * (cls.regions > 0)
    for field, default in cls.defaults().items():
        assert signature.parameters[field].default in (default, 1, 0)


def test_a_function_is_one_object() -> None:
    assert rlx.gelu is rlx.gelu is ops.gelu
    assert rlx.where is ops.where and rlx.permute.__name__ == "permute"
    assert rlx.subtract.__doc__.startswith("The same as `sub`")


@pytest.mark.parametrize("name", sorted(SAME))
def test_second_names_are_no_ops_of_their_own(name: str) -> None:
    assert SAME[name] in REGISTRY and name not in REGISTRY
    assert name in dir(rlx)


X = (2, 3, 8, 8)


def built(call: Callable[[Graph, Value, Value], Any]) -> Any:
    graph = Graph()
    return call(graph, graph.input("x", X), graph.input("w", (4, 3, 3, 3)))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda g, x, w: rlx.softmax(x, 1), "softmax(axis=1)"),
        (lambda g, x, w: rlx.softmax(x, dim=1), "softmax(axis=1)"),
        (lambda g, x, w: rlx.softmax(x, axes=1), "softmax(axis=1)"),
        (lambda g, x, w: rlx.reduce_sum(x, 1), "reduce_sum(axes=(1,))"),
        (lambda g, x, w: rlx.reduce_sum(x, axis=-1, keepdim=True), "reduce_sum(axes=(-1,), keepdims=True)"),
        (lambda g, x, w: rlx.reduce_sum(x, dim=(0, 1)), "reduce_sum(axes=(0, 1))"),
        (lambda g, x, w: rlx.layer_norm(x, dim=1), "layer_norm(axes=(1,))"),
        (lambda g, x, w: rlx.conv(x, w), "conv(strides=(1, 1), dilations=(1, 1), low=(0, 0), high=(0, 0))"),
        (lambda g, x, w: rlx.conv(x, w, 2), "conv(strides=(2, 2), dilations=(1, 1), low=(0, 0), high=(0, 0))"),
        (
            lambda g, x, w: rlx.conv(x, w, low=1, high=(1, 2)),
            "conv(strides=(1, 1), dilations=(1, 1), low=(1, 1), high=(1, 2))",
        ),
        (
            lambda g, x, w: rlx.average_pool(x, 2),
            "average_pool(window=(2, 2), strides=(1, 1), dilations=(1, 1), low=(0, 0), high=(0, 0))",
        ),
        (lambda g, x, w: rlx.pad(x, high=(0, 0, 1, 1)), "pad(low=(0, 0, 0, 0), high=(0, 0, 1, 1))"),
        (lambda g, x, w: rlx.slice(x, (0, 0, 0, 0), X), "slice(starts=(0, 0, 0, 0), stops=X, steps=(1, 1, 1, 1))"),
        (lambda g, x, w: rlx.reshape(x, (2, -1)), "reshape(shape=(2, 192))"),
        (lambda g, x, w: rlx.reshape(x, -1), "reshape(shape=(384,))"),
        (lambda g, x, w: rlx.transpose(x), "transpose(permutation=(3, 2, 1, 0))"),
        (lambda g, x, w: rlx.transpose(x, axes=(0, 2, 3, -3)), "transpose(permutation=(0, 2, 3, 1))"),
        (lambda g, x, w: rlx.permute(x, dims=(0, 2, 3, 1)), "transpose(permutation=(0, 2, 3, 1))"),
        (lambda g, x, w: rlx.einsum("nchw->nc", x), "einsum(equation='nchw->nc')"),
        (lambda g, x, w: rlx.einsum(x, equation="nchw->nc"), "einsum(equation='nchw->nc')"),
        (lambda g, x, w: rlx.concat([x, x], 1), "concat(axis=1)"),
        (lambda g, x, w: rlx.concat(x, x, dim=1), "concat(axis=1)"),
        (lambda g, x, w: rlx.iota(g, (3,), "i32"), "iota(shape=(3,), dtype='i32')"),
        (lambda g, x, w: rlx.iota(graph=g, shape=(3,), dtype="i32"), "iota(shape=(3,), dtype='i32')"),
        (lambda g, x, w: rlx.top_k(x, k=3, dim=-1)[0], "top_k(axis=-1, k=3)"),
    ],
)
def test_what_people_write(call: Callable[[Graph, Value, Value], Value], expected: str) -> None:
    assert built(call).op == eval(expected, {"X": X, **REGISTRY})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda g, x, w: rlx.softmax(x, axs=1),
            "[softmax] expected the arguments x, axis, got 'axs'; did you mean 'axis'?",
        ),
        (lambda g, x, w: rlx.softmax(x, (0, 1)), "[softmax] expected one int as the axis, got (0, 1)"),
        (lambda g, x, w: rlx.softmax(x, axis=(0, 1)), "[softmax] expected one int as the axis, got (0, 1)"),
        (lambda g, x, w: rlx.softmax(x, 1, axis=1), "[softmax] expected axis once, got it by position and by name"),
        (lambda g, x, w: rlx.softmax(x, axis=1, dim=1), "[softmax] expected axis once, got it as axis and as dim"),
        (lambda g, x, w: rlx.gelu(x, True, 3), "[gelu] expected at most 2 arguments (x, approximate), got 3"),
        (lambda g, x, w: rlx.gelu(x, x=x), "[gelu] expected x once, got it by position and by name"),
        (lambda g, x, w: rlx.gelu(3), "[gelu] expected a value of a graph among the operands (x), got int"),
        (lambda g, x, w: rlx.gelu(), "[gelu] expected a value of a graph among the operands (x), got none"),
        (lambda g, x, w: rlx.exp(x, out=x), "[exp] expected the arguments x, got 'out'"),
        (lambda g, x, w: rlx.matmul(x), "[matmul] expected 2 operands (x, y), got 1, inputs 'x'"),
        (lambda g, x, w: rlx.conv(x), "[conv] expected 2 operands (x, w), got 1"),
        (lambda g, x, w: rlx.conv(x, w, stride=2), "got 'stride'; did you mean 'strides'?"),
        (lambda g, x, w: rlx.conv(None, w), "[conv] expected a value as x, got None before other operands"),
        (lambda g, x, w: rlx.top_k(x, 1), "[top_k] expected k, got axis"),
        (lambda g, x, w: rlx.top_k(x), "[top_k] expected axis and k, got no attributes"),
        (
            lambda g, x, w: rlx.iota((2,), "i32"),
            "[iota] expected the graph that it belongs to as the first argument, got",
        ),
        (
            lambda g, x, w: rlx.zeros((2, 3), "f32"),
            "[zeros] expected the graph that it belongs to as the first argument, got (2, 3)",
        ),
        (lambda g, x, w: rlx.zeros((2, 3)), "[zeros] expected the arguments graph, shape, dtype: missing"),
        (
            lambda g, x, w: rlx.layer_norm(x, -1),
            "[layer_norm] expected a value or None as scale, got -1: attributes such",
        ),
        (lambda g, x, w: rlx.layer_norm(x, (2, 3)), "[layer_norm] expected a value or None as scale, got (2, 3)"),
        (lambda g, x, w: rlx.stack([]), "[stack] expected at least one value, got none"),
        (lambda g, x, w: rlx.sum([1, 2]), "[sum] expected a value of a graph as x, got list"),
        (lambda g, x, w: rlx.unsqueeze(x=3, dim=0), "[unsqueeze] expected a value of a graph as x, got int"),
        (lambda g, x, w: rlx.sum(x, axs=1), "[sum] expected the arguments x, axis, keepdims, got 'axs'; did you mean"),
        (lambda g, x, w: rlx.sum(x, "rows"), "[sum] expected an axis, several or None, got 'rows'"),
        (lambda g, x, w: x.sum(4), "[sum] expected an axis in [-4, 4), got 4"),
        (lambda g, x, w: x.max((0, -4)), "[max] expected axes without repeats, got (0, 0)"),
        (lambda g, x, w: rlx.concatenate(x), "[concatenate] expected a list of values"),
        (lambda g, x, w: rlx.max_pool(x, (2,)), "[max_pool] expected a window for the axes behind batch and channels"),
        (lambda g, x, w: rlx.arange(g, 3, step=0), "[arange] expected a whole step that is not 0, got 0"),
        (lambda g, x, w: bool(x), "Python's if"),
        (lambda g, x, w: len(x), "[value] expected x.shape[0]"),
        (lambda g, x, w: list(x), "[value] expected an index such as x[0]"),
    ],
)
def test_what_wrong_calls_are_told(call: Callable[[Graph, Value, Value], Any], message: str) -> None:
    with pytest.raises(rlx.RlxError, match=re.escape(message)):
        built(call)


def test_integers_are_not_divided_into_floats() -> None:
    x = Graph().input("x", (2,), "i32")
    with pytest.raises(rlx.DTypeError, match="floor_divide"):
        rlx.divide(x, 2)
