"""Backends whose programs are of one size each: weights are arguments of them, and a size is made ready once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.memory import FrontArray
from rlx.backends.op_by_op import written_outputs
from rlx.backends.size_buckets import SizeBuckets, bucket, rungs
from rlx.errors import InputError
from rlx.ir.graph import Graph, call
from rlx.runtime.compiled import CompiledGraph
from support import backend, why_absent


@pytest.fixture(autouse=True)
def compiles_sizes(request: pytest.FixtureRequest) -> None:
    """Tests name the devices that they are for: where all sizes have one program, there is nothing to test."""
    mark = request.node.get_closest_marker("devices")
    name = request.node.callspec.params["device"] if mark is not None else ""
    if mark is not None and name not in mark.args and not why_absent(name) and not backend(name).compiles_sizes:
        pytest.skip(f"{name} takes all sizes with one program")


@pytest.mark.devices("xla", "mlx")
def test_weights_may_be_set_anew_and_sizes_are_made_ready_once_each(device: str) -> None:
    graph = Graph("net")
    graph.output(rlx.relu(graph.input("x", ("n", 4), "f32") @ graph.param("w", (4, 4), "f32")), name="y")
    compiled = rlx.Session(device).compile(graph)
    if compiled.capabilities.dynamic_dims:
        pytest.skip(f"{device} takes all sizes with one program")
    x = np.ones((2, 4), np.float32)
    for factor in (1, 3):
        compiled.set_param("w", np.eye(4, dtype=np.float32) * factor)
        np.testing.assert_array_equal(compiled.run([x])[0], x * factor)
    assert compiled.compile_count == 1
    compiled.run([np.ones((5, 4), np.float32)])
    compiled.run([x])
    assert compiled.compile_count == 2


def encoder(dim: int = 8) -> Graph:
    """Embeddings, attention with a mask, norms and a mean over what is not masked, as encoders of sentences have."""
    graph = Graph("encoder")
    graph.bounds["seq"] = (1, 64)
    ids, mask = graph.input("ids", ("batch", "seq"), "i64"), graph.input("mask", ("batch", "seq"), "i64")
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> rlx.Value:
        return graph.param(name, shape, data=random.standard_normal(shape).astype("f4"))

    x = rlx.gather(weight("words", 50, dim), ids, axis=0) + weight("places", 64, dim)[: ids.shape[1]]
    q, k, v = (
        (x @ weight(name, dim, dim)).reshape("batch", "seq", 2, dim // 2).transpose(0, 2, 1, 3) for name in "qkv"
    )
    seen = rlx.ne(mask, 0).reshape("batch", 1, 1, "seq")
    mixed = rlx.attention(q, k, v, seen).transpose(0, 2, 1, 3).reshape("batch", "seq", dim)
    x = rlx.layer_norm(x + mixed, weight("scale", dim), weight("bias", dim))
    kept = mask.cast("f32").reshape("batch", "seq", 1)
    graph.output(x, name="hidden")
    graph.output(rlx.reduce_sum(x * kept, axes=(1,)) / rlx.reduce_sum(kept, axes=(1,)), name="sentence")
    return graph


def sentences(batch: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch * 100 + length)
    mask = random.integers(0, 2, (batch, length))
    mask[:, 0] = 1
    return {"ids": random.integers(0, 50, (batch, length)), "mask": mask}


LENGTHS = (5, 9, 10, 16, 17, 37, 40, 48, 64, 1)
FEW = {"xla": len(LENGTHS), "mlx": 3}
"""How many of these a device has: buckets are the same code for all, and mlx has a C++ compiler make each program."""
STEPS = {"xla": 30, "mlx": 9}


@pytest.mark.devices("xla", "mlx")
def test_sizes_of_a_bucket_share_a_program(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_MLX_COMPILE", "1")
    compiled, wanted = rlx.Session(device, cache=False).compile(encoder()), rlx.Session("cpu").compile(encoder())
    counts = []
    for length in LENGTHS[: FEW[device]]:
        given = sentences(2, length)
        for got, want in zip(compiled.run(given), wanted.run(given)):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
        counts.append(compiled.compile_count)
    # the first as it is, then buckets of 11, 16, 24, 48, 64, and 1
    assert counts == [1, 2, 2, 3, 4, 5, 5, 5, 6, 7][: FEW[device]]
    assert compiled.describe()["padded_dims"] == {"batch": None, "seq": 12}
    assert not compiled.describe()["dims_compiled_each"]


@pytest.mark.devices("xla")
def test_one_size_is_compiled_as_it_is(device: str) -> None:
    """And so is every size where that is asked for."""
    compiled = rlx.Session(device, cache=False).compile(encoder())
    compiled.run(sentences(2, 5))
    compiled.run(sentences(2, 5))
    assert compiled.compile_count == 1
    batches = rlx.Session(device, cache=False).compile(encoder())
    for batch in (1, 3, 4, 3):  # 4 has room for 3
        batches.run(sentences(batch, 5))
    assert batches.compile_count == 3


@pytest.mark.devices("xla")
def test_buckets_can_be_switched_off(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_SIZE_BUCKETS", "0")
    compiled = rlx.Session(device, cache=False).compile(encoder())
    for length in (5, 9, 10, 11):
        compiled.run(sentences(1, length))
    assert compiled.compile_count == 4 and "padded_dims" not in compiled.describe()


@pytest.mark.devices("xla")
def test_what_cannot_be_padded_is_compiled_at_each_size(device: str) -> None:
    """Here zeros in front of an array, as many as a dim says."""
    graph = Graph("front")
    graph.output(rlx.pad(graph.input("x", ("n",)), low=("n",), high=(0,)), name="y")
    compiled = rlx.Session(device, cache=False).compile(graph)
    for n in (3, 5, 6, 7):
        x = np.ones(n, "f4")
        np.testing.assert_array_equal(compiled.run([x])[0], [0] * n + [1] * n)
    assert compiled.compile_count == 4
    assert "[pad]" in compiled.describe()["dims_compiled_each"]["n"]


@pytest.mark.devices("xla")
def test_loops_over_padded_sequences_share_programs(device: str) -> None:
    graph = Graph("loop")
    body = Graph("body")
    body.output(body.input("total", (2,)) + body.input("row", (2,)), name="total")
    start, x = graph.constant(np.zeros(2, "f4")), graph.input("x", ("n", 2))
    results = call("scan", start, x, carried=1, sequences=1, length=x.shape[0], regions=(body,))
    graph.output(results[0] if isinstance(results, tuple) else results, name="y")
    compiled = rlx.Session(device, cache=False).compile(graph)
    for n in (3, 9, 10, 11):
        rows = np.arange(2 * n, dtype="f4").reshape(n, 2)
        np.testing.assert_allclose(compiled.run([rows])[0], rows.sum(0))
    assert compiled.compile_count == 2


@pytest.mark.devices("xla", "mlx")
def test_extents_share_programs_too(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_MLX_COMPILE", "1")
    compiled, wanted = rlx.Session(device, cache=False).compile(encoder()), rlx.Session("cpu").compile(encoder())
    given = sentences(2, 64)
    compiled.run(given)
    for extent in (40, 41, 48, 33):
        for each in (compiled, wanted):
            each.set_active_extent("seq", extent)
        for got, want in zip(compiled.run(given), wanted.run(given)):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    assert compiled.compile_count == 2


@pytest.mark.devices("xla", "mlx")
def test_a_fed_value_that_grows_meets_few_programs(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder's rows: each run brings one more, on the device."""
    monkeypatch.setenv("RLX_MLX_COMPILE", "1")
    graph = Graph("decoder")
    past, row = graph.input("past", ("n", 4)), graph.input("row", (1, 4))
    rows = rlx.concat(past, row, axis=0)
    graph.output(rows, name="present")
    graph.output(rlx.softmax(row @ rows.transpose(1, 0), axis=-1) @ rows, name="seen")
    compiled, wanted = rlx.Session(device, cache=False).compile(graph), rlx.Session("cpu").compile(graph)
    for each in (compiled, wanted):
        each.bind_handle("past", np.ones((1, 4), "f4"))
        each.set_feeds({"present": "past"})
    for step in range(STEPS[device]):
        given = {"row": np.full((1, 4), step / 30, "f4")}
        np.testing.assert_allclose(compiled.run(given, ["seen"])[0], wanted.run(given, ["seen"])[0], rtol=1e-4)
    assert compiled.compile_count == {30: 10, 9: 7}[STEPS[device]]  # of 1, 2, 3, 4, 6, 8, 11, 16, 24 and 32 rows
    np.testing.assert_array_equal(compiled.read_handle("past"), wanted.read_handle("past"))


