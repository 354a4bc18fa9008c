"""Small kernels as parts of others: what becomes one kernel, and that results stay what they are."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import rlx
from benchmarks.random_weights import encoder_weights
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda.build import build, program_of
from rlx.codegen.simt.module import NVIDIA, cpp_module
from rlx.errors import CompileError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.ir.fused import RowProduct, SideBySide
from rlx.kernel.ir.loops import LoopNest
from rlx.kernel.ir.program import Program, leaves
from rlx.kernel.ir.text import text_of
from rlx.kernel.ir.verify import verify
from rlx.models.bert import Config, encoder
from rlx.runtime.session import Precision

from .emulated_driver import EmulatedDriver
from .fused_graphs import (
    COLUMNS,
    GRAPHS,
    HEAD,
    PRECISIONS,
    WIDTH,
    gated_product,
    graph_of,
    inputs_of,
    normed_product,
    rotary_norm,
    turned,
    two_norms,
    weight,
    written_norm,
)


def results_of(graph: Graph, given: dict[str, Array], device: str, precision: Precision = "f32") -> list[Array]:
    program = rlx.Session(device, precision=precision).compile(graph)
    if any(value.name == "cache" for value in graph.inputs):
        program.bind_handle("cache", np.ones((24, HEAD), np.float32))
        given = {name: value for name, value in given.items() if name != "cache"}
    return [np.asarray(result) for result in program.run(given)]


def check(graph: Graph, rows: int, tolerance: float, precision: Precision = "f32") -> None:
    given = inputs_of(graph, rows)
    for made, expected in zip(results_of(graph, given, "cuda", precision), results_of(graph, given, "cpu")):
        scale = max(np.abs(expected).max(initial=0.0), 1.0)
        np.testing.assert_allclose(made, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_pass_makes_other_kernels_and_the_same_results(name: str, driver: EmulatedDriver) -> None:
    graph = graph_of(GRAPHS[name])
    precision = PRECISIONS.get(name, "f32")
    with_it, without = (
        build(graph, Options(disable=frozenset(off), precision=precision)).module.kernels.keys() for off in ((), {name})
    )
    assert set(with_it) != set(without)
    check(graph, 5, 2e-3, precision)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("make", [normed_product, gated_product])
def test_products_make_their_rows(make: Callable[..., None], dtype: str, driver: EmulatedDriver) -> None:
    """Of one row by all lanes, of a few by a warp each, of more by half of one; of many, kernels are as they were."""
    graph = graph_of(make, "n", dtype)
    assert any(isinstance(kernel.work, RowProduct) for kernel in program_of(graph).main)
    for rows in (1, 2, 7, 8, 9, 15, 16, 17, 20, 0):
        check(graph, rows, 2e-2 if dtype == "bf16" else 4e-3)


@pytest.mark.parametrize("width", [384, 528, 1040])
def test_rows_of_some_widths(width: int, driver: EmulatedDriver) -> None:
    """Whose pieces half of a warp's lanes hold, those of a warp, and none."""
    graph = graph_of(normed_product, "n", "f16", width)
    for rows in (9, 16):
        check(graph, rows, 4e-3)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_rows_that_others_read_are_stored_in_pieces(dtype: str) -> None:
    graph = Graph("kept")
    rows = ops.softmax(graph.input("x", ("n", WIDTH)), axis=-1).cast(dtype)
    graph.output(rows.cast("f16") @ weight(graph, "w", WIDTH, COLUMNS, dtype="f16"), rows)
    program = program_of(graph)
    (kernel,) = (kernel for kernel in program.main if isinstance(kernel.work, RowProduct))
    module = cpp_module([program])
    for variant in module.variants[id(kernel)]:
        assert "put_piece((Piece*)(slot" in module.kernels[variant.name]


@pytest.mark.parametrize("rows", [1, 8, 9, 16])
def test_products_of_known_rows_leave_nothing_else(rows: int, driver: EmulatedDriver) -> None:
    graph = graph_of(normed_product, rows, "f16")
    works = [kernel.work for kernel in program_of(graph).main]
    assert [type(work) for work in works] == [RowProduct]
    check(graph, rows, 4e-3)


@pytest.mark.parametrize(("architecture", "most"), [("sm_80", 99 << 10), ("sm_89", 99 << 10), ("sm_90a", 227 << 10)])
def test_workgroups_have_the_memory_that_every_gpu_has(architecture: str, most: int) -> None:
    """Weights on their way and a kernel's own arrays, as wide as decoders have them."""
    graph = Graph("wide")
    x = graph.input("x", ("n", 1024), "bf16")
    for columns in (1024, 4096, 6144, 8192):
        w = graph.param(f"w{columns}", (1024, columns), "bf16")
        graph.output(ops.softmax(x * float(columns), axis=-1) @ w, x @ w)
    program = program_of(graph)
    module = cpp_module([program], target=NVIDIA.on(architecture))
    held = [
        variant.shader.shared_bytes
        for kernel in program.main if isinstance(kernel.work, RowProduct)
        for variant in module.variants[id(kernel)]
    ]  # fmt: skip
    assert max(held) == 96 << 10 if architecture == "sm_90a" else 0 < max(held) <= 50 << 10
    for variants in module.variants.values():
        for variant in variants:
            text = module.kernels[variant.name]
            declared = re.findall(r"__shared__ .*?(short|float|long long) \w+\[(\d+)\];", text)
            own = sum({"short": 2, "float": 4, "long long": 8}[kind] * int(count) for kind, count in declared)
            assert own <= 48 << 10 and own + variant.shader.shared_bytes <= most - 1024


