"""Building graphs: operators, weak scalars, names, dims, errors, copies."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Constant, Op, Types, lookup
from rlx.ir.type import TensorType
from rlx.ir.verify import verify


def test_operators_build_nodes() -> None:
    g = Graph("mlp")
    x, w, b = g.input("x", ("batch", 4)), g.param("w", (4, 3)), g.param("b", (3,))
    y = x @ w + b
    assert str(y.type) == "f32[batch, 3]"
    assert [n.op.name for n in g.nodes] == ["input", "param", "param", "matmul", "add"]
    assert g.symbols == ["batch"]
    assert g.uses(w) == [y.node.inputs[0].node]


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (lambda x: x + 1, "f16"),
        (lambda x: 1.5 - x, "f16"),
        (lambda x: x > 0, "bool"),
        (lambda x: ops.select(x > 0, x, 0), "f16"),
    ],
)
def test_python_numbers_are_weak(build: object, dtype: str) -> None:
    x = Graph().input("x", (2,), "f16")
    assert build(x).dtype.name == dtype  # type: ignore[operator]


def test_arrays_become_constants_of_their_own_dtype() -> None:
    x = Graph().input("x", (2,), "f64")
    value = np.array([1.0, 2.0]) + x
    assert isinstance(value, Value) and isinstance(value.node.inputs[0].op, Constant)


def test_operands_by_name_and_none() -> None:
    g = Graph()
    x, s = g.input("x", (2, 3)), g.input("s", (3,))
    assert ops.layer_norm(x, scale=s).node.inputs == (x, s)
    assert ops.layer_norm(x, None, None).node.inputs == (x,)
    with pytest.raises(rlx.GraphError, match=r"\[layer_norm\].*got 'weight'"):
        ops.layer_norm(x, weight=s)


def test_attributes_are_brought_into_their_kind() -> None:
    slice_op = lookup("slice")(starts=[np.int64(0)], stops=["n"], steps=[1])
    assert slice_op == lookup("slice")(starts=(0,), stops=(rlx.Graph().input("x", ("n",)).shape[0],), steps=(1,))
    assert type(slice_op.starts[0]) is int  # type: ignore[attr-defined]
    with pytest.raises(rlx.GraphError, match=r"\[softmax\] expected 'axis' to be int, got 'last'"):
        lookup("softmax")(axis="last")
    with pytest.raises(rlx.GraphError, match=r"\[cast\] expected 'to' to be DType"):
        lookup("cast")(to="f33")


def test_errors_name_node_and_operands() -> None:
    g = Graph()
    x, w = g.input("x", ("batch", 384)), g.param("ffn.w", (512, 8))
    with pytest.raises(rlx.ShapeError, match=r"\[matmul\].*384 against 512.*at node 'up', inputs 'x', 'ffn.w'"):
        g.add(lookup("matmul")(), x, w, source="up")
    assert len(g.nodes) == 2


def test_values_of_another_graph_are_refused() -> None:
    a, b = Graph("a").input("x", (2,)), Graph("b").input("x", (2,))
    with pytest.raises(rlx.GraphError, match="expected values of the graph 'a'"):
        a + b
    with pytest.raises(rlx.GraphError, match="of another"):
        a.graph.output(b)


def test_dims_that_may_differ_are_checked_at_bind_time() -> None:
    g = Graph()
    x, y = g.input("x", ("a", 2)), g.input("y", ("b", 2))
    g.output(x + y)
    g.bounds["a"] = (1, 8)
    g.bind({"a": 3, "b": 3})
    with pytest.raises(rlx.ShapeError, match=r"a = 3 against b = 4"):
        g.bind({"a": 3, "b": 4})
    with pytest.raises(rlx.ShapeError, match=r"expected the dim 'a' in \[1, 8\], got 9"):
        g.bind({"a": 9, "b": 9})


def test_truth_and_iteration_are_errors() -> None:
    x = Graph().input("x", (2,))
    with pytest.raises(rlx.GraphError, match=r"expected select"):
        bool(x > 0)
    with pytest.raises(rlx.GraphError, match="expected an index"):
        list(x)


def test_prune_keeps_inputs_and_params() -> None:
    g = Graph()
    x, w = g.input("x", (2,)), g.param("w", (2,))
    g.output(x * 2, name="y")
    ops.exp(x * 3)
    assert g.prune() == 3
    verify(g)
    assert w.node in g.nodes and len(g.nodes) == 4


@pytest.mark.parametrize("dim", [-1, 1 << 63])
def test_dims_outside_of_the_range_are_refused(dim: int) -> None:
    with pytest.raises(rlx.ShapeError, match="expected dims in"):
        Graph().input("x", (dim,))


def test_a_node_as_one_before_notes_its_own_dims_and_gets_its_own_error() -> None:
    for _ in range(2):
        g = Graph()
        x, y = g.input("x", ("n", 3)), g.input("y", ("m", 3))
        assert str((x + y).type) == "f32[broadcast(m, n), 3]"
        assert [str(equality) for equality in g.equalities] == ["shapes do not broadcast along axis 0: n against m"]
        assumed = Graph(assumes_equal=True)
        total = assumed.input("x", ("n", 3)) + assumed.input("y", ("m", 3))
        assert total.type.shape in (x.shape, y.shape)
        wrong = g.input("wrong", (2, 2))
        with pytest.raises(rlx.ShapeError, match=r"\[reshape\].*inputs 'wrong'"):
            wrong.reshape(3)


def test_layers_that_repeat_ask_the_type_rule_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    rule = ops.transcendental.Exp.infer

    def infer(self: Op, *types: TensorType) -> Types:
        nonlocal asked
        asked += 1
        return rule(self, *types)

    monkeypatch.setattr(ops.transcendental.Exp, "infer", infer)
    g = Graph()
    x = g.input("x", (3, 5, 7, 11, 13))
    for _ in range(10):
        x = ops.exp(x)
    assert asked <= 1
