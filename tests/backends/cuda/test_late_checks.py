"""Runs whose results stay on the device return before their checks are known, and whoever sees an array is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda.arrays import CudaArray
from rlx.backends.cuda.device import open_device
from rlx.errors import InputError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

from .emulated_driver import EmulatedDriver
from .graphs import cache

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
WRONG = r"\[gather\] expected indices in \[-4, 4\), got 9, at node"


def lookup() -> rlx.CompiledGraph:
    """Rows of a table, by indices that a run brings, and how many there are."""
    graph = Graph("lookup")
    indices = graph.input("i", ("n",), "i64")
    graph.output(ops.gather(graph.constant(TABLE), indices, axis=0), name="rows")
    return rlx.Session("cuda").compile(graph)


def rows_of(program: rlx.CompiledGraph, *indices: int) -> Any:
    (rows,) = program.run([np.array(indices, np.int64)], outputs="device")
    return rows


def test_nobody_waits_for_the_checks_of_what_stays_on_the_device(driver: EmulatedDriver) -> None:
    program = lookup()
    indices = CudaArray.of_host(open_device(0), np.array([3, 0]))
    program.run([indices], outputs="device")
    with driver.counted() as calls:
        (rows,) = program.run([indices], outputs="device")
    assert not {"synchronise", "wait_for"} & set(calls)
    np.testing.assert_array_equal(np.asarray(rows), TABLE[[3, 0]])
    assert rows.checks == ()


@pytest.mark.parametrize(
    "use",
    [
        np.asarray,
        lambda a: a.copy(),
        lambda a: a.read((0,)),
        lambda a: a.__dlpack__(),
        lambda a: a.__cuda_array_interface__,
    ],
    ids=["numpy", "copy", "read", "dlpack", "interface"],
)
def test_who_sees_an_array_of_a_run_that_failed_is_told(driver: EmulatedDriver, use: Callable[[Any], object]) -> None:
    program = lookup()
    rows = rows_of(program, 1, 9)
    for _ in range(2):
        with pytest.raises(InputError, match=WRONG):
            use(rows)
    np.testing.assert_array_equal(np.asarray(rows_of(program, 1, 2)), TABLE[[1, 2]])


def test_runs_hand_on_what_is_not_known_of_their_inputs(driver: EmulatedDriver) -> None:
    program, sums = lookup(), rlx.Session("cuda").compile(doubled())
    wrong, right = rows_of(program, 9), rows_of(program, 3)
    (later,) = sums.run([wrong], outputs="device")
    with pytest.raises(InputError, match=WRONG):
        np.asarray(later)
    with pytest.raises(InputError, match=WRONG):
        sums.run([wrong])
    with pytest.raises(InputError, match=WRONG):
        sums.run_pipelined([wrong]).result()
    (later,) = sums.run([right], outputs="device")
    np.testing.assert_array_equal(np.asarray(later), TABLE[[3]] * 2)


def doubled() -> Graph:
    graph = Graph("doubled")
    graph.output(graph.input("x", ("n", 3)) * 2.0, name="y")
    return graph


def test_known_checks_are_not_handed_on(driver: EmulatedDriver) -> None:
    """A chain of runs does not collect the checks of all that came before."""
    program, twice = lookup(), rlx.Session("cuda").compile(doubled())
    value = rows_of(program, 0)
    for _ in range(4):
        driver.synchronise_all()
        (value,) = twice.run([value], outputs="device")
    assert value.checks == ()


def test_states_do_not_change_by_what_a_run_that_failed_made(driver: EmulatedDriver) -> None:
    keeper = rlx.Session("cuda").compile(cache())
    keeper.bind_handle("cache", np.zeros((8, 3), "f4"))
    program = lookup()
    with pytest.raises(InputError, match=WRONG):
        keeper.run([rows_of(program, 9), np.int64(0)])
    np.testing.assert_array_equal(keeper.read_handle("cache"), np.zeros((8, 3), "f4"))
    keeper.run([rows_of(program, 2), np.int64(1)], outputs="device")
    np.testing.assert_array_equal(keeper.read_handle("cache")[1], TABLE[2])


def test_feeds_do_not_change_by_a_run_that_failed(driver: EmulatedDriver) -> None:
    graph = Graph("walk")
    at = graph.input("at", ("n",), "i64")
    graph.output(ops.gather(graph.constant(np.array([1, 2, 9, 0])), at, axis=0), name="next")
    program = rlx.Session("cuda").compile(graph)
    program.bind_handle("at", np.array([1]))
    program.set_feeds({"next": "at"})
    program.run([], outputs="device")
    program.run([], outputs="device")
    with pytest.raises(InputError, match=WRONG):
        program.run([], outputs="device")
    np.testing.assert_array_equal(program.read_handle("at"), [9])


def test_places_for_checks_that_nobody_asked_for_are_used_again(driver: EmulatedDriver) -> None:
    program = lookup()
    for _ in range(4):
        rows_of(program, 1)
    with driver.counted() as calls:
        for _ in range(8):
            rows_of(program, 1)
    assert "allocate_host" not in calls


def test_the_host_gets_the_results_that_it_wants(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those beside it, which may be large."""
    moved: list[int] = []
    copy_out = driver.copy_out

    def noted(host: int, source: int, nbytes: int, stream: Any) -> None:
        moved.append(nbytes)
        copy_out(host, source, nbytes, stream)

    monkeypatch.setattr(driver, "copy_out", noted)
    graph = Graph("several")
    x = graph.input("x", ("n",))
    for number in range(4):
        graph.output(x + float(number), name=f"y{number}")
    program = rlx.Session("cuda").compile(graph)
    given = np.arange(1000, dtype=np.float32)

    def got(names: list[str]) -> list[Array]:
        moved.clear()
        return program.run([given], outputs=names)

    for names, sizes in ((["y2"], [4000]), (["y0", "y1", "y3"], [8096, 4000]), (["y0", "y1", "y2", "y3"], [16288])):
        for result, name in zip(got(names), names):
            np.testing.assert_array_equal(result, given + float(name[1]))
        assert moved == sizes
