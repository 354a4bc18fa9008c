"""The pipeline keeps the meaning of graphs, with every pass switched off in turn, and of random graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from passes.graphs import encoder, encoder_inputs, random_graphs
from rlx import flags
from rlx.ir.graph import Graph
from rlx.ir.op import Tolerance
from rlx.ir.verify import verify
from rlx.passes.decompose import no_claims
from rlx.passes.pipeline import names, optimise, standard
from support import assert_close, run_on

CLAIMS = {"all": lambda node: True, "none": no_claims}
SWITCHABLE = [*names(), *sorted(optimise(encoder(), standard(CLAIMS["all"]))[1].rewrites)]


@pytest.mark.parametrize("claims", CLAIMS)
@pytest.mark.parametrize("off", ["nothing", *SWITCHABLE])
def test_meaning_stays_without_a_pass(off: str, claims: str, device: str) -> None:
    graph = encoder()
    expected = run_on("reference", graph, encoder_inputs())["y"]
    optimised, report = optimise(graph, standard(CLAIMS[claims]), disable={off})
    verify(optimised)
    assert not any(key == off or key.startswith(f"{off}/") for key in report.rewrites)
    assert_close(run_on(device, optimised, encoder_inputs())["y"], expected, Tolerance(256, scale=1))


def test_frame_of_a_graph_stays() -> None:
    graph = encoder()
    before = str(graph)
    optimised, _ = optimise(graph)
    assert str(graph) == before, "the graph given is not changed"
    assert [v.name for v in optimised.inputs] == [v.name for v in graph.inputs]
    assert [v.name for v in optimised.params] == [v.name for v in graph.params]
    assert list(optimised.outputs) == list(graph.outputs)
    assert optimised.bounds == graph.bounds
    assert set(graph.equalities) <= set(optimised.equalities)
    assert optimised.data.keys() == graph.data.keys()


def test_a_transformer_layer_becomes_what_it_is() -> None:
    optimised, report = optimise(encoder(layers=2), standard(CLAIMS["all"]))
    names = [node.op.name for node in optimised.nodes]
    assert names.count("attention") == 2
    assert names.count("layer_norm") == 4
    assert names.count("gelu") == 2
    assert names.count("dot_general") == 8, "query, key and value are one"
    assert report.rewrites["merge-dots/same-operand"] == 2
    assert not report.unfinished


def test_a_second_run_finds_nothing() -> None:
    once, _ = optimise(encoder(), standard(CLAIMS["all"]))
    twice, report = optimise(once, standard(CLAIMS["all"]))
    assert report.total == 0
    assert twice.same_as(once)


def test_names_and_provenance_stay() -> None:
    optimised, _ = optimise(encoder(), standard(CLAIMS["all"]))
    attention = next(node for node in optimised.nodes if node.op.name == "attention")
    original = {node.name for node in encoder().nodes}
    assert attention.source in original
    assert all(node.source or node.name in original or node.op.name == "constant" for node in optimised.nodes)


def test_stop_at_bisects(monkeypatch: pytest.MonkeyPatch) -> None:
    total = optimise(encoder(), standard(CLAIMS["all"]))[1].total
    for n in range(0, total + 1, 5):
        optimised, report = optimise(encoder(), standard(CLAIMS["all"]), stop_at=n)
        verify(optimised)
        assert report.total == n
    monkeypatch.setenv(flags.stop_at.name, "3")
    assert optimise(encoder(), standard(CLAIMS["all"]))[1].total == 3
    monkeypatch.setenv(flags.stop_at.name, "-1")
    monkeypatch.setenv(flags.disable.name, "simplify, cse/merge")
    rewrites = optimise(encoder(), standard(CLAIMS["all"]))[1].rewrites
    assert not any(name.startswith(("simplify", "cse")) for name in rewrites)


def test_debug_tells_every_rewrite(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(flags.debug.name, "4")
    monkeypatch.setenv(flags.check.name, "1")
    total = optimise(encoder())[1].total
    assert [record.name for record in caplog.records].count("rlx.rewrites") == total > 0


def test_regions_are_optimised_too(device: str) -> None:
    from rlx import ops

    graph = Graph()
    p, x = graph.input("p", (), "bool"), graph.input("x", (4,))
    yes, no = Graph("yes"), Graph("no")
    yes.output(ops.gelu(yes.input("a", (4,)) * 1.0))
    no.output(no.input("a", (4,)) / 2.0)
    graph.output(*ops.if_(p, x, regions=(yes, no)), name="y")
    optimised, report = optimise(graph)
    verify(optimised)
    inside = [node.op.name for region in optimised.nodes[-1].regions for node in region.nodes]
    assert "gelu" not in inside and "erf" in inside and "div" not in inside
    assert report.rewrites["simplify/multiply-by-one"] == 1
    for predicate in (True, False):
        inputs = {"p": np.array(predicate), "x": np.arange(4, dtype=np.float32)}
        actual, expected = run_on(device, optimised, inputs)["y"], run_on("reference", graph, inputs)["y"]
        assert_close(actual, expected, Tolerance(8, scale=1))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=random_graphs())
def test_random_graphs_keep_their_meaning(graph: Graph) -> None:
    optimised, report = optimise(graph)
    verify(optimised)
    assert not report.unfinished
    x = np.array([[0.0, -0.0, 1, -1], [np.inf, -np.inf, np.nan, 3], [0.5, -2.5, 1e-3, 40]], np.float32)
    inputs = {"x": x, "y": np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)}
    expected, actual = run_on("reference", graph, inputs), run_on("reference", optimised, inputs)
    for name, array in expected.items():
        scale = np.abs(array[np.isfinite(array)]).max(initial=1.0)
        assert_close(actual[name], array, Tolerance(1 << 14, scale=float(scale) if math.isfinite(scale) else 1.0))
