"""Times of XLA's instructions: where they come from, programs on disk, what overlaps, and profilers that are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.executable import Bound
from rlx.backends.xla import XlaBackend, timers
from rlx.backends.xla.named_scopes import Instructions, node_at
from rlx.errors import ProfileError
from rlx.ir.graph import Graph
from support import why_absent

pytestmark = pytest.mark.skipif(bool(why_absent("xla")), reason=why_absent("xla"))


def net(prefix: str = "") -> Graph:
    """A product, and a loop that is not small."""
    graph, body = Graph("net"), Graph("body")
    held, row, w = body.input("h", (64, 128)), body.input("row", (64, 128)), body.input("w", (128, 128))
    product = held @ w
    product.node.source = f"{prefix}step"
    following = rlx.tanh(product + row)
    body.output(following, following * 2.0)
    x, weight = graph.input("x", (9, 64, 128)), graph.input("w", (128, 128))
    first = x @ weight
    first.node.source = f"{prefix}first"
    start = graph.constant(np.zeros((64, 128), np.float32))
    last, rows = rlx.ops.scan(start, first, weight, regions=(body,), carried=1, sequences=1, length=9)
    graph.output(last, rows)
    return graph


INPUTS = [np.full((9, 64, 128), 0.01, np.float32), np.full((128, 128), 0.01, np.float32)]


def bound(graph: Graph, cache: bool = False, profile: bool = True) -> Bound:
    return XlaBackend().compile(graph, Options(cache=cache, profile=profile)).bind({})


def test_instructions_of_a_body_count_trips_and_tell_their_nodes() -> None:
    times = bound(net()).profile(INPUTS)
    step = [k for k in times if "step" in k.sources]
    assert step and step[0].calls == 9
    assert any("first" in k.sources and k.calls == 1 for k in times)
    loops = [k for k in times if k.name.startswith("while")]
    assert len(loops) == 1 and loops[0].total_ns < sum(k.total_ns for k in times)


def test_a_program_from_disk_tells_the_nodes_of_the_graph_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    bound(net("a "), cache=True)(INPUTS)
    executable = XlaBackend().compile(net("b "), Options(cache=True, profile=True))
    times = executable.bind({}).profile(INPUTS)
    assert executable.compile_count == 0
    told = {source for k in times for source in k.sources}
    assert {"b first", "b step"} <= told and not any(source.startswith("a ") for source in told)
    plain = XlaBackend().compile(net("b "), Options(cache=True))
    plain.bind({})(INPUTS)
    assert plain.compile_count == 1 and not plain.capabilities.profiling


def test_a_program_that_was_not_compiled_for_it_has_no_times() -> None:
    with pytest.raises(ProfileError, match=r"\[profile\] expected a program compiled for profiling"):
        bound(net(), profile=False).profile(INPUTS)


def test_a_profiler_that_is_taken_is_told(tmp_path: Path) -> None:
    import jax

    made = bound(net())
    with jax.profiler.trace(str(tmp_path)), pytest.raises(ProfileError, match="expected jax's profiler to be free"):
        made.profile(INPUTS)
    assert made.profile(INPUTS)


def test_a_run_that_fails_ends_the_recording() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        timers.record(fails)
    assert bound(net()).profile(INPUTS)


def test_a_recording_without_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bound(net())
    monkeypatch.setattr(timers, "record", lambda run: timers.Recording(0.0, {}))
    with pytest.raises(ProfileError, match="expected times of XLA's instructions from jax's profiler, got none"):
        made.profile(INPUTS)


def test_a_program_without_work_has_no_kernels_or_copies() -> None:
    graph = Graph("idle")
    graph.output(graph.input("x", (0, 3)) * 2.0)
    assert all(k.total_ns >= 0 for k in bound(graph).profile([np.zeros((0, 3), np.float32)]))


def test_spans() -> None:
    assert timers.joined([(5, 6), (0, 2), (1, 3)]) == [(0, 3), (5, 6)]
    assert timers.without([(0, 10), (20, 30)], [(1, 2), (8, 22), (29, 40)]) == [(0, 1), (2, 8), (22, 29)]
    assert timers.without([(0, 1), (1, 4)], [(0, 4)]) == []


def test_marks_that_no_graph_has_name_nothing() -> None:
    graph = net()
    number = next(i for i, node in enumerate(graph.nodes) if node.regions)
    inner = next(i for i, node in enumerate(graph.nodes[number].regions[0].nodes) if node.source == "step")
    found = node_at(graph, f"jit(program)/node{number}/while/body/region0/node{inner}/dot_general")
    assert found is not None and found.source == "step"
    for name in ("", "jit(f)/add", "node999", f"node{number}/region7/node0", "region0/node0", "jit(node1)"):
        assert node_at(graph, name) is None
    assert Instructions("").sources(graph, ["x"]) == () and not list(Instructions("no text").within("x"))
