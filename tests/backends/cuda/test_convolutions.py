"""Convolutions as products on matrix units: pads, strides, dilations and groups, and rows that go over images."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

import rlx
from passes.nets import residual_net
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda.build import program_of
from rlx.codegen.simt import fma_tile, tile_contraction
from rlx.codegen.simt.module import NVIDIA, cpp_module
from rlx.codegen.simt.tile_layouts import TileLayout
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array

from .emulated_driver import EmulatedDriver
from .graphs import compiled

SMALL = TileLayout(32, 32, (2, 2, 1), 32, 3)
DEEP = TileLayout(32, 32, (2, 2, 1), 64, 3)
SLICED = TileLayout(32, 32, (2, 2, 2), 64, 3)
TOGETHER = TileLayout(16, 64, (4, 1, 1), 64, 3, together=True)
SPLIT = TileLayout(32, 32, (2, 2, 1), 32, 3, splits=2)
SPLIT_SMALL = TileLayout(32, 32, (2, 2, 2), 64, 3, splits=8)
SPLIT_TOGETHER = TileLayout(16, 64, (4, 1, 1), 64, 4, together=True, splits=4)
Precision = Literal["f32", "f32_fast"]
LAYOUTS = {"small": SMALL, "split together": SPLIT_TOGETHER, "from memory": None}
MORE_LAYOUTS = {"deep": DEEP, "sliced": SLICED, "together": TOGETHER, "split": SPLIT, "split small": SPLIT_SMALL}
FMA = TileLayout(32, 32, (2, 2, 1), 16, 3, chunk=16)
FMA_SLICED = TileLayout(32, 16, (2, 1, 2), 32, 3, chunk=16)
FMA_SPLIT = TileLayout(32, 32, (1, 2, 2), 32, 3, chunk=16, splits=4)
FMA_TALL = TileLayout(64, 32, (2, 2, 1), 16, 4, chunk=16)
PARTS_SPLIT = TileLayout(32, 32, (2, 2, 2), 32, 3, chunk=16, splits=2)
FMA_LAYOUTS = {"sliced": FMA_SLICED, "split": FMA_SPLIT, "tall": FMA_TALL}
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}


@dataclass(frozen=True)
class Case:
    """A convolution of pictures [batch, channels, *space] and weights [outputs, channels / groups, *window]."""

    batch: int
    channels: int
    space: tuple[int, ...]
    outputs: int
    window: tuple[int, ...]
    dtype: str = "f16"
    groups: int = 1
    open_batch: bool = False
    sizes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        space, window = ("x".join(map(str, each)) for each in (self.space, self.window))
        more = " ".join(f"{name} {value}" for name, value in self.sizes.items())
        return (
            f"{self.batch}x{self.channels}x{space} to {self.outputs} by {window} in {self.groups} {self.dtype} {more}"
        )

    def graph(self, residual: bool) -> Graph:
        """With bias and relu, and a residual."""
        rank = len(self.space)
        given = {"strides": (1,) * rank, "dilations": (1,) * rank, "low": (0,) * rank, "high": (0,) * rank} | self.sizes
        graph = Graph("convolution")
        batch = "n" if self.open_batch else self.batch
        x = graph.input("x", (batch, self.channels, *self.space), self.dtype)
        w = graph.param("w", (self.outputs, self.channels // self.groups, *self.window), self.dtype)
        bias = graph.param("bias", (self.outputs, *[1] * rank), self.dtype)
        y = ops.conv(x, w, groups=self.groups, **given)
        if residual:
            y = ops.relu(y + bias + graph.input("residual", y.shape, self.dtype))
        graph.output(y, name="y")
        return graph


PLAIN = Case(2, 16, (9, 11), 24, (3, 3))
CASES = [
    replace(PLAIN, sizes={"low": (1, 1), "high": (1, 1)}),
    replace(PLAIN, dtype="bf16", open_batch=True, sizes={"low": (1, 1), "high": (1, 1)}),
    replace(PLAIN, sizes={"strides": (2, 3), "dilations": (2, 1), "low": (3, 0), "high": (0, 2)}),
    replace(PLAIN, sizes={"strides": (4, 5), "low": (0, 1), "high": (2, 0)}),
    replace(PLAIN, window=(1, 1), sizes={"strides": (2, 2)}),
    replace(PLAIN, window=(1, 1), sizes={"low": (1, 0), "high": (0, 2)}),
    replace(PLAIN, channels=72, outputs=33, sizes={"low": (1, 1), "high": (1, 1)}),
    replace(PLAIN, channels=64, groups=2, sizes={"low": (1, 1), "high": (1, 1)}),
    replace(PLAIN, space=(40,), window=(5,), sizes={"low": (4,), "high": (1,), "dilations": (2,)}),
    replace(PLAIN, batch=1, space=(3, 4, 5), window=(3, 3, 3), sizes={"low": (1, 1, 1), "high": (1, 1, 1)}),
    replace(PLAIN, space=(1, 1), sizes={"low": (1, 1), "high": (1, 1)}),
    replace(PLAIN, sizes={"low": (-2, 1), "high": (1, -3)}),
    replace(PLAIN, batch=3, space=(2, 2), window=(2, 2), sizes={"low": (4, 4), "high": (4, 4)}),
    replace(PLAIN, channels=12, sizes={"low": (1, 1), "high": (1, 1)}),
    replace(PLAIN, channels=3, window=(7, 7), sizes={"strides": (2, 2), "low": (3, 3), "high": (3, 3)}),
    replace(PLAIN, channels=3, window=(7, 7), sizes={"strides": (2, 2), "low": (2, 3), "high": (3, 1)}),
    replace(PLAIN, channels=3, sizes={"low": (1, 1), "high": (1, 1)}, dtype="bf16"),
    replace(PLAIN, channels=1, window=(3, 5), open_batch=True, sizes={"strides": (1, 2), "dilations": (3, 1)}),
    replace(PLAIN, channels=6, space=(30,), window=(4,), sizes={"low": (1,), "high": (2,)}),
    replace(PLAIN, channels=13, outputs=19, sizes={"low": (1, 2), "high": (0, 1)}),
    replace(PLAIN, channels=1, space=(72,), window=(16,), sizes={"strides": (8,), "low": (4,), "high": (4,)}),
    replace(PLAIN, dtype="f32", sizes={"low": (1, 1), "high": (1, 1)}),
    replace(PLAIN, channels=24, groups=24, sizes={"low": (1, 1), "high": (1, 1)}),
]


F32_CASES = [
    replace(CASES[number], dtype="f32") for number in (0, 1, 2, 7, 14, 6, 9, 11, 17, 19, 20)
]  # fmt: skip
"""Those of which all kinds are: rows of pieces, few channels, groups, several dims."""


def whole(shape: tuple[int, ...], seed: int, dtype: str) -> Array:
    """Small whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(NUMPY[dtype])


