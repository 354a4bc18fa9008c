"""Gates as the epilogue of the product that makes both of their sides: of every kind of layout, with ragged ends, and
as many rows as a run says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import rlx
from models.decoder_reference import CONFIGS
from models.decoder_reference import weights as decoder_weights
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda import nvrtc
from rlx.backends.cuda.build import NVIDIAS, build, program_of
from rlx.codegen.simt import tile_contraction
from rlx.codegen.simt.language.cuda import prelude
from rlx.codegen.simt.module import cpp_module
from rlx.codegen.simt.tile_layouts import LAYOUTS, TileLayout
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct
from rlx.kernel.ir.program import Program
from rlx.kernel.ir.text import text_of
from rlx.models.context import Context
from rlx.models.llama import decoder
from rlx.models.llama_config import Config
from rlx.runtime.session import Precision
from support import cubin, layouts_at_turn

from .emulated_driver import EmulatedDriver
from .fake_cublaslt import FakeLibrary
from .fused_graphs import weight
from .graphs import compiled
from .product_graphs import bound_of, products, wide

SMALL = TileLayout(32, 32, (2, 2, 1), 32, 3)
HALVES_AT_ONCE = TileLayout(32, 32, (4, 2, 1), 32, 3)
IN_PARTS = TileLayout(64, 64, (2, 2, 1), 32, 3)
SLICED = TileLayout(32, 32, (2, 2, 2), 64, 3)
TOGETHER = TileLayout(16, 64, (4, 1, 1), 64, 3, together=True)
TOGETHER_SLICED = TileLayout(32, 64, (4, 1, 2), 64, 3, together=True)
IN_BANDS = TileLayout(16, 192, (8, 1, 1), 32, 3, together=True)
SPLIT = replace(TOGETHER, splits=2)
LEAST = 33
"""Rows from which on tiles are forced."""


def force(monkeypatch: pytest.MonkeyPatch, layout: TileLayout, least: int = LEAST) -> None:
    """Has products of so many rows be tiles of this layout."""

    def tile_of(work: Contraction, rows: int, warpgroups: bool) -> TileLayout | None:
        rows = work.m if isinstance(work.m, int) else rows
        return replace(layout, paired=work.paired) if rows >= least else None

    monkeypatch.setattr(tile_contraction, "tile_of", tile_of)


def gate(
    rows: int | str, depth: int, width: int, dtype: str, made: Callable[[Value, Value], Value], bias: bool = False
) -> Graph:
    """Both sides of a gate, and what is made of them."""
    graph = Graph("gate")
    x = graph.input("x", (rows, depth), dtype)
    sides = [x @ weight(graph, name, depth, width, dtype=dtype) for name in ("left", "right.")]
    if bias:
        sides = [side + weight(graph, name, width, dtype=dtype) for side, name in zip(sides, ("b", "bias"))]
    graph.output(made(*sides), name="y")
    return graph


def silu(left: Value, right: Value) -> Value:
    y: Value = ops.silu(left) * right
    return y


def gelu(left: Value, right: Value) -> Value:
    y: Value = ops.gelu(left, approximate=True) * right
    return y


def linear_unit(left: Value, right: Value) -> Value:
    """Gated by the second side, with a result of another dtype."""
    return (left * ops.sigmoid(right)).cast("f32")


def drawn(rows: int, depth: int, dtype: str, seed: int = 0) -> Array:
    numpy = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}[dtype]
    return np.random.default_rng(seed).standard_normal((rows, depth)).astype(numpy)


def pairs(program: Program) -> list[Contraction]:
    return [k.work for k in program.main if isinstance(k.work, Contraction) and k.work.paired]


def check(graph: Graph, x: Array, precision: Precision = "f32", rtol: float = 0.0) -> None:
    """Whether it is what kernels without pairs make, bit by bit if no tolerance is told."""
    sessions = (rlx.Session("cuda", precision=precision, disable=off) for off in ((), ("paired-sums",)))
    made, apart = (np.asarray(each.compile(graph).run([x])[0], np.float64) for each in sessions)
    np.testing.assert_array_equal(made, apart)
    exact = np.asarray(rlx.Session("cpu").compile(graph).run([x])[0], np.float64)
    np.testing.assert_allclose(made, exact, rtol=0, atol=rtol * np.abs(exact[np.isfinite(exact)]).max())


EXACT = {"f16": 2e-3, "bf16": 2e-2, "f32": 1e-5}
"""Of sums that are rounded before the gate."""


@pytest.mark.parametrize(
    "layout",
    [SMALL, HALVES_AT_ONCE, IN_PARTS, SLICED, TOGETHER, TOGETHER_SLICED, IN_BANDS, SPLIT],
    ids=["small", "halves at once", "in parts", "sliced", "together", "together sliced", "in bands", "split"],
)
@pytest.mark.parametrize(("rows", "depth", "width", "dtype"), [(64, 64, 96, "f16"), (130, 200, 40, "bf16")])
def test_gates(
    layout: TileLayout, rows: int, depth: int, width: int, dtype: str, driver: EmulatedDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With ends of every side that are no multiple of a tile."""
    force(monkeypatch, layout)
    graph = gate(rows, depth, width, dtype, silu)
    assert len(program_of(graph).main) == len(pairs(program_of(graph))) == 1
    check(graph, drawn(rows, depth, dtype), rtol=EXACT[dtype])


