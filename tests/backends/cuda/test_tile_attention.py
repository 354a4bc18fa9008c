"""Attention of many queries, whose keys and values come to workgroup memory: heads of all sizes, and what is masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import brought_attention, team_attention, tile_attention
from rlx.codegen.simt.module import cpp_module
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import leaves
from support import run_on

from .emulated_driver import EmulatedDriver
from .fused_graphs import graph_dtype

TOLERANCES = {"f16": 2e-3, "bf16": 1.6e-2}
BROUGHT = brought_attention.takes


class ByWarps(tile_attention.TileAttention):
    """By warps alone."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given[:3])


@pytest.fixture(autouse=True, params=["warps", "group", "groups"])
def always(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By warps alone, by a group of four, which every other block of the emulated driver has, and by two where features
    are whole lines."""
    monkeypatch.setattr(team_attention, "FEW_TILES", -1)
    two = request.param == "groups"
    monkeypatch.setattr(brought_attention, "takes", lambda work, rows: two and BROUGHT(work, team_attention.SOME_GUESS))
    if request.param == "warps":
        monkeypatch.setattr(tile_attention, "TileAttention", ByWarps)


def graph_of(
    features: int, values: int, dtype: str, heads: int = 2, shared: int = 2, mask: str = "", of_keys: bool = False,
    **options: Any,
) -> Graph:  # fmt: skip
    graph = Graph("attention")
    q, k = graph.input("q", (2, heads, "n", features), dtype), graph.input("k", (2, shared, "m", features), dtype)
    v = graph.input("v", (2, shared, "m", values), dtype)
    masks = [graph.input("mask", (2, 1, 1 if of_keys else "n", "m"), mask)] if mask else []
    graph.output(ops.attention(q, k, v, *masks, **options).cast("f32"), name="y")
    return graph


def attention_of(graph: Graph) -> FusedAttention:
    works = [kernel.work for kernel in leaves(program_of(graph).main)]
    return next(work for work in works if isinstance(work, FusedAttention))


def inputs_of(graph: Graph, queries: int, keys: int) -> dict[str, Array]:
    random = np.random.default_rng(queries + keys)
    given: dict[str, Array] = {}
    for value in graph.inputs:
        shape = tuple({"n": queries, "m": keys}.get(str(extent), extent) for extent in value.shape)
        drawn = random.standard_normal(shape)  # type: ignore[arg-type]
        given[value.name] = drawn > -1 if value.dtype.name == "bool" else drawn.astype(graph_dtype(value.dtype.name))
    return given


def both(graph: Graph, *inputs: dict[str, Array]) -> list[tuple[Array, Array]]:
    """Results of each of some inputs, and what they should be; the graph is compiled once."""
    text = "".join(cpp_module([program_of(graph)]).kernels.values())
    assert "load_transposed(" in text or "arrive_with_copies(" in text
    model, exact = (rlx.Session(device).compile(graph) for device in ("cuda", "cpu"))
    return [(np.asarray(model.run(given)[0]), np.asarray(exact.run(given)[0])) for given in inputs]


def check(graph: Graph, *sizes: tuple[int, int]) -> None:
    dtype = graph.inputs[0].dtype.name
    for made, expected in both(graph, *(inputs_of(graph, *size) for size in sizes)):
        tolerance = TOLERANCES[dtype] * np.abs(expected).max(initial=1e-3)
        np.testing.assert_allclose(made, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("features", "values", "dtype"),
    [(16, 16, "f16"), (32, 64, "bf16"), (48, 48, "f16"), (80, 96, "bf16"), (112, 128, "f16"), (128, 16, "bf16")],
)
def test_heads_of_all_sizes(features: int, values: int, dtype: str, driver: EmulatedDriver) -> None:
    check(graph_of(features, values, dtype), (70, 130), (1, 1), (64, 64), (0, 5), (129, 63))


def test_few_tiles_are_shared_by_two_groups() -> None:
    work = attention_of(graph_of(64, 96, "bf16"))
    assert BROUGHT(work, team_attention.SOME_GUESS)
    assert not BROUGHT(work, team_attention.MANY_GUESS)
    assert not BROUGHT(attention_of(graph_of(48, 96, "bf16")), team_attention.SOME_GUESS)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"causal": True}, ((70, 70), (64, 64), (200, 200), (1, 1))),
        ({"causal": True, "heads": 4, "shared": 2}, ((130, 130),)),
        ({"heads": 6, "shared": 1}, ((70, 5),)),
        ({"causal": True, "window": 9}, ((150, 150),)),
        ({"window": 70}, ((150, 150),)),
        ({"softcap": 5.0}, ((70, 90),)),
        ({"mask": "bool"}, ((70, 90),)),
        ({"mask": "bool", "causal": True, "softcap": 2.0}, ((90, 90),)),
        ({"mask": "bool", "of_keys": True}, ((70, 90), (64, 128), (3, 64), (130, 1))),
        ({"mask": "bool", "of_keys": True, "causal": True}, ((90, 90), (128, 128))),
        ({"mask": "bool", "of_keys": True, "scale": -0.5}, ((70, 90),)),
        ({"mask": "bool", "of_keys": True, "window": 9}, ((70, 70),)),
        ({"mask": "f16", "of_keys": True}, ((70, 90),)),
        ({"mask": "f16"}, ((70, 90),)),
        ({"scale": 0.5}, ((70, 90),)),
    ],
)
def test_what_is_masked_counts_for_nothing(
    options: dict[str, Any], sizes: tuple[tuple[int, int], ...], driver: EmulatedDriver
) -> None:
    check(graph_of(32, 32, "f16", **options), *sizes)


def test_a_mask_of_keys_is_a_bit_each(driver: EmulatedDriver) -> None:
    """Where it leaves out nothing of a tile, or all of it, too."""
    graph = graph_of(32, 32, "f16", mask="bool", of_keys=True)
    assert "__ballot_sync(" in "".join(cpp_module([program_of(graph)]).kernels.values())
    given = inputs_of(graph, 70, 200)
    given["mask"][0] = True
    given["mask"][1, ..., 64:128] = False
    ((made, expected),) = both(graph, given)
    np.testing.assert_allclose(made, expected, rtol=0, atol=4e-3 * np.abs(expected).max())


def test_no_keys_give_what_they_give_elsewhere(driver: EmulatedDriver) -> None:
    graph = graph_of(32, 32, "f16")
    ((made, expected),) = both(graph, inputs_of(graph, 70, 0))
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("few_tiles", [-1, 11], ids=["tiles", "teams"])
def test_special_numbers_stay_in_their_rows(
    few_tiles: int, name: str, special: float, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_attention, "FEW_TILES", few_tiles)
    graph = graph_of(32, 32, "f16")
    given = inputs_of(graph, 70, 90)
    given[name][1, 1, 7, 3] = special
    ((made, expected),) = both(graph, given)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(made), np.isinf(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(made[finite], expected[finite], rtol=0, atol=4e-3)


def test_scores_of_any_size_have_powers(driver: EmulatedDriver) -> None:
    """The greatest score of a row may be far from zero, and come late."""
    graph = graph_of(32, 32, "f16", scale=1.0)
    given = inputs_of(graph, 70, 200)
    given["q"] *= np.float16(30)
    given["k"] *= np.linspace(1, 30, 200, dtype=np.float16)[:, None]
    ((made, expected),) = both(graph, given)
    np.testing.assert_allclose(made, expected, rtol=0, atol=4e-3 * np.abs(expected).max())


@pytest.mark.parametrize("few_tiles", [-1, 1, 11], ids=["tiles", "alone", "parts"])
@pytest.mark.parametrize("features", [32, 24])
@pytest.mark.parametrize("causal", [False, True])
def test_scores_far_below_zero_have_powers(
    few_tiles: int, features: int, causal: bool, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a row, by so much that the power of two between nothing and the first of them is infinite."""
    monkeypatch.setattr(team_attention, "FEW_TILES", few_tiles)
    graph = graph_of(features, 32, "f16", scale=1.0, causal=causal)
    given = inputs_of(graph, 140, 140)
    given["q"], given["k"] = np.full_like(given["q"], 5), np.full_like(given["k"], -5)
    given["k"] -= np.abs(inputs_of(graph, 140, 140)["k"]) * np.float16(0.1)
    made, expected = (np.asarray(rlx.Session(device).compile(graph).run(given)[0]) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(made, expected, rtol=0, atol=4e-3 * np.abs(expected).max())


def test_other_rows_than_whole_pieces_have_the_other_form(driver: EmulatedDriver) -> None:
    graph = graph_of(24, 24, "f16")
    assert "load_transposed(" not in "".join(cpp_module([program_of(graph)]).kernels.values())


@pytest.mark.parametrize("to", ["u8", "i8", "f16", "f32"])
@pytest.mark.parametrize(
    ("few_tiles", "queries", "features"),
    [(-1, 70, 16), (-1, 71, 16), (-1, 71, 24), (11, 71, 16), (11, 3, 16)],
    ids=["tiles", "tiles by columns", "alone", "teams", "parts"],
)
def test_what_follows_is_stored_as_a_kernel_behind_would(
    few_tiles: int, queries: int, features: int, to: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, in the order of rows in which it is read; by every way of attention. With steps of one size, or of
    columns."""
    monkeypatch.setattr(team_attention, "FEW_TILES", few_tiles)
    graph = Graph("attention")
    q, k = (graph.input(name, (2, 2, n, features), "f16") for name, n in (("q", "n"), ("k", "m")))
    v = graph.input("v", (2, 2, "m", 32), "f16")
    mixed = ops.attention(q, k, v).cast("f32").transpose(0, 2, 1, 3).reshape(2, q.shape[2], 64)
    steps = graph.constant(np.linspace(20, 60, 64, dtype=np.float32)) if queries % 2 else 40.0
    graph.output((ops.round(mixed * steps) + 90.0).cast(to), name="y")
    assert not any(isinstance(kernel.work, LoopNest) for kernel in program_of(graph).main)
    given = inputs_of(graph, queries, 80)
    switches: tuple[frozenset[str], ...] = frozenset(), frozenset({"attention-tails"})
    made, apart = (run_on("cuda", graph, given, disable=off)["y"] for off in switches)
    np.testing.assert_array_equal(made, apart)
    assert len(np.unique(made)) > 20
