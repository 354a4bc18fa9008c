"""Sizes that do not go together: messages have node, operands, axis, both sizes and where they are from, briefly."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import rlx
from rlx.errors import InputError, ShapeError
from rlx.ir import dim as dims
from rlx.ir.expect import Equality, unequal
from rlx.ir.graph import Graph, Value
from rlx.ir.serial import save_graph
from rlx.runtime.misfit import MOST_CHARACTERS, told


def halved(x: Value) -> Value:
    return rlx.reduce_window(x, window=(1, 1, 2), strides=(1, 1, 2), low=(0, 0, 1), combine="max")


def pyramid(x: Value) -> None:
    """Down and up again by half-sizes, joined with what came in: long formulas in both."""
    down = halved(halved(halved(halved(x))))
    rows = rlx.concat(down[..., None], down[..., None], axis=3)
    up = rows.reshape((rows.shape[0], rows.shape[1], down.shape[2] * 2))
    joined = rlx.concat(up, halved(halved(halved(x))), axis=1)
    joined.node.source = "/model.11/Concat"
    x.graph.output(joined, name="y")


def graph_of(build: Callable[..., None], **shapes: tuple[int | str, ...]) -> Graph:
    graph = Graph()
    build(*(graph.input(name, shape) for name, shape in shapes.items()))
    return graph


def refused(graph: Graph, *shapes: tuple[int, ...]) -> str:
    with pytest.raises(InputError) as caught:
        rlx.Session("cpu").compile(graph).run([np.zeros(shape, np.float32) for shape in shapes])
    text = str(caught.value)
    assert len(text) <= MOST_CHARACTERS and text.count("\n") <= 1
    return text


def test_a_pyramid_at_a_size_that_it_does_not_halve_to() -> None:
    text = refused(graph_of(pyramid, image=("batch", 1, "height")), (1, 1, 19))
    assert "concat" in text and "'/model.11/Concat'" in text
    assert "along axis 2 of operand 1" in text and "4 against 3" in text
    assert "height = 19 by input 'image' axis 2" in text and "batch" not in text
    assert "max(" not in text and "//" not in text


def broadcast(x: Value, y: Value) -> None:
    x.graph.output(x + y, name="y")


def joined(x: Value, y: Value) -> None:
    x.graph.output(rlx.concat(x, y, axis=1), name="y")


def reshaped(x: Value) -> None:
    x.graph.output(x.reshape((4, 6)), name="y")


@pytest.mark.parametrize(
    "build, shapes, sizes, words",
    [
        (broadcast, {"a": ("n", 3), "b": ("m", 3)}, [(2, 3), (4, 3)],
         ["add", "axis 0", "node 'add_0' of 'a', 'b'", "n = 2 against m = 4", "m = 4 by input 'b' axis 0"]),
        (joined, {"a": ("n", 3), "b": ("m", 3)}, [(2, 3), (4, 3)],
         ["concat", "axis 0 of operand 1", "n = 2 against m = 4", "n = 2 by input 'a' axis 0"]),
        (reshaped, {"a": ("n", 3)}, [(5, 3)],
         ["reshape", "[4, 6] to hold the elements of f32[n, 3]", "node 'reshape_0' of 'a'", "15 against 24"]),
    ],
)  # fmt: skip
def test_broadcast_concat_and_reshape(
    build: Callable[..., None],
    shapes: Mapping[str, tuple[int | str, ...]],
    sizes: list[tuple[int, ...]],
    words: list[str],
) -> None:
    text = refused(graph_of(build, **shapes), *sizes)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("compile", ["meanwhile", "before"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_what_a_body_takes_to_be_equal_is_told_with_its_inputs(
    device: str, compile: Literal["meanwhile", "before"]
) -> None:
    regions = []
    for build in (lambda a, b: a @ b, lambda a, b: b.T @ b):
        region = graph_of(lambda a, b, build=build: a.graph.output(build(a, b), name="z"), a=(2, "n"), b=("m", 2))
        regions.append(region)
    graph = Graph()
    flag, x, y = graph.input("flag", (), "bool"), graph.input("x", (2, "n")), graph.input("y", ("m", 2))
    (result,) = rlx.if_(flag, x, y, regions=regions)
    graph.output(result, name="z")
    program = rlx.Session(device, compile=compile).compile(graph)
    small, large = np.ones((2, 3), np.float32), np.ones((4, 2), np.float32)
    assert program.run([np.array(False), small, large])[0].tolist() == [[4, 4], [4, 4]], "the body does not run"
    with pytest.raises(InputError) as caught:
        program.run([np.array(True), small, large])
    text = str(caught.value)
    assert text.startswith("[run] ") and len(text) <= MOST_CHARACTERS and "\n" not in text
    assert "n = 3 by input 'x' axis 1" in text and "m = 4 by input 'y' axis 0" in text


def test_long_names_are_cut_before_sizes_are() -> None:
    graph = graph_of(broadcast, **{"a" * 300: ("n", 3), "b": ("m", 3)})
    graph.nodes[-1].source = "/".join(["encoder"] * 60) + "/Add"
    equality = graph.equalities[0]
    text = told(equality, {"n": 2, "m": 4}, {"n": "n = 2 by input 'a' axis 0"}, lambda: graph)
    assert len(text) <= MOST_CHARACTERS and "encoder/Add'" in text and "n = 2 against m = 4" in text


def test_a_program_from_the_cache_says_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts without its graph, which is read then; without the file, what is known is told."""
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "m.rlx"
    save_graph(graph_of(broadcast, a=("n", 3), b=("m", 3)), path)
    arrays = [np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32)]
    rlx.load(path, device="cpu").run([arrays[0], arrays[0]])
    model = rlx.load(path, device="cpu")
    model.run([arrays[0], arrays[0]])
    with pytest.raises(InputError, match=r"add: .* 'add_0' of 'a', 'b': n = 2 against m = 4"):
        model.run(arrays)
    model = rlx.load(path, device="cpu")
    model.run([arrays[0], arrays[0]])
    path.unlink()
    with pytest.raises(InputError, match="n = 2 against m = 4; n = 2 by input 'a' axis 0"):
        model.run(arrays)


LONG = dims.floordiv(dims.symbol("height") * 3 + dims.symbol("width") * 5 + 7, 11)


def test_reasons_have_numbers_where_dims_are_long() -> None:
    binding = {"height": 10, "width": 20}
    equality = Equality(LONG, 1, f"[squeeze] expected axis 2 of f32[batch, 128, {LONG}] to be 1")
    expected = "[squeeze] expected axis 2 of f32[batch, 128, 12] to be 1: 12 against 1"
    assert equality.told(binding) == str(unequal(str(equality), binding)) == expected
    unread = f"expected [{'height+' * 2000}1] to be [3]: {'height+' * 2000}1 against 3"
    assert str(unequal(unread, binding)) == "[run] expected […] to be [3]"


def test_an_error_of_dims_can_be_pickled() -> None:
    graph = graph_of(broadcast, a=("n", 3), b=("m", 3))
    with pytest.raises(ShapeError) as caught:
        graph.bind({"n": 2, "m": 4})
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
