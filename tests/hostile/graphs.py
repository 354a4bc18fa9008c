"""Graphs of a size or a form that eats time or memory: long, wide, deep, doubling, badly named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from hostile.case import BOOL, F, Refused, case, gives, graph, sub

ONE = [np.ones(1, "f4")]


def _chain(count: int, op: str = "Relu") -> bytes:
    nodes = [helper.make_node(op, ["x" if i == 0 else f"v{i - 1}"], [f"v{i}"]) for i in range(count)]
    return graph(nodes, {"x": (F, [1])}, {f"v{count - 1}": F})


case("chain/1000", lambda: _chain(1000), ONE, gives([1]))
case("chain/10000", lambda: _chain(10_000), ONE, None)
case("chain/100000", lambda: _chain(100_000), ONE, None)


def _raw_chain(count: int) -> bytes:
    """Built by hand, because the protobuf library takes longer for it than the limit is."""
    names = [f"v{i}".encode() for i in range(count)]
    nodes = b"".join(
        b"\x0a" + bytes([len(a) + len(b) + 10]) + b"\x0a" + bytes([len(a)]) + a + b"\x12" + bytes([len(b)]) + b
        + b"\x22\x04Relu"
        for a, b in itertools.pairwise(names)
    )  # fmt: skip
    whole = nodes + _declared(names[0], 11) + _declared(names[-1], 12)
    return b"\x08\x08" + b"\x3a" + _varint(len(whole)) + whole + b"\x42\x02\x10\x12"


def _declared(name: bytes, field: int) -> bytes:
    value = helper.make_tensor_value_info(name.decode(), F, [1]).SerializeToString()
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    out = b""
    while number >= 128:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


case("chain/raw-100", lambda: _raw_chain(100), ONE, gives([1]))
case("chain/million", lambda: _raw_chain(1_000_000), ONE, Refused("nodes"))
case("chain/neg-20000", lambda: _chain(20_000, "Neg"), ONE, None)


def _sums(count: int) -> bytes:
    nodes = [helper.make_node("Add", ["x" if i == 0 else f"v{i - 1}"] * 2, [f"v{i}"]) for i in range(count)]
    return graph(nodes, {"x": (F, [1])}, {f"v{count - 1}": F})


case("doubling-sums/64", lambda: _sums(64), ONE, gives([2.0**64]))
case("doubling-sums/5000", lambda: _sums(5000), ONE, None)


def _fan(count: int, concatenated: bool) -> bytes:
    nodes = [helper.make_node("Relu" if i % 2 else "Abs", ["x"], [f"v{i}"], f"n{i}") for i in range(count)]
    if concatenated:
        nodes.append(helper.make_node("Sum", [f"v{i}" for i in range(count)], ["y"]))
        return graph(nodes, {"x": (F, [1])}, {"y": F})
    return graph(nodes, {"x": (F, [1])}, {f"v{i}": F for i in range(count)})


case("fan/1000", lambda: _fan(1000, True), ONE, gives([1000]))
case("fan/100000", lambda: _fan(100_000, True), ONE, None)
case("fan/outputs-2000", lambda: _fan(2000, False), ONE, None)
case("fan/outputs-100000", lambda: _fan(100_000, False), ONE, None)


def _many_weights(count: int) -> bytes:
    nodes = [helper.make_node("Sum", [f"w{i}" for i in range(count)] + ["x"], ["y"])]
    return graph(nodes, {"x": (F, [1])}, {"y": F}, {f"w{i}": np.ones(1, "f4") for i in range(count)})


case("weights/5000", lambda: _many_weights(5000), ONE, None)
case("inputs/10000", lambda: graph(
    [helper.make_node("Relu", ["x"], ["y"])], {"x": (F, [1]), **{f"i{i}": (F, [f"d{i}"]) for i in range(10_000)}},
    {"y": F}), ONE, Refused(""))  # fmt: skip


def _functions(levels: int, width: int = 2) -> bytes:
    """A function of each level calls that of the one below `width` times."""
    functions = []
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    for level in range(levels):
        if level == 0:
            nodes = [helper.make_node("Neg", ["a"], ["b"])]
        else:
            parts = [helper.make_node(f"F{level - 1}", ["a"], [f"v{i}"], domain="local") for i in range(width)]
            nodes = [*parts, helper.make_node("Sum", [f"v{i}" for i in range(width)], ["b"])]
        functions.append(helper.make_function("local", f"F{level}", ["a"], ["b"], nodes, opsets))
    call = helper.make_node(f"F{levels - 1}", ["x"], ["y"], domain="local")
    return graph([call], {"x": (F, [1])}, {"y": F}, functions=functions)


case("functions/doubling-4", lambda: _functions(5), ONE, gives([-16]))
case("functions/doubling-30", lambda: _functions(31), ONE, Refused("nodes|nested"))
case("functions/tenfold-8", lambda: _functions(9, 10), ONE, Refused("nodes|nested"))
case("functions/deep-1000", lambda: _functions(1000, 1), ONE, Refused("nested"))


def _nested(depth: int, known: bool) -> bytes:
    body = sub([helper.make_node("Neg", ["x"], ["out"])], {}, {"out": F}, "inner")
    for _ in range(depth):
        other = sub([helper.make_node("Identity", ["x"], ["out"])], {}, {"out": F}, "else")
        node = helper.make_node("If", ["c"], ["out"], then_branch=body, else_branch=other)
        body = sub([node], {}, {"out": F}, "then")
    other = sub([helper.make_node("Identity", ["x"], ["out"])], {}, {"out": F}, "else")
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)
    if known:
        return graph([node], {"x": (F, [1])}, {"y": F}, {"c": np.array(True)})
    return graph([node], {"x": (F, [1]), "c": (BOOL, [])}, {"y": F})


GO = [*ONE, np.array(True)]
case("nested-if/4", lambda: _nested(4, False), GO, gives([-1]))
case("nested-if/20", lambda: _nested(20, False), GO, None)
case("nested-if/known-20", lambda: _nested(20, True), ONE, gives([-1]))


def _nested_raw(depth: int) -> bytes:
    """A graph in a graph in a graph, by hand: parsers that recurse meet their end here."""
    body = b""
    for _ in range(depth):
        attribute = b"\x0a\x01b" + b"\x32" + _varint(len(body)) + body + b"\xa0\x01\x05"
        node = b"\x22\x02If" + b"\x2a" + _varint(len(attribute)) + attribute
        body = b"\x0a" + _varint(len(node)) + node
    return b"\x08\x08" + b"\x3a" + _varint(len(body)) + body


for depth in (50, 1000, 5000):
    case(f"nested-raw/{depth}", lambda depth=depth: _nested_raw(depth), (), Refused(""))  # type: ignore[misc]


def _branches_that_double(levels: int) -> bytes:
    """Both branches hold the next If: 2^levels bodies in the file would be too many, functions make them."""
    functions = []
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    for level in range(levels):
        inner = "Neg" if level == 0 else f"F{level - 1}"
        domain = "" if level == 0 else "local"
        bodies = [sub([helper.make_node(inner, ["a"], ["o"], domain=domain)], {}, {"o": F}, n) for n in ("t", "e")]
        node = helper.make_node("If", ["c"], ["b"], then_branch=bodies[0], else_branch=bodies[1])
        functions.append(helper.make_function("local", f"F{level}", ["a", "c"], ["b"], [node], opsets))
        if level:
            for body in (functions[-1].node[0].attribute[0].g, functions[-1].node[0].attribute[1].g):
                body.node[0].input.append("c")
    call = helper.make_node(f"F{levels - 1}", ["x", "c"], ["y"], domain="local")
    return graph([call], {"x": (F, [1]), "c": (BOOL, [])}, {"y": F}, functions=functions)


case("branches/doubling-15", lambda: _branches_that_double(15), GO, None)


def _unrolled(trips: int, levels: int) -> bytes:
    """Loops of known length in each other: bodies in place would be trips^levels nodes."""
    body_nodes: list[Any] = [helper.make_node("Neg", ["s0"], ["r0"])]
    for level in range(levels):
        body = sub(
            [helper.make_node("Identity", [f"c{level}"], [f"go{level}"]), *body_nodes],
            {f"i{level}": 7, f"c{level}": BOOL, f"s{level}": F}, {f"go{level}": BOOL, f"r{level}": F}, f"b{level}",
        )  # fmt: skip
        outer = "x" if level == levels - 1 else f"s{level + 1}"
        result = "y" if level == levels - 1 else f"r{level + 1}"
        body_nodes = [helper.make_node("Loop", ["trips", "", outer], [result], body=body)]
    return graph(body_nodes, {"x": (F, [1])}, {"y": F}, {"trips": np.int64(trips)})


case("unrolled/16-4", lambda: _unrolled(16, 4), ONE, None)
case("unrolled/16-8", lambda: _unrolled(16, 8), ONE, None)


def _named(names: list[str], outputs: list[str] | None = None) -> bytes:
    nodes = [helper.make_node("Neg", ["x" if i == 0 else names[i - 1]], [n]) for i, n in enumerate(names)]
    return graph(nodes, {"x": (F, [1])}, dict.fromkeys(outputs or [names[-1]], F))


case("names/long", lambda: _named(["n" * 1_000_000, "y"]), ONE, gives([1]))
case("names/long-node", lambda: graph([helper.make_node("Neg", ["x"], ["y"], "n" * 5_000_000)], {"x": (F, [1])},
     {"y": F}), ONE, gives([-1]))  # fmt: skip
case("names/odd", lambda: _named(['"\n\0%s{}\\', "\u202e\U0001f600", "y"]), ONE, gives([-1]))
case("names/like-ours", lambda: _named(["rlx.random_state", "y"]), ONE, gives([1]))
case("names/checks-like-ours", lambda: _named(["rlx.checks", "y"], ["rlx.checks", "y"]), ONE, gives([-1], [1]))


def _twice(first: str, second: str, **more: Any) -> Callable[[], bytes]:
    nodes = [helper.make_node("Neg", ["x"], ["v"], first), helper.make_node("Abs", ["x"], ["v"], second)]
    return lambda: graph([*nodes, helper.make_node("Relu", ["v"], ["y"])], {"x": (F, [1])}, {"y": F}, **more)


SSA = Refused(r"(?s)'v'.*'first'.*'second'|'v'.*(input|initial)")
case("twice/two-nodes", _twice("first", "second"), ONE, SSA)
case("twice/node-and-weight", _twice("first", "second", fixed={"v": np.ones(1, "f4")}), ONE, Refused("'v'"))
case("twice/node-and-input", lambda: graph([helper.make_node("Neg", ["x"], ["x"], "first")], {"x": (F, [1])}, {"x": F}),
     ONE, Refused("'x'.*'first'"))  # fmt: skip
case("twice/outputs-of-a-node", lambda: graph(
    [helper.make_node("Split", ["x"], ["v", "v"], "first", num_outputs=2, axis=0)], {"x": (F, [2])}, {"v": F}),
    [np.ones(2, "f4")], Refused("'v'.*'first'"))  # fmt: skip
case("twice/node-that-nobody-needs", lambda: graph(
    [helper.make_node("Neg", ["x"], ["y"], "first"), helper.make_node("Abs", ["x"], ["z"], "other"),
     helper.make_node("Sqrt", ["x"], ["z"], "second")], {"x": (F, [1])}, {"y": F}), ONE,
    Refused(r"(?s)'z'.*'other'.*'second'"))  # fmt: skip


def _twice_in_a_body() -> bytes:
    nodes = [helper.make_node("Neg", ["x"], ["o"], "first"), helper.make_node("Abs", ["x"], ["o"], "second")]
    other = sub([helper.make_node("Neg", ["x"], ["o"])], {}, {"o": F}, "e")
    node = helper.make_node("If", ["c"], ["y"], then_branch=sub(nodes, {}, {"o": F}, "t"), else_branch=other)
    return graph([node], {"x": (F, [1]), "c": (BOOL, [])}, {"y": F})


case("twice/in-a-body", _twice_in_a_body, GO, Refused(r"(?s)'o'.*'first'.*'second'"))


def _twice_in_a_function() -> bytes:
    nodes = [helper.make_node("Neg", ["a"], ["b"], "first"), helper.make_node("Abs", ["a"], ["b"], "second")]
    opsets = [helper.make_opsetid("", 18)]
    functions = [helper.make_function("local", "F", ["a"], ["b"], nodes, opsets)]
    return graph([helper.make_node("F", ["x"], ["y"], domain="local")], {"x": (F, [1])}, {"y": F}, functions=functions)


case("twice/in-a-function", _twice_in_a_function, ONE, Refused(r"(?s)'b'.*'first'.*'second'"))
case("cycle/two", lambda: graph([helper.make_node("Neg", ["b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])],
     {"x": (F, [1])}, {"b": F}), ONE, Refused(""))  # fmt: skip
case("cycle/itself", lambda: graph([helper.make_node("Add", ["a", "x"], ["a"])], {"x": (F, [1])}, {"a": F}), ONE,
     Refused(""))  # fmt: skip
case("unsorted", lambda: graph([helper.make_node("Neg", ["b"], ["y"]), helper.make_node("Neg", ["x"], ["b"])],
     {"x": (F, [1])}, {"y": F}), ONE, Refused(""))  # fmt: skip