@pytest.mark.parametrize("made", [silu, gelu, linear_unit])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_kinds_of_gates(
    made: Callable[[Value, Value], Value], dtype: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With biases, which are asked for eight at a time."""
    force(monkeypatch, IN_PARTS)
    graph = gate(70, 64, 48, dtype, made, bias=True)
    assert len(pairs(program_of(graph))) == 1
    check(graph, drawn(70, 64, dtype), rtol=EXACT[dtype])


def test_sums_that_are_made_again(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of f32 as sums of shorter floats, of either side, where operands are infinite."""
    layout = TileLayout(32, 32, (2, 2, 1), 16, 3, chunk=16)
    x = drawn(70, 32, "f32")
    x[3, 5], x[66, 0] = np.inf, np.nan
    for made in (silu, linear_unit):
        force(monkeypatch, replace(layout, splits=1))
        graph = gate(70, 32, 40, "f32", made)
        assert len(pairs(build(graph, Options(precision="f32_fast")).program)) == 1
        check(graph, x, "f32_fast", rtol=EXACT["f32"])


def feed_forward(rows: int | str, dtype: str = "bf16", width: int = 40) -> Graph:
    """A norm, a gate, the product behind it and a residual: half a layer of a decoder."""
    graph = Graph("feed forward")
    x = graph.input("x", (rows, 64), dtype)
    wide = x.cast("f32")
    spread = ops.reduce_mean(ops.square(wide), axes=(-1,), keepdims=True)
    normed = (wide * ops.rsqrt(spread + 1e-6)).cast(dtype)
    left, right = (normed @ weight(graph, name, 64, width, dtype=dtype) for name in ("left", "right."))
    graph.output(x + silu(left, right) @ weight(graph, "down", width, 64, dtype=dtype), name="y")
    return graph


@pytest.mark.parametrize("width", [40, 256])
def test_as_many_rows_as_a_run_says(width: int, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program has gates in products of few rows, in maps, and in products of many: no run has two of them."""
    force(monkeypatch, SMALL)
    graph = feed_forward("n", width=width)
    program = program_of(graph)
    (pair,) = pairs(program)
    assert pair.above == 32
    made_there = [kernel.work for kernel in program.main if isinstance(kernel.work, RowProduct)]
    assert len(made_there) == (2 if width % 16 == 0 else 1)  # rows of 40 are none that a product makes
    assert "second sum" in text_of(program)
    executable = rlx.Session("cuda").compile(graph)
    exact = rlx.Session("cpu").compile(graph)
    executable.run([drawn(1, 64, "bf16")])  # which also packs weights
    few = 2 if len(made_there) == 2 else 3
    for rows, kernels in ((2, few), (16, few), (17, 4), (32, 4), (33, 3), (200, 3), (0, 0)):
        x = drawn(rows, 64, "bf16", rows)
        with driver.counted() as calls:
            (y,) = executable.run([x])
        assert calls.count("launch") == kernels
        np.testing.assert_allclose(wide(y), wide(exact.run([x])[0]), rtol=0, atol=5e-2)


@pytest.mark.parametrize("made", [silu, linear_unit])
@pytest.mark.parametrize("rows", [70, "n"])
def test_a_library_makes_both_sides(
    rows: int | str, made: Callable[[Value, Value], Value], always: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory beside the kernel's buffers, which a map reads, and which later sizes share."""
    force(monkeypatch, SMALL)
    graph = gate(rows, 64, 40, "f16", made, bias=True)
    weights = {value.name: graph.data[value.name] for value in graph.params}
    executable = compiled(graph, weights)
    assert len(pairs(executable.plan.program)) == 1
    bounds = {}
    for count in (70,) if rows == 70 else (70, 40, 133, 40):
        x = drawn(count, 64, "f16")
        bounds[count] = bounds.get(count) or bound_of(executable, **({} if rows == 70 else {"n": count}))
        results = [np.array(bounds[count]([x])[0]) for _ in range(3)]
        (launch,) = products(bounds[count])
        assert launch.finish is not None and launch.kernel.work == pairs(executable.plan.program)[0]
        monkeypatch.setenv("RLX_CUDA_BLAS", "off")
        (expected,) = bound_of(executable, **({} if rows == 70 else {"n": count}))([x])
        monkeypatch.setenv("RLX_CUDA_BLAS", "always")
        for result in results:
            np.testing.assert_allclose(wide(result), wide(expected), rtol=2e-3, atol=2e-3)
    if rows == "n":
        first, second, larger = (products(bounds[count])[0].places.result for count in (70, 40, 133))
        assert first == second != larger


def test_both_ways_are_timed(fake: FakeLibrary, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is one kernel, the library's a product and a map."""
    force(monkeypatch, SMALL)
    driver.launch_ns, fake.costs = 50_000, dict.fromkeys(range(3), 4_000)
    graph = gate(70, 64, 40, "f16", silu)
    executable = compiled(graph, dict(graph.data))
    bound = bound_of(executable)
    bound([drawn(70, 64, "f16")])
    assert len(products(bound)) == 0  # as the map takes as long as our kernel
    assert "of 1 that were measured" in executable.describe()["products"]


def test_few_rows_have_no_pairs() -> None:
    """Where operands come straight from memory, and sides whose columns are no whole panels."""
    for rows, width in ((24, 1024), (512, 100)):
        assert not pairs(program_of(gate(rows, 64, width, "f16", silu)))


def test_halves_that_others_read_are_there() -> None:
    graph = Graph("kept")
    both = graph.input("x", (512, 64), "f16") @ weight(graph, "w", 64, 128, dtype="f16")
    graph.output(silu(both[:, :64], both[:, 64:]), ops.reduce_max(both, axes=(1,)))
    assert not pairs(program_of(graph))


@pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())
@pytest.mark.parametrize("number", range(len(nvrtc.ARCHITECTURES)))
def test_all_layouts_compile(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for one of the architectures, a part of them at each commit."""
    possible = [each for each in LAYOUTS if replace(each, paired=True).is_possible]
    layouts = layouts_at_turn(possible, number, len(nvrtc.ARCHITECTURES))
    texts = []
    for layout in layouts:
        force(monkeypatch, layout)
        graph = gate(300, 96, 104, "f16", silu)
        texts += cpp_module([program_of(graph)], target=NVIDIAS.target).kernels.values()
    made = [text for text in texts if "copy_ahead" in text or "bring_tile(" in text]
    assert len(made) == len(layouts) > 0
    assert cubin("\n".join([prelude(), *made]), nvrtc.ARCHITECTURES[number])


@pytest.mark.parametrize("name", ["llama-biases", "gemma"])
def test_prompts_of_decoders(name: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 tokens by pairs, and further ones by what there is for few rows, with what the prompt has left."""
    force(monkeypatch, SMALL)
    config = {**CONFIGS[name], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    parsed = Config.of(config)
    arrays = {key: array.astype(np.float16) for key, array in decoder_weights(config).items()}
    contexts = {}
    for device in ("cuda", "cpu"):
        graph = decoder(parsed, arrays, caches=True)
        contexts[device] = Context(rlx.Session(device).compile(graph), parsed.max_positions)
    assert len(pairs(program_of(decoder(parsed, arrays, caches=True)))) == 1
    ids = np.random.default_rng(0).integers(0, 40, (1, 60))
    for first, last in ((0, 40), (40, 41), (41, 60)):
        made, exact = (wide(context.feed(ids[:, first:last])) for context in contexts.values())
        np.testing.assert_allclose(made, exact, rtol=0, atol=1e-2 * np.abs(exact).max())