def decoder() -> Graph:
    """Attention of one token over the first rows of a cache, into which its own is written first; how many rows there
    are a mask tells, whose length grows. Keys are appended to an array that grows."""
    graph = Graph("decoder")
    row, mask = graph.input("row", (1, 4)), graph.input("mask", ("n",))
    place = graph.input("place", (), "i64")
    cache, keys = graph.state("cache", (64, 4)), graph.state("keys", ("past", 4))
    written = rlx.update_slice(cache, row, place)
    graph.set_next(cache, written)
    graph.set_next(keys, rlx.concat(keys, row * 2, axis=0))
    rows = written[: mask.shape[0]]
    graph.output(rlx.softmax((row @ rows.transpose(1, 0)) * mask, axis=-1) @ rows, name="seen")
    graph.output(rlx.reduce_mean(keys, axes=(0,)), name="mean")
    return graph


def padded_keep_their_places(compiled: CompiledGraph) -> bool:
    """Whether padded programs write the states in their places that the program itself writes so."""
    executable: Any = compiled.executable
    while not hasattr(executable, "buckets"):
        executable = getattr(executable, "equal", None) or executable.inner
    made = [program for program in executable.buckets._made.values() if program is not None]
    return bool(made) and all(written_outputs(program.graph) == executable.written for program in made)


