"""States: arrays of programs that runs change, in place where that is safe, and never by a run that fails."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

import rlx
import rlx.interrupt
from rlx.cli import main
from rlx.errors import (
    CapabilityError,
    CompileError,
    GraphError,
    InputError,
    ModelError,
    RunCancelled,
    RunTimeout,
    ShapeError,
)
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.serial import load_graph, save_graph
from rlx.ir.text import parse_graph, print_graph
from rlx.ir.verify import verify
from rlx.kernel.ir.verify import verify as verify_kernels
from rlx.kernel.lower.lowering import lower
from rlx.passes.checks import add_checks
from rlx.passes.decompose import decompose
from rlx.passes.state import guarded
from rlx.runtime.compiled import CompiledGraph
from support import skip_absent

DEVICES = ["reference", "cpu", "vulkan", "xla", "mlx"]
HEADS, LENGTH, WIDTH = 2, 16, 4


@pytest.fixture(autouse=True)
def present(request: pytest.FixtureRequest) -> None:
    skip_absent(request)


def cache_graph() -> Graph:
    """Rows come at a position that a run brings; the sum over all that is there goes out."""
    graph = rlx.Graph("cache")
    rows, at = graph.input("rows", ("n", 3)), graph.input("at", (), "i64")
    cache = graph.state("cache", (LENGTH, 3))
    written = rlx.update_slice(cache, rows, at)
    graph.set_next(cache, written)
    graph.output(rlx.reduce_sum(written, axes=(0,)), name="sum")
    return graph


def decoder_graph() -> Graph:
    """Attention of one token over the positions so far, which `seen` counts, behind a counter of its own."""
    graph = rlx.Graph("decoder")
    q, k, v = (graph.input(name, (HEADS, 1, WIDTH)) for name in "qkv")
    mask = graph.input("seen", ("seen",), "bool")
    keys, values = (graph.state(name, (HEADS, LENGTH, WIDTH)) for name in ("keys", "values"))
    count = graph.state("count", (), "i64")
    all_keys = rlx.update_slice(keys, k, count, axis=1)
    all_values = rlx.update_slice(values, v, count, axis=1)
    for state, following in ((keys, all_keys), (values, all_values), (count, count + 1)):
        graph.set_next(state, following)
    length = mask.shape[0]
    whole = [x[:, :length].reshape(1, HEADS, length, WIDTH) for x in (all_keys, all_values)]
    graph.output(rlx.attention(q.reshape(1, HEADS, 1, WIDTH), *whole), name="out")
    return graph


def rows_of(*numbers: float) -> Array:
    return np.repeat(np.array(numbers, "f4")[:, None], 3, axis=1)


def at(position: int) -> Array:
    return np.array(position, np.int64)


def compiled(graph: Graph, device: str) -> CompiledGraph:
    return rlx.Session(device).compile(graph)


@pytest.mark.parametrize("device", DEVICES)
def test_runs_write_rows_where_data_say(device: str) -> None:
    program = compiled(cache_graph(), device)
    assert program.input_names == ("rows", "at")
    assert program.output_names == ("sum",)
    assert not program.read_handle("cache").any()
    assert program.run([rows_of(1, 2), at(0)])[0].tolist() == [3] * 3
    assert program.run([rows_of(5), at(15)])[0].tolist() == [8] * 3
    assert program.describe().get("written_in_place", []) == ([] if device == "reference" else ["cache"])
    before = program.read_handle("cache")
    assert before[:, 0].tolist() == [1, 2, *[0] * 13, 5]
    assert program.run([rows_of(7), at(1)])[0].tolist() == [13] * 3, "what was there is written over"
    assert before[1, 0] == 2, "what was read stays as it is"
    assert not before.flags.writeable
    slot = np.empty(3, "f4")
    program.run_slots([rows_of(1), at(2)], [slot])
    assert slot.tolist() == [14] * 3


@pytest.mark.parametrize("device", DEVICES)
def test_a_decoder_sees_what_it_wrote(device: str) -> None:
    program = compiled(decoder_graph(), device)
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(3, LENGTH, HEADS, 1, WIDTH)).astype("f4")
    for i in range(LENGTH):
        q, k, v = (steps[j, i] for j in range(3))
        (actual,) = program.run({"q": q, "k": k, "v": v, "seen": np.ones(i + 1, bool)})
        keys, values = (steps[j, : i + 1, :, 0].transpose(1, 0, 2) for j in (1, 2))
        scores = np.exp(q @ keys.transpose(0, 2, 1) / WIDTH**0.5)
        np.testing.assert_allclose(actual[0], scores / scores.sum(-1, keepdims=True) @ values, rtol=2e-5, atol=1e-5)
    assert program.read_handle("count") == LENGTH
    assert program.compile_count == 1 or not program.capabilities.dynamic_dims
    with pytest.raises(InputError, match="expected starts in"):
        program.run({"q": q, "k": k, "v": v, "seen": np.ones(3, bool)})
    assert program.read_handle("count") == LENGTH, "nothing is half done"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", [-1, 15, 1 << 40])
def test_a_run_that_fails_writes_nothing(device: str, wrong: int) -> None:
    program = compiled(cache_graph(), device)
    program.run([rows_of(1, 2), at(14)])
    before = program.read_handle("cache")
    with pytest.raises(InputError, match="starts"):
        program.run([rows_of(5, 6), at(wrong)])
    assert np.array_equal(program.read_handle("cache"), before)


@pytest.mark.parametrize("device", DEVICES)
def test_checks_elsewhere_hold_writes_back(device: str) -> None:
    """The token is looked up behind the update in the graph's order, and is wrong."""
    graph = cache_graph()
    token = graph.input("token", (2,), "i64")
    graph.output(rlx.gather(graph.constant(np.arange(4, dtype="f4")), token), name="found")
    program = compiled(graph, device)
    program.run([rows_of(1), at(0), np.array([3, 0])])
    with pytest.raises(InputError, match=r"\[gather\]"):
        program.run([rows_of(5), at(0), np.array([0, 4])])
    assert program.read_handle("cache")[0, 0] == 1


