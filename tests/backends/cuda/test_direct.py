"""Runs that read arrays where they lie: what one gives the driver, the order of streams, and whose memory is whose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda.arrays import CudaArray, place_of
from rlx.backends.cuda.device import Borrowed, open_device
from rlx.backends.cuda.direct import MOST_GRAPHS
from rlx.backends.cuda.driver import OUT_OF_MEMORY
from rlx.errors import DriverError
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

from .emulated_driver import EmulatedDriver, Operation
from .graphs import BIAS, W, cache, compiled, dense, expected, ready, settle, x_of
from .test_late_checks import TABLE, lookup
from .torch_tensors import Tensor, Torch

INVALID = 1


def array_of(values: Array) -> CudaArray:
    return CudaArray.of_host(open_device(0), values)


def program_of(graph: Graph, **params: Array) -> rlx.CompiledGraph:
    program = rlx.Session("cuda").compile(graph)
    program.set_params(params)
    return program


def dense_program() -> rlx.CompiledGraph:
    return program_of(dense(), w=W, bias=BIAS)


def same(results: Any, wanted: list[Array]) -> None:
    for result, right in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(result), right)


def calls_of_a_run(driver: EmulatedDriver, run: Any) -> list[str]:
    """Those of a run behind several, while the last one's results are there."""
    for _ in range(6):
        results = run()
    with driver.counted() as calls:
        results = run()  # noqa: F841  # they are dropped when the next ones are there, as in a loop
    return calls


def test_a_run_with_arrays_on_the_device_is_one_call(driver: EmulatedDriver) -> None:
    program, x = dense_program(), array_of(x_of(3))
    assert calls_of_a_run(driver, lambda: program.run([x], outputs="device")) == ["enter", "replay"]


def test_a_run_with_checks_records_when_they_are_there(driver: EmulatedDriver) -> None:
    program, indices = lookup(), array_of(np.array([3, 0]))
    assert calls_of_a_run(driver, lambda: program.run([indices], outputs="device")) == ["enter", "replay", "record"]


