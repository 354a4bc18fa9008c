"""Branches and loops that data end: parts of a run's graph, which the device decides, and what is left to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import rlx
from ops import test_control as control
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda.bound import CudaBound
from rlx.backends.cuda.branches import Forked, Repeated, Undecided
from rlx.backends.cuda.driver import OUT_OF_MEMORY
from rlx.errors import DeviceLost, InputError, OutOfMemory
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array

from .emulated_driver import ILLEGAL_ADDRESS, EmulatedDriver
from .fake_cublaslt import FakeLibrary
from .graphs import compiled, doubling
from .product_graphs import ROWS, whole, wide

AROUND = {"enter", "free", "drop_executable", "synchronise"}
"""Calls that may stand around what a run does."""
UNSUPPORTED = 801
VECTOR, NUMBER, TRUTH = ((3,), "f32"), ((), "f32"), ((), "bool")
Type = tuple[tuple[int, ...], str]
Inputs = Sequence[Array]


def region(body: Callable[..., Value | tuple[Value, ...]], *types: Type) -> Graph:
    graph = Graph("region")
    results = body(*(graph.input(f"a{i}", shape, dtype) for i, (shape, dtype) in enumerate(types)))
    graph.output(*(results if isinstance(results, tuple) else (results,)))
    return graph


def only(results: Value | tuple[Value, ...]) -> Value:
    return results[0] if isinstance(results, tuple) else results


def vector(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def a_branch() -> Graph:
    graph = Graph("branch")
    p, x = graph.input("p", (), "bool"), graph.input("x", (3,))
    y = only(ops.if_(p, x, regions=(region(lambda a: a + 1, VECTOR), region(lambda a: a * 3, VECTOR))))
    graph.output(y * 2)
    return graph


def one_side() -> Graph:
    """A branch whose side has a loop of known length, and a branch in each trip."""
    graph = Graph("one side")
    p, x = graph.input("p", (), "bool"), graph.input("x", (3,))

    def step(total: Value, row: Value) -> Value:
        sides = region(lambda a, b: a + b, NUMBER, NUMBER), region(lambda a, b: a - b, NUMBER, NUMBER)
        return only(ops.if_(row > 0.0, total, row, regions=sides))

    def summed(a: Value) -> Value:
        start = ops.reduce_sum(a * 0.0, axes=(0,))
        return only(ops.scan(start, a, carried=1, sequences=1, length=3, regions=(region(step, NUMBER, NUMBER),)))

    sides = region(summed, VECTOR), region(lambda a: ops.reduce_sum(a, axes=(0,)) * 0.5, VECTOR)
    graph.output(*ops.if_(p, x, regions=sides))
    return graph


def turning(limit: int | None) -> Callable[[], Graph]:
    """Two carried values that change places in each trip, until the greater is large."""

    def make() -> Graph:
        graph = Graph("turning")
        x, y, most = graph.input("x", (3,)), graph.input("y", (3,)), graph.input("most", ())
        types = VECTOR, VECTOR, NUMBER
        test = region(lambda a, b, n: ops.reduce_max(a + b, axes=(0,)) < n, *types)
        body = region(lambda a, b, n: (b * 2, a + 1), *types)
        graph.output(*ops.while_(x, y, most, carried=2, limit=limit, regions=(test, body)))
        return graph

    return make


def loops_in_a_loop() -> Graph:
    """Each trip doubles until a limit that trips raise, or leaves it where a branch says so."""
    graph = Graph("loops")
    x, most, end = graph.input("x", (3,)), graph.input("most", ()), graph.input("end", ())
    types = VECTOR, NUMBER, NUMBER

    def body(a: Value, n: Value, e: Value) -> tuple[Value, ...]:
        test = region(lambda a, n: ops.reduce_max(a, axes=(0,)) < n, VECTOR, NUMBER)
        grown = only(ops.while_(a, n, carried=1, regions=(test, region(lambda a, n: a * 2, VECTOR, NUMBER))))
        sides = region(lambda a: a - 1, VECTOR), region(lambda a: a + 0.5, VECTOR)
        grown = only(ops.if_(ops.reduce_max(grown, axes=(0,)) > n, grown, regions=sides))
        return grown, n * 3

    outer = region(lambda a, n, e: n < e, *types), region(body, *types)
    graph.output(*ops.while_(x, most, end, carried=2, regions=outer))
    return graph


def turned(x: Array, y: Array, most: float, limit: int | None) -> list[Array]:
    trip = 0
    while (limit is None or trip < limit) and (x + y).max() < most:
        x, y, trip = y * 2, x + 1, trip + 1
    return [x, y]


def looped(x: Array, most: float, end: float) -> list[Array]:
    while most < end:
        while x.max() < most:
            x = x * 2
        x = x - 1 if x.max() > most else x + np.float32(0.5)
        most = most * 3
    return [x, np.float32(most).reshape(())]


X, Y = vector(1, -2, 3), vector(0, 5, 1)


def bools(*values: bool) -> list[Inputs]:
    return [[np.array(value), X] for value in values]


TURNS = [[X, Y, np.float32(most).reshape(())] for most in (0, 6, 9, 20, 21, 500)]
LOOPS = [[X, np.float32(2).reshape(()), np.float32(end).reshape(())] for end in (1, 3, 7, 60, 500)]
NETS: list[tuple[Callable[[], Graph], list[Inputs], Callable[..., list[Array]]]] = [
    (a_branch, bools(True, False, True), lambda p, x: [(x + 1 if p else x * 3) * 2]),
    (one_side, bools(True, False), lambda p, x: [np.abs(x).sum() if p else x.sum() / 2]),
    *((turning(n), TURNS, lambda x, y, m, n=n: turned(x, y, float(m), n)) for n in (None, 0, 1, 2, 3)),
    (loops_in_a_loop, LOOPS, lambda x, m, e: looped(x, float(m), float(e))),
    (doubling, [[X], [X * 50], [X / 8]], lambda x: [turned(x, x * 0, 100.0, 0)[0] * doubled(x)]),
]  # fmt: skip


def doubled(x: Array) -> float:
    """The least power of two that makes the greatest at least 100."""
    factor = 1.0
    while x.max() * factor < 100:
        factor *= 2
    return factor


def same(results: Sequence[Array], wanted: Sequence[Array]) -> None:
    for result, right in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(result), np.asarray(right, np.float32))


def bound_of(graph: Graph) -> CudaBound:
    bound = compiled(graph).bind({})
    assert isinstance(bound, CudaBound)
    return bound


@pytest.mark.parametrize(("make", "inputs", "right"), NETS)
@pytest.mark.parametrize("mode", ["auto", "always", "off"])
def test_runs_are_one_graph(
    mode: str,
    make: Callable[[], Graph],
    inputs: list[Inputs],
    right: Callable[..., list[Array]],
    driver: EmulatedDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the second run on, or from the first, whichever ways they go; where it is off, none is."""
    monkeypatch.setenv("RLX_CUDA_CONDITIONAL", mode)
    bound = bound_of(make())
    for given in (inputs[0], *inputs):
        same(bound(given), right(*given))
    assert driver.calls.count("instantiate") == (0 if mode == "off" else 1)
    for given in inputs[::-1]:
        with driver.counted() as calls:
            same(bound(given), right(*given))
        if mode != "off":
            assert [call for call in calls if call not in AROUND] == ["replay"]
            assert calls.count("synchronise") == 1
    if mode == "off":
        assert "branch" not in driver.calls
    else:
        assert ("branch" in driver.done) == any(isinstance(each, Forked | Repeated) for each in bound._whole())


