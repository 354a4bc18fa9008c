"""Dims that are measured while a graph runs: stages, their checks, threads, the cache, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.cli.check import Checker
from rlx.device.support import dispatch_report
from rlx.errors import GraphError, InputError, OutOfMemory, UnsupportedOp
from rlx.ir.serial import load_graph, save_graph
from rlx.ir.text import parse_graph, print_graph
from rlx.ir.verify import verify
from rlx.passes.staging import cut
from rlx.runtime.profiler import profile

DEVICES = ("cpu", "reference")


def head(weighted: bool = False) -> rlx.Graph:
    """The first k elements of x, twice them, and the places among them that are positive."""
    graph = rlx.Graph("head")
    x, k = graph.input("x", ("m",)), graph.input("k", (), "i64")
    n = ops.measure(k, upper=x.shape[0])
    first = ops.slice(x, starts=(0,), stops=(n,), steps=(1,))
    if weighted:
        first = first * graph.param("w", (1,), data=np.array([3], "f4"))
    graph.output(first * 2, name="twice")
    graph.output(ops.nonzero(first > 0), name="places")
    graph.output(ops.broadcast_to(x[:1].reshape(1, 1), shape=(2, n)), name="spread")
    return graph


@pytest.mark.parametrize("device", DEVICES)
def test_one_compile_serves_all_sizes(device: str) -> None:
    compiled = rlx.Session(device).compile(head())
    count = compiled.compile_count
    for m, k in ((5, 0), (5, 5), (2000, 1500), (1, 1), (5, 3)):
        x = np.arange(m, dtype="f4") - 1
        outputs = compiled(x=x, k=np.array(k))
        np.testing.assert_array_equal(outputs["twice"], x[:k] * 2)
        np.testing.assert_array_equal(outputs["places"], [np.nonzero(x[:k] > 0)[0]])
        np.testing.assert_array_equal(outputs["spread"], np.full((2, k), x[0]))
    assert compiled.compile_count == count == 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("k", [6, -1, 1 << 40])
def test_numbers_out_of_bounds_are_refused_and_break_nothing(device: str, k: int) -> None:
    compiled = rlx.Session(device).compile(head())
    x = np.ones(5, "f4")
    with pytest.raises(InputError, match=rf"\[measured\] expected a number in \[0, 5\], got {k}, at node 'measured"):
        compiled(x=x, k=np.array(k))
    assert compiled(x=x, k=np.array(2))["twice"].tolist() == [2, 2]


@pytest.mark.parametrize("device", DEVICES)
def test_no_value_is_larger_than_memory(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = rlx.Graph("wide")
    k = graph.input("k", (), "i64")
    n = ops.measure(k)
    graph.output(ops.broadcast_to(graph.constant(1.0, "f64"), shape=(n, n)), name="y")
    compiled = rlx.Session(device).compile(graph)
    assert compiled(k=np.array(3))["y"].shape == (3, 3)
    with pytest.raises(OutOfMemory, match=r"\[broadcast_to\] expected a value of at most .* got 36893488113059364872"):
        compiled(k=np.array((1 << 31) - 1))
    with pytest.raises(InputError, match=r"expected a number in \[0, 2147483647\]"):
        compiled(k=np.array(1 << 31))
    monkeypatch.setenv("RLX_VALUE_BYTES", "100")
    with pytest.raises(OutOfMemory, match="at most 100 bytes"):
        compiled(k=np.array(4))
    assert compiled(k=np.array(3))["y"].shape == (3, 3)


@pytest.mark.parametrize("device", DEVICES)
def test_dims_that_must_be_equal_are_checked(device: str) -> None:
    graph = rlx.Graph("sum")
    x, y = graph.input("x", ("a",)), graph.input("y", ("b",))
    graph.output(ops.masked_select(x, x > 0) + ops.masked_select(y, y > 0), name="z")
    compiled = rlx.Session(device).compile(graph)
    assert compiled(x=np.array([1, -1, 2], "f4"), y=np.array([5, 7], "f4"))["z"].tolist() == [6, 9]
    with pytest.raises(InputError, match=r"\[run\].*n_0 = 1 against n_1 = 2|n_1 = 2 against n_0 = 1"):
        compiled(x=np.array([1, -1, -2], "f4"), y=np.array([5, 7], "f4"))


def test_stages_follow_dependence_not_the_number_of_nodes() -> None:
    graph = rlx.Graph("wide")
    x = graph.input("x", ("m",))
    for i in range(8):
        graph.output(ops.masked_select(x, x > i), name=f"y{i}")
    assert len(cut(graph)) == 2
    assert len(cut(head())) == 3
    plain = rlx.Graph("plain")
    plain.output(plain.input("x", ("m",)) * 2, name="y")
    assert "stages" not in rlx.Session("cpu").compile(plain).describe()


@pytest.mark.parametrize("device", DEVICES)
def test_weights_are_shared_and_can_be_swapped(device: str) -> None:
    compiled = rlx.Session(device).compile(head(weighted=True))
    x = np.array([1, -1, 2], "f4")
    assert compiled(x=x, k=np.array(3))["twice"].tolist() == [6, -6, 12]
    compiled.set_param("w", np.array([-1], "f4"))
    outputs = compiled(x=x, k=np.array(3))
    assert outputs["twice"].tolist() == [-2, 2, -4] and outputs["places"].tolist() == [[1]]
    with pytest.raises(InputError):
        compiled.set_param("w", np.zeros(2, "f4"))


def test_sixteen_threads_on_one_compiled_graph() -> None:
    compiled = rlx.Session("cpu").compile(head())
    troubles: list[Any] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(60):
                x = random.normal(size=random.integers(1, 300)).astype("f4")
                k = int(random.integers(0, x.size + 1))
                outputs = compiled(x=x, k=np.array(k))
                np.testing.assert_array_equal(outputs["twice"], x[:k] * 2)
                np.testing.assert_array_equal(outputs["places"], [np.nonzero(x[:k] > 0)[0]])
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not troubles


def test_the_cache_on_disk_holds_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    first, second = (rlx.Session("cpu", cache=True).compile(head()) for _ in range(2))
    assert not first.executable.from_cache and second.executable.from_cache
    assert second(x=np.ones(3, "f4"), k=np.array(2))["twice"].tolist() == [2, 2]


def test_text_and_file_keep_measured_dims(tmp_path: Path) -> None:
    graph = head(weighted=True)
    verify(graph)
    assert parse_graph(print_graph(graph, "full")).same_as(graph)
    save_graph(graph, tmp_path / "head.rlx")
    assert load_graph(tmp_path / "head.rlx").same_as(graph)
    stage = cut(graph)[1].graph
    assert stage.given and parse_graph(print_graph(stage, "full")).same_as(stage)


def test_pruning_keeps_what_gives_dims_their_values() -> None:
    graph = head()
    before = len(graph.nodes)
    assert graph.prune() == 0 and len(graph.nodes) == before
    del graph.outputs["places"]
    graph.prune()
    verify(graph)
    assert list(graph.measured) == ["n_0"]


def test_the_verifier_wants_measured_dims_measured_first_and_once() -> None:
    graph = head()
    at = next(i for i, node in enumerate(graph.nodes) if node.op.name == "measured")
    graph.nodes.append(graph.nodes.pop(at))
    with pytest.raises(GraphError, match=r"\[slice\] expected dims that earlier nodes measure, got n_0"):
        verify(graph)
    twice = rlx.Graph("twice")
    k = twice.input("k", (), "i64")
    for _ in range(2):
        ops.measured(k, symbol="n")
    with pytest.raises(GraphError, match="expected a dim of its own, got 'n'"):
        verify(twice)


@pytest.mark.parametrize("device", DEVICES)
def test_bodies_do_not_measure(device: str) -> None:
    graph = rlx.Graph("branch")
    x, flag = graph.input("x", (3,)), graph.input("flag", (), "bool")
    yes, no = rlx.Graph("yes"), rlx.Graph("no")
    for region in (yes, no):
        a = region.input("a", (3,))
        region.output(ops.reduce_sum(ops.masked_select(a, a > 0), axes=(0,)))
    graph.output(ops.if_(flag, x, regions=(yes, no))[0], name="y")
    with pytest.raises(UnsupportedOp, match=r"\[measured\] expected dims measured outside of if"):
        rlx.Session(device).compile(graph)


@pytest.mark.parametrize("device", DEVICES)
def test_kernels_of_all_stages_are_timed_and_checked(device: str) -> None:
    inputs = {"x": np.arange(9, dtype="f4") - 2, "k": np.array(7)}
    profiled = profile(head(), inputs, rlx.Session(device), runs=1)
    assert profiled.total_ns > 0 and len(profiled.kernels) > 3
    starts = [kernel.first_ns for kernel in profiled.kernels]
    assert device == "cpu" or starts == sorted(starts)
    verdict = Checker(head(), rlx.Session(device), inputs).verdict()
    assert verdict["equal"], verdict


def test_devices_are_chosen_for_all_stages() -> None:
    devices = rlx.Session("auto").devices(head())
    compiled = rlx.Session("auto").compile(head())
    assert compiled(x=np.ones(3, "f4"), k=np.array(2))["twice"].tolist() == [2, 2]
    explained = str(devices.explain({"x": np.ones(300, "f4"), "k": np.array(2)}))
    assert "cpu" in explained
    report = dispatch_report(head(), "cpu")
    assert report.compiles and {op.fate for op in report.ops} <= {"native", "decomposed", "merged"}


def test_nodes_that_nobody_needs_do_not_hinder_stages() -> None:
    graph = rlx.Graph("dead")
    x = graph.input("x", ("n",))
    flags = x > 0.0
    ops.bitwise_not(flags)  # nothing takes it
    graph.output(ops.nonzero(flags))
    (program,) = rlx.Session("reference").compile(graph).run([np.array([0, 1, 2], "f4")])
    assert program.tolist() == [[1, 2]]
