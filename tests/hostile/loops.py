"""Loops without an end, and runs that are given so much time and no more."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from hostile.case import BOOL, FAR, I64, MOST, F, Refused, case, gives, graph, sub

ONE = [np.ones(1, "f4")]


def _loop(trips: str, condition: str, go: str = "c", **fixed: Any) -> bytes:
    body = sub(
        [helper.make_node("Identity", [go], ["more"]), helper.make_node("Neg", ["s"], ["r"])],
        {"i": I64, "c": BOOL, "s": F}, {"more": BOOL, "r": F},
    )  # fmt: skip
    node = helper.make_node("Loop", [trips, condition, "x"], ["y"], "hostile", body=body)
    brought = {"x": (F, [1])} | ({"n": (I64, [])} if trips == "n" else {}) | ({"go": (BOOL, [])} if go == "go" else {})
    return graph([node], brought, {"y": F}, fixed)


ENDLESS = Refused("hostile")
case("loop/endless", lambda: _loop("", "yes", yes=np.array(True)), ONE, ENDLESS)
case("loop/endless-no-condition", lambda: _loop("", ""), ONE, ENDLESS)
case("loop/trips-most", lambda: _loop("m", "", m=np.int64(MOST)), ONE, ENDLESS)
case("loop/trips-far", lambda: _loop("m", "yes", m=np.int64(FAR), yes=np.array(True)), ONE, ENDLESS)
case("loop/trips-run-most", lambda: _loop("n", ""), [*ONE, np.int64(MOST)], ENDLESS)
case("loop/condition-of-the-run", lambda: _loop("", "yes", "go", yes=np.array(True)), [*ONE, np.array(True)], ENDLESS)
case("loop/trips-negative", lambda: _loop("n", ""), [*ONE, np.int64(-5)], gives([1]))
case("loop/trips-right", lambda: _loop("n", ""), [*ONE, np.int64(3)], gives([-1]))
case("loop/endless-in-time", lambda: _loop("", "yes", yes=np.array(True)), ONE, Refused("timeout|trips"), timeout=0.2)


def _collecting(trips: str, **fixed: Any) -> bytes:
    body = sub(
        [helper.make_node("Identity", ["c"], ["more"]), helper.make_node("Neg", ["s"], ["r"]),
         helper.make_node("Identity", ["r"], ["row"])],
        {"i": I64, "c": BOOL, "s": F}, {"more": BOOL, "r": F, "row": F},
    )  # fmt: skip
    node = helper.make_node("Loop", [trips, "", "x"], ["s_end", "y"], "hostile", body=body)
    brought = {"x": (F, [1])} | ({"n": (I64, [])} if trips == "n" else {})
    return graph([node], brought, {"y": F}, fixed)


case("loop/collects-far", lambda: _collecting("m", m=np.int64(FAR)), ONE, Refused(""))
case("loop/collects-most", lambda: _collecting("m", m=np.int64(MOST)), ONE, Refused(""))
case("loop/collects-run", lambda: _collecting("n"), [*ONE, np.int64(FAR)], Refused(""))
case("loop/collects-negative", lambda: _collecting("n"), [*ONE, np.int64(-3)], gives(np.zeros((0, 1))))


def _inner_endless() -> bytes:
    inner = sub(
        [helper.make_node("Identity", ["d"], ["on"]), helper.make_node("Neg", ["t"], ["u"])],
        {"j": I64, "d": BOOL, "t": F}, {"on": BOOL, "u": F}, "inner",
    )  # fmt: skip
    outer = sub(
        [helper.make_node("Identity", ["c"], ["more"]),
         helper.make_node("Loop", ["", "yes", "s"], ["r"], "hostile", body=inner)],
        {"i": I64, "c": BOOL, "s": F}, {"more": BOOL, "r": F}, "outer",
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], "outer", body=outer)
    return graph([node], {"x": (F, [1]), "n": (I64, [])}, {"y": F}, {"yes": np.array(True)})


case("loop/inner-endless", _inner_endless, [*ONE, np.int64(2)], ENDLESS)
case("loop/inner-never-reached", _inner_endless, [*ONE, np.int64(0)], gives([1]))
case("loop/inner-endless-many-times", _inner_endless, [*ONE, np.int64(1000)], ENDLESS)


def _scan(axis: int, count: int) -> bytes:
    body = sub([helper.make_node("Identity", ["e"], ["o"])], {"e": F}, {"o": F})
    node = helper.make_node("Scan", ["x"], ["y"], "hostile", body=body, num_scan_inputs=count, scan_input_axes=[axis])
    return graph([node], {"x": (F, [3, 2])}, {"y": F})


S = [np.ones((3, 2), "f4")]
case("scan/axis", lambda: _scan(5, 1), S, Refused("hostile"))
case("scan/no-inputs", lambda: _scan(0, 0), S, Refused("hostile"))
case("scan/many-inputs", lambda: _scan(0, 7), S, Refused("hostile"))
case("scan/inputs-most", lambda: _scan(0, MOST), S, Refused("hostile"))


def _body_of(outputs: int, inputs: int) -> bytes:
    names = [f"i{i}" for i in range(inputs)]
    nodes = [helper.make_node("Constant", [], [f"o{i}"], value_float=1.0) for i in range(outputs)]
    body = sub(nodes, dict.fromkeys(names, F), {f"o{i}": F for i in range(outputs)})
    node = helper.make_node("Loop", ["", "yes", "x"], ["y"], "hostile", body=body)
    return graph([node], {"x": (F, [1])}, {"y": F}, {"yes": np.array(True)})


case("loop/body-without-outputs", lambda: _body_of(0, 3), ONE, Refused("hostile"))
case("loop/body-with-few-inputs", lambda: _body_of(2, 1), ONE, Refused("hostile"))
case("loop/body-with-many-inputs", lambda: _body_of(2, 9), ONE, Refused("hostile"))