@pytest.mark.parametrize("device", DEVICES)
def test_checks_of_what_was_written_hold_it_back_too(device: str) -> None:
    """An index that comes from the new contents: the state becomes an array of its own, which is not taken."""
    graph = rlx.Graph("indices")
    value, position = graph.input("value", (1,), "i64"), graph.input("at", (), "i64")
    state = graph.state("state", (4,), "i64")
    written = rlx.update_slice(state, value, position)
    graph.set_next(state, written)
    graph.output(rlx.gather(graph.constant(np.arange(4, dtype="f4")), written), name="found")
    program = compiled(graph, device)
    assert program.run([np.array([3]), at(2)])[0].tolist() == [0, 0, 3, 0]
    assert not program.describe().get("written_in_place")
    with pytest.raises(InputError, match=r"\[gather\]"):
        program.run([np.array([9]), at(0)])
    assert program.read_handle("state").tolist() == [0, 0, 3, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_scatters_write_pages_in_place(device: str) -> None:
    graph = rlx.Graph("pages")
    rows, pages = graph.input("rows", ("n", 2)), graph.input("pages", ("n", 2), "i32")
    state = graph.state("state", (3, 4, 2))
    written = rlx.scatter_nd(state, pages, rows)
    graph.set_next(state, written)
    graph.output(rlx.reduce_sum(written, axes=(0, 1, 2)), name="sum")
    rlx.neg(state)  # which nobody needs
    assert list(guarded(add_checks(graph, True, 1)).graph.states) == ["state"], "in place"
    program = compiled(graph, device)
    program.run([np.ones((2, 2), "f4"), np.array([[2, 1], [0, -1]], "i4")])
    assert np.argwhere(program.read_handle("state")[..., 0]).tolist() == [[0, 3], [2, 1]]
    with pytest.raises(InputError, match=r"\[scatter_nd\]"):
        program.run([np.ones((2, 2), "f4"), np.array([[1, 1], [3, 0]], "i4")])
    assert np.argwhere(program.read_handle("state")[..., 0]).tolist() == [[0, 3], [2, 1]]


@pytest.mark.parametrize("device", DEVICES)
def test_states_may_be_replaced_as_a_whole(device: str) -> None:
    """Of any expression; what was there before may then be read by anybody."""
    graph = rlx.Graph("optimiser")
    x = graph.input("x", (3,))
    mean, steps, untouched = graph.state("mean", (3,)), graph.state("steps", (), "i32"), graph.state("untouched", (2,))
    graph.set_next(mean, mean * 0.5 + x)
    graph.set_next(steps, steps + 1)
    graph.output(mean, name="before")
    graph.output(rlx.reduce_sum(untouched, axes=(0,)), name="sum")
    program = compiled(graph, device)
    program.bind_handle("untouched", np.ones(2, "f4"))
    results = [program.run([np.ones(3, "f4")]) for _ in range(3)]
    assert [r[0][0] for r in results] == [0, 1, 1.5]
    assert results[0][1] == 2
    assert program.read_handle("mean")[0] == 1.75
    assert program.read_handle("steps") == 3


@pytest.mark.parametrize("device", DEVICES)
def test_who_reads_what_is_written_over_gets_it(device: str) -> None:
    graph = rlx.Graph("both")
    row, position = graph.input("row", (1,)), graph.input("at", (), "i64")
    state = graph.state("state", (4,))
    written = rlx.update_slice(state, row, position)
    graph.set_next(state, written)
    graph.output(state * 1.0 + rlx.reduce_sum(written, axes=(0,)), name="old")
    assert not guarded(add_checks(graph, True, 1)).graph.states, "not in place: nobody could read what was there"
    program = compiled(graph, device)
    program.run([np.ones(1, "f4"), at(1)])
    assert program.run([np.full(1, 5, "f4"), at(1)])[0].tolist() == [5, 6, 5, 5]


@pytest.mark.parametrize("device", DEVICES)
def test_a_state_may_grow(device: str) -> None:
    graph = rlx.Graph("grows")
    past, new = graph.state("past", ("past", 3)), graph.input("new", ("new", 3))
    graph.set_next(past, rlx.concat(past, new, axis=0))
    graph.output(rlx.reduce_sum(past, axes=(0, 1)), name="sum")
    program = compiled(graph, device)
    assert not program.has_handle("past")
    with pytest.raises(InputError, match="bind_handle"):
        program.run([rows_of(1)])
    program.bind_handle("past", np.zeros((0, 3), "f4"))
    assert program.handles() == ("past",)
    for number in range(1, 5):
        program.run([rows_of(number)])
    assert program.read_handle("past")[:, 0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("device", DEVICES)
def test_clones_have_states_of_their_own(device: str) -> None:
    program = compiled(cache_graph(), device)
    program.run([rows_of(1), at(0)])
    if not program.capabilities.shared_code:
        with pytest.raises(CapabilityError):
            program.clone()
        return
    other = program.clone()
    other.run([rows_of(5), at(1)])
    program.run([rows_of(7), at(2)])
    assert other.read_handle("cache")[:3, 0].tolist() == [1, 5, 0]
    assert program.read_handle("cache")[:3, 0].tolist() == [1, 0, 7]


@pytest.mark.parametrize("device", DEVICES)
def test_threads_take_turns(device: str) -> None:
    graph = rlx.Graph("counter")
    x, position = graph.input("x", (1,)), graph.input("at", (), "i64")
    state, count = graph.state("state", (4,)), graph.state("count", ())
    written = rlx.scatter_nd(state, position.reshape(1, 1), x, combine="add")
    graph.set_next(state, written)
    graph.set_next(count, count + 1.0)
    graph.output(count, name="count")
    program = compiled(graph, device)

    def work() -> None:
        for _ in range(50):
            program.run([np.ones(1, "f4"), at(2)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pending = program.run_pipelined([np.ones(1, "f4"), at(2)])
    assert program.read_handle("state").tolist() == [0, 0, 201, 0]
    assert pending.result()[0] == 200


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_outputs_and_choices_of_them(device: str) -> None:
    program = compiled(cache_graph(), device)
    program.run([rows_of(1), at(0)])
    assert program.read_output_row("sum", 0, [rows_of(4), at(1)]) == 5
    assert program.read_handle("cache")[:2, 0].tolist() == [1, 0], "nothing was written"
    graph = cache_graph()
    graph.output(graph.inputs[0] * 2.0, name="twice")
    both = compiled(graph, device)
    part = both.select(["sum"])
    part.run([rows_of(3), at(0)])
    part.run([rows_of(4), at(1)])
    assert part.read_handle("cache")[:2, 0].tolist() == [3, 4], "a state of its own"
    assert not both.read_handle("cache").any()


def test_names_and_types_are_looked_at() -> None:
    graph = cache_graph()
    (cache,) = [v for v in graph.inputs if v.name == "cache"]
    with pytest.raises(GraphError, match="one next value"):
        graph.set_next(cache, cache)
    with pytest.raises(GraphError, match="expected a state"):
        graph.set_next(graph.inputs[0], graph.inputs[0])
    other = graph.state("other", (2,))
    with pytest.raises(ShapeError, match=r"f32\[2\] for the state 'other'"):
        graph.set_next(other, cache)
    with pytest.raises(ShapeError, match="room"):
        rlx.update_slice(other, graph.constant(np.zeros(3, "f4")), graph.constant(0))
    program = compiled(graph, "cpu")
    assert list(graph.results) == ["sum"]
    with pytest.raises(InputError, match="unknown 'cache'"):
        program.run({"rows": rows_of(1), "at": at(0), "cache": np.zeros((LENGTH, 3), "f4")})
    with pytest.raises(InputError, match=r"expected input 'cache' of f32\[16, 3\]"):
        program.bind_handle("cache", np.zeros((2, 3), "f4"))
    with pytest.raises(InputError, match="expected inputs among"):
        program.set_feeds({"sum": "cache"})
    with pytest.raises(InputError, match="expected outputs among"):
        program.set_feeds({"cache.next": "rows"})
    with pytest.raises(CapabilityError, match="without states"):
        program.set_active_extent("n", 1)
    assert "keeps cache: f32[16, 3]" in repr(program)


def test_states_in_text_and_files(tmp_path: Path) -> None:
    graph = decoder_graph()
    verify(graph)
    read = parse_graph(print_graph(graph, "full"))
    assert read.same_as(graph) and read.states == graph.states
    path = tmp_path / "graph.rlx"
    save_graph(graph, path)
    assert load_graph(path).same_as(graph)
    for wrong in ("next keys nothing", "next q keys.next", "next keys values.next", "next count out"):
        text = print_graph(graph, "full").replace("next keys keys.next", wrong, 1)
        with pytest.raises(GraphError, match=r"next value|among"):
            parse_graph(text)
    graph.states["count"] = "nothing"
    save_graph(graph, path)
    with pytest.raises(ModelError, match="as the next value of the state 'count'"):
        load_graph(path)


def test_the_verifier_knows_states() -> None:
    graph = cache_graph()
    graph.states["nobody"] = "sum"
    with pytest.raises(GraphError, match="expected states among"):
        verify(graph)
    graph = cache_graph()
    graph.states["cache"] = "sum"
    with pytest.raises(GraphError, match="expected a next value of"):
        verify(graph)
    graph = cache_graph()
    region = graph.state("more", (2,)).graph
    outer = rlx.Graph("outer")
    outer.add(rlx.ir.op.lookup("if")(), outer.input("p", (), "bool"), regions=(yes(), yes()))
    verify(outer)
    outer.nodes[-1].regions[0].state("inner", ())
    with pytest.raises(GraphError):
        verify(outer)
    assert region is graph


def yes() -> Graph:
    region = rlx.Graph("yes")
    region.output(region.constant(np.float32(1)), name="one")
    return region


def test_kernels_read_a_state_before_it_is_written_over() -> None:
    program = lower(decompose(cache_graph()))
    verify_kernels(program)
    writes = [i for i, kernel in enumerate(program.main) if program.buffers[kernel.slots[0]].kind == "alias"]
    (state,) = [buffer.number for buffer in program.buffers if buffer.kind == "state"]
    assert program.outputs[0] == program.main[writes[0]].slots[0], "the next value is what was written"
    assert not any(kernel.name == "copy" for kernel in program.main)
    reader = program.main[writes[0] + 1]
    alias = program.outputs[0]
    program.main[writes[0] + 1] = reader.__class__(
        reader.name, reader.work, tuple(state if n == alias else n for n in reader.slots), reader.writes
    )
    with pytest.raises(CompileError, match="before it is written over"):
        verify_kernels(program)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bool", "i8", "u8", "i64", "f16", "bf16", "i32"])
def test_states_of_any_dtype(device: str, dtype: str) -> None:
    """However its elements lie on the device: written in place, replaced, and fed as handles."""
    graph = rlx.Graph("narrow")
    row = graph.input("row", (1, 5), dtype)
    graph.input("past", (5,), dtype)
    state, whole = graph.state("state", (3, 5), dtype), graph.state("whole", (5,), dtype)
    written = rlx.update_slice(state, row, graph.constant(np.int64(1)))
    graph.set_next(state, written)
    graph.set_next(whole, row.reshape(5))
    graph.output(rlx.reshape(row, shape=(5,)), name="present")
    graph.output(written[0], name="first")
    graph.output(whole, name="was")
    program = compiled(graph, device)
    numpy = graph.inputs[0].dtype.numpy
    start, one, two = (np.array([[0, 1, 1, 0, n]]).astype(numpy) for n in (1, 1, 0))
    program.bind_handle("state", np.repeat(start, 3, axis=0))
    program.bind_handle("past", start[0])
    program.set_feeds({"present": "past"})
    for row_now, before in ((one, np.zeros(5, numpy)), (two, one[0])):
        present, first, was = program.run([row_now])
        assert np.array_equal(present, row_now[0]) and np.array_equal(first, start[0])
        assert np.array_equal(was, before)
        expected = np.concatenate([start, row_now, start])
        assert np.array_equal(program.read_handle("state"), expected)
        assert np.array_equal(program.read_handle("whole"), row_now[0])
        assert np.array_equal(program.read_handle("past"), row_now[0])


@pytest.mark.parametrize("device", DEVICES)
def test_limits_of_runs_leave_states_whole(device: str) -> None:
    """A run that writes in place is not ended in its midst; one that does not is dropped."""
    program = compiled(cache_graph(), device)
    token = rlx.interrupt.CancelToken()
    program.run([rows_of(1), at(0)], cancel=token, timeout=60.0)
    ended = 0
    for number in range(2, 12):
        before = program.read_handle("cache")
        try:
            program.run([rows_of(number), at(number)], timeout=1e-6)
            before[number] = number
        except RunTimeout:
            ended += 1
        assert np.array_equal(program.read_handle("cache"), before)
    assert ended == 10, "they look before they begin"
    token.cancel()
    with pytest.raises(RunCancelled):
        program.run([rows_of(5), at(1)], cancel=token)
    assert program.read_handle("cache")[:2, 0].tolist() == [1, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_failed_run_has_drawn_nothing(device: str) -> None:
    """Random numbers too, with states among the inputs before and behind them."""
    graph = rlx.Graph("draws")
    first = graph.state("first", (2,))
    noise = rlx.random_normal(graph.random_state(), shape=(1, 3))
    position = graph.input("at", (), "i64")
    state = graph.state("state", (LENGTH, 3))
    written = rlx.update_slice(state, noise, position)
    graph.set_next(state, written)
    graph.set_next(first, first + 1.0)
    graph.output(written[0], name="row")
    program = compiled(graph, device)
    program.seed(3)
    expected = [program.run([at(0)])[0] for _ in range(3)]
    program.seed(3)
    for row in expected:
        with pytest.raises(InputError, match="starts"):
            program.run([at(LENGTH)])
        assert np.array_equal(program.run([at(0)])[0], row)
    assert program.read_handle("first").tolist() == [6, 6]


@pytest.mark.parametrize("device", DEVICES)
def test_states_are_pickled(device: str) -> None:
    program = compiled(cache_graph(), device)
    program.run([rows_of(1, 2), at(3)])
    other = pickle.loads(pickle.dumps(program))
    other.run([rows_of(5), at(0)])
    assert other.read_handle("cache")[:6, 0].tolist() == [5, 0, 0, 1, 2, 0]
    assert program.read_handle("cache")[:6, 0].tolist() == [0, 0, 0, 1, 2, 0]
    other.close()
    assert "closed" in repr(other)


def test_profiles_and_commands_know_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A state is neither brought nor given, and what a run moves does not hang on its length."""
    profiles = []
    for length in (16, 16384):
        graph = rlx.Graph("append")
        row, position = graph.input("row", (1, 8)), graph.input("at", (), "i64")
        cache = graph.state("cache", (length, 8))
        written = rlx.update_slice(cache, row, position)
        graph.set_next(cache, written)
        graph.output(written[0], name="first")
        devices = rlx.GraphDevices(graph, rlx.DevicePolicy().only("null:1"))
        profiles.append(devices.io_profile("null:1").as_dict())
    assert profiles[0]["host_input_bytes"] == profiles[1]["host_input_bytes"] == 40
    assert profiles[0] == profiles[1] and profiles[0]["host_output_bytes"] == 32
    path = tmp_path / "graph.rlx"
    save_graph(graph, path)
    model = rlx.load(path, device="cpu")
    assert (model.input_names, model.output_names) == (("row", "at"), ("first",))
    assert model(row=np.ones((1, 8), "f4"), at=at(0))["first"].tolist() == [1] * 8
    for command in (["inspect"], ["run", "--device", "cpu"], ["check", "--device", "cpu"]):
        assert main([*command, str(path)]) == 0
        assert "cache" not in capsys.readouterr().out


@pytest.mark.parametrize("device", DEVICES)
def test_states_of_graphs_with_loops_and_measured_dims(device: str) -> None:
    """They are arrays of their own, which a run that fails leaves as they are."""
    loop = rlx.Graph("loop")
    total, step = loop.input("total", (2,)), loop.input("step", (2,))
    loop.output(total + step, name="next")
    graph = rlx.Graph("scan")
    rows, position = graph.input("rows", (3, 2)), graph.input("at", (), "i64")
    state, count = graph.state("state", (4, 2)), graph.state("count", (), "i64")
    scan = rlx.ir.op.lookup("scan")(carried=1, sequences=1, length=3)
    total_now = graph.add(scan, state[0], rows, regions=(loop,))
    assert isinstance(total_now, tuple)
    written = rlx.update_slice(state, total_now[0].reshape(1, 2), position)
    places = rlx.nonzero(rlx.reduce_sum(written, axes=(1,)))
    graph.set_next(state, written)
    graph.set_next(count, count + 1)
    graph.output(places, name="places")
    program = compiled(graph, device)
    ones = np.ones((3, 2), "f4")
    program.run([ones, at(0)])
    assert program.run([ones, at(2)])[0].reshape(-1).tolist() == [0, 2]
    assert program.read_handle("state")[:, 0].tolist() == [3, 0, 6, 0]
    with pytest.raises(InputError, match="starts"):
        program.run([ones, at(4)])
    assert program.read_handle("state")[:, 0].tolist() == [3, 0, 6, 0] and program.read_handle("count") == 2
