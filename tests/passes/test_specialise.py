"""Dims become numbers: in types, attributes and regions, with the bounds and equalities that spoke of them."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.errors import GraphError, ShapeError
from rlx.ir.verify import verify
from rlx.passes.specialise import assume_equal, specialise


def encoder() -> rlx.Graph:
    graph = rlx.Graph("encoder")
    x, w = graph.input("x", ("batch", "seq", 4)), graph.param("w", (4, 4), data=np.eye(4, dtype="f4"))
    graph.output((x @ w).reshape(("batch*seq", 2, 2)), name="y")
    graph.bounds["seq"] = (1, 32)
    return graph


def test_all_dims_and_some() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("f4")
    expected = rlx.Session("reference").compile(encoder()).run([x])[0]
    for sizes, symbols in (({"seq": 3}, ["batch"]), ({"batch": 2, "seq": 3}, []), ({}, ["batch", "seq"])):
        specialised = specialise(encoder(), sizes)
        verify(specialised)
        assert specialised.symbols == symbols
        for device in ("reference", "cpu"):
            np.testing.assert_array_equal(rlx.Session(device).compile(specialised).run([x])[0], expected)
    assert str(specialise(encoder(), {"batch": 2, "seq": 3}).outputs["y"].type) == "f32[6, 2, 2]"
    assert specialise(encoder(), {}).same_as(encoder())


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ShapeError, match=r"\[1, 32\], got 33"):
        specialise(encoder(), {"seq": 33})
    graph = rlx.Graph()
    graph.output(graph.input("a", ("n",)) + graph.input("b", ("m",)), name="y")
    assert specialise(graph, {"n": 3}).equalities and not specialise(graph, {"n": 3, "m": 3}).equalities
    with pytest.raises(ShapeError):
        specialise(graph, {"n": 3, "m": 4})


def test_measured_dims_stay_with_the_run() -> None:
    graph = rlx.Graph()
    x = graph.input("x", ("n",))
    graph.output(ops.nonzero(x), name="y")
    array = np.array([0, 1, 2, 0], "f4")
    specialised = specialise(graph, {"n": 4})
    assert rlx.Session("cpu").compile(specialised).run([array])[0].tolist() == [[1, 2]]
    with pytest.raises(GraphError, match="measures"):
        specialise(graph, {next(iter(graph.measured)): 2})


def test_dims_that_broadcast() -> None:
    """A type says what open dims broadcast to; passes and backends get one of them, where they are equal."""
    graph = rlx.Graph("sum")
    total = graph.input("a", ("n", 2)) + graph.input("b", ("m", 2))
    side = rlx.Graph("side")
    side.output(side.input("x", total.shape) * side.input("y", ("n", 2)))
    graph.output(*ops.if_(graph.input("p", (), "bool"), total, graph.inputs[0], regions=(side, side)), name="y")
    verify(graph)
    assert str(graph.outputs["y"].type) == "f32[broadcast(m, n), 2]"
    equal = assume_equal(graph)
    verify(equal)
    assert equal.assumes_equal and equal.nodes[-1].regions[0].assumes_equal
    assert str(equal.outputs["y"].type) == "f32[m, 2]" and "broadcast(" not in str(equal)
    assert assume_equal(equal) is equal
    one = specialise(graph, {"n": 1})
    verify(one)
    assert str(one.outputs["y"].type) == "f32[m, 2]" and not one.equalities
    specialised = specialise(equal, {"n": 1})
    assert [str(e.right if e.left == 1 else e.left) for e in specialised.equalities] == [
        "m"
    ]  # it holds of equal dims alone


def test_a_side_that_must_spread() -> None:
    graph = rlx.Graph("to")
    graph.output(ops.broadcast_to(graph.input("a", ("n",)), shape=(2, "m")), name="y")
    assert not specialise(graph, {"n": 1}).equalities
    assert specialise(graph, {"m": 1}).equalities
    with pytest.raises(ShapeError, match="4 against 1"):
        specialise(graph, {"m": 1, "n": 4})
