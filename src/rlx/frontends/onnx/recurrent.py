"""Importer functions: LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.frontends.onnx.table import OnnxNode, onnx_op
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.graph import Value, call
from rlx.ops import build
from rlx.ops.cell_activation import FORMS
from rlx.ops.recurrent import DIRECTIONS


def cell_attributes(node: OnnxNode, functions: tuple[str, ...]) -> dict[str, Any]:
    """Direction, activations with their numbers, and clip; `functions` are the defaults of a direction."""
    direction = node.text("direction", "forward")
    if direction not in DIRECTIONS:
        raise node.wrong(f"expected a direction among {', '.join(DIRECTIONS)}, got {direction!r}")
    count = len(functions) * (2 if direction == "bidirectional" else 1)
    names = [n.decode("utf-8", "replace").lower() for n in node.texts("activations", ())] or list(functions) * count
    names = names[:count]
    unknown = [n for n in names if n not in FORMS]
    if unknown or len(names) != count:
        raise node.wrong(f"expected {count} activations among {', '.join(FORMS)}, got {names}")
    numbers_of = {"alpha": list(node.reals("activation_alpha", ())), "beta": list(node.reals("activation_beta", ()))}
    numbers: dict[str, list[float]] = {"alpha": [], "beta": []}
    for name in names:  # the lists hold numbers only for functions that have parameters
        for kind, default in (("alpha", FORMS[name].alpha), ("beta", FORMS[name].beta)):
            number = numbers_of[kind].pop(0) if default is not None and numbers_of[kind] else default
            numbers[kind].append(0.0 if number is None else number)
    return {
        "direction": direction, "activations": tuple(names), "alphas": tuple(numbers["alpha"]),
        "betas": tuple(numbers["beta"]), "clip": node.real("clip", None) or None,
    }  # fmt: skip


class Net:
    """What the three nodes share: layouts, and operands that may be left out."""

    def __init__(self, node: OnnxNode, x: Value, w: Value, r: Value, gates: int, hidden_axis: int = 2) -> None:
        self.node = node
        for of, name in ((x, "X"), (w, "W"), (r, "R")):
            if of.rank != 3:
                raise node.wrong(f"expected {name} of rank 3, got {of.type}")
        self.batch_first = node.flag("layout")
        self.x = x.transpose(1, 0, 2) if self.batch_first else x
        self.directions, self.hidden, self.gates = r.shape[0], r.shape[hidden_axis], gates
        declared = node.integer("hidden_size", None)
        if declared is not None and isinstance(self.hidden, int) and declared != self.hidden:
            raise node.wrong(f"expected R of the hidden_size {declared}, got {r.type}")
        self.weights = (w, r)

    def bias(self, b: Value | None) -> Value:
        shape = (self.directions, dims.mul(self.hidden, 2 * self.gates))
        return self.zeros(shape) if b is None else b

    def zeros(self, shape: Sequence[Dim]) -> Value:
        return build.broadcast_to(self.x.graph.constant(0, self.x.dtype), shape=tuple(shape))

    def state(self, state: Value | None) -> Value:
        if state is None:
            return self.zeros((self.directions, self.x.shape[1], self.hidden))
        return state.transpose(1, 0, 2) if self.batch_first else state

    def results(self, outputs: Sequence[Value]) -> list[Value]:
        if not self.batch_first:
            return list(outputs)
        y, *states = outputs
        return [y.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in states)]


def _run(net: Net, name: str, operands: Sequence[Value | None], attributes: dict[str, Any]) -> list[Value]:
    results = call(name, *operands, **attributes)
    assert isinstance(results, tuple)
    return net.results(results)


@onnx_op("LSTM", since=7)
def lstm(
    node: OnnxNode, x: Value, w: Value, r: Value, b: Value | None, lengths: Value | None, h: Value | None,
    c: Value | None, p: Value | None,
) -> list[Value]:  # fmt: skip
    attributes = cell_attributes(node, ("sigmoid", "tanh", "tanh"))
    net = Net(node, x, w, r, 4)
    if p is None and lengths is not None:
        p = net.zeros((net.directions, dims.mul(net.hidden, 3)))
    operands = [net.x, *net.weights, net.bias(b), net.state(h), net.state(c), p, lengths]
    return _run(net, "lstm", operands, {**attributes, "input_forget": node.flag("input_forget")})


@onnx_op("GRU", since=7)
def gru(
    node: OnnxNode, x: Value, w: Value, r: Value, b: Value | None, lengths: Value | None, h: Value | None
) -> list[Value]:
    attributes = cell_attributes(node, ("sigmoid", "tanh"))
    net = Net(node, x, w, r, 3)
    operands = [net.x, *net.weights, net.bias(b), net.state(h), lengths]
    return _run(net, "gru", operands, {**attributes, "linear_before_reset": node.flag("linear_before_reset")})


@onnx_op("RNN", since=7)
def rnn(
    node: OnnxNode, x: Value, w: Value, r: Value, b: Value | None, lengths: Value | None, h: Value | None
) -> list[Value]:
    attributes = cell_attributes(node, ("tanh",))
    net = Net(node, x, w, r, 1)
    return _run(net, "rnn", [net.x, *net.weights, net.bias(b), net.state(h), lengths], attributes)
