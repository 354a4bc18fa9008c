"""Attention of few queries whose keys the workgroups of a cluster share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import NVIDIAS, program_of
from rlx.codegen.simt.module import cpp_module
from rlx.ir.graph import Graph
from rlx.kernel.ir.attention import FusedAttention, SplitKvPartial
from rlx.runtime.session import Precision

from .emulated_driver import EmulatedDriver
from .test_tile_attention import TOLERANCES, graph_of, inputs_of

HOPPER = NVIDIAS.on("sm_90a")


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is of a GPU with clusters."""
    monkeypatch.setattr(EmulatedDriver, "architecture", lambda self, ordinal: "sm_90a")


def check(graph: Graph, *sizes: tuple[int, int], precision: Precision = "f32") -> None:
    tolerance = {**TOLERANCES, "f32": 1e-5}[graph.inputs[0].dtype.name]
    model, exact = rlx.Session("cuda", precision=precision).compile(graph), rlx.Session("cpu").compile(graph)
    for queries, keys in sizes:
        given = inputs_of(graph, queries, keys)
        made, expected = (np.asarray(each.run(given)[0]) for each in (model, exact))
        np.testing.assert_allclose(made, expected, rtol=0, atol=tolerance * np.abs(expected).max(initial=1e-3))


def texts_of(graph: Graph) -> list[str]:
    return list(cpp_module([program_of(graph, HOPPER)], target=HOPPER.target).kernels.values())


def test_clusters_share_keys_where_there_are_clusters() -> None:
    graph = graph_of(32, 32, "f16")
    kinds = [{type(k.work) for k in program_of(graph, maker).main} for maker in (HOPPER, NVIDIAS.on("sm_80"))]
    assert kinds[0] == {FusedAttention} and SplitKvPartial in kinds[1]
    assert sum("__cluster_dims__(8" in text for text in texts_of(graph)) == 1


@pytest.mark.parametrize(
    ("features", "values", "dtype", "heads", "shared"),
    [
        (32, 32, "f16", 2, 2),
        (128, 128, "bf16", 4, 2),
        (64, 48, "f16", 6, 2),
        (24, 16, "bf16", 16, 1),
        (40, 64, "f16", 9, 3),
    ],
)
def test_heads_of_all_sizes(
    features: int, values: int, dtype: str, heads: int, shared: int, driver: EmulatedDriver
) -> None:
    """Of which the last warp has a second turn, none has, most have nothing, and all have nothing."""
    graph = graph_of(features, values, dtype, heads, shared)
    check(graph, (1, 1030), (1, 130), (8, 16), (5, 1), (3, 0), (2, 1500))


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True}, {"causal": True, "window": 9}, {"window": 300}, {"softcap": 5.0}, {"mask": "bool"},
        {"mask": "f16", "causal": True}, {"mask": "bool", "of_keys": True, "scale": -0.5},
    ],
)  # fmt: skip
def test_what_is_masked_counts_for_nothing(options: dict[str, Any], driver: EmulatedDriver) -> None:
    sizes = ((7, 7), (8, 8), (1, 1)) if options.get("causal") else ((1, 400), (6, 90))
    check(graph_of(32, 32, "f16", heads=4, **options), *sizes)


def test_products_of_shorter_floats(driver: EmulatedDriver) -> None:
    check(graph_of(64, 64, "f32", heads=4), (1, 1100), (4, 70), precision="f32_fast")


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_special_numbers_stay_in_their_rows(name: str, special: float, driver: EmulatedDriver) -> None:
    graph = graph_of(32, 32, "f16")
    given = inputs_of(graph, 3, 200)
    given[name][1, 1, 2, 3] = special
    made, expected = (np.asarray(rlx.Session(device).compile(graph).run(given)[0]) for device in ("cuda", "cpu"))
    np.testing.assert_array_equal(np.isnan(made), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(made), np.isinf(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(made[finite], expected[finite], rtol=0, atol=4e-3)


@pytest.mark.parametrize("far", [-80.0, 80.0])
def test_scores_of_any_size_have_powers(far: float, driver: EmulatedDriver) -> None:
    graph = graph_of(32, 32, "f16", scale=1.0)
    given = inputs_of(graph, 4, 1100)
    given["q"] = np.full_like(given["q"], 5)
    given["k"] = (far / 160 * np.linspace(1, 20, 1100)[:, None] + given["k"] * 0.1).astype(np.float16)
    made, expected = (np.asarray(rlx.Session(device).compile(graph).run(given)[0]) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(made, expected, rtol=0, atol=4e-3 * np.abs(expected).max())


@pytest.mark.parametrize("values", [32, 48])
def test_keys_that_are_no_pieces(values: int, driver: EmulatedDriver) -> None:
    """Rows of keys begin at odd places."""
    graph = Graph("attention")
    q, v = graph.input("q", (1, 2, "n", 24), "f16"), graph.input("v", (1, 2, "m", values), "f16")
    k = graph.input("k", (1, 2, "m", 25), "f16")[:, :, :, 1:]
    graph.output(ops.attention(q, k, v).cast("f32"), name="y")
    check(graph, (2, 140))


def test_kernels_compile() -> None:
    graphs = [
        graph_of(128, 128, "bf16", heads=4, shared=2, causal=True),
        graph_of(24, 48, "f16", mask="bool", softcap=3.0),
    ]
    module = cpp_module([program_of(graph, HOPPER) for graph in graphs], target=HOPPER.target)
    text = "\n".join([module.prelude, *(t for t in module.kernels.values() if "meet_cluster" in t)])
    assert nvrtc.compile_cubin(text, "sm_90a").startswith(b"\x7fELF")
