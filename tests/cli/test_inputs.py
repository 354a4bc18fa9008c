"""Inputs that nobody brings: sizes that a model runs at, numbers that such inputs hold, and what is said of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import rlx
from rlx.cli import main
from rlx.cli.inputs import gather
from rlx.cli.inspect import work_of
from rlx.cli.sizes import fitting
from rlx.ir.graph import Graph, Value
from rlx.ir.serial import save_graph
from rlx.runtime.session import Session


def runs(graph: Graph, **sizes: int) -> dict[str, Any]:
    """What is made up for a graph, which then runs."""
    inputs = gather(graph, [], sizes)
    Session("reference").compile(graph).run(inputs)
    return inputs


def shapes(inputs: dict[str, Any]) -> dict[str, list[int]]:
    return {name: list(array.shape) for name, array in inputs.items()}


def test_a_dim_is_one_size_in_all_inputs() -> None:
    graph = Graph()
    x, y = graph.input("x", ("batch", 3)), graph.input("y", (2, "batch", "seq"))
    graph.output(x.sum() + y.sum(), name="out")
    made = shapes(runs(graph))
    assert made == {"x": [1, 3], "y": [2, 1, 16]}


def test_dims_that_must_be_equal_have_one_size() -> None:
    graph = Graph()
    x, y = graph.input("x", ("n", 3)), graph.input("y", (2, "m"))
    graph.output(x.sum(1) + y[0], name="out")
    made = shapes(runs(graph))
    assert made["x"][0] == made["y"][1]
    assert shapes(runs(graph, m=7))["x"] == [7, 3], "a size that is given holds for what must equal it"


def pyramid(graph: Graph, x: Value, levels: int) -> Value:
    """Down by pooling, up by repeating, joined with what came in at each level: sides must be whole powers of two."""
    if levels == 0:
        return x
    down = rlx.reduce_window(x, window=(1, 1, 2, 2), strides=(1, 1, 2, 2), combine="max")
    inner = pyramid(graph, down, levels - 1)
    rows = rlx.concat(inner[:, :, :, None], inner[:, :, :, None], axis=3)
    twice = rows.reshape((rows.shape[0], rows.shape[1], inner.shape[2] * 2, inner.shape[3]))
    columns = rlx.concat(twice[..., None], twice[..., None], axis=4)
    up = columns.reshape((*twice.shape[:3], inner.shape[3] * 2))
    return rlx.concat(up, x, axis=1)


@pytest.mark.parametrize("levels", [3, 6])
def test_images_are_of_sizes_at_which_a_pyramid_fits(levels: int) -> None:
    graph = Graph()
    graph.output(pyramid(graph, graph.input("image", ("b", 1, "h", "w")), levels), name="out")
    made = runs(graph)
    _, _, height, width = made["image"].shape
    assert height % 2**levels == width % 2**levels == 0 and height > 100
    assert made["image"].min() >= 0 and made["image"].max() < 1


def test_sizes_that_no_list_has_are_worked_out() -> None:
    graph = Graph()
    x, mask = graph.input("x", ("batch", "new", 4)), graph.input("m", ("batch", "total"))
    past = graph.input("past", ("batch", "kept", 4))
    whole = rlx.concat(past, x, axis=1)
    graph.output(whole * mask[..., None], name="out")
    made = shapes(runs(graph))
    assert made["m"][1] == made["x"][1] + made["past"][1]


def test_a_number_that_must_fit_a_reshape_is_found() -> None:
    graph = Graph()
    x = graph.input("x", ("n",))
    graph.output(x.reshape((41, 3)), name="out")
    assert shapes(runs(graph)) == {"x": [123]}


def test_sizes_that_do_not_fit_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    graph = Graph()
    graph.output(graph.input("x", ("n", 3)).reshape((4, 6)), name="out")
    gather(graph, [], {"n": 5})
    told = capsys.readouterr().err
    assert "no sizes were found that fit (--dim sets them): expected" in told and "15" in told
    gather(graph, [], {"n": 8})
    assert "no sizes" not in capsys.readouterr().err


def branching() -> Graph:
    """Takes 5 rows where the rate is 16000, else 7."""
    graph = Graph()
    rate, x = graph.input("sr", (), "i64"), graph.input("x", ("n", 2))
    bodies = []
    for rows in (5, 7):
        body = Graph()
        inside = body.input("x", ("n", 2))
        body.output(inside.reshape((rows * 2,)).sum(), name="y")
        bodies.append(body)
    graph.output(graph.add(rlx.ops.control.If(), rlx.equal(rate, 16000), x, regions=bodies)[0], name="y")
    return graph


def test_what_a_condition_of_made_up_numbers_takes_decides_sizes() -> None:
    graph = branching()
    made = runs(graph)
    assert made["sr"] == 16000 and made["x"].shape == (5, 2)
    assert fitting(graph, {}, {"sr": np.array(8000)}).of == {"n": 7}


def made_of(graph: Graph, name: str) -> Any:
    return gather(graph, [], {})[name]


def test_indices_are_rows_that_there_are() -> None:
    graph = Graph()
    ids, table = graph.input("input_ids", ("batch", "seq"), "i64"), graph.param("table", (5, 3))
    graph.output(rlx.gather(table, ids.cast("i32")), name="out")
    ids = made_of(graph, "input_ids")
    assert ids.dtype == np.int64 and ids.shape == (1, 16) and ids.min() >= 0 and ids.max() < 5 and len(set(ids[0])) > 1


def test_lengths_are_those_of_the_others() -> None:
    graph = Graph()
    x, lengths = graph.input("x", ("batch", "time", 4)), graph.input("x_lengths", ("batch",), "i64")
    graph.output(x.sum() + lengths.sum().cast("f32"), name="out")
    assert gather(graph, [], {"time": 9})["x_lengths"].tolist() == [9]


@pytest.mark.parametrize(
    "name, shape, dtype, holds",
    [
        ("attention_mask", (2, 3), "i64", lambda a: (a == 1).all()),
        ("mask", (2, 3), "bool", lambda a: a.all()),
        ("token_type_ids", (2, 3), "i64", lambda a: (a == 0).all()),
        ("position_ids", (2, 3), "i64", lambda a: (a == [0, 1, 2]).all()),
        ("sample_rate", (), "i32", lambda a: a == 16000),
        ("speed", (1,), "f32", lambda a: (a == 1).all()),
        ("h0", (2, 3), "f32", lambda a: (a == 0).all()),
        ("past_key_values.0.key", (2, 3), "f16", lambda a: (a == 0).all()),
        ("pixels", (1, 8, 8, 3), "u8", lambda a: a.max() > 100),
        ("ids", (50,), "i32", lambda a: a.max() < 100 and a.min() >= 0),
        ("x", (50,), "f32", lambda a: a.min() < 0 < a.max()),
    ],
)
def test_numbers_are_what_such_inputs_hold(name: str, shape: tuple[int, ...], dtype: str, holds: Any) -> None:
    graph = Graph()
    value = graph.input(name, shape, dtype)
    graph.output(value, name="out")
    array = made_of(graph, name)
    assert array.dtype == value.dtype.numpy and array.shape == shape and holds(array)


def test_what_was_made_up_is_told_with_the_option_that_changes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_graph(branching(), tmp_path / "m.rlx")
    argv = ["run", str(tmp_path / "m.rlx"), "--device", "reference"]
    assert main(argv) == 0
    told = capsys.readouterr().err
    assert "sizes made up: n = 5 (--dim n=N sets one)" in told
    assert "sr = 16000" in told and "(--input sr=FILE brings one)" in told
    assert main([*argv, "--dim", "n=5", "-i", "x=random", "-i", "sr=random"]) == 0
    assert "made up" not in capsys.readouterr().err


def test_names_that_are_nearly_right(tmp_path: Path) -> None:
    graph = Graph()
    graph.output(graph.input("image", ("batch", "height")), name="out")
    with pytest.raises(typer.BadParameter, match="did you mean 'height'"):
        gather(graph, [], {"heigth": 3})
    with pytest.raises(typer.BadParameter, match="did you mean 'image'"):
        gather(graph, ["imagee=random"], {})
    np.savez(tmp_path / "all.npz", images=np.ones((1, 2), np.float32))
    with pytest.raises(rlx.InputError, match=r"got 'images'; did you mean 'image'"):
        gather(graph, [str(tmp_path / "all.npz")], {})


def test_work_in_bodies_counts() -> None:
    """Of a conditional the greater branch, of a loop all trips."""
    body = Graph()
    carried, x = body.input("c", (4, 4)), body.input("x", (4, 4))
    body.output(carried @ x, name="y")
    graph = Graph()
    start, others = graph.input("start", (4, 4)), graph.input("others", ("n", 4, 4))
    scan = rlx.ops.control.Scan(carried=1, sequences=1, length=others.shape[0])
    graph.output(graph.add(scan, start, others, regions=[body])[0], name="y")
    assert work_of(graph, {"n": 10}).flops == 10 * 2 * 4**3
    small, large = Graph(), Graph()
    for region, times in ((small, 1), (large, 3)):
        value = region.input("x", (4,))
        for _ in range(times):
            value = value * 2.0
        region.output(value, name="y")
    graph = Graph()
    flag, x = graph.input("flag", (), "bool"), graph.input("x", (4,))
    graph.output(graph.add(rlx.ops.control.If(), flag, x, regions=[small, large])[0], name="y")
    assert work_of(graph, {}).flops == 12


def test_inspect_tells_what_only_a_run_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes that data decide, and loops that data end."""
    graph = Graph()
    x = graph.input("x", ("n",))
    test, body = Graph(), Graph()
    test.output(rlx.reduce_max(test.input("x", ("n",)), axes=(0,)) < 40.0)
    body.output(body.input("x", ("n",)) * 2.0)
    looped = rlx.ops.while_(x, regions=(test, body), carried=1)[0]
    graph.output(rlx.ops.nonzero(looped) * 2, name="y")
    save_graph(graph, tmp_path / "m.rlx")
    assert main(["inspect", str(tmp_path / "m.rlx")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "whose sizes only a run tells" in shown and "1 loop whose trips only a run tells" in shown
    assert ": condition while" in shown and ": body while" in shown
