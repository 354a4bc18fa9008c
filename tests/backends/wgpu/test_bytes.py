"""What moves between host and device: inputs and outputs that are asked for, and one weight when one is set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import rlx
from rlx.backends.wgpu.executable import WgpuExecutable
from rlx.ir.graph import Graph
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.stages import StagedExecutable
from support import skip_absent

KINDS = ["vulkan", "opengl"]


@pytest.fixture(autouse=True)
def present(request: pytest.FixtureRequest) -> None:
    skip_absent(request)


LENGTH = 4096


class Moved:
    """Bytes since it was made or last `told`."""

    def __init__(self) -> None:
        self.up = self.down = 0

    def told(self) -> tuple[int, int]:
        counts = (self.up, self.down)
        self.up = self.down = 0
        return counts


@contextmanager
def counting(program: CompiledGraph) -> Iterator[Moved]:
    """Counts what the device's library is given to write, and what of its buffers is mapped to be read."""
    executable = program.executable
    if isinstance(executable, StagedExecutable):
        executable = executable.executables[0]
    executable = getattr(executable, "inner", executable)
    assert isinstance(executable, WgpuExecutable)
    device, traffic = executable.device, Moved()
    queue = type(device.raw.queue)
    write, mapped = queue.write_buffer, None

    def write_buffer(self: object, buffer: object, offset: int, data: object) -> None:
        traffic.up += memoryview(data).nbytes  # type: ignore[arg-type]
        write(self, buffer, offset, data)

    probe = device.buffer(16, "probe", "MAP_READ")
    buffers = type(probe)
    mapped = buffers.read_mapped

    def read_mapped(self: object, *args: object, **options: object) -> object:
        view = mapped(self, *args, **options)
        traffic.down += memoryview(view).nbytes  # type: ignore[arg-type]
        return view

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "write_buffer", write_buffer)
        patch.setattr(buffers, "read_mapped", read_mapped)
        yield traffic


def cache_graph() -> Graph:
    graph = Graph("cache")
    row, at = graph.input("row", (1, 64)), graph.input("at", (), "i64")
    cache = graph.state("cache", (LENGTH, 64))
    written = rlx.update_slice(cache, row, at)
    graph.set_next(cache, written)
    graph.output(rlx.reduce_sum(written, axes=(0,)), name="sum")
    return graph


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_moves_inputs_and_outputs(kind: str) -> None:
    program = rlx.Session(kind).compile(cache_graph())
    row = np.ones((1, 64), "f4")
    program.run([row, np.array(0)])
    with counting(program) as traffic:
        for i in range(1, 4):
            assert program.run([row, np.array(i)])[0][0] == i + 1
            up, down = traffic.told()
            assert up <= 256 + 64, "a row, a number, and what lies between them"
            assert down <= 256 + 64, "a sum, and a number for each check"
        assert program.read_handle("cache")[:5, 0].tolist() == [1, 1, 1, 1, 0]
        assert traffic.told() == (0, LENGTH * 64 * 4)
        other = program.clone()
        other.run([row, np.array(4)])
        up, _ = traffic.told()
        assert up < 2048, "neither the state nor weights: only numbers of dispatches beside inputs"
    assert other.read_handle("cache")[4, 0] == 1
    assert program.read_handle("cache")[4, 0] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_that_is_fed_stays_on_the_device(kind: str) -> None:
    graph = Graph("fed")
    past, x = graph.input("past", (LENGTH, 64)), graph.input("x", (64,))
    graph.output(past * 0.5 + x, name="present")
    graph.output(rlx.reduce_sum(past, axes=(0,)), name="sum")
    program = rlx.Session(kind).compile(graph)
    program.bind_handle("past", np.zeros((LENGTH, 64), "f4"))
    program.set_feeds({"present": "past"})
    x = np.ones(64, "f4")
    program.run([x], outputs=["sum"])
    with counting(program) as traffic:
        for total in (1.0, 1.5):
            assert program.run([x], outputs=["sum"])[0].tolist() == [total * LENGTH] * 64
            assert traffic.told() == (256, 256)
        program.run([x], outputs="device")
        assert traffic.told() == (256, 0)
        present, _ = program.run([x])
        assert traffic.told() == (256, present.nbytes + 256), "who asks for it gets it"
    assert np.array_equal(program.read_handle("past"), present)


