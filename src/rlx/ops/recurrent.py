"""Recurrent nets over whole sequences: LSTM, GRU and the plain RNN, in one direction or both.

Operands, in the layouts of ONNX. D is 2 for both directions else 1, G the number of gates, H the hidden size:

    x        float [T, B, I]
    w        like x, [D, G·H, I]
    r        like x, [D, G·H, H]
    b        like x, [D, 2·G·H], that of w and that of r
    h        like x, [D, B, H], the state to start with
    lengths  int [B]: beyond its length a sequence gives 0 and its state stays

The decomposition multiplies all of x with w in one product and scans over the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.errors import GraphError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expect
from rlx.ir.dim import Dim
from rlx.ir.dtype import accumulator
from rlx.ir.graph import Graph, Value, call
from rlx.ir.op import Composite, Cost, Range, Tolerance, op
from rlx.ir.type import TensorType
from rlx.ops import build
from rlx.ops.cell_activation import FORMS, Gate, check

Array = np.ndarray[Any, Any]
States = tuple[Value, ...]
Weights = tuple[Value, ...]
"""What a product with weights needs: the weights alone, or with what tells what they mean."""
Step = Callable[[Value, States, Weights, tuple[Value, ...]], States]
"""(a step of x·w, the states, r, what else stays) → the new states; the first of them is h."""

DIRECTIONS = ("forward", "reverse", "bidirectional")


class Recurrent(Composite):
    """What LSTM, GRU and RNN share. `gates` per step, `states` carried on, `functions` per direction."""

    gates = 1
    states = 1
    functions: tuple[str, ...] = ()
    tolerance = Tolerance(512, scale=1)

    direction: str
    activations: tuple[str, ...]
    alphas: tuple[float, ...]
    betas: tuple[float, ...]
    clip: float | None

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def backwards(self, number: int) -> bool:
        """Whether this direction goes from the last step to the first."""
        return self.direction == "reverse" or number == 1

    def gates_of(self, number: int) -> tuple[Gate, ...]:
        """The functions of a direction."""
        count = len(self.functions)
        names = self.activations or self.functions * self.directions
        gates = []
        for i in range(number * count, (number + 1) * count):
            form = FORMS[names[i]]
            alpha = self.alphas[i] if self.alphas else form.alpha
            beta = self.betas[i] if self.betas else form.beta
            gates.append(Gate(names[i], alpha or 0.0, beta or 0.0, self.clip))
        return tuple(gates)

    def _infer(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType,
        states: Sequence[TensorType],
        lengths: TensorType | None,
    ) -> tuple[TensorType, ...]:
        expect.floating(x, "x")
        expect.same_dtype(x, w, r, b, *states)
        ranks = [(x, "x", 3), (w, "w", 3), (r, "r", 3), (b, "b", 2), *((s, "a state", 3) for s in states)]
        for of, name, rank in ranks:
            expect.rank(of, rank, name, at_most=rank)
        if self.direction not in DIRECTIONS:
            raise GraphError(f"expected a direction among {', '.join(DIRECTIONS)}, got {self.direction!r}")
        count = len(self.functions) * self.directions
        if self.activations:
            check(self.activations, count)
        for numbers, name in ((self.alphas, "alphas"), (self.betas, "betas")):
            if numbers and len(numbers) != count:
                raise GraphError(f"expected {count} {name}, got {list(numbers)}")
        steps, batch, size = x.shape
        hidden = r.shape[2]
        wide = dims.mul(hidden, self.gates)
        for of, expected_shape in ((w, (self.directions, wide, size)), (r, (self.directions, wide, hidden)),
                           (b, (self.directions, dims.mul(wide, 2))),
                           *((s, (self.directions, batch, hidden)) for s in states)):  # fmt: skip
            for have, expected in zip(of.shape, expected_shape):
                expect.same_dim(have, expected, f"expected a shape of {expected_shape}, got {of}")
        if lengths is not None:
            expect.kind(lengths, "int", "uint", name="lengths")
            expect.rank(lengths, 1, "lengths", at_most=1)
            expect.same_dim(lengths.shape[0], batch, f"expected a length for each of {x}, got {lengths}")
        state = x.with_shape((self.directions, batch, hidden))
        return (x.with_shape((steps, self.directions, batch, hidden)), *([state] * self.states))

    def ranges(self, *inputs: TensorType) -> tuple[Range, ...]:
        at = self.operand_names.index("lengths")
        return (Range(at, 0, dims.add(inputs[0].shape[0], 1), "lengths"),) if at < len(inputs) else ()

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        """The products; functions of the gates."""
        steps, batch, size = inputs[0].shape
        hidden = inputs[2].shape[2]
        rows = dims.product((steps, batch, self.directions, hidden, self.gates))
        nbytes = super().cost(inputs, outputs).bytes
        return Cost(dims.mul(rows, dims.mul(dims.add(size, hidden), 2)), rows, nbytes)

    # NumPy

    def cell(
        self, number: int, xw: Array, r: Array, b: Array, states: tuple[Array, ...], p: Array | None
    ) -> tuple[Array, ...]:
        """One step in float64: a row of x·w, r [G·H, H], b [2, G·H], states [B, H] → states."""
        raise NotImplementedError

    def _reference(
        self, x: Array, w: Array, r: Array, b: Array, states: Sequence[Array], p: Array | None, lengths: Array | None
    ) -> tuple[Array, ...]:
        steps, batch = x.shape[:2]
        wide = [a.astype(np.float64) for a in (x, w, r, b)]
        x64, w64, r64, b64 = wide
        y = np.zeros((steps, self.directions, batch, r.shape[2]))
        last = [np.zeros((self.directions, *s.shape[1:])) for s in states]
        for d in range(self.directions):
            now = tuple(s[d].astype(np.float64) for s in states)
            peep = None if p is None else p[d].astype(np.float64)
            for t in reversed(range(steps)) if self.backwards(d) else range(steps):
                new = self.cell(d, x64[t] @ w64[d].T, r64[d], b64[d].reshape(2, -1), now, peep)
                live = np.ones((batch, 1), bool) if lengths is None else (t < lengths)[:, None]
                y[t, d] = np.where(live, new[0], 0)
                now = tuple(np.where(live, a, old) for a, old in zip(new, now))
            for target, value in zip(last, now):
                target[d] = value
        return tuple(a.astype(x.dtype) for a in (y, *last))

    # values

    def step(self, number: int, hidden: Dim) -> Step:
        """One step, of values."""
        raise NotImplementedError

    def product(self, x: Value, w: Weights) -> Value:
        """x [..., n] · w [g, n]ᵀ"""
        return build.dot_general(x, w[0], lhs_contract=(x.rank - 1,), rhs_contract=(1,))

    def _decompose(
        self, x: Value, w: Weights, r: Weights, b: Value, states: Sequence[Value], p: Value | None,
        lengths: Value | None,
    ) -> tuple[Value, ...]:  # fmt: skip
        dtype = accumulator(x.dtype)
        x_, b_, *wide = (v.cast(dtype) for v in (x, b, *states))
        per_direction = [
            self._one(d, x_, w, r, b_, wide, None if p is None else p.cast(dtype), lengths)
            for d in range(self.directions)
        ]
        results = [
            build.concat(*parts, axis=1 if i == 0 else 0) if len(parts) > 1 else parts[0]
            for i, parts in enumerate(zip(*per_direction))
        ]
        return tuple(v.cast(x.dtype) for v in results)

    def _one(
        self, d: int, x: Value, w: Weights, r: Weights, b: Value, states: Sequence[Value], p: Value | None,
        lengths: Value | None,
    ) -> list[Value]:  # fmt: skip
        """y [T, 1, B, H] and the last states [1, B, H] of a direction."""
        hidden = states[0].shape[2]
        half = dims.mul(hidden, self.gates)
        in_product, in_step = self._biases(b[d, :half], b[d, half:], hidden)
        projected = self.product(x, tuple(_at(of, d) for of in w)) + in_product
        own = tuple(_at(of, d) for of in r)
        stay = [*own, *in_step, *([] if p is None else [p[d]])]
        # states may name their batch otherwise than x does
        carried = [_as(s[d], (x.shape[1], hidden)) for s in states]
        rows = [projected]
        if lengths is not None:
            rows.append(build.iota(x.graph, shape=(x.shape[0],), axis=0, dtype=dtypes.i64))
            stay.append(_as(lengths.cast(dtypes.i64), (x.shape[1], 1)))
        body = self._body(d, hidden, carried, rows, (own, stay[len(own) :]), lengths is not None)
        results = call(
            "scan", *carried, *rows, *stay, carried=len(carried), sequences=len(rows), length=x.shape[0],
            reverse=self.backwards(d), regions=(body,),
        )  # fmt: skip
        assert isinstance(results, tuple)
        *last, y = results
        return [y.reshape(y.shape[0], 1, *y.shape[1:]), *(s.reshape(1, *s.shape) for s in last)]

    def _biases(self, wb: Value, rb: Value, hidden: Dim) -> tuple[Value, list[Value]]:
        """What is added to all of x·w at once, and what only a step can add."""
        return wb + rb, []

    def _body(
        self, d: int, hidden: Dim, carried: Sequence[Value], rows: Sequence[Value],
        stay: tuple[Sequence[Value], Sequence[Value]], masked: bool,
    ) -> Graph:  # fmt: skip
        own, others = stay
        body = Graph("step", rows[0].graph.assumes_equal)
        types = [
            *(v.type for v in carried), *(v.type.with_shape(v.shape[1:]) for v in rows),
            *(v.type for v in (*own, *others)),
        ]  # fmt: skip
        inputs = [body.input(f"a{i}", of.shape, of.dtype) for i, of in enumerate(types)]
        states, rest = tuple(inputs[: len(carried)]), inputs[len(carried) :]
        constants = tuple(rest[len(rows) : -1] if masked else rest[len(rows) :])
        # what is known of the weights, a zero point of 0 for example, stays known in the body
        known = tuple(v if o.constant is None else body.constant(o.constant) for v, o in zip(constants, own))
        updated = self.step(d, hidden)(rest[0], states, known, constants[len(own) :])
        y = updated[0]
        if masked:
            live = build.lt(rest[1], rest[-1])
            y = build.select(live, y, 0.0)
            updated = tuple(build.select(live, new, old) for new, old in zip(updated, states))
        body.output(*updated, y)
        return body


def _wide(x: Value, w: Value) -> Weights:
    return (w.cast(accumulator(x.dtype)),)


def _at(of: Value, d: int) -> Value:
    """A direction's part; of a constant again a constant."""
    return of[d] if of.constant is None else of.graph.constant(of.constant[d])


