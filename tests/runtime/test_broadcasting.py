"""Open dims that prove to be 1 against others: results, how often is compiled, what is kept, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Graph, Session, Value, ops
from rlx.device import registry
from rlx.errors import InputError
from rlx.ir.serial import load_graph, save_graph
from rlx.runtime.buckets import BucketedCache
from rlx.runtime.graph_devices import GraphDevices

DEVICES = ("reference", "cpu", "xla", "mlx", "vulkan")
PAIRS = ((4, 4), (1, 4), (4, 1), (1, 1), (0, 1), (1, 0), (0, 0), (1, 7))


def f(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def same(actual: list[Any], *expected: Any, rtol: float = 1e-5) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5)


def usable(device: str) -> None:
    if not registry.is_available(device):
        pytest.skip(f"{device} is not here")


def sum_of_two() -> Graph:
    """a + b, its rows one after another without the first number: attributes that speak of the dim of the sum."""
    graph = Graph("sum")
    total = graph.input("a", ("n", 3)) + graph.input("b", ("m", 3))
    graph.output(total, name="total")
    graph.output(total.reshape(total.shape[0] * 3)[1:], name="rest")
    return graph


@pytest.mark.parametrize("device", DEVICES)
def test_one_against_any_size(device: str) -> None:
    usable(device)
    compiled = Session(device).compile(sum_of_two())
    for n, m in PAIRS:
        a, b = f(n, 3), f(m, 3, seed=1)
        same(compiled.run([a, b]), a + b, (a + b).reshape(-1)[1:])


def test_a_program_serves_all_sizes_of_the_others() -> None:
    compiled = Session("cpu").compile(sum_of_two())
    assert compiled.compile_count == 1
    for m in (4, 1, 9, 0, 100):
        a, b = f(1, 3), f(m, 3, seed=1)
        same(compiled.run([a, b]), a + b, (a + b).reshape(-1)[1:])
    assert compiled.compile_count == 2
    compiled.run([f(5, 3), f(1, 3)])
    assert compiled.compile_count == 3
    assert compiled.describe()["programs_of_broadcasts"] == [{"n": 1}, {"m": 1}]


def test_graphs_that_broadcast_nothing_are_as_they_were() -> None:
    graph = Graph("one dim")
    graph.output(graph.input("a", ("n", 3)) + graph.input("b", ("n", 3)))
    described = Session("cpu").compile(graph)
    assert "programs_of_broadcasts" not in described.describe()
    with pytest.raises(InputError, match="dim 'n' to be one size, got 1 in input 'a' axis 0 and 4 in input 'b' axis 0"):
        described.run([f(1, 3), f(4, 3)])


@pytest.mark.parametrize("device", ("cpu", "reference"))
def test_sizes_that_do_not_broadcast_name_both_inputs(device: str) -> None:
    compiled = Session(device).compile(sum_of_two())
    for n, m in ((3, 4), (0, 4)):
        with pytest.raises(InputError, match=rf"n = {n} against m = {m}; n = {n} by input 'a' axis 0, m = {m} by inp"):
            compiled.run([f(n, 3), f(m, 3)])
    same(compiled.run([f(2, 3), f(2, 3)])[:1], f(2, 3) * 2)


Build = Callable[[dict[str, Value]], Value]
OPS: dict[str, tuple[dict[str, tuple[Any, ...]], Build, Callable[..., Any]]] = {
    "select": (
        {"c": ("n", 1), "x": ("m", 4), "y": ("k", 4)},
        lambda v: ops.select(v["c"] > 0, v["x"], v["y"]),
        lambda c, x, y: np.where(c > 0, x, y),
    ),
    "three": (
        {"x": ("n", 4), "y": ("m", 4), "z": ("k", 4)},
        lambda v: (v["x"] + v["y"]) * v["z"] - v["x"],
        lambda x, y, z: (x + y) * z - x,
    ),
    "matmul": (
        {"x": ("n", 2, 3), "y": ("m", 3, 5), "z": ("k", 1, 5)},
        lambda v: v["x"] @ v["y"] + v["z"],
        lambda x, y, z: x @ y + z,
    ),
    "einsum": (
        {"x": ("n", 2, 3), "y": ("m", 3), "z": ("k", 2)},
        lambda v: ops.einsum(v["x"], v["y"], v["z"], equation="bij,bj,bi->b"),
        lambda x, y, z: np.sum(x * y[:, None, :] * z[:, :, None], axis=(1, 2)),
    ),
    "bias": (
        {"x": ("n", 3), "y": (3, 4), "z": ("m", 4)},
        lambda v: ops.relu(v["x"] @ v["y"] + v["z"]),
        lambda x, y, z: np.maximum(x @ y + z, 0),
    ),
    "broadcast_to": (
        {"x": ("n", 4), "y": ("m", 4), "z": ("k", 4)},
        lambda v: ops.broadcast_to(v["x"], shape=(2, *v["y"].shape)) + v["z"],
        lambda x, y, z: np.broadcast_to(x, (2, *y.shape)) + z,
    ),
    "sums of dims": (
        {"x": ("2*n+1", 4), "y": ("m", 4), "z": (3, 4)},
        lambda v: v["x"] * v["y"] + v["z"],
        lambda x, y, z: x * y + z,
    ),
    "softmax of a masked product": (
        {"x": ("n", 2, "s", 4), "y": ("m", 2, "t", 4), "z": ("k", 1, "u", "v")},
        lambda v: ops.reduce_sum(ops.softmax(v["x"] @ v["y"].transpose(0, 1, 3, 2) + v["z"], axis=-1), axes=(2,)),
        lambda x, y, z: _softmax(x @ y.transpose(0, 1, 3, 2) + z).sum(2),
    ),
}


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


SIZES: dict[str, list[tuple[int, ...]]] = {
    "broadcast_to": [(3, 3, 3), (1, 3, 3), (1, 3, 1), (3, 3, 1), (1, 1, 3)],
    "bias": [(3, 3, 0), (1, 3, 0), (3, 1, 0), (1, 1, 0)],
    "sums of dims": [(1, 3, 0), (0, 3, 0), (1, 1, 0), (0, 1, 0)],
    "softmax of a masked product": [(2, 2, 2), (1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 1, 2)],
}
COMBINED = [(3, 3, 3), (1, 3, 3), (3, 1, 3), (3, 3, 1), (1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPS)
def test_ops(device: str, name: str) -> None:
    usable(device)
    shapes, build, reference = OPS[name]
    graph = Graph("ops")
    graph.output(build({key: graph.input(key, shape) for key, shape in shapes.items()}))
    compiled = Session(device).compile(graph)
    sizes = SIZES.get(name, COMBINED)
    for n, m, k in sizes if device in ("reference", "cpu") else sizes[1:4]:
        known = {"n": n, "m": m, "k": k, "2*n+1": 2 * n + 1, "s": 3, "t": 5, "u": 1 if k == 1 else 3, "v": 5}
        arrays = [f(*(known.get(d, d) for d in shape), seed=i) for i, shape in enumerate(shapes.values())]
        same(compiled.run(arrays), reference(*arrays))


@pytest.mark.parametrize("device", ("reference", "cpu", "xla", "mlx"))
@pytest.mark.parametrize("sizes", [(3, 3), (1, 3), (3, 1)])
def test_bodies(device: str, sizes: tuple[int, int]) -> None:
    """A branch that may not run, a loop that carries what does not change its shape."""
    usable(device)
    graph = Graph("bodies")
    p, a, b = graph.input("p", (), "bool"), graph.input("a", ("n", 2)), graph.input("b", ("m", 2))
    yes, no, step = Graph("yes"), Graph("no"), Graph("step")
    for region, op in ((yes, ops.add), (no, ops.mul)):
        x, y = region.input("x", ("n", 2)), region.input("y", ("m", 2))
        region.output(ops.reduce_sum(op(x, y), axes=(0,)))
    (chosen,) = ops.if_(p, a, b, regions=(yes, no))
    state, x, y = step.input("s", (2,)), step.input("x", ("n", 2)), step.input("y", ("m", 2))
    step.output(state + ops.reduce_sum(ops.tanh(x - y), axes=(0,)), ops.tanh(x - y))
    numbers = ops.iota(graph, shape=(3,), dtype="i64")
    step.input("i", (), "i64")
    step.nodes.insert(1, step.nodes.pop())
    total, rows = ops.scan(chosen, numbers, a, b, regions=(step,), carried=1, sequences=1, length=3)
    graph.output(chosen, name="chosen")
    graph.output(total, name="total")
    graph.output(rows, name="rows")
    compiled = Session(device).compile(graph)
    x, y = f(sizes[0], 2), f(sizes[1], 2, seed=1)
    for truth in (True, False):
        first = (x + y if truth else x * y).sum(0)
        each = np.tanh(x - y)
        same(compiled.run([np.array(truth), x, y]), first, first + 3 * each.sum(0), np.stack([each] * 3), rtol=1e-4)


def test_a_loop_whose_value_would_grow_is_refused() -> None:
    graph, step = Graph("grows"), Graph("step")
    a, b = graph.input("a", ("n", 2)), graph.input("b", ("m", 2))
    state, _, y = step.input("s", ("n", 2)), step.input("i", (), "i64"), step.input("y", ("m", 2))
    step.output(state + y)
    numbers = ops.iota(graph, shape=(3,), dtype="i64")
    graph.output(ops.scan(a, numbers, b, regions=(step,), carried=1, sequences=1, length=3)[0])
    compiled = Session("cpu").compile(graph)
    same(compiled.run([f(4, 2), f(1, 2)]), f(4, 2) + f(1, 2) * 3)
    with pytest.raises(InputError, match=r"expected carried outputs 0 to be f32\[n, 2\].*m = 4 by input 'b' axis 0"):
        compiled.run([f(1, 2), f(4, 2)])


def weighted() -> Graph:
    graph = Graph("weighted")
    a, b = graph.input("a", ("n", 3)), graph.input("b", ("m", 4))
    graph.output(a @ graph.param("w", (3, 4), data=f(3, 4)) + b, name="y")
    graph.output(ops.exp(a), name="e")
    return graph


@pytest.mark.parametrize("device", ("cpu", "xla", "reference"))
def test_weights_reach_every_program(device: str) -> None:
    usable(device)
    compiled = Session(device).compile(weighted())
    a, b, one = f(5, 3), f(5, 4, seed=1), f(1, 4, seed=2)
    first = compiled.clone() if compiled.capabilities.shared_code else None
    for seed in range(3):
        w = f(3, 4, seed=seed)
        compiled.set_param("w", w)
        same(compiled.run([a, b])[:1], a @ w + b)
        same(compiled.run([a, one])[:1], a @ w + one)
        same(compiled.select(["y"]).run([a, one]), a @ w + one)
    if first is not None:
        same(first.run([a, one])[:1], a @ f(3, 4) + one)
        same(compiled.clone().run([a, one])[:1], a @ w + one)


def test_other_ways_to_run() -> None:
    compiled = Session("cpu").compile(weighted())
    a, one, w = f(5, 3), f(1, 4, seed=2), f(3, 4)
    slots = [np.empty((5, 4), "f4"), np.empty((5, 3), "f4")]
    compiled.run_slots([a, one], slots)
    same(slots, a @ w + one, np.exp(a))
    queued = [compiled.run_pipelined([a, one]), compiled.run_pipelined([a, f(3, 4)]), compiled.run_pipelined([a, one])]
    same(queued[0].result()[:1], a @ w + one)
    with pytest.raises(InputError, match="against"):
        queued[1].result()
    same(queued[2].result()[:1], a @ w + one)
    same([compiled.read_output_row("y", 4, [a, one])], (a @ w + one)[4])


def test_a_run_that_fails_leaves_the_state_as_it_was() -> None:
    graph = Graph("state")
    total = graph.input("state", ("n", 2)) + graph.input("x", ("m", 2))
    graph.output(total, name="next")
    compiled = Session("cpu").compile(graph)
    compiled.bind_handle("state", f(1, 2))
    compiled.set_feeds({"next": "state"})
    compiled.run({"x": f(4, 2)})
    state = f(1, 2) + f(4, 2)
    with pytest.raises(InputError, match="n = 4 against m = 3"):
        compiled.run({"x": f(3, 2)})
    same([compiled.read_handle("state")], state)
    same(compiled.run({"x": f(1, 2)}), state + f(1, 2))


def test_active_extents_take_dims_to_be_equal() -> None:
    compiled = Session("cpu").compile(sum_of_two())
    for dim in ("n", "m"):
        compiled.set_active_extent(dim, 2)
    same(compiled.run([f(4, 3), f(4, 3)])[:1], np.concatenate([f(4, 3)[:2] * 2, np.zeros((2, 3), "f4")]))
    compiled.set_active_extent("n", 1)
    with pytest.raises(InputError, match=r"n = 1 against m = 2, at the active extents"):
        compiled.run([f(4, 3), f(4, 3)])


def test_buckets_pad_no_dim_that_is_broadcast() -> None:
    ladders = {"n": (4, 8), "m": (4, 8)}
    graph = Graph("rows")
    graph.output(graph.input("a", ("n", 3)) + graph.input("b", ("m", 3)))
    a, b = f(3, 3), f(1, 3, seed=1)
    same(BucketedCache(graph, Session("cpu"), ladders).run_padded([a, b]), a + b)
    padded = BucketedCache(graph, Session("cpu"), ladders, static=True)
    same(padded.run_padded([a, a]), a + a)
    with pytest.raises(
        InputError, match=r"\[buckets\] expected dims of one size, as each is padded, got .* n = 3 against"
    ):
        padded.run_padded([a, b])


def test_devices_of_a_graph_and_dims_of_a_choice() -> None:
    devices = GraphDevices(weighted())
    a, one = f(5, 3), f(1, 4, seed=2)
    same(devices.run("cpu", [a, one])[:1], a @ f(3, 4) + one)
    assert devices.report([a, one]).chosen is not None
    device, results = devices.run_chain([a, one], ["cpu"])
    assert device.kind == "cpu"
    same(results[:1], a @ f(3, 4) + one)


def test_saved_programs_compile_the_others_where_they_are_opened(tmp_path: Path) -> None:
    compiled = Session("cpu").compile(weighted())
    a, one = f(5, 3), f(1, 4, seed=2)
    compiled.run([a, one])
    compiled.save(tmp_path / "p")
    opened = rlx.load_compiled(tmp_path / "p")
    assert opened.compile_count == 1
    same(opened.run([a, one])[:1], a @ f(3, 4) + one)
    assert opened.compile_count == 2
    save_graph(weighted(), tmp_path / "g.rlx")
    same(Session("cpu").compile(load_graph(tmp_path / "g.rlx")).run([a, one])[:1], a @ f(3, 4) + one)


def test_stages() -> None:
    """The dims of inputs broadcast in programs that measure others; those that are measured do not."""
    graph = Graph("measured")
    total = graph.input("a", ("n",)) + graph.input("b", ("m",))
    places = ops.nonzero(total > 0)
    graph.output(places, name="places")
    graph.output(places.reshape(places.shape[1]) + graph.input("c", ("k",), "i64"), name="more")
    compiled = Session("cpu").compile(graph)
    a, b = np.array([1, -1, 2, 3], "f4"), np.array([-1.5], "f4")
    positions = np.nonzero(a + b > 0)
    same(compiled.run([a, b, np.array([10, 20])]), np.stack(positions), positions[0] + [10, 20])
    with pytest.raises(InputError, match=r"against k = 1.*what a run measures is not broadcast"):
        compiled.run([a, b, np.array([10])])
