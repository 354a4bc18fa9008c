"""Dims become numbers: in types, attributes and regions, with the bounds and equalities that spoke of them."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.errors import GraphError, ShapeError
from rlx.ir.verify import verify
from rlx.passes.specialise import specialise


def encoder() -> rlx.Graph:
    graph = rlx.Graph("encoder")
    x, w = graph.input("x", ("batch", "seq", 4)), graph.param("w", (4, 4), data=np.eye(4, dtype="f4"))
    graph.output((x @ w).reshape(("batch*seq", 2, 2)), name="y")
    graph.bounds["seq"] = (1, 32)
    return graph


def test_all_dims_and_some() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("f4")
    wanted = rlx.Session("reference").compile(encoder()).run([x])[0]
    for sizes, left in (({"seq": 3}, ["batch"]), ({"batch": 2, "seq": 3}, []), ({}, ["batch", "seq"])):
        made = specialise(encoder(), sizes)
        verify(made)
        assert made.symbols == left
        for device in ("reference", "cpu"):
            np.testing.assert_array_equal(rlx.Session(device).compile(made).run([x])[0], wanted)
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
    made = specialise(graph, {"n": 4})
    assert rlx.Session("cpu").compile(made).run([array])[0].tolist() == [[1, 2]]
    with pytest.raises(GraphError, match="measures"):
        specialise(graph, {next(iter(graph.measured)): 2})