def force(monkeypatch: pytest.MonkeyPatch, layout: TileLayout | None) -> None:
    """Has all products that can be tiles be tiles of this layout, or none."""
    monkeypatch.setattr(tile_contraction, "tile_of", lambda work, rows, warpgroups: layout)


def force_fma(monkeypatch: pytest.MonkeyPatch, layout: TileLayout) -> None:
    """The same of products that lanes make."""
    monkeypatch.setattr(fma_tile, "fma_layout_of", lambda work, rows, clusters: layout)


def check(case: Case, residual: bool, precision: Precision = "f32") -> list[str]:
    """Runs a case; the texts of its kernels."""
    graph = case.graph(residual)
    binding = {"n": case.batch} if case.open_batch else {}
    shapes = [tuple(int(dims.evaluate(d, binding)) for d in value.shape) for value in graph.inputs]
    inputs = [whole(shape, seed, case.dtype) for seed, shape in enumerate(shapes)]
    params = {value.name: whole(tuple(value.shape), 7 + i, case.dtype) for i, value in enumerate(graph.params)}
    executable = compiled(graph, params, Options(cache=False, precision=precision))
    (result,) = executable.bind(binding)(inputs)
    named = dict(zip((value.name for value in graph.inputs), inputs))
    (expected,) = evaluate(graph, named, params, binding)
    np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))
    return list(executable.plan.module.kernels.values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_convolution(case: Case, layout: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, LAYOUTS[layout])
    check(case, residual=True)


@pytest.mark.parametrize("layout", MORE_LAYOUTS)
@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[14]], ids=str)
def test_more_layouts(case: Case, layout: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, MORE_LAYOUTS[layout])
    check(case, residual=True)


