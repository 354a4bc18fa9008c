"""Graphs go to text and to a file and come back equal; files that are not whole are refused."""

from __future__ import annotations

import contextlib
import json
import math
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rlx
from ops.cases import Case, cases_of_every_op
from rlx import ops
from rlx.ir.graph import Graph, call
from rlx.ir.serial import load_graph, save_graph
from rlx.ir.text import parse_graph, print_graph
from rlx.ir.verify import verify


def sample() -> Graph:
    """A graph with every kind of attribute, odd names, regions, bounds and equalities."""
    g = Graph('a "name"')
    x, y = g.input("x/0:in put", ("b", "2*s+1")), g.input("y", ("c", "2*s+1"))
    p = g.input("p", (), "bool")
    w = g.param("w.0", (3,), data=np.array([1, -0.0, math.nan], np.float32))
    odd = g.constant(np.array([0.0, -0.0, math.inf, -math.inf, math.nan]), "f16", name="odd")
    big = g.constant(np.arange(100, dtype=np.float64), name="big")
    z = ops.select((x + y) > 0, x, -math.inf)[:, ::-1][1 : min(2, 3), None]
    side = Graph("side")
    side.output(side.input("a", (3,)) * 2.5)
    other = Graph("other")
    other.output(other.input("a", (3,)) + 1)
    (chosen,) = ops.if_(p, w, regions=(side, other))
    split_ = ops.dims_tensor(g, values=("b//2", "max(b, 3)", "s%4", 7), dtype="i32")
    hidden = ops.attention(*(g.input(n, (1, 2, 4, 8)) for n in "qkv"), window=3, softcap=None, scale=0.1)
    halves = g.constant(np.ones((2, 2), ml_dtypes.bfloat16))
    cplx = g.constant(np.array([1 + 2j]))
    g.output(z=z, chosen=chosen, dims=split_, hidden=hidden, odd=odd, big=big, halves=halves, cplx=cplx)
    g.bounds = {"b": (1, 64), "s": (1, None)}
    return g


def test_text_reads_back_equal() -> None:
    g = sample()
    text = print_graph(g, "full")
    again = parse_graph(text)
    verify(again)
    assert print_graph(again, "full") == text
    assert again.same_as(g) and g.same_as(again)
    assert "..." in str(g)


def test_file_reads_back_equal(tmp_path: Path) -> None:
    g = sample()
    save_graph(g, tmp_path / "g.rlx")
    again = load_graph(tmp_path / "g.rlx")
    verify(again)
    assert again.same_as(g)
    assert again.data.keys() == g.data.keys()
    assert again.data["w.0"].tobytes() == g.data["w.0"].tobytes()
    assert not again.data["w.0"].flags.writeable
    assert [p.name for p in tmp_path.iterdir()] == ["g.rlx"]


@pytest.mark.parametrize("assumes_equal", [True, False])
def test_what_was_assumed_of_dims_goes_through_both(assumes_equal: bool, tmp_path: Path) -> None:
    g = Graph("dims", assumes_equal)
    total = g.input("a", ("n", 3)) + g.input("b", ("m", 3))
    g.output(ops.broadcast_to(total[:2], shape=(2, 2, 3)) + g.input("c", ("n", 2, 3)), name="y")
    assert {e.spreads for e in g.equalities} == {"left", "either"}
    save_graph(g, tmp_path / "g.rlx")
    for again in (parse_graph(print_graph(g, "full")), load_graph(tmp_path / "g.rlx")):
        verify(again)
        assert again.same_as(g) and again.assumes_equal is assumes_equal and again.equalities == g.equalities


def test_a_file_that_leaves_out_equalities_gets_them_from_type_rules(tmp_path: Path) -> None:
    g = Graph("lies")
    g.output(g.input("a", ("n",)) + g.input("b", ("m",)), name="y")
    g.equalities = []
    save_graph(g, tmp_path / "g.rlx")
    assert [(str(e.left), str(e.right), e.spreads) for e in load_graph(tmp_path / "g.rlx").equalities] == [
        ("n", "m", "either")
    ]