def step(number: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(number)
    row = random.standard_normal((1, 4)).astype("f4")
    return {"row": row, "mask": np.ones(number + 1, "f4"), "place": np.array(number)}


@pytest.mark.devices("xla", "mlx")
def test_states_go_with_sizes_that_share_programs(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is written in its place, and one that grows and stays with its padding on the device."""
    monkeypatch.setenv("RLX_MLX_COMPILE", "1")
    compiled, wanted = rlx.Session(device, cache=False).compile(decoder()), rlx.Session("cpu").compile(decoder())
    for each in (compiled, wanted):
        each.bind_handle("keys", np.ones((1, 4), "f4"))
    for number in range(STEPS[device]):
        for got, want in zip(compiled.run(step(number)), wanted.run(step(number)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
        if number == 6:
            compiled = compiled.clone()
    for name in ("cache", "keys"):
        np.testing.assert_array_equal(compiled.read_handle(name), wanted.read_handle(name))
    assert compiled.compile_count <= 2 * 10 and padded_keep_their_places(compiled)
    description = compiled.describe()
    assert description["written_in_place"] == ["cache"] and not description["dims_compiled_each"]


@pytest.mark.devices("xla", "mlx")
def test_a_padded_run_that_fails_writes_no_state(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_MLX_COMPILE", "1")
    compiled = rlx.Session(device, cache=False).compile(decoder())
    compiled.bind_handle("keys", np.ones((1, 4), "f4"))
    for number in range(5):
        compiled.run(step(number))
    before = {name: compiled.read_handle(name) for name in ("cache", "keys")}
    for wrong in (64, -1):
        with pytest.raises(InputError, match=r"\[update_slice\] expected starts"):
            compiled.run({**step(5), "place": np.array(wrong)})
    for name, array in before.items():
        np.testing.assert_array_equal(compiled.read_handle(name), array)
    compiled.run(step(5))
    assert compiled.read_handle("keys").shape == (7, 4)


@pytest.mark.devices("xla", "mlx")
def test_as_many_rows_as_a_run_brings_go_into_pages(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding behind what counts of them goes nowhere."""
    monkeypatch.setenv("RLX_MLX_COMPILE", "1")
    graph = Graph("pages")
    rows, places = graph.input("rows", ("n", 4)), graph.input("places", ("n", 1), "i64")
    pages, whole = graph.state("pages", (64, 4)), graph.state("whole", (64, 4))
    graph.set_next(pages, rlx.scatter_nd(pages, places, rows))
    graph.set_next(whole, rlx.update_slice(whole, rows, places[0, 0]))
    graph.output(rlx.reduce_sum(rows, axes=(0,)), name="sum")
    compiled = rlx.Session(device, cache=False).compile(graph)
    expected = np.zeros((2, 64, 4), "f4")
    for n in range(3, 12):
        at = np.random.default_rng(n).permutation(64 - n)[:n, None] % (64 - n)
        given = np.full((n, 4), n, "f4")
        assert compiled.run([given, at])[0].tolist() == [n * n] * 4
        expected[0, at[:, 0]] = n
        expected[1, at[0, 0] : at[0, 0] + n] = n
    np.testing.assert_array_equal(compiled.read_handle("pages"), expected[0])
    np.testing.assert_array_equal(compiled.read_handle("whole"), expected[1])
    assert compiled.compile_count < 8 and padded_keep_their_places(compiled)


@pytest.mark.devices("xla")
def test_dims_of_a_state_that_is_written_in_its_place_stay(device: str) -> None:
    graph = Graph("named")
    row, mask = graph.input("row", (1, 4)), graph.input("mask", ("m",))
    cache = graph.state("cache", ("n", 4))
    graph.set_next(cache, rlx.update_slice(cache, row, graph.constant(np.int64(0))))
    graph.output(rlx.reduce_sum(mask, axes=(0,)), name="sum")
    compiled = rlx.Session(device, cache=False).compile(graph)
    for n, m in ((8, 3), (8, 9), (8, 10), (16, 10), (17, 11)):
        compiled.bind_handle("cache", np.zeros((n, 4), "f4"))
        assert compiled.run([np.ones((1, 4), "f4"), np.ones(m, "f4")])[0] == m
        assert compiled.read_handle("cache").sum() == 4
    description = compiled.describe()
    assert description["padded_dims"] == {"m": None}
    assert "written in its place" in description["dims_compiled_each"]["n"]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 11, 12, 16, 17, 100, 129, 1000, 1_000_000])
