"""Runs on a driver that works on the processor: results, the order of calls, and what moves."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda.arrays import CudaArray
from rlx.errors import InputError, ProfileError
from rlx.ir.graph import Graph

from .emulated_driver import EmulatedDriver
from .graphs import BIAS, W, cache, compiled, dense, doubling, expected, ready, recurrent, settle, x_of

AROUND = {"enter", "free", "drop_executable", "synchronise"}
"""Calls that may stand around what a run does."""


def same(results: list[object], wanted: list[object]) -> None:
    for result, right in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(result), np.asarray(right))


def test_one_program_at_all_sizes(driver: EmulatedDriver) -> None:
    executable = ready()
    for rows in (3, 70, 0, 1, 3):
        same(executable.bind({"n": rows})([x_of(rows)]), expected(x_of(rows)))


def test_a_run_is_one_graph(driver: EmulatedDriver) -> None:
    """The first run is given to the stream as it is, the second is noted, and from then on it is replayed."""
    bound = ready().bind({"n": 3})
    for seed in range(2):
        same(bound([x_of(3, seed)]), expected(x_of(3, seed)))
    with driver.counted() as calls:
        for seed in range(2, 5):
            same(bound([x_of(3, seed)]), expected(x_of(3, seed)))
    assert [call for call in calls if call not in AROUND] == ["replay"] * 3
    assert calls.count("synchronise") == 3 and driver.calls.count("instantiate") == 1


def test_set_weights_move_alone_and_update_the_graph(driver: EmulatedDriver) -> None:
    executable = ready()
    bound = executable.bind({"n": 3})
    for _ in range(3):
        bound([x_of(3)])
    executable.set_params({"bias": BIAS + 1})
    with driver.counted() as calls:
        same(bound([x_of(3)]), expected(x_of(3), W, BIAS + 1))
    assert executable.weights().moved == BIAS.nbytes
    assert "update" in calls and "instantiate" not in calls
    executable.set_params({"w": W * 2})  # which is packed by a kernel
    same(bound([x_of(3)]), expected(x_of(3), W * 2, BIAS + 1))
    assert executable.weights().moved == W.nbytes


def test_weights_that_were_set_to_what_they_are_do_not_move(driver: EmulatedDriver) -> None:
    executable = ready()
    executable.bind({"n": 3})([x_of(3)])
    before = dict(executable.weights().memory)
    executable.set_params({"w": W})
    assert executable.weights().moved == 0 and executable.weights().memory == before


def test_clones_share_memory_until_one_gets_other_weights(driver: EmulatedDriver) -> None:
    executable = ready()
    bound = executable.bind({"n": 3})
    bound([x_of(3)])
    clone = executable.clone()
    other = clone.bind({"n": 3})
    settle(executable)
    used = driver.used
    same(other([x_of(3)]), expected(x_of(3)))
    settle(executable)
    assert clone.weights().memory == executable.weights().memory
    assert driver.used - used == -(-other.nbytes // 256) * 256
    clone.set_params({"bias": BIAS * 0})
    same(other([x_of(3)]), expected(x_of(3), W, BIAS * 0))
    same(bound([x_of(3)]), expected(x_of(3)))
    empty = executable.clone(weights=False)
    with pytest.raises(InputError, match="expected params to be set"):
        empty.bind({"n": 3})([x_of(3)])


def test_memory_comes_back(driver: EmulatedDriver) -> None:
    executable = ready()
    executable.bind({"n": 3})([x_of(3)])

    def used() -> int:
        settle(executable)
        return driver.used

    before, pinned = used(), len(driver.pinned)
    for rows in range(4, 9):
        bound = executable.bind({"n": rows})
        for _ in range(3):
            bound.deliver_to(["device", "host"], [x_of(rows)])
            end = bound.begin([x_of(rows)])
            assert end is not None
            end()
    del bound, end
    assert used() == before and len(driver.pinned) == pinned
    executable.give_back()
    assert used() < before
    same(executable.bind({"n": 2})([x_of(2)]), expected(x_of(2)))


def test_arrays_on_the_device_stay_there(driver: EmulatedDriver) -> None:
    executable = ready()
    bound = executable.bind({"n": 3})
    x = executable.put("x", x_of(3))
    for _ in range(5):
        with driver.counted() as calls:
            y, twice = bound.deliver_to(["device", "nowhere"], [x])
        assert twice is None and isinstance(y, CudaArray)
    assert calls == ["enter", "replay"]
    same([y], expected(x_of(3))[:1])
    assert y.read((1, 2)) == expected(x_of(3))[0][1, 2]
    copy = y.copy()
    same([copy], [y])
    assert copy.pointer != y.pointer and copy.shape == (3, 4)
    out = [np.empty((3, 4), np.float32), None]
    results = bound.deliver_to(["host", "device"], [x], out)
    assert results[0] is out[0]
    same(results, expected(x_of(3)))


def test_the_host_may_write_to_its_inputs_when_a_run_is_over(driver: EmulatedDriver) -> None:
    """Also where nothing of the run was wanted on the host."""
    bound, x = ready().bind({"n": 3}), x_of(3)
    first = bound.deliver_to(["device", "nowhere"], [x])[0]
    right = expected(x)[0]
    x += 1
    second = bound.deliver_to(["device", "nowhere"], [x])[0]
    same([first, second], [right, expected(x)[0]])


def test_runs_overlap(driver: EmulatedDriver) -> None:
    """The next run begins before the last one's results are there; each has its own staging."""
    bound = ready().bind({"n": 3})
    for _ in range(2):
        ends = [bound.begin([x_of(3, seed)]) for seed in range(4)]
        for seed, end in enumerate(ends):
            assert end is not None
            same(end(), expected(x_of(3, seed)))
    with driver.counted() as calls:
        end = bound.begin([x_of(3, 9)])
        assert end is not None and "synchronise" not in calls
        same(end(), expected(x_of(3, 9)))
    assert "allocate" not in calls and calls.count("replay") == 1
    program = rlx.Session("cuda").compile(dense())
    program.set_params({"w": W, "bias": BIAS})
    queued = [program.run_pipelined([x_of(3, seed)]) for seed in range(5)]
    for seed, run in enumerate(queued):
        same(run.result(), expected(x_of(3, seed)))