def ready(graph: Graph) -> CudaBound:
    """A program that has run once, so that the device decides from now on."""
    bound = bound_of(graph)
    same(bound([np.array(True), X]), [(X + 1) * 2])
    return bound


def test_weights_that_move_make_a_graph_anew(driver: EmulatedDriver) -> None:
    """Graphs with parts that the device decides on are not updated."""
    graph = Graph("weighted")
    p, x, w = graph.input("p", (), "bool"), graph.input("x", (3,)), graph.param("w", (3,))
    sides = region(lambda a, b: a + b, VECTOR, VECTOR), region(lambda a, b: a * b, VECTOR, VECTOR)
    graph.output(*ops.if_(p, x, w, regions=sides))
    executable = compiled(graph, {"w": Y})
    bound = executable.bind({})
    for truth in (True, True, False):
        same(bound([np.array(truth), X]), [X + Y if truth else X * Y])
    executable.set_params({"w": Y + 1})
    with driver.counted() as calls:
        for truth in (True, False):
            same(bound([np.array(truth), X]), [X + Y + 1 if truth else X * (Y + 1)])
    assert calls.count("instantiate") == 1 and "update" not in calls and calls.count("drop_graph") == 1


def test_results_stay_on_the_device_and_nobody_waits(driver: EmulatedDriver) -> None:
    executable = compiled(a_branch())
    bound = executable.bind({})
    given = [executable.put("p", np.array(False)), executable.put("x", X)]
    for _ in range(3):
        with driver.counted() as calls:
            (y,) = bound.deliver_to(["device"], given)
    assert "replay" in calls and not {"copy_in", "copy_out", "synchronise"} & set(calls[calls.index("copy") :])
    same([y], [X * 6])


