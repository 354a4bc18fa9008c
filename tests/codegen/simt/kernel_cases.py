"""Graphs at sizes at which kernels that go in blocks have several of them, and ragged ones at the end: products,
attention, sorting networks, reductions that lanes share, transposes, scatters. Ops' own cases are smaller, and have no
weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rlx import ops
from rlx.ir import dim as dims
from rlx.ir.dim import Shape
from rlx.ir.graph import Graph, Value
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from rlx.ir.type import TensorType


@dataclass(frozen=True)
class KernelCase:
    """A graph with its weights, values of its open dims, and how near results come."""

    made: Graph
    binding: Mapping[str, int]
    tolerance: Tolerance

    @property
    def on_matrix_units(self) -> Tolerance:
        """The same where powers of attention are rounded to the dtype of 16-bit operands, each by half a step at 1."""
        steps = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(self.made.inputs[0].dtype.name)
        if steps is None or not self.made.name.startswith("attention"):
            return self.tolerance
        return Tolerance(steps / np.finfo(np.float32).eps, scale=1)

    def __str__(self) -> str:
        return " ".join([self.made.name, *(f"{name}={size}" for name, size in self.binding.items())])

    def graph(self) -> Graph:
        return self.made

    @property
    def arrays(self) -> tuple[Array, ...]:
        return tuple(self._array(number, value.type) for number, value in enumerate(self.made.inputs))

    def _array(self, number: int, kind: TensorType) -> Array:
        random = np.random.default_rng(number)
        shape = tuple(int(dims.evaluate(d, self.binding)) for d in kind.shape)
        if self.made.inputs[number].name == "at":  # places, some of which are outside
            return random.integers(-17, 17, shape, np.int32)
        if kind.dtype.kind == "bool":
            return random.integers(0, 3, shape) > 0
        scale = 1 if kind.dtype.is_float else 1000
        return (random.standard_normal(shape) * scale).astype(kind.dtype.numpy)

    def reference(self) -> tuple[Array, ...]:
        inputs = {value.name: array for value, array in zip(self.made.inputs, self.arrays)}
        return tuple(evaluate(self.made, inputs, self.made.data, self.binding))


def _weight(graph: Graph, name: str, shape: tuple[int, ...]) -> Value:
    data = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    return graph.param(name, shape, data=data)


def _products(graph: Graph) -> None:
    """Of packed weights, narrow floats, and a window, with epilogues; rows that only a run knows."""
    x, y = graph.input("x", ("n", 70)), graph.input("y", (2, "n", 150))
    graph.output(ops.relu(x @ _weight(graph, "w", (70, 130)) + _weight(graph, "bias", (130,))))
    graph.output(y @ graph.input("z", (2, 150, 7)))
    graph.output(
        y.cast("f16") @ graph.input("half", (150, 33), "f16"), y.cast("f64") @ graph.input("r", (150, 5), "f64")
    )
    picture, window = graph.input("picture", (2, 3, 9, 11)), _weight(graph, "window", (20, 3, 3, 3))
    graph.output(ops.conv(picture, window, strides=(1, 2), dilations=(1, 1), low=(1, 1), high=(1, 1)))


def _teams(dtype: str) -> Callable[[Graph], None]:
    """Products that workgroups share: of packed weights and of two values of a run, of runs along k that end anywhere;
    few rows of long sums, and rows that do not begin at multiples of 16 bytes; windows."""

    def build(graph: Graph) -> None:
        x, y = graph.input("x", ("n", 72), dtype), graph.input("y", (2, "n", 200), dtype)
        bias = _weight(graph, "bias", (130,)).cast(dtype)
        graph.output(ops.relu(x @ _weight(graph, "w", (72, 130)).cast(dtype) + bias))
        graph.output(y @ graph.input("z", (2, 40, 200), dtype).transpose(0, 2, 1))
        several = _weight(graph, "several", (2, 200, 24)).cast(dtype)
        graph.output(y @ several)
        shifted = ops.slice(graph.input("flat", (1 + 3 * 1024,), dtype), starts=(1,), stops=(1 + 3 * 1024,))
        graph.output(shifted.reshape(3, 1024) @ _weight(graph, "long", (1024, 50)).cast(dtype))
        picture, window = graph.input("picture", (2, 9, 11, 16), dtype), _weight(graph, "window", (20, 16, 3, 3))
        moved = picture.transpose(0, 3, 1, 2)
        graph.output(ops.conv(moved, window.cast(dtype), strides=(1, 2), dilations=(1, 1), low=(0, 0), high=(0, 0)))

    return build


def _gates(dtype: str) -> Callable[[Graph], None]:
    """Both sides of a gate as products of one side, with biases, and halves of one that is gated by the second."""

    def build(graph: Graph) -> None:
        x = graph.input("x", ("n", 72), dtype)
        left, right = (
            x @ _weight(graph, name, (72, 136)).cast(dtype) + _weight(graph, f"{name} bias", (136,)).cast(dtype)
            for name in ("left", "right")
        )
        graph.output(ops.silu(left) * right)
        both = graph.input("y", (230, 64), dtype) @ _weight(graph, "both", (64, 272)).cast(dtype)
        graph.output(both[:, :136] * ops.sigmoid(both[:, 136:]))

    return build


def _windows(graph: Graph) -> None:
    """Convolutions of many positions, with what stands before and behind them in nets: few channels, pads, a residual,
    a pool, channels by themselves, and positions in steps."""
    picture = graph.input("picture", (2, 3, 70, 70))
    none = {"dilations": (1, 1)}
    first = _weight(graph, "first", (36, 3, 7, 7)) * 0.1
    x = ops.relu(ops.conv(picture, first, strides=(2, 2), low=(3, 3), high=(3, 2), **none))
    y = ops.conv(x, _weight(graph, "second", (36, 36, 3, 3)) * 0.05, strides=(1, 1), low=(1, 1), high=(1, 1), **none)
    y = ops.relu(y + _weight(graph, "bias", (36, 1, 1)) + x)
    graph.output(y)
    pooled = ops.reduce_window(
        y, combine="max", window=(3, 3), strides=(2, 2), low=(1, 1), high=(1, 1), dilations=(1, 1)
    )
    alone = _weight(graph, "alone", (36, 1, 5, 5)) * 0.2
    graph.output(ops.conv(pooled, alone, strides=(1, 1), low=(2, 2), high=(2, 2), groups=36, **none))
    graph.output(ops.conv(y, _weight(graph, "steps", (72, 36, 1, 1)), strides=(2, 2), low=(0, 0), high=(0, 0), **none))


def _attention(
    q: Shape, k: Shape, value_features: int, dtype: str = "f32", mask: str = "", **attributes: object
) -> Callable[[Graph], None]:
    def build(graph: Graph) -> None:
        operands = [graph.input(name, shape, dtype) for name, shape in zip("qkv", (q, k, (*k[:3], value_features)))]
        if mask:
            operands.append(graph.input("mask", (q[0], 1, q[2], k[2]), mask))
        graph.output(ops.attention(*operands, **attributes))

    return build


def _sorted(graph: Graph) -> None:
    """Rows of several blocks, of words and pairs of words."""
    x, i = graph.input("x", (2, 5000)), graph.input("i", (2500,), "i64")
    graph.output(ops.sort(x, axis=1), *ops.top_k(i, axis=0, k=700), *ops.top_k(x.T, axis=0, k=3))


def _reduced(graph: Graph) -> None:
    x, i = graph.input("x", (3, 5000)), graph.input("i", (2, 5000), "i64")
    graph.output(ops.reduce_sum(x, axes=(1,)), ops.reduce_max(x.cast("i32"), axes=(1,)), ops.softmax(x, axis=1))
    graph.output(ops.reduce_max(i, axes=(1,)), ops.argmin(x, axis=1), ops.reduce_any(ops.ne(i, 3), axes=(1,)))


def turned(graph: Graph) -> None:
    """Several operands at once, of several dtypes, and batches; bools, narrow floats and integers of 64 bits."""
    x, y, wide = graph.input("x", (2, 70, 33)), graph.input("y", (2, 33, 70)), graph.input("wide", (2, 70, 33), "i64")
    turned = x.transpose(0, 2, 1)
    graph.output(turned * y + graph.input("half", (2, 70, 33), "f16").transpose(0, 2, 1).cast("f32"))
    graph.output(wide.transpose(0, 2, 1), ops.select(ops.gt(wide, 4).transpose(0, 2, 1), turned, y))


UPDATES = 900


def scattered(dtype: str, *combines: str | None) -> Callable[[Graph], None]:
    """More updates than an invocation makes in order, a third of them outside, the rest to places that meet often."""

    def build(graph: Graph) -> None:
        x, at = graph.input("x", (13, 3), dtype), graph.input("at", ("m", 1), "i32")
        updates = graph.input("updates", ("m", 3), dtype)
        if dtype in ("f16", "bf16"):  # whose sums in order are as exact where they are whole numbers
            x, updates = ops.floor(x), ops.floor(updates)
        graph.output(*(ops.scatter_nd(x, at, updates, combine=combine) for combine in combines))

    return build


def kernel_cases() -> Iterator[KernelCase]:
    cases: list[tuple[str, Callable[[Graph], None], dict[str, int], Tolerance]] = [
        ("products", _products, {"n": 37}, Tolerance(64, scale=8)),
        ("products", _products, {"n": 4}, Tolerance(64, scale=8)),
        *(
            (f"teams {dtype}", _teams(dtype), {"n": n}, Tolerance(64, scale=8))
            for dtype in ("f32", "f16", "bf16")
            for n in (37, 20, 7, 1)
        ),
        *(
            (f"gates {dtype}", _gates(dtype), {"n": n}, Tolerance(64, scale=8, stored=4))
            for dtype in ("f16", "bf16")
            for n in (20, 250)
        ),
        ("windows", _windows, {}, Tolerance(64, scale=8)),
        ("sorted", _sorted, {}, Tolerance(0)),
        ("reduced", _reduced, {}, Tolerance(64, scale=4)),
        ("turned", turned, {}, Tolerance(4)),
    ]
    near = Tolerance(64, scale=1)
    few, many = {"n": 5, "m": 700}, {"n": 140, "m": 77}
    bounded = {"causal": True, "window": 50, "softcap": 20.0}
    for name, attention, bindings in (
        ("tiles of queries", _attention((1, 4, 300, 20), (1, 2, 77, 20), 36, mask="bool", causal=True), [{}]),
        ("a window", _attention((1, 2, 150, 64), (1, 2, 150, 64), 64, **bounded), [{}]),
        ("halves", _attention((1, 2, 140, 40), (1, 2, 60, 40), 10, "f16", "f16"), [{}]),
        ("few halves", _attention((2, 4, 37, 32), (2, 2, 75, 32), 24, "f16", "bool", causal=True), [{}]),
        ("wide halves", _attention((1, 2, 18, 128), (1, 2, 200, 128), 64, "bf16", "bf16", window=60), [{}]),
        ("masked halves", _attention((1, 2, 9, 16), (1, 2, 33, 16), 16, "f16", "bool", empty="nan", softcap=5.0), [{}]),
        ("wide heads", _attention((1, 1, 130, 200), (1, 1, 33, 200), 250, empty="nan", mask="bool"), [{}]),
        ("open lengths", _attention((2, 4, "n", 24), (2, 2, "m", 24), 70, mask="f32"), [few, many]),
        ("one query", _attention((1, 4, 1, 64), (1, 1, 900, 64), 64), [{}]),
        ("few queries", _attention((2, 2, 7, 30), (2, 2, 400, 30), 30, "bf16", "bool", causal=True), [{}]),
        ("one query of halves", _attention((2, 6, 1, 64), (2, 2, 200, 64), 64, "bf16", causal=True, offset=199), [{}]),
        ("few queries of halves", _attention((2, 8, 5, 40), (2, 2, 150, 40), 24, "f16", "bool", softcap=4.0), [{}]),
        ("values in half words", _attention((1, 2, 20, 32), (1, 2, 40, 32), 32, "f16"), [{}]),
        ("values in three half words", _attention((1, 2, 3, 16), (1, 1, 70, 16), 96, "bf16"), [{}]),
        ("a window of halves", _attention((1, 4, 8, 128), (1, 4, 300, 128), 128, "bf16", **bounded), [{}]),
        ("few wide queries", _attention((1, 2, 8, 256), (1, 2, 300, 256), 256, **bounded), [{}]),
    ):
        cases += [(f"attention: {name}", attention, binding, near) for binding in bindings]
    everything = (None, "add", "mul", "min", "max")
    for dtype in ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "i4", "bool", "f64"):
        cases.append((f"scattered: {dtype}", scattered(dtype, *everything), {"m": UPDATES}, Tolerance(4)))
    for dtype in ("f16", "bf16", "f32"):
        cases.append((f"scattered: {dtype}", scattered(dtype, None, "min", "max"), {"m": UPDATES}, Tolerance(0)))
    for dtype, near in (("f16", Tolerance(0)), ("bf16", Tolerance(0)), ("f32", Tolerance(128, scale=8))):
        cases.append((f"sums: {dtype}", scattered(dtype, "add"), {"m": UPDATES}, near))
    for name, build, binding, tolerance in cases:
        graph = Graph(name)
        build(graph)
        yield KernelCase(graph, binding, tolerance)