def test_a_bucket_has_room_and_is_not_half_empty(size: int) -> None:
    assert size <= bucket(size) <= max(1.5 * size, 1)
    assert bucket(bucket(size)) == bucket(size) and (size <= 16 or bucket(size) % 8 == 0)


def test_there_are_few_buckets() -> None:
    assert rungs(128) == 14 and rungs(1024) == 20


@pytest.mark.devices("xla", "mlx")
def test_results_on_the_device_keep_their_padding_there(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with as much room take them without a way over the host, others take what counts of them."""
    monkeypatch.setenv("RLX_MLX_COMPILE", "1")
    graph = Graph("twice")
    graph.output(graph.input("x", ("n", 3)) * 2.0, name="y")
    compiled = rlx.Session(device, cache=False).compile(graph)
    compiled.run([np.ones((2, 3), "f4")])
    (first,) = compiled.run([np.arange(27, dtype="f4").reshape(9, 3)], outputs="device")
    assert isinstance(first, FrontArray) and first.shape == (9, 3) and first.whole.shape == (11, 3)
    np.testing.assert_array_equal(first.read((8,)), [48, 50, 52])
    assert first.read((8, 1)) == 50 and first.read((8, 1)).shape == ()
    np.testing.assert_array_equal(first.copy().numpy(), np.asarray(first))
    host = np.asarray(first)
    monkeypatch.setattr(FrontArray, "numpy", lambda self: pytest.fail("it went over the host"))
    np.testing.assert_array_equal(compiled.run([first])[0], host * 2)
    monkeypatch.undo()
    other = Graph("rows")
    other.output(rlx.reduce_sum(other.input("x", ("n", 3)), axes=(0,)), name="y")
    np.testing.assert_array_equal(rlx.Session(device, cache=False).compile(other).run([first])[0], host.sum(0))


@pytest.mark.devices("xla")
def test_dims_that_follow_from_others_have_room_with_them(device: str) -> None:
    """A mask of the length that a cache and a token come to."""
    graph = Graph("decoder")
    past, row, mask = graph.input("past", ("n", 4)), graph.input("row", ("k", 4)), graph.input("mask", ("total",))
    rows = rlx.concat(past, row, axis=0)
    scores = (row @ rows.transpose(1, 0)) + mask
    graph.output(rlx.softmax(scores, axis=-1) @ rows, name="y")
    compiled, wanted = rlx.Session(device, cache=False).compile(graph), rlx.Session("cpu").compile(graph)
    random = np.random.default_rng(0)
    for n in (3, 17, 18, 20, 24):
        given = [random.standard_normal(shape).astype("f4") for shape in ((n, 4), (1, 4), (n + 1,))]
        np.testing.assert_allclose(compiled.run(given)[0], wanted.run(given)[0], rtol=1e-4, atol=1e-5)
    assert compiled.compile_count == 2


def test_buckets_fit_what_a_graph_takes_to_be_equal() -> None:
    """Halves of halves of halves of halves of halves that are joined with the whole: only multiples of 32 do."""
    graph = Graph("halved")
    x = graph.input("x", ("n",))
    half = x
    for _ in range(5):
        half = half[::2]
    graph.output(rlx.broadcast_to(half.reshape(half.shape[0], 1), shape=(half.shape[0], 32)).reshape("n") + x, name="y")
    buckets = SizeBuckets(graph)
    buckets.program_at({"n": 64})
    found = [buckets.program_at({"n": n}) for n in (320, 352, 384)]
    assert [None if program is None else program[1]["n"] for program in found] == [384, 384, 512]