@pytest.mark.parametrize("case", F32_CASES, ids=str)
def test_a_convolution_of_f32(case: Case, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force_fma(monkeypatch, FMA)
    texts = check(case, residual=True)
    assert any("quad_fma(rows[" in text for text in texts) and not any("mma_" in text for text in texts)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_few_outputs_have_pads(dtype: str, driver: EmulatedDriver) -> None:
    """Also where nothing is left of the window: the kernels of small products know where their rows end."""
    case = replace(PLAIN, outputs=5, channels=20, window=(1, 1), dtype=dtype, sizes={"low": (1, 1), "high": (2, 0)})
    check(case, residual=True)
    check(replace(case, window=(3, 1)), residual=True)


@pytest.mark.parametrize("layout", FMA_LAYOUTS)
@pytest.mark.parametrize("case", F32_CASES[1:3], ids=str)
def test_more_layouts_of_f32(case: Case, layout: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    force_fma(monkeypatch, FMA_LAYOUTS[layout])
    assert any("quad_fma(rows[" in text for text in check(case, residual=True))


@pytest.mark.parametrize("layout", [FMA, PARTS_SPLIT, None], ids=["tiles", "split", "from memory"])
@pytest.mark.parametrize("case", F32_CASES[1:5], ids=str)
def test_a_convolution_of_f32_by_parts(
    case: Case, layout: TileLayout | None, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, layout)
    assert any("mma_f32(" in text for text in check(case, residual=True, precision="f32_fast"))


@pytest.mark.parametrize("layout", [FMA, PARTS_SPLIT, None], ids=["tiles", "split", "from memory"])
def test_sums_of_windows_that_are_not_finite_are_made_again(
    layout: TileLayout | None, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what lies beside the picture."""
    force(monkeypatch, layout)
    graph = Graph("infinite")
    x, w = graph.input("x", (2, 16, 6, 6)), graph.param("w", (24, 16, 3, 3))
    graph.output(ops.conv(x, w, strides=(1, 1), dilations=(1, 1), low=(1, 1), high=(1, 1)), name="y")
    given, weights = np.ones((2, 16, 6, 6), np.float32), np.ones((24, 16, 3, 3), np.float32)
    given[0, 3, 0, 0], given[1, 5, 5, 4] = np.inf, np.finfo(np.float32).max
    (result,) = compiled(graph, {"w": weights}, Options(cache=False, precision="f32_fast")).bind({})([given])
    (expected,) = evaluate(graph, {"x": given}, {"w": weights}, {})
    np.testing.assert_array_equal(result, expected)
    assert np.isinf(result).sum() == 4 * 24 and np.isfinite(result[1]).all()


def test_few_tiles_of_f32_share_their_sums() -> None:
    """Where workgroups can; elsewhere few tiles are none."""
    splits = {}
    for batch in (1, 64):
        sizes = {"low": (1, 1), "high": (1, 1)}
        case = replace(PLAIN, batch=batch, channels=512, space=(7, 7), outputs=512, sizes=sizes, dtype="f32")
        program = program_of(case.graph(residual=False))
        for architecture in ("sm_80", "sm_90a"):
            texts = cpp_module([program], target=NVIDIA.on(architecture)).kernels.values()
            tiles = [text for text in texts if "quad_fma(rows[" in text]
            splits[batch, architecture] = [("__cluster_dims__" in text) for text in tiles]
    assert splits[1, "sm_80"] == [] and splits[1, "sm_90a"] == [True] and splits[64, "sm_80"] == [False]


def test_few_tiles_share_their_sums() -> None:
    """Of the last layers of a net at batch 1; those of many pictures do not, nor do GPUs without clusters."""
    splits = {}
    for batch in (1, 64):
        case = replace(
            PLAIN, batch=batch, channels=512, space=(7, 7), outputs=512, sizes={"low": (1, 1), "high": (1, 1)}
        )
        program = program_of(case.graph(residual=False))
        for architecture in ("sm_80", "sm_90a"):
            texts = cpp_module([program], target=NVIDIA.on(architecture)).kernels.values()
            splits[batch, architecture] = any("__cluster_dims__(8, 1, 1)" in text for text in texts)
    assert splits == {(1, "sm_80"): False, (1, "sm_90a"): True, (64, "sm_80"): False, (64, "sm_90a"): False}


def test_weights_of_small_grids_come_before_earlier_kernels_end() -> None:
    """And nothing that these make."""
    case = replace(PLAIN, channels=512, space=(7, 7), outputs=512, sizes={"low": (1, 1), "high": (1, 1)})
    module = cpp_module([program_of(case.graph(residual=True))], target=NVIDIA.on("sm_90a"))
    (text,) = (text for text in module.kernels.values() if "copy_ahead" in text)
    ahead, behind = text.split("__global__", 1)[1].split("{", 1)[1].rsplit("follow();", 1)
    (weights,) = re.findall(r"const auto right\d+ = (slot\d+) ", ahead)
    assert "copy_ahead(" in ahead and set(re.findall(r"slot\d+", ahead)) == {weights}
    assert "copy_ahead_if(" in behind


def test_what_is_not_in_a_window_does_not_spoil_it(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of few channels are read in pieces of 16 bytes, which go beyond the window's last column."""
    graph = Graph("columns")
    x, w = graph.input("x", (1, 3, 20, 20), "f16"), graph.param("w", (32, 3, 7, 7), "f16")
    graph.output(ops.conv(x, w, strides=(2, 2), dilations=(1, 1), low=(0, 0), high=(0, 0)), name="y")
    given, weights = np.zeros((1, 3, 20, 20), np.float16), np.ones((32, 3, 7, 7), np.float16)
    given[..., 7] = np.inf
    for layout in (SMALL, TOGETHER, None):
        force(monkeypatch, layout)
        (result,) = compiled(graph, {"w": weights}).bind({})([given])
        assert np.isinf(result[..., 1:4]).all() and not result[..., 0].any() and not result[..., 4:].any()


def test_those_that_matrix_units_take_are_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, SMALL)
    for case in CASES:
        texts = cpp_module([program_of(case.graph(residual=True))]).kernels.values()
        copies = [text for text in texts if "copy_ahead" in text or "copy_elements_ahead" in text]
        narrow = case.dtype != "f32" and (case.groups == 1 or case.groups < case.channels)
        whole_pieces = case.channels % 8 == 0 or case.channels < 8 or case.channels % 4 != 0
        assert bool(copies) == (narrow and whole_pieces), case


@pytest.mark.parametrize("mode", ["f16", "bf16"])
def test_a_net_of_narrow_activations(mode: Literal["f16", "bf16"], driver: EmulatedDriver) -> None:
    graph = Graph("net")
    graph.output(residual_net(graph), name="y")
    x = np.random.default_rng(0).standard_normal((1, 8, 6, 6)).astype(np.float32)
    (exact,) = rlx.Session("reference").compile(graph).run([x])
    (narrow,) = rlx.Session("cuda", precision=mode).compile(graph).run([x])
    error = np.abs(np.asarray(narrow) - exact).max() / np.abs(exact).max()
    assert 0 < error < 4 * {"f16": 2.0**-11, "bf16": 2.0**-8}[mode]