def test_ranges_of_u64_go_to_their_end(tmp_path: Path) -> None:
    g = Graph("draws")
    attributes = {"shape": (4,), "low": (1 << 64) - 9, "high": 1 << 64, "dtype": "u64"}
    g.output(call("random_integers", g.input("state", (4,), "u32"), **attributes))
    save_graph(g, tmp_path / "g.rlx")
    assert load_graph(tmp_path / "g.rlx").same_as(g)


@pytest.mark.parametrize("case", cases_of_every_op()[::5], ids=str)
def test_every_op_goes_through_both(case: Case, tmp_path: Path) -> None:
    g = case.graph()
    assert parse_graph(print_graph(g, "full")).same_as(g)
    save_graph(g, tmp_path / "g.rlx")
    assert load_graph(tmp_path / "g.rlx").same_as(g)


def test_graphs_that_differ_are_not_the_same() -> None:
    def graph(value: float) -> Graph:
        g = Graph()
        g.output(ops.pad(g.input("x", (2,)), low=(1,), high=(1,), value=value))
        return g

    assert graph(0.0).same_as(graph(0.0))
    assert not graph(0.0).same_as(graph(-0.0))
    assert not graph(0.0).same_as(graph(1.0))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected 'graph'"),
        ('graph "g" { %x: f32[2] = input() {type=f32[2]} return y=%z }', "expected a result of an earlier node"),
        ('graph "g" { %x: f32[3] = input() {type=f32[2]} return }', r"expected the types f32\[2\]"),
        ('graph "g" { %x: f32[2] = nonsense() return }', "expected the name of an op"),
        ('graph "g" { %x: f32[2] = input() {tipe=f32[2]} return }', "expected an attribute of input, got 'tipe'"),
        ('graph "g" { return } more', "expected the end"),
    ],
)
def test_bad_text_is_refused(text: str, what: str) -> None:
    with pytest.raises(rlx.GraphError, match=what):
        parse_graph(text)


def corrupted(raw: bytes, seed: int) -> bytes:
    """The file with some bytes of its header, its end, or its length changed."""
    dice = random.Random(seed)
    damaged = bytearray(raw)
    header = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(dice.choice((1, 1, 2, 5))):
        damaged[dice.randrange(header)] = dice.randrange(256)
    return bytes(damaged[: dice.randrange(len(damaged))] if seed % 10 == 0 else damaged)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_are_refused_or_whole(seed: int, tmp_path: Path) -> None:
    save_graph(sample(), tmp_path / "g.rlx")
    (tmp_path / "bad.rlx").write_bytes(corrupted((tmp_path / "g.rlx").read_bytes(), seed))
    with contextlib.suppress(rlx.ModelError):
        verify(load_graph(tmp_path / "bad.rlx"))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda h: h.update(version=99), "expected version 1, got 99"),
        (lambda h: h.update(format="onnx"), "format rlx"),
        (lambda h: h["tensors"][0].update(end=1 << 40), "inside the file"),
        (lambda h: h["tensors"][0].update(shape=[1 << 60]), "expected a number in"),
        (lambda h: h["tensors"][1].update(begin=h["tensors"][0]["begin"]), "inside the file"),
        (lambda h: h["graph"]["nodes"][0].update(op="exec"), "expected the name of an op"),
        (lambda h: h["graph"]["outputs"].update(z=[9999, 0]), "expected a number in"),
        (lambda h: h["data"].update(y=0), "expected data of a param"),
    ],
)
def test_hostile_headers_are_refused(change: object, what: str, tmp_path: Path) -> None:
    save_graph(sample(), tmp_path / "g.rlx")
    raw = (tmp_path / "g.rlx").read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    change(header)  # type: ignore[operator]
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    (tmp_path / "bad.rlx").write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])
    with pytest.raises(rlx.ModelError, match=what):
        load_graph(tmp_path / "bad.rlx")