def test_runs_overlap_where_the_device_decides(driver: EmulatedDriver) -> None:
    bound = bound_of(a_branch())
    assert bound.begin([np.array(True), X]) is None, "the host decides in the first run"
    for _ in range(2):
        with driver.counted() as calls:
            ends = [bound.begin([np.array(truth), X * n]) for n, truth in enumerate((True, False, True))]
        assert "synchronise" not in calls and calls.count("replay") == 3
        for n, end in enumerate(ends):
            assert end is not None
            same(end(), [X * n * 6 if n == 1 else (X * n + 1) * 2])
    program = rlx.Session("cuda").compile(turning(None)())
    queued = [program.run_pipelined(list(given)) for given in TURNS * 2]
    for run, (x, y, most) in zip(queued, TURNS * 2, strict=True):
        same(run.result(), turned(x, y, float(most), None))


@pytest.mark.parametrize("first", [True, False])
def test_sides_without_anything_to_do(first: bool, driver: EmulatedDriver) -> None:
    """What is of size 0 has no kernels: a side alone is the body of its branch, and no side is none."""
    rows = ("n",)

    def graph(alone: bool) -> Graph:
        graph = Graph("sides")
        p, x, y = graph.input("p", (), "bool"), graph.input("x", rows), graph.input("y", (3,))
        small, large = Graph("small"), Graph("large")
        small.output(small.input("x", rows) + 1.0)
        small.input("y", (3,))
        a, b = large.input("x", rows), large.input("y", (3,))
        large.output(a * ops.reduce_max(ops.sort(b), axes=(0,)) if alone else a * 2.0)
        graph.output(*ops.if_(p, x, y, regions=(small, large) if first else (large, small)))
        return graph

    for alone in (True, False):
        bound = compiled(graph(alone)).bind({"n": 0})
        assert isinstance(bound, CudaBound)
        for truth in (True, False, True):
            driver.done.clear()
            assert bound([np.array(truth), np.zeros(0, np.float32), X])[0].shape == (0,)
        parts = [each for each in bound._whole() if isinstance(each, Forked)]
        assert [len(each.yes) + len(each.no) > 0 and bool(each.yes) != bool(each.no) for each in parts] == [
            True
        ] * alone
        assert driver.done.count("launch") == (alone and 1 + (0 if first else 2))


