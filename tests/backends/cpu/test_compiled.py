"""Compiled programs against the reference: random graphs, every optimisation off in turn, all ISAs, sizes, threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from passes.graphs import encoder, encoder_inputs, random_graphs
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import BACKEND, build, isa
from rlx.errors import DeviceUnavailable, InputError, UnsupportedOp
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.op import Tolerance
from support import assert_close, binding_of, run_on

LOOSE = Tolerance(512, scale=1)
SWITCHES = ("nothing", "fuse/epilogue", "fuse/row", "pack", "memory-reuse")


def runnable() -> list[str]:
    levels = []
    for name in isa.LEVELS:
        try:
            isa.forced(name)
        except DeviceUnavailable:
            continue
        levels.append(name)
    return levels


ISAS = runnable()


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def run(graph: Graph, inputs: dict[str, Array], level: str | None = None, off: str = "") -> dict[str, Array]:
    executable = BACKEND().compile(graph, Options(disable=frozenset({off}), isa=level, cache=False))
    executable.set_params(graph.data)
    results = executable.bind(binding_of(graph, inputs))([inputs[v.name] for v in graph.inputs])
    return dict(zip(graph.outputs, results, strict=True))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=random_graphs(), level=st.sampled_from(ISAS), rows=st.sampled_from([0, 1, 3, 5]))
def test_random_graphs(graph: Graph, level: str, rows: int) -> None:
    inputs = {"x": numbers(3, 4, seed=1), "y": numbers(rows, 4, seed=2)}
    inputs["x"][0, :3] = np.nan, np.inf, -np.inf
    inputs = {v.name: inputs[v.name] for v in graph.inputs}
    expected = run_on("reference", graph, inputs)
    actual = run(graph, inputs, level)
    for name, array in expected.items():
        if np.isfinite(array).all() and np.abs(array).max(initial=0) > 1e4:
            continue  # sums of huge numbers of both signs say nothing
        assert_close(actual[name], array, Tolerance(4096, scale=1))


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("off", SWITCHES)
def test_encoder_with_each_optimisation_off(off: str, level: str) -> None:
    graph = encoder(layers=2)
    expected = run_on("reference", graph, encoder_inputs())["y"]
    assert_close(run(graph, encoder_inputs(), level, off)["y"], expected, LOOSE)


def test_one_object_serves_every_size() -> None:
    graph = encoder(layers=1)
    executable = BACKEND().compile(graph, Options(cache=False))
    executable.set_params(graph.data)
    random = np.random.default_rng(0)
    for _ in range(20):
        batch, length = int(random.integers(1, 6)), int(random.integers(1, 90))
        inputs = {"x": numbers(batch, length, 32, seed=length), "mask": np.ones((batch, length), np.int64)}
        inputs["mask"][0, length // 2 + 1 :] = 0
        actual = executable.bind({"b": batch, "s": length})([inputs["x"], inputs["mask"]])[0]
        assert_close(actual, run_on("reference", graph, inputs)["y"], LOOSE)
    assert executable.compile_count == 1


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 7, 5), (2, 33, 48), (9, 64, 49), (17, 5, 96), (130, 96, 100), (3, 0, 4)])
@pytest.mark.parametrize("static", [True, False])
def test_contractions(m: int, k: int, n: int, static: bool, level: str) -> None:
    graph = Graph("product")
    x = graph.input("x", ("m", k))
    if static:
        y = graph.param("y", (k, n), data=numbers(k, n, seed=3))
    else:
        y = graph.input("y", (k, "n"))
    graph.output(ops.relu(x @ y + 1.0), name="plain")
    graph.output(x @ (graph.param("t", (n, k), data=numbers(n, k, seed=4))).T, name="turned")
    inputs = {"x": numbers(m, k, seed=5), "y": numbers(k, n, seed=6)}
    inputs = {v.name: inputs[v.name] for v in graph.inputs}
    for name, array in run_on("reference", graph, inputs).items():
        assert_close(run(graph, inputs, level)[name], array, LOOSE)


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize("mask", ["none", "causal", "added", "bool", "all false"])
@pytest.mark.parametrize(("queries", "keys", "size", "groups"), [(1, 1, 8, 1), (13, 70, 16, 2), (50, 50, 40, 1)])
def test_attention(queries: int, keys: int, size: int, groups: int, mask: str, level: str) -> None:
    graph = Graph("attention")
    q = graph.input("q", (2, "sq", 4, size)).transpose(0, 2, 1, 3)
    k, v = (graph.input(name, (2, "sk", 4 // groups, size)).transpose(0, 2, 1, 3) for name in "kv")
    inputs = {"q": numbers(2, queries, 4, size, seed=1)}
    inputs |= {name: numbers(2, keys, 4 // groups, size, seed=i) for i, name in enumerate("kv", 2)}
    extra = []
    if mask in ("added", "bool", "all false"):
        extra = [graph.input("m", (2, 1, 1, "sk"), "f32" if mask == "added" else "bool")]
        chosen = np.random.default_rng(4).random((2, 1, 1, keys)) < (0.6 if mask == "bool" else 0)
        inputs["m"] = numbers(2, 1, 1, keys, seed=5) if mask == "added" else chosen
    mixed = ops.attention(q, k, v, *extra, causal=mask == "causal")
    graph.output(mixed.transpose(0, 2, 1, 3), name="y")
    assert_close(run(graph, inputs, level)["y"], run_on("reference", graph, inputs)["y"], LOOSE)


def test_sixteen_threads_share_an_executable() -> None:
    graph = encoder(layers=1)
    executable = BACKEND().compile(graph, Options(cache=False))
    executable.set_params(graph.data)
    expected = run_on("reference", graph, encoder_inputs())["y"]
    bound = executable.bind({"b": 2, "s": 5})
    failures: list[str] = []

    def work() -> None:
        inputs = encoder_inputs()
        for _ in range(50):
            if not np.allclose(bound([inputs["x"], inputs["mask"]])[0], expected, rtol=1e-4, atol=1e-5):
                failures.append("a wrong result")

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_weights_change_without_a_compile() -> None:
    graph = Graph("linear")
    graph.output(graph.input("x", ("n", 3)) @ graph.param("w", (3, 4)), name="y")
    executable = BACKEND().compile(graph, Options(cache=False))
    bound = executable.bind({"n": 2})
    x = numbers(2, 3)
    with pytest.raises(InputError, match=r"\bw\b"):
        bound([x])
    for seed in (1, 2):
        w = numbers(3, 4, seed=seed)
        executable.set_params({"w": w})
        np.testing.assert_allclose(bound([x])[0], x @ w, rtol=1e-5)


def test_cache_gives_the_same_program(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RLX_CACHE", "1")
    graph = encoder(layers=1)
    results = []
    for _ in range(2):
        executable = BACKEND().compile(graph, Options())
        executable.set_params(graph.data)
        inputs = encoder_inputs()
        results.append((executable.from_cache, executable.bind({"b": 2, "s": 5})([inputs["x"], inputs["mask"]])[0]))
    assert [cached for cached, _ in results] == [False, True]
    assert np.array_equal(results[0][1], results[1][1])


def test_arm_code_is_made_and_verified() -> None:
    target = isa.forced("neon", for_codegen_only=True)
    artifact = build.compile_artifact(encoder(layers=1), target, Options(cache=False))
    for part in artifact.code:
        assert part[:4] == b"\x7fELF"
        assert part[18:20] == b"\xb7\x00", "the machine of an AArch64 object file"


def refused() -> Iterator[Graph]:
    complex_graph = Graph("complex")
    x = complex_graph.input("z", (4,), "c64")
    complex_graph.output(x + x)
    yield complex_graph
    chosen = Graph("if")
    x = chosen.input("x", (4,), "c64")
    sides = [Graph("side"), Graph("side")]
    for side in sides:
        side.output(side.input("a", (4,), "c64"))
    chosen.output(*ops.if_(chosen.input("p", (), "bool"), x, regions=sides))
    yield chosen


@pytest.mark.parametrize("graph", list(refused()), ids=lambda g: g.name)
def test_what_cannot_be_compiled_is_named(graph: Graph) -> None:
    assert BACKEND().unsupported(graph)
    with pytest.raises(UnsupportedOp, match=r"c64|if"):
        BACKEND().compile(graph, Options(cache=False))


@pytest.mark.parametrize("level", ISAS)
@pytest.mark.parametrize(("height", "width", "channels", "outputs"), [(8, 8, 16, 16), (9, 14, 32, 21), (30, 7, 48, 50)])
@pytest.mark.parametrize("off", ["nothing", "winograd"])
def test_convolutions_with_stride_one(
    height: int, width: int, channels: int, outputs: int, off: str, level: str
) -> None:
    graph = Graph("convolution")
    x = graph.input("x", ("n", channels, "h", "w"))
    weight = graph.param("w", (outputs, channels, 3, 3), data=numbers(outputs, channels, 3, 3, seed=2) / 10)
    bias = graph.param("b", (outputs, 1, 1), data=numbers(outputs, 1, 1, seed=3))
    ones = (1, 1)
    convolved = ops.conv(x, weight, strides=ones, dilations=ones, low=ones, high=ones)
    graph.output(ops.relu(convolved + bias), name="y")
    inputs = {"x": numbers(2, channels, height, width, seed=1)}
    assert_close(run(graph, inputs, level, off)["y"], run_on("reference", graph, inputs)["y"], LOOSE)


@pytest.mark.parametrize("axes", [(1,), (1, 2), (2, 3), (0, 1, 2, 3)])
def test_long_sums_lose_nothing(axes: tuple[int, ...]) -> None:
    """The mean of an image's channels: added one by one, 40,000 positive numbers lose two digits."""
    graph = Graph("mean")
    x = graph.input("x", ("n", "h", "w", 24))
    graph.output(ops.reduce_mean(x, axes=axes))
    array = np.random.default_rng(0).random((1, 160, 250, 24), np.float32)
    actual = run_on("cpu", graph, {"x": array})[next(iter(graph.outputs))]
    np.testing.assert_allclose(actual, array.mean(axes, dtype=np.float64), rtol=2e-6)