@pytest.mark.parametrize(("depth", "columns", "most"), [(1024, 4096, 16), (1024, 1 << 17, 8), (2048, 1024, 8)])
def test_a_whole_tile_of_rows_is_made_where_that_takes_less_than_a_kernel(depth: int, columns: int, most: int) -> None:
    """Not by workgroups that come turn after turn, and only where they have room for the rows."""
    graph = Graph("deep")
    rows = ops.softmax(graph.input("x", ("n", depth), "f16"), axis=-1)
    graph.output(rows @ graph.param("w", (depth, columns), "f16"), name="y")
    (work,) = (kernel.work for kernel in program_of(graph).main if isinstance(kernel.work, RowProduct))
    assert work.most_rows == most


def test_an_encoder_of_few_tokens_has_five_kernels_a_layer(driver: EmulatedDriver) -> None:
    """Norms are made by the products behind them, and residuals find what these stored."""
    config = Config(64, 64, 2, 2, 128, max_position_embeddings=32)
    graph = encoder(config, encoder_weights(config))
    on_device, exact = (
        rlx.Session(device, precision=precision).compile(graph).select(["last_hidden_state"])
        for device, precision in (("cuda", "f16"), ("cpu", "f32"))
    )
    on_device.run(tokens_of(1))  # which also packs weights
    for tokens, kernels in ((9, 2 + 2 * 5), (16, 2 + 2 * 5), (17, 1 + 2 * 7)):
        given = tokens_of(tokens)
        with driver.counted() as calls:
            (made,) = on_device.run(given)
        assert calls.count("launch") == kernels
        np.testing.assert_allclose(np.asarray(made), np.asarray(exact.run(given)[0]), rtol=0, atol=2e-2)


def tokens_of(count: int) -> list[Array]:
    """One text of so many tokens, and its mask."""
    ids = np.random.default_rng(count).integers(0, 64, (1, count))
    return [ids, np.ones_like(ids)]


def test_products_of_many_rows_make_none() -> None:
    works = [kernel.work for kernel in program_of(graph_of(normed_product, 64, "f16")).main]
    assert not any(isinstance(work, RowProduct) for work in works)


def test_rows_that_are_no_pieces(driver: EmulatedDriver) -> None:
    """Rows that begin anywhere, and an operand that data choose."""
    graph = Graph("uneven")
    x = graph.input("x", ("n", 72))[:, 5:69]
    ids = graph.input("ids", ("n",), "i64")
    table = graph.param("table", (9, 64), data=np.arange(576, dtype=np.float32).reshape(9, 64) / 576)
    y = ops.softmax(x + ops.gather(table, ids, axis=0), axis=-1)
    w = graph.param("w", (64, 24), "f16", data=np.eye(64, 24, dtype=np.float16))
    graph.output((y.cast("f16") @ w).cast("f32"), name="y")
    assert any(isinstance(kernel.work, RowProduct) for kernel in program_of(graph).main)
    for rows in (1, 3):
        given = inputs_of(graph, rows) | {"ids": np.arange(rows) * 3}
        made, expected = (results_of(graph, given, device)[0] for device in ("cuda", "cpu"))
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-3)


def reduces(program: Program) -> int:
    return sum(isinstance(k.work, LoopNest) and k.work.reduces for k in leaves(program.main))


def test_rotary_positions_are_part_of_a_norm(driver: EmulatedDriver) -> None:
    graph = graph_of(rotary_norm)
    nests = [kernel.work for kernel in program_of(graph).main if isinstance(kernel.work, LoopNest)]
    assert len([nest for nest in nests if nest.reduces]) == 1
    assert not any(nest.outer[-1:] == (HEAD,) for nest in nests)  # no map over the rows is left
    for rows in (1, 4):
        check(graph, rows, 1e-5)


def test_a_row_is_not_read_beyond_its_ends(driver: EmulatedDriver) -> None:
    """What reads the rows of others has kernels of its own."""
    graph = Graph("beyond")
    rows = ops.softmax(graph.input("x", ("n", HEAD)), axis=-1)
    graph.output(turned(ops.concat(rows[1:], rows[:1], axis=0), graph.input("angles", ("n", HEAD // 2))), name="y")
    check(graph, 3, 1e-6)


@pytest.mark.parametrize("at", [0, 3, 20])
def test_rows_go_to_a_state(at: int, driver: EmulatedDriver) -> None:
    graph = graph_of(written_norm)
    (nest,) = (k.work for k in program_of(graph).main if isinstance(k.work, LoopNest) and k.work.inner == (HEAD,))
    assert any(store.guard is not None for store in nest.stores())
    given = inputs_of(graph, 4) | {"at": np.array(at)}
    made, expected = (results_of(graph, given, device)[0] for device in ("cuda", "cpu"))
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


def test_kernels_run_side_by_side_if_none_needs_another(driver: EmulatedDriver) -> None:
    graph = graph_of(two_norms)
    program = program_of(graph)
    together = [kernel for kernel in program.main if isinstance(kernel.work, SideBySide)]
    assert [len(kernel.work.parts()) for kernel in together] == [2]
    assert len(program.main) == 3  # both, their product, and what needs that
    check(graph, 6, 1e-5)


def test_composites_are_written_and_verified() -> None:
    for make in GRAPHS.values():
        graph = graph_of(make)
        program = program_of(graph)
        verify(program)
        text = text_of(program)
        assert ("at once:" in text) == any(isinstance(k.work, SideBySide) for k in program.main)
        assert ("product:" in text) == any(isinstance(k.work, RowProduct) for k in program.main)
        if "product:" in text:
            program.prepare.clear()
            with pytest.raises(CompileError, match="to be written before it is read"):
                verify(program)