@pytest.mark.parametrize("kind", KINDS)
def test_results_on_the_device_are_inputs_without_a_copy(kind: str) -> None:
    graph = Graph("chain")
    x, y = graph.input("x", ("n", 64)), graph.input("y", (64,))
    graph.output(x + y, name="out")
    graph.output((x > 1.0).cast("i8"), name="more")
    program = rlx.Session(kind).compile(graph)
    one = np.ones(64, "f4")
    with counting(program) as traffic:
        value, _ = program.run([np.zeros((LENGTH, 64), "f4"), one], outputs="device")
        traffic.told()
        for _ in range(3):
            value, flags = program.run([value, one], outputs="device")
        assert traffic.told() == (3 * 256, 0)
        assert value.read((7,)).tolist() == [4] * 64
        assert traffic.told() == (0, 256), "a row"
        assert program.read_output_row("out", (-1, 3), [value, one]) == 5
        assert traffic.down == 4
    assert value.shape == (LENGTH, 64) and value.dtype == np.float32 and "LENGTH" not in repr(value)
    assert np.array_equal(np.asarray(value), np.full((LENGTH, 64), 4, "f4"))
    assert np.array_equal(np.from_dlpack(value), np.asarray(value))
    assert flags.dtype == np.int8 and np.asarray(flags).all()
    host = rlx.Session("cpu").compile(graph)
    assert host.run([value, one])[0][0, 0] == 5, "another device takes it through the host"


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_nobody_asks_for_stay_where_they_are(kind: str) -> None:
    graph = Graph("two")
    x = graph.input("x", (LENGTH,))
    graph.output(x * 2.0, name="much")
    graph.output(rlx.reduce_sum(x, axes=(0,)), name="sum")
    program = rlx.Session(kind).compile(graph)
    x = np.ones(LENGTH, "f4")
    program.run([x])
    with counting(program) as traffic:
        assert program.run([x], outputs=["sum"])[0] == LENGTH
        assert traffic.told() == (4 * LENGTH, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_that_nobody_feeds_and_rows_of_outputs(kind: str) -> None:
    """The handle is on the device once and for all, and of an output only the row comes."""
    graph = Graph("bound")
    table, x = graph.input("table", (LENGTH, 64)), graph.input("x", (64,))
    graph.output(table * x, name="much")
    graph.output(rlx.reduce_sum(table * x, axes=(0,)), name="sum")
    program = rlx.Session(kind).compile(graph)
    program.bind_handle("table", np.ones((LENGTH, 64), "f4"))
    x = np.arange(64, dtype="f4")
    program.run([x], outputs=["sum"])
    program.read_output_row("much", 0, [x])
    with counting(program) as traffic:
        assert np.array_equal(program.run([x], outputs=["sum"])[0], LENGTH * x)
        assert traffic.told() == (256, 256)
        assert np.array_equal(program.read_output_row("much", 7, [x]), x)
        assert traffic.told() == (256, 256)


@pytest.mark.parametrize("kind", KINDS)
def test_one_weight_is_one_weights_bytes(kind: str) -> None:
    """Some are packed for products, one by way of a transposition, some are read as they are."""
    graph = Graph("weights")
    x = graph.input("x", (4, 64))
    y = x
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": (rng.normal(size=(64, 64)) / 16).astype("f4") for i in range(4)}
    arrays |= {f"b{i}": rng.normal(size=64).astype("f4") for i in range(4)}
    for i in range(4):
        w = graph.param(f"w{i}", (64, 64))
        y = y @ (rlx.transpose(w * 2.0, permutation=(1, 0)) if i % 2 else w) + graph.param(f"b{i}", (64,))
    graph.output(y, name="y")
    program = rlx.Session(kind).compile(graph)
    reference = rlx.Session("reference").compile(graph)
    for each in (program, reference):
        each.set_params(arrays)
    x = rng.normal(size=(4, 64)).astype("f4")

    def same(a: CompiledGraph, b: CompiledGraph) -> bool:
        return np.allclose(a.run([x])[0], b.run([x])[0], rtol=1e-4, atol=1e-4)

    assert same(program, reference)
    with counting(program) as traffic:
        for name in ("w0", "w1", "b3"):
            new = {name: (rng.normal(size=arrays[name].shape) / 16).astype("f4")}
            program.set_params(new)
            reference.set_params(new)
            traffic.told()
            program.run([x])
            up, _ = traffic.told()
            assert up <= arrays[name].nbytes + x.nbytes + 4096, "and numbers of dispatches"
            assert same(program, reference)
        other, before = program.clone(), program.run([x])[0]
        traffic.told()
        other.run([x])
        assert traffic.told()[0] <= x.nbytes + 4096, "a clone has the weights that are there"
        other.set_params({"w2": arrays["w3"]})
        assert not np.array_equal(other.run([x])[0], before)
        assert np.array_equal(program.run([x])[0], before), "those of one are its own from then on"
        assert same(program, reference)
        reference.set_params({"w2": arrays["w3"]})
        assert same(other, reference)


@pytest.mark.parametrize("kind", KINDS)
def test_values_between_stages_stay_on_the_device(kind: str) -> None:
    graph = Graph("stages")
    x = graph.input("x", (LENGTH, 64))
    high = rlx.exp(x)
    places = rlx.nonzero(x[:, 0] > 0)
    graph.output(rlx.reduce_sum(rlx.gather(high, places[0], axis=0), axes=(0,)), name="sum")
    graph.output(high, name="high")
    program = rlx.Session(kind).compile(graph)
    x = np.zeros((LENGTH, 64), "f4")
    x[:3] = 1
    expected = np.full(64, 3 * np.e, "f4")
    small = 5 * LENGTH  # a mask is packed by the host
    np.testing.assert_allclose(program.run([x], outputs=["sum"])[0], expected, rtol=1e-5)
    with counting(program) as traffic:
        np.testing.assert_allclose(program.run([x], outputs=["sum"])[0], expected, rtol=1e-5)
        up, down = traffic.told()
        assert up < x.nbytes + small and down < small
        total, high = program.run([x], outputs="device")
        up, down = traffic.told()
        assert up < x.nbytes + small and down < small
        np.testing.assert_allclose(high.numpy(), np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(total), expected, rtol=1e-5)
    assert program.describe()["kernels"] > 2