def test_a_library_makes_products_in_branches(always: FakeLibrary, driver: EmulatedDriver) -> None:
    graph = Graph("products")
    p, x, w = graph.input("p", (), "bool"), graph.input("x", (ROWS, 64), "f16"), graph.param("w", (64, 64), "f16")
    types = ((ROWS, 64), "f16"), ((64, 64), "f16")
    sides = region(lambda a, b: a @ b, *types), region(lambda a, b: ops.maximum(a @ b, np.float16(0)) + 1, *types)
    graph.output(*ops.if_(p, x, w, regions=sides))
    left, right = whole((ROWS, 64), 1), whole((64, 64), 2)
    bound = compiled(graph, {"w": right}).bind({})
    wanted = wide(left) @ wide(right)
    for truth in (True, True, False, True):
        driver.done.clear()
        same(bound([np.array(truth), left]), [wanted if truth else np.maximum(wanted, 0) + 1])
    assert driver.done.count("product") == driver.done.count("branch") == 1


def reasons(bound: CudaBound) -> str:
    return str(bound.executable.describe()["branches"])


def test_what_the_device_cannot_decide_is_left_to_the_host(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.branches = False
    bound = ready(a_branch())
    for truth in (True, False):
        same(bound([np.array(truth), X]), [(X + 1 if truth else X * 3) * 2])
    assert "a driver without branches" in reasons(bound)
    driver.branches = True
    monkeypatch.setattr(bound.executable.device, "setter", None)
    monkeypatch.setattr(Undecided, "left", 3)
    bound = bound_of(one_side())
    for truth in (True, False, True):
        same(bound([np.array(truth), X]), [np.abs(X).sum() if truth else X.sum() / 2])
    assert "more than" in reasons(bound)
    assert "branch" not in driver.calls


def test_sides_that_cannot_run_are_left_to_the_host(driver: EmulatedDriver) -> None:
    """They are an error when a run comes to them."""
    graph = Graph("sides")
    p, x, y = graph.input("p", (), "bool"), graph.input("x", ("n",)), graph.input("y", ("m",))
    both, first = Graph("both"), Graph("first")
    both.output(ops.reduce_sum(both.input("a", ("n",)) + both.input("b", ("m",)), axes=(0,)))
    first.output(ops.reduce_sum(first.input("a", ("n",)) * 2, axes=(0,)))
    first.input("b", ("m",))
    graph.output(*ops.if_(p, x, y, regions=(both, first)))
    executable = compiled(graph)
    bound = executable.bind({"n": 2, "m": 3})
    ones = [np.ones(2, np.float32), np.ones(3, np.float32)]
    for _ in range(3):
        same(bound([np.array(False), *ones]), [4])
        with pytest.raises(InputError, match="against"):
            bound([np.array(True), *ones])
    assert "branch" not in driver.calls
    assert "a side of a branch cannot run" in str(executable.describe()["branches"])
    bound = executable.bind({"n": 2, "m": 2})
    for truth in (True, False, True):
        same(bound([np.array(truth), ones[0], ones[0]]), [4])
    assert "branch" in driver.done and "the device" in str(executable.describe()["branches"])


@pytest.mark.parametrize("call", ["condition", "branch", "instantiate", "load"])
def test_a_graph_that_the_driver_does_not_take_is_left_to_the_host(call: str, driver: EmulatedDriver) -> None:
    bound = bound_of(a_branch())
    driver.fail(call, UNSUPPORTED)
    for truth in (True, False, True):
        same(bound([np.array(truth), X]), [(X + 1 if truth else X * 3) * 2])
    assert "INJECTED (801)" in reasons(bound) and "branch" not in driver.done
    assert driver.calls.count("drop_graph") == driver.calls.count("end_capture") == (call != "load")


@pytest.mark.parametrize(("code", "error"), [(OUT_OF_MEMORY, OutOfMemory), (ILLEGAL_ADDRESS, DeviceLost)])
def test_other_errors_are_errors(code: int, error: type[Exception], driver: EmulatedDriver) -> None:
    bound = ready(a_branch())
    driver.fail("instantiate", code)
    with pytest.raises(error):
        bound([np.array(True), X])
    for truth in (True, False, True):
        same(bound([np.array(truth), X]), [(X + 1 if truth else X * 3) * 2])
    assert "branch" in driver.done


def test_loops_that_a_limit_may_end_are_left_to_the_host(driver: EmulatedDriver) -> None:
    """It looks at limits between trips; branches end by themselves."""
    loop, branch = rlx.Session("cuda").compile(doubling()), rlx.Session("cuda").compile(a_branch())
    for _ in range(3):
        same(loop.run([X], timeout=100.0), [X * 64])
    assert "branch" not in driver.calls
    for _ in range(3):
        same(branch.run([np.array(True), X], timeout=100.0), [(X + 1) * 2])
    assert driver.done.count("branch") == 2
    same(loop.run([X]), [X * 64])
    assert driver.done.count("branch") > 2


def test_trips_are_counted(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the device goes on by itself: a loop that would never end is an error, and the next run works."""
    monkeypatch.setenv("RLX_LOOP_TRIPS", "20")
    program = rlx.Session("cuda").compile(doubling())
    for _ in range(3):
        same(program.run([X]), [X * 64])
    driver.done.clear()
    with pytest.raises(InputError, match=r"RLX_LOOP_TRIPS.* in \[0, 21\), got 21"):
        program.run([X * 0])
    assert "branch" in driver.done
    same(program.run([X * 2]), [X * 64 * (2 if X.max() * 64 < 100 else 1)])


def test_states_are_as_they_were_after_a_run_that_fails(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the device decides, too: a branch and a loop that make what is written to a state, and one that is not done
    in time."""
    monkeypatch.setenv("RLX_LOOP_TRIPS", "20")
    graph = Graph("state")
    p, x, state = graph.input("p", (), "bool"), graph.input("x", (3,)), graph.state("total", (3,))
    sides = region(lambda a, b: a + b, VECTOR, VECTOR), region(lambda a, b: a - b, VECTOR, VECTOR)
    changed = only(ops.if_(p, state, x, regions=sides))
    test = region(lambda a: ops.reduce_max(a, axes=(0,)) < 100.0, VECTOR)
    doubled = only(ops.while_(x, carried=1, regions=(test, region(lambda a: a * 2, VECTOR))))
    graph.set_next(state, changed)
    graph.output(doubled + changed)
    program = rlx.Session("cuda").compile(graph)
    total = X * 0
    for truth in (True, True, False, True):
        total = total + X if truth else total - X
        same(program.run([np.array(truth), X]), [X * 64 + total])
        driver.done.clear()
        with pytest.raises(InputError, match="RLX_LOOP_TRIPS"):
            program.run([np.array(truth), X * 0 - 1])
    assert driver.done.count("branch") > 2
    same(program.run([np.array(False), X]), [X * 64 + total - X])


@pytest.mark.parametrize(
    ("check", "given"),
    [
        (control.test_if_takes_one_side, (True,)),
        (control.test_if_takes_one_side, (False,)),
        *((control.test_while_runs_until_the_condition_fails, (n, most)) for n, most in ((None, 8), (2, 4), (0, 1))),
        (control.test_equalities_of_a_region_are_checked_when_it_runs, ()),
    ],
)
def test_ops_are_right_from_the_first_run_on(
    check: Callable[..., None], given: tuple[object, ...], driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLX_CUDA_CONDITIONAL", "always")
    check(*given, "cuda")
    assert ("branch" in driver.done) == (given != (0, 1))


def test_profiles_tell_of_what_ran(driver: EmulatedDriver) -> None:
    """By the host, which times each kernel."""
    bound = compiled(doubling(), options=Options(cache=False, profile=True)).bind({})
    for _ in range(3):
        bound([X])
    done = len(driver.done)
    times = bound.profile([np.ones(3, np.float32)])
    assert max(time.calls for time in times) == 8 and "branch" not in driver.done[done:]