def test_a_run_with_tensors_of_torch_has_no_events_to_wait_for(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    Torch(monkeypatch, driver.stream_number(driver.stream()))
    program, x = dense_program(), Tensor(array_of(x_of(3)), "torch.float32", (6, 1))
    assert calls_of_a_run(driver, lambda: program.run([x], outputs="device")) == ["enter", "replay", "record"]
    program, indices = lookup(), Tensor(array_of(np.array([3, 0])), "torch.int64", (1,))
    assert calls_of_a_run(driver, lambda: program.run([indices], outputs="device")) == ["enter", "replay", "record"]


def test_a_run_with_arrays_of_the_host_is_one_graph_that_is_waited_for(driver: EmulatedDriver) -> None:
    program, x = dense_program(), x_of(3)
    assert calls_of_a_run(driver, lambda: program.run([x])) == ["enter", "replay", "synchronise"]
    on_device = array_of(x)
    assert calls_of_a_run(driver, lambda: program.run([on_device])) == ["enter", "replay", "synchronise"]


def test_a_step_that_writes_a_state_is_one_graph(driver: EmulatedDriver) -> None:
    program = program_of(cache())
    program.bind_handle("cache", np.zeros((8, 3), np.float32))
    rows, at = array_of(np.ones((1, 3), np.float32)), array_of(np.int64(2).reshape(()))
    calls = calls_of_a_run(driver, lambda: program.run([rows, at], outputs="device"))
    assert calls == ["enter", "replay", "synchronise"], "what is checked is known before the state counts"
    np.testing.assert_array_equal(program.read_handle("cache").sum(0), [1, 1, 1])


def test_kernels_read_and_write_in_place(driver: EmulatedDriver) -> None:
    """No graph has a copy, but for what has to lie elsewhere."""
    bound = ready().bind({"n": 3})
    x = array_of(x_of(3))
    for _ in range(6):
        y = bound.deliver_to(["device", "device"], [x])
    driver.done.clear()
    again = bound.deliver_to(["device", "device"], [x])
    same([*y, *again], expected(x_of(3)) * 2)
    assert set(driver.done) == {"launch"}


def test_arrays_at_other_places(driver: EmulatedDriver) -> None:
    """In a row, by turns and anew each time; results that are kept stay what they are."""
    program = dense_program()
    kept, rights = [], []
    arrays = [array_of(x_of(3, seed)) for seed in range(4)]
    for trip in range(40):
        seed = trip % 4 if trip < 20 else trip
        given = arrays[seed] if seed < 4 else array_of(x_of(3, seed))
        results = program.run([given], outputs="device")
        if trip % 5 == 0:
            kept += results
            rights += expected(x_of(3, seed))
        same(results, expected(x_of(3, seed)))
    same(kept, rights)
    assert len({array.pointer for array in kept}) == len(kept)


def test_results_of_one_run_are_inputs_of_the_next(driver: EmulatedDriver) -> None:
    graph = Graph("grown")
    graph.output(graph.input("x", ("n", 3)) * 2.0 + 1.0, name="y")
    program = program_of(graph)
    (value,), right = program.run([np.ones((2, 3), np.float32)], outputs="device"), np.full((2, 3), 3, np.float32)
    for _ in range(12):
        (value,) = program.run([value], outputs="device")
        right = right * 2 + 1
    same([value], [right])


def test_the_number_of_graphs_is_limited(driver: EmulatedDriver) -> None:
    """Callers with arrays at ever other places pay for copies, and not for graphs that nobody uses again."""
    program = dense_program()
    arrays = [array_of(x_of(3, seed)) for seed in range(20)]
    for trip in range(120):
        seed = trip * 7 % 20
        same(program.run([arrays[seed]], outputs="device"), expected(x_of(3, seed)))
    assert driver.calls.count("instantiate") <= MOST_GRAPHS + 2
    assert driver.calls.count("begin_capture") <= MOST_GRAPHS + 3


def test_inputs_that_kernels_cannot_read_where_they_lie(driver: EmulatedDriver) -> None:
    """One that begins at no multiple of what kernels read at once is copied, in the same graph."""
    bound = ready().bind({"n": 3})
    whole = array_of(np.concatenate([np.zeros(1, np.float32), x_of(3).reshape(-1)]))
    given = CudaArray(whole.owner, dtypes.f32, (3, 6), Borrowed(whole.owner, whole.pointer + 4, 72, whole))
    for _ in range(4):
        driver.done.clear()
        results = bound.deliver_to(["host", "host"], [given])
        same(results, expected(x_of(3)))
    assert driver.done.count("copy") == 1


def test_an_input_that_is_a_result_too(driver: EmulatedDriver) -> None:
    graph = Graph("through")
    x = graph.input("x", ("n",))
    graph.output(x, name="same")
    graph.output(x + 1.0, name="more")
    graph.output(x + 1.0, name="again")
    program, given = program_of(graph), array_of(np.arange(5, dtype=np.float32))
    for _ in range(5):
        results = program.run([given], outputs="device")
    right = np.arange(5, dtype=np.float32)
    same(results, [right, right + 1, right + 1])
    assert len({result.pointer for result in (*results, given)}) == 4


def test_an_input_that_lies_in_a_state_is_read_before_that_is_written(driver: EmulatedDriver) -> None:
    executable = compiled(cache())
    bound, program = executable.bind({"n": 4}), executable.plan.program
    state, start = executable.put("cache", np.zeros((8, 3), np.float32)), np.arange(24, dtype=np.float32).reshape(8, 3)
    assert isinstance(state, CudaArray)
    at = array_of(np.int64(2).reshape(()))
    rows = CudaArray(state.owner, dtypes.f32, (4, 3), Borrowed(state.owner, state.pointer, 48, state))
    given = {"rows": rows, "at": at, "cache": state}
    for _ in range(4):
        with state.owner.work("run") as made:
            made.copy_in(state.pointer, start.ctypes.data, start.nbytes, state.owner.stream)
        bound.deliver_to(["device"] * 2, [given[program.buffers[n].name] for n in program.inputs])
        np.testing.assert_array_equal(state.numpy(), np.concatenate([start[:2], start[:4], start[6:]]))


def test_states_by_turns(driver: EmulatedDriver) -> None:
    """Two conversations with one program: each has the graphs that write to its state."""
    executable = compiled(cache())
    bound, program = executable.bind({"n": 1}), executable.plan.program
    states = [executable.put("cache", np.zeros((8, 3), np.float32)) for _ in range(2)]
    rows, at = array_of(np.ones((1, 3), np.float32)), array_of(np.int64(1).reshape(()))
    for trip in range(8):
        for state in states:
            assert isinstance(state, CudaArray)
            with state.owner.work("run") as made:
                made.copy_in(state.pointer, np.zeros(24, np.float32).ctypes.data, 96, state.owner.stream)
        given = {"rows": rows, "at": at, "cache": states[trip % 2]}
        with driver.counted() as calls:
            bound.deliver_to(["device", "device"], [given[program.buffers[n].name] for n in program.inputs])
        for i, state in enumerate(states):
            assert isinstance(state, CudaArray)
            np.testing.assert_array_equal(state.numpy()[:, 0], (np.arange(8) == 1) * (trip % 2 == i))
    assert [call for call in calls if call not in ("enter", "free")] == ["replay"]


def test_weights_that_are_set_anew_are_read(driver: EmulatedDriver) -> None:
    program, x = dense_program(), array_of(x_of(3))
    for scale in (1, 2, 3):
        program.set_params({"w": W * scale})
        for _ in range(5):
            same(program.run([x], outputs="device"), expected(x_of(3), W * scale))


def test_memory_of_results_comes_back(driver: EmulatedDriver) -> None:
    """When the bound has gone, and when there is no memory for something else."""
    executable = ready()
    bound, x = executable.bind({"n": 3}), array_of(x_of(3))
    bound.deliver_to(["nowhere", "nowhere"], [x])
    settle(executable)
    used = driver.used
    for _ in range(4):
        bound.deliver_to(["device", "device"], [x])
    settle(executable)
    assert driver.used > used and bound.nbytes > bound.arena.nbytes
    driver.fail("allocate", OUT_OF_MEMORY)
    more = array_of(x_of(3))
    assert driver.used == used + 256 and bound.nbytes == bound.arena.nbytes
    results = bound.deliver_to(["device", "device"], [x])
    del bound, more
    settle(executable)
    same(results, expected(x_of(3)))
    del results
    settle(executable)
    assert driver.used < used


def test_results_that_other_libraries_have_had_wait_for_them(driver: EmulatedDriver) -> None:
    bound, x = ready().bind({"n": 3}), array_of(x_of(3))
    first = bound.deliver_to(["device", "nowhere"], [x])[0]
    pointer = first.pointer
    first.__dlpack__(stream=1)
    del first
    with driver.counted() as calls:
        second = bound.deliver_to(["device", "nowhere"], [x])[0]
    assert calls[:3] == ["enter", "synchronise_all", "free"] and second.pointer != pointer


# the order of streams


class Library:
    """A library with a stream, on which it writes to its tensor and reads results when its turn comes."""

    def __init__(self, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = driver
        self.stream = driver.stream()
        self.number = driver.stream_number(self.stream)
        self.torch = Torch(monkeypatch, self.number)
        self.array = array_of(np.zeros((3, 6), np.float32))
        self.tensor = Tensor(self.array, "torch.float32", (6, 1))

    def write(self, values: Array) -> None:
        raw = self.driver.blocks[self.array.pointer][: values.nbytes].view(np.float32).reshape(values.shape)
        self.stream.give(Operation("theirs", lambda: np.copyto(raw, values)))

    def read(self, result: CudaArray, seen: list[Array]) -> None:
        raw = self.driver.blocks[result.pointer][: result.nbytes].view(np.float32).reshape(result.shape)
        self.stream.give(Operation("theirs", lambda: seen.append(raw.copy())))


def test_runs_are_in_the_order_of_the_lenders_stream(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was given before is read, and what it is given next comes behind the run, with no wait of the host."""
    library, program = Library(driver, monkeypatch), dense_program()
    seen: list[Array] = []
    for seed in range(8):
        library.write(x_of(3, seed))
        y, twice = program.run([library.tensor], outputs="device")
        library.read(y, seen)
        library.read(twice, seen)
    library.stream.drain()
    same(seen, [right for seed in range(8) for right in expected(x_of(3, seed))])


def test_the_device_follows_the_stream_that_led(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the device's own stream, other streams, copies and the host see what a run on another stream made."""
    library, program = Library(driver, monkeypatch), dense_program()
    graph = Graph("plus")
    graph.output(graph.input("x", ("n", 4)) + 1.0, name="y")
    plus = program_of(graph)
    other = driver.stream_number(driver.stream())
    for seed in range(6):
        y, right = program.run([library.tensor], outputs="device")[0], expected(np.zeros((3, 6), np.float32))[0]
        (more,) = plus.run([y], outputs="device")
        library.torch.stream = other if seed % 2 else library.number
        y = program.run([library.tensor], outputs="device")[0]
        copy = y.copy()
        same([plus.run([y])[0], more, copy, y], [right + 1, right + 1, right, right])
        same(program.run_pipelined([y_input(seed)]).result(), expected(x_of(3, seed)))


def y_input(seed: int) -> CudaArray:
    return array_of(x_of(3, seed))


def test_two_lenders_and_those_without_a_stream(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("sum")
    graph.output(graph.input("a", ("n", 6)) + graph.input("b", ("n", 6)), name="y")
    program, library = program_of(graph), Library(driver, monkeypatch)
    without = array_of(x_of(3))
    b = CudaArray(without.owner, dtypes.f32, (3, 6), Borrowed(without.owner, without.pointer, 72, without))
    for seed in range(4):
        library.write(x_of(3, seed))
        (y,) = program.run([library.tensor, b], outputs="device")
        assert driver.calls[-1] == "synchronise", "its owner may take it back when the run is over"
        same([y], [x_of(3, seed) + x_of(3)])


@pytest.mark.parametrize("call", ["replay", "record", "wait", "begin_capture", "instantiate", "launch", "copy"])
def test_a_run_that_fails_on_a_lenders_stream(
    call: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the stream was given of it comes before all that follows."""
    library, program = Library(driver, monkeypatch), dense_program()
    failed = 0
    for seed in range(9):
        library.write(x_of(3, seed))
        if seed % 2:
            driver.fail(call, INVALID)
        try:
            results = program.run([library.tensor], outputs="device")
        except DriverError as error:
            assert call in str(error)
            failed += 1
        else:
            same(results, expected(x_of(3, seed)))
        driver._failures.clear()
        same(program.run([array_of(x_of(3, seed))]), expected(x_of(3, seed)))
    assert failed


def test_checks_of_a_run_on_a_lenders_stream(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    Torch(monkeypatch, driver.stream_number(driver.stream()))
    program = lookup()
    right, wrong = (Tensor(array_of(np.array(at)), "torch.int64", (1,)) for at in ([3, 0], [1, 9]))
    for trip in range(8):
        (rows,) = program.run([wrong if trip % 3 == 2 else right], outputs="device")
        if trip % 3 == 2:
            with pytest.raises(rlx.InputError, match="got 9"):
                np.asarray(rows)
        else:
            same([rows], [TABLE[[3, 0]]])


def said_of(rows: CudaArray) -> str:
    """What checks say of an array, without what an error holds on to."""
    try:
        rows.settle()
    except rlx.InputError as error:
        return str(error)
    return ""


def test_what_checks_tell_is_that_of_their_run(driver: EmulatedDriver) -> None:
    """Also where places of the host for it come in another order than those of results."""
    program, small = lookup(), array_of(np.zeros(4, np.float32))
    right, wrong = array_of(np.array([3, 0])), array_of(np.array([1, 9]))
    for trip in range(24):
        if trip % 3:
            small.start_reading()  # it has the place that came last
        (rows,) = program.run([wrong if trip % 2 else right], outputs="device")
        assert ("got 9" in said_of(rows)) == trip % 2
        np.testing.assert_array_equal(small.numpy(), np.zeros(4))


def test_what_is_given_back_was_used_before(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a run on another stream reads is given back behind that run."""
    place = place_of(open_device(0))
    library, executable = Library(driver, monkeypatch), ready()
    bound = executable.bind({"n": 3})
    for _ in range(2):
        bound.deliver_to(["device", "nowhere"], [place.adopt(library.tensor)])
    settle(executable)
    order: list[str] = []
    launch = driver.emulator.launch

    class Blocks(dict[int, Any]):
        def pop(self, start: int) -> Any:  # type: ignore[override]
            order.append("free")
            return super().pop(start)

    def noted(*arguments: Any) -> None:
        order.append("launch")
        launch(*arguments)

    monkeypatch.setattr(driver, "blocks", Blocks(driver.blocks))
    monkeypatch.setattr(driver.emulator, "launch", noted)
    results = bound.deliver_to(["device", "nowhere"], [place.adopt(library.tensor)])
    del bound
    settle(executable)
    assert order.index("free") > order.index("launch")
    same(results[:1], expected(np.zeros((3, 6), np.float32))[:1])


def test_work_that_was_given_in_part_comes_first(driver: EmulatedDriver) -> None:
    """A run that fails leaves its stream with something: what follows waits for that."""
    done: list[int] = []
    theirs = driver.stream()
    with open_device(0).work("run"):
        open_device(0).lead(driver.stream_number(theirs))
        theirs.give(Operation("theirs", lambda: done.append(1)))
    with open_device(0).work("run"):
        driver.synchronise(open_device(0).stream)
        assert done == [1]


def test_branches_go_on_to_copy(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    Torch(monkeypatch, driver.stream_number(driver.stream()))
    graph, yes, no = Graph("either"), Graph("yes"), Graph("no")
    yes.output(yes.input("x", (3,)) * 2.0)
    no.output(no.input("x", (3,)) - 1.0)
    x = graph.input("x", (3,))
    results = ops.if_(ops.gt(ops.reduce_sum(x, axes=(0,)), 0.0), x, regions=(yes, no))
    graph.output(*(results if isinstance(results, tuple) else (results,)))
    program = program_of(graph)
    for trip in range(6):
        values = np.array([1, 2, 3], np.float32) * (-1) ** trip
        (y,) = program.run([Tensor(array_of(values), "torch.float32", (1,))], outputs="device")
        same([y], [values * 2 if trip % 2 == 0 else values - 1])