def _as(value: Value, shape: tuple[Dim, ...]) -> Value:
    """The value with dims that are equal called by these names."""
    return value if value.shape == shape else build.reshape(value, shape=shape)


def _parts(z: Value, hidden: Dim, count: int) -> list[Value]:
    """The gates in [B, count·H], or in a bias."""
    return [z[..., dims.mul(hidden, i) : dims.mul(hidden, i + 1)] for i in range(count)]


@op
class Lstm(Recurrent):
    """Long short-term memory; gates i, o, f, c. Besides what all take:

    c        like h, the cells to start with
    p        like x, [D, 3·H], how the cells act on gates i, o and f
    results  y [T, D, B, H], the last h and c [D, B, H]

    activations   of the gates, of the cell's input and of its output, for each direction; empty: sigmoid, tanh, tanh
    alphas, betas their numbers, one for each activation; empty: the defaults
    clip          bounds what goes into the gates' activations
    input_forget  f is 1 - i
    Sources: Hochreiter & Schmidhuber 1997; peepholes: Gers & Schmidhuber 2000.
    """

    direction: str = "forward"
    activations: tuple[str, ...] = ()
    alphas: tuple[float, ...] = ()
    betas: tuple[float, ...] = ()
    clip: float | None = None
    input_forget: bool = False

    gates = 4
    states = 2
    functions = ("sigmoid", "tanh", "tanh")

    def infer(
        self, x: TensorType, w: TensorType, r: TensorType, b: TensorType, h: TensorType, c: TensorType,
        p: TensorType | None = None, lengths: TensorType | None = None,
    ) -> tuple[TensorType, ...]:  # fmt: skip
        if p is not None:
            expect.same_dtype(x, p)
            expect.rank(p, 2, "p", at_most=2)
            expect.same_dim(p.shape[0], r.shape[0], f"expected p for the directions of r {r}, got {p}")
            expect.same_dim(p.shape[1], dims.mul(r.shape[2], 3), f"expected p for 3 gates of r {r}, got {p}")
        return self._infer(x, w, r, b, (h, c), lengths)

    def reference(
        self, x: Array, w: Array, r: Array, b: Array, h: Array, c: Array, p: Array | None = None,
        lengths: Array | None = None,
    ) -> tuple[Array, ...]:  # fmt: skip
        return self._reference(x, w, r, b, (h, c), p, lengths)

    def decompose(
        self, x: Value, w: Value, r: Value, b: Value, h: Value, c: Value, p: Value | None = None,
        lengths: Value | None = None,
    ) -> tuple[Value, ...]:  # fmt: skip
        return self._decompose(x, _wide(x, w), _wide(x, r), b, (h, c), p, lengths)

    def cell(
        self, number: int, xw: Array, r: Array, b: Array, states: tuple[Array, ...], p: Array | None
    ) -> tuple[Array, ...]:
        h, c = states
        f, g, out = self.gates_of(number)
        zi, zo, zf, zc = np.split(xw + h @ r.T + b.sum(0), 4, axis=1)
        pi, po, pf = np.split(np.zeros(3 * c.shape[1]) if p is None else p, 3)
        i = f.exact(zi + pi * c)
        forget = 1 - i if self.input_forget else f.exact(zf + pf * c)
        c = forget * c + i * g.exact(zc)
        o = f.exact(zo + po * c)
        return o * _unclipped(out).exact(c), c

    def step(self, number: int, hidden: Dim) -> Step:
        f, g, out = self.gates_of(number)

        def run(xw: Value, states: States, r: Weights, stay: tuple[Value, ...]) -> States:
            h, c = states
            zi, zo, zf, zc = _parts(xw + self.product(h, r), hidden, 4)
            peep = _parts(stay[0], hidden, 3) if stay else None
            i = f.formula(zi if peep is None else zi + peep[0] * c)
            forget = 1.0 - i if self.input_forget else f.formula(zf if peep is None else zf + peep[2] * c)
            c = forget * c + i * g.formula(zc)
            o = f.formula(zo if peep is None else zo + peep[1] * c)
            return o * _unclipped(out).formula(c), c

        return run