def test_states_are_written_in_their_place(driver: EmulatedDriver) -> None:
    executable = compiled(cache())
    assert executable.writes_states and executable.describe()["written_in_place"] == ["cache"]
    bound = executable.bind({"n": 2})
    state = executable.put("cache", np.zeros((8, 3), np.float32))
    assert isinstance(state, CudaArray)
    pointer, program = state.pointer, executable.plan.program
    for trip in range(4):
        given = {"rows": np.full((2, 3), trip + 1, np.float32), "at": np.int64(2 * trip).reshape(()), "cache": state}
        results = bound.deliver_to(["device"] * 2, [given[program.buffers[n].name] for n in program.inputs])
        (place,) = bound.written
        assert results[place] is state and state.pointer == pointer
        np.testing.assert_array_equal(state.numpy()[:, 0], np.repeat([1, 2, 3, 4], 2) * (np.arange(8) // 2 <= trip))
        same([results[1 - place]], [np.full(3, (trip + 1) * (trip + 2), np.float32)])


def test_states_of_a_program_stay_on_the_device(driver: EmulatedDriver) -> None:
    program = rlx.Session("cuda").compile(cache())
    for trip in range(3):
        given = {"rows": np.full((2, 3), trip + 1, np.float32), "at": np.array(2 * trip)}
        same(program.run(given), [np.full(3, (trip + 1) * (trip + 2), np.float32)])
    program.bind_handle("cache", np.ones((8, 3), np.float32))
    same(program.run({"rows": np.zeros((1, 3), np.float32), "at": np.array(5)}), [np.full(3, 7, np.float32)])


def test_loops_that_data_end(driver: EmulatedDriver) -> None:
    bound = compiled(doubling()).bind({})
    for start, end in ((3.0, 192.0), (200.0, 200.0), (7.0, 112.0), (3.0, 192.0)):
        same(bound([np.array([1, start, 0], np.float32)]), [np.array([end / start, end, 0], np.float32)])
    assert bound.begin([np.ones(3, np.float32)]) is None


def test_loops_of_known_length_are_one_graph(driver: EmulatedDriver) -> None:
    bound = compiled(recurrent()).bind({"n": 5})
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    for _ in range(3):
        with driver.counted() as calls:
            same(bound([x]), [x.sum(0), 2 * x.cumsum(0)])
    assert [call for call in calls if call not in AROUND] == ["replay"]


def test_indices_are_looked_at(driver: EmulatedDriver) -> None:
    graph = Graph("gather")
    graph.output(ops.gather(graph.input("x", (4,)), graph.input("at", ("n",), "i64"), axis=0))
    program = rlx.Session("cuda").compile(graph)
    x = np.arange(4, dtype=np.float32)
    same(program.run([x, np.array([3, 0])]), [x[[3, 0]]])
    with pytest.raises(InputError, match="4"):
        program.run([x, np.array([1, 4])])


def test_parts_of_weights_come_alone(driver: EmulatedDriver) -> None:
    graph = Graph("experts")
    graph.output(ops.gather(graph.param("table", (4, 3)), graph.input("at", ("n",), "i64"), axis=0))
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    executable = compiled(graph)
    assert executable.reserve("table")
    for at in (0, 2):
        executable.write_part("table", at, table[at])
    same(executable.bind({"n": 2})([np.array([2, 0])]), [table[[2, 0]]])
    assert executable.weights().moved == 2 * table[0].nbytes
    assert not ready().reserve("w"), "a weight that is packed does not lie as it comes"


def test_profiles_tell_of_each_kernel(driver: EmulatedDriver) -> None:
    bound = compiled(dense(), {"w": W, "bias": BIAS}, Options(cache=False, profile=True)).bind({"n": 3})
    for _ in range(2):
        times = bound.profile([x_of(3)])
        assert [time.calls for time in times] == [1] * len(times) and all(time.total_ns > 0 for time in times)
        firsts = [time.first_ns for time in times]
        assert firsts == sorted(firsts)
    with pytest.raises(ProfileError):
        ready().bind({"n": 3}).profile([x_of(3)])
    loops = compiled(doubling(), options=Options(cache=False, profile=True)).bind({}).profile([np.ones(3, np.float32)])
    assert max(time.calls for time in loops) == 8


def test_another_program_of_the_same_kernels_loads_none(driver: EmulatedDriver) -> None:
    first = ready()
    loads = driver.calls.count("load")
    second = ready()
    assert driver.calls.count("load") == loads and first.functions == second.functions
