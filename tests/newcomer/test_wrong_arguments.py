"""Whatever is passed to a function of rlx, what is wrong is told by an error of rlx, and not by one from inside it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops

WRONG: tuple[Any, ...] = (
    "text", "f33", None, 1.5, True, -99, (), (1, 2, 3, 4, 5, 6, 7), [None], {}, np.ones(3), np.int64(1), object(),
    print,
)  # fmt: skip
REPEATED = inspect.Parameter.VAR_POSITIONAL


def plausible(parameter: inspect.Parameter, graph: rlx.Graph, x: rlx.Value) -> Any:
    """Something that may be right, so that what is looked at is the one argument that is wrong."""
    annotation = str(parameter.annotation)
    if parameter.name == "graph":
        return graph
    for word, value in {"Value": x, "Sequence": (0,), "DType": "f32", "float": 1.0, "bool": True}.items():
        if word in annotation:
            return value
    return 1


def calls(name: str) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Calls in which one argument is wrong, and some in which none needs to be."""
    parameters = list(inspect.signature(getattr(ops, name)).parameters.values())
    for wrong_at in range(len(parameters) + 1):
        for wrong in WRONG:
            graph = rlx.Graph("g")
            x = graph.input("x", ("n", 4, 4))
            repeated = [x, x] if any(p.kind is REPEATED for p in parameters) else []
            keywords = {
                p.name: wrong if at == wrong_at else plausible(p, graph, x)
                for at, p in enumerate(parameters)
                if p.kind is not REPEATED and (at == wrong_at or p.default is p.empty)
            }
            yield repeated, keywords


@pytest.mark.parametrize("name", sorted(ops.names()))
def test_a_wrong_argument_is_told_by_an_error_of_rlx(name: str) -> None:
    function = getattr(ops, name)
    for arguments, keywords in calls(name):
        try:
            function(*arguments, **keywords)
        except rlx.RlxError as error:
            assert str(error), keywords
        except Exception as error:
            raise AssertionError(f"{name}({keywords}) raised {type(error).__name__}: {error}") from error


def test_quotients_of_arrays_by_values() -> None:
    """NumPy hands such a call on to rlx, which must not hand it back."""
    graph = rlx.Graph()
    x = graph.input("x", (3,))
    graph.output(rlx.floor_divide(np.array([7, -7, 1], np.float32), x), name="y")
    (y,) = rlx.Session("reference").compile(graph).run([np.array([2, 2, 4], np.float32)])
    assert y.tolist() == [3, -4, 0]