def _unclipped(gate: Gate) -> Gate:
    return Gate(gate.name, gate.alpha, gate.beta)


class OneState(Recurrent):
    """A net that carries h alone."""

    def infer(
        self, x: TensorType, w: TensorType, r: TensorType, b: TensorType, h: TensorType,
        lengths: TensorType | None = None,
    ) -> tuple[TensorType, ...]:  # fmt: skip
        return self._infer(x, w, r, b, (h,), lengths)

    def reference(
        self, x: Array, w: Array, r: Array, b: Array, h: Array, lengths: Array | None = None
    ) -> tuple[Array, ...]:
        return self._reference(x, w, r, b, (h,), None, lengths)

    def decompose(
        self, x: Value, w: Value, r: Value, b: Value, h: Value, lengths: Value | None = None
    ) -> tuple[Value, ...]:
        return self._decompose(x, _wide(x, w), _wide(x, r), b, (h,), None, lengths)


@op
class Gru(OneState):
    """Gated recurrent unit; gates z, r, h. Results: y [T, D, B, H] and the last h [D, B, H].

    activations   of the gates and of the new state, for each direction; empty: sigmoid, tanh
    alphas, betas, clip   as for lstm
    linear_before_reset   gate r acts on h·R, not on h
    Source: Cho et al. 2014, arXiv:1406.1078.
    """

    direction: str = "forward"
    activations: tuple[str, ...] = ()
    alphas: tuple[float, ...] = ()
    betas: tuple[float, ...] = ()
    clip: float | None = None
    linear_before_reset: bool = False

    gates = 3
    functions = ("sigmoid", "tanh")

    def cell(
        self, number: int, xw: Array, r: Array, b: Array, states: tuple[Array, ...], p: Array | None
    ) -> tuple[Array, ...]:
        (h,) = states
        f, g = self.gates_of(number)
        rz, rr, rh = np.split(r, 3)
        xz, xr, xh = np.split(xw + b[0], 3, axis=1)
        bz, br, bh = np.split(b[1], 3)
        z, reset = f.exact(xz + h @ rz.T + bz), f.exact(xr + h @ rr.T + br)
        inner = reset * (h @ rh.T + bh) if self.linear_before_reset else (reset * h) @ rh.T + bh
        return ((1 - z) * g.exact(xh + inner) + z * h,)

    def _biases(self, wb: Value, rb: Value, hidden: Dim) -> tuple[Value, list[Value]]:
        if not self.linear_before_reset:
            return wb + rb, []
        two = dims.mul(hidden, 2)
        return build.concat(wb[:two] + rb[:two], wb[two:], axis=0), [rb[two:]]

    def step(self, number: int, hidden: Dim) -> Step:
        f, g = self.gates_of(number)
        two = dims.mul(hidden, 2)

        def run(xw: Value, states: States, r: Weights, stay: tuple[Value, ...]) -> States:
            (h,) = states
            if self.linear_before_reset:
                hr = self.product(h, r)
                gates, inner = xw[:, :two] + hr[:, :two], hr[:, two:] + stay[0]
                z, reset = (f.formula(part) for part in _parts(gates, hidden, 2))
                inner = reset * inner
            else:
                z, reset = (f.formula(part) for part in _parts(xw[:, :two] + self.product(h, (r[0][:two],)), hidden, 2))
                inner = self.product(reset * h, (r[0][two:],))
            new = g.formula(xw[:, two:] + inner)
            return ((1.0 - z) * new + z * h,)

        return run


@op
class Rnn(OneState):
    """Elman's net: h = f(x·W + h·R + b). Results: y [T, D, B, H] and the last h [D, B, H].

    activations   one for each direction; empty: tanh
    alphas, betas, clip   as for lstm
    """

    direction: str = "forward"
    activations: tuple[str, ...] = ()
    alphas: tuple[float, ...] = ()
    betas: tuple[float, ...] = ()
    clip: float | None = None

    functions = ("tanh",)

    def cell(
        self, number: int, xw: Array, r: Array, b: Array, states: tuple[Array, ...], p: Array | None
    ) -> tuple[Array, ...]:
        return (self.gates_of(number)[0].exact(xw + states[0] @ r.T + b.sum(0)),)

    def step(self, number: int, hidden: Dim) -> Step:
        (f,) = self.gates_of(number)
        return lambda xw, states, r, stay: (f.formula(xw + self.product(states[0], r)),)
