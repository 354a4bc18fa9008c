"""Products of every float dtype on every instruction set, against NumPy's in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import isa
from rlx.backends.cpu.build import _kept, program_of
from rlx.codegen.simd import gemm
from rlx.codegen.simd.microkernels import BRAINS, DOUBLES, FLOATS, HALVES, heights_of
from rlx.codegen.simd.module import written
from rlx.ir import dim as dims
from rlx.ir.dtype import parse
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import leaves
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise
from support import run_on

from .test_bytes import FLOAT_KINDS, SHAPES

DTYPES = ("f32", "f64", "f16", "bf16")
ROUNDS = {"f32": 1e-6, "f64": 2e-15, "f16": 1e-3, "bf16": 8e-3}
"""What a result may be off, for the greatest of its row's sums of magnitudes."""


def numbers(dtype: str, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(parse(dtype).numpy)


def check(actual: Any, a: Any, b: Any, dtype: str) -> None:
    a, b = a.astype(np.float64), b.astype(np.float64)
    assert actual.dtype == parse(dtype).numpy
    np.testing.assert_allclose(actual.astype(np.float64), a @ b, atol=ROUNDS[dtype] * (abs(a) @ abs(b)).max())


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, int, int], dtype: str, device: str) -> None:
    """With a weight, which is packed once, and with a value of the run."""
    m, k, n = shape
    g = Graph()
    x, y, w = g.input("x", ("rows", k), dtype), g.input("y", (k, "columns"), dtype), g.param("w", (k, n), dtype)
    g.output(x @ w, name="weight")
    g.output(x @ y, name="value")
    a, b = numbers(dtype, m, k), numbers(dtype, k, n, seed=1)
    outputs = run_on(device, g, {"x": a, "y": b}, {"w": b})
    for name in ("weight", "value"):
        check(outputs[name], a, b, dtype)


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_turned_right_sides(dtype: str, device: str) -> None:
    """Columns of the right side lie along memory, in squares of whole vectors and not."""
    for k in (64, 37):
        g = Graph()
        x, y = g.input("x", (9, k), dtype), g.input("y", (33, k), dtype)
        g.output(ops.dot_general(x, y, lhs_contract=(1,), rhs_contract=(1,)), name="z")
        a, b = numbers(dtype, 9, k), numbers(dtype, 33, k, seed=1)
        check(run_on(device, g, {"x": a, "y": b}, {})["z"], a, b.T, dtype)


ORDERS = ("bmk,bkn", "bkm,bkn", "bkm,bnk", "kbm,nkb", "mkb,nbk", "kmb,knb", "bmlk,lbkn", "lmbk,bnkl", "klm,kln",
          "lmk,knl")  # fmt: skip
"""Axes of both sides, as they lie; the sum is over k and l."""


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("weight", [False, True], ids=["value", "weight"])
@pytest.mark.parametrize("m, k, n", [(40, 21, 19), (65, 130, 3), (7, 16, 150)])
def test_every_order_of_axes(order: str, weight: bool, m: int, k: int, n: int, device: str) -> None:
    """With an epilogue that reads along the result's axes."""
    sizes = {"b": 2, "m": m, "k": k, "n": n, "l": 3}
    left, right = order.split(",")
    out = "".join(c for c in "bmn" if c in left + right)
    g = Graph()
    x = g.input("x", tuple(sizes[c] for c in left))
    shape = tuple(sizes[c] for c in right)
    y = g.param("y", shape) if weight else g.input("y", shape)
    product = ops.einsum(x, y, equation=f"{order}->{out}")
    bias, rows = g.input("bias", (n,)), g.input("rows", (m, 1))
    g.output(product + bias, name="columns")
    g.output(ops.einsum(x, y, equation=f"{order}->{out}") * rows, name="rows times")
    inputs = {"x": numbers("f32", *x.shape), "bias": numbers("f32", n), "rows": numbers("f32", m, 1)}
    b = numbers("f32", *shape, seed=1)
    actual = run_on(device, g, inputs if weight else inputs | {"y": b}, {"y": b} if weight else {})
    sides = inputs["x"].astype(np.float64), b.astype(np.float64)
    exact_product, most = np.einsum(f"{order}->{out}", *sides), np.einsum(f"{order}->{out}", *map(abs, sides)).max()
    for name, expected in (("columns", exact_product + inputs["bias"]), ("rows times", exact_product * inputs["rows"])):
        np.testing.assert_allclose(actual[name], expected, atol=4 * ROUNDS["f32"] * most)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_axes_reaches_a_core(order: str, dtype: str) -> None:
    """Values in 16 bits by way of f32."""
    level = isa.forced("avx512", for_codegen_only=True)
    left, right = order.split(",")
    out = "".join(c for c in "bmn" if c in left + right)
    for weight in (False, True):
        g = Graph()
        x = g.input("x", tuple(32 for _ in left), dtype)
        shape = tuple(32 for _ in right)
        y = g.param("y", shape, dtype) if weight else g.input("y", shape, dtype)
        g.output(ops.einsum(x, y, equation=f"{order}->{out}"))
        program, _ = program_of(g, level, Options())
        (work,) = [k.work for k in leaves(program.main) if isinstance(k.work, Contraction)]
        assert gemm.takes(work, level)


def test_sides_of_known_sizes_change_and_others_are_copied() -> None:
    """A long left side beside few columns is read in place; a weight is copied once."""
    level = isa.forced("avx512", for_codegen_only=True)

    def kernels(m: int | str, n: int, weight: bool) -> tuple[list[str], int]:
        g = Graph()
        x, y = g.input("x", (512, m)), g.param("y", (512, n)) if weight else g.input("y", (512, n))
        g.output(ops.dot_general(x, y, lhs_contract=(0,), rhs_contract=(0,)))
        program, _ = program_of(g, level, Options())
        return [k.name for k in program.main], len([k for k in program.prepare if k.name == "operand"])

    assert kernels(1024, 8, False) == (["operand", "dot_general"], 0)
    assert kernels(1024, 8, True) == (["dot_general"], 1)
    assert kernels(1024, 512, True) == (["operand", "dot_general"], 0)
    assert kernels("m", 8, True) == (["operand", "dot_general"], 0)


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels, dilation", [(1, 1), (3, 1), (16, 1), (5, 2)])
def test_convolutions(channels: int, dilation: int, dtype: str, device: str) -> None:
    """Taps that lie side by side, and taps that do not."""
    g = Graph()
    x, w = g.input("x", (2, channels, 9, 11), dtype), g.param("w", (20, channels, 3, 2), dtype)
    sizes = {"strides": (2, 1), "dilations": (1, dilation), "low": (1, 0), "high": (1, 1)}
    g.output(ops.conv(x, w, **sizes), name="y")
    a, b = numbers(dtype, 2, channels, 9, 11), numbers(dtype, 20, channels, 3, 2, seed=1)
    actual = run_on(device, g, {"x": a}, {"w": b})["y"]
    padded = np.pad(a.astype(np.float64), [(0, 0), (0, 0), (1, 1), (0, 1)])
    expected = np.zeros(actual.shape)
    for i in range(3):
        for j in range(2):
            part = padded[:, :, i : i + 2 * actual.shape[2] - 1 : 2, j * dilation : j * dilation + actual.shape[3]]
            expected += np.einsum("bchw,oc->bohw", part, b[:, :, i, j].astype(np.float64))
    np.testing.assert_allclose(
        actual.astype(np.float64), expected, atol=ROUNDS[dtype] * 6 * channels * 4, rtol=ROUNDS[dtype]
    )


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups, share, outputs", [(2, 3, 5), (3, 16, 4), (2, 1, 20), (4, 2, 3), (2, 5, 33)])
def test_grouped_convolutions(groups: int, share: int, outputs: int, dtype: str, device: str) -> None:
    """Groups that are products, and groups of few outputs; with an epilogue along the channels, on a value too."""
    g = Graph()
    shape = (groups * outputs, share, 3, 2)
    x, w = g.input("x", (2, groups * share, 9, 11), dtype), g.param("w", shape, dtype)
    v, bias = g.input("v", shape, dtype), g.input("bias", (groups * outputs, 1, 1), dtype)
    form = {"strides": (2, 1), "dilations": (1, 2), "low": (1, 0), "high": (1, 1), "groups": groups}
    g.output(ops.conv(x, w, **form) + bias, name="weight")
    g.output(ops.conv(x, v, **form) * bias, name="value")
    a, b, c = numbers(dtype, 2, groups * share, 9, 11), numbers(dtype, *shape, seed=1), numbers(dtype, *bias.shape)
    actual = run_on(device, g, {"x": a, "v": b, "bias": c}, {"w": b})
    padded = np.pad(a.astype(np.float64), [(0, 0), (0, 0), (1, 1), (0, 1)]).reshape(2, groups, share, 11, 12)
    kernel = b.astype(np.float64).reshape(groups, outputs, share, 3, 2)
    expected = np.zeros((2, groups, outputs, 5, 10))
    for i in range(3):
        for j in range(2):
            part = padded[..., i : i + 9 : 2, 2 * j : 2 * j + 10]
            expected += np.einsum("bgchw,goc->bgohw", part, kernel[..., i, j])
    expected = expected.reshape(actual["weight"].shape)
    limit = ROUNDS[dtype] * 6 * share * 4
    np.testing.assert_allclose(actual["weight"].astype(np.float64), expected + c, atol=limit, rtol=2 * ROUNDS[dtype])
    np.testing.assert_allclose(actual["value"].astype(np.float64), expected * c, atol=limit, rtol=2 * ROUNDS[dtype])


def test_groups_and_batches_of_weights_are_packed() -> None:
    level = isa.forced("avx512", for_codegen_only=True)
    g = Graph()
    form = {"strides": (1, 1), "dilations": (1, 1), "low": (0, 0), "high": (0, 0), "groups": 4}
    g.output(ops.conv(g.input("x", (1, 32, 9, 9)), g.param("w", (64, 8, 3, 3)), **form))
    g.output(ops.einsum(g.input("y", (3, 20, 40)), g.param("v", (3, 40, 50)), equation="bmk,bkn->bmn"))
    program, _ = program_of(g, level, Options())
    contractions = [k.work for k in leaves(program.main) if isinstance(k.work, Contraction)]
    assert [(work.packed > 0, work.batch[0], len(work.b.axes)) for work in contractions] == [(True, 4, 1), (True, 3, 1)]


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nan_stay_in_their_rows(dtype: str, device: str) -> None:
    g = Graph()
    g.output(g.input("x", (10, 20), dtype) @ g.param("w", (20, 17), dtype), name="y")
    a, b = abs(numbers(dtype, 10, 20)), abs(numbers(dtype, 20, 17, seed=1))
    a[1, 2], a[3, 4], a[5, 6], a[5, 7] = np.inf, np.nan, np.inf, -np.inf
    actual = run_on(device, g, {"x": a}, {"w": b})["y"].astype(np.float64)
    assert np.isposinf(actual[1]).all() and np.isnan(actual[3]).all() and np.isnan(actual[5]).all()
    assert np.isfinite(np.delete(actual, (1, 3, 5), 0)).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("device", FLOAT_KINDS)
def test_sums_are_wide_and_rounded_once(dtype: str, device: str) -> None:
    """Ones that a narrow sum would lose, the smallest numbers of the dtype, and a result halfway between two."""
    g = Graph()
    g.output(g.input("x", (3, 512), dtype) @ g.param("w", (512, 16), dtype), name="y")
    kind = parse(dtype).numpy
    a, b = np.zeros((3, 512), kind), np.ones((512, 16), kind)
    a[0] = 1.0
    smallest = np.array([1], np.uint16).view(kind)[0]
    a[1, :3] = smallest
    a[2, :2] = 1.0, np.ldexp(1.0, -12 if dtype == "f16" else -9)
    actual = run_on(device, g, {"x": a}, {"w": b})["y"]
    assert (actual[0].astype(np.float64) == 512).all()
    if dtype == "f16":  # a bf16 of that size is below what f32 arithmetic keeps
        assert (actual[1].astype(np.float64) == 3 * float(smallest)).all()
    assert (actual[2].astype(np.float64) == 1).all()


def test_forms_by_dtype() -> None:
    target = isa.forced("avx512", for_codegen_only=True)
    for dtype, form in (("f32", FLOATS), ("f64", DOUBLES), ("f16", HALVES), ("bf16", BRAINS)):
        g = Graph()
        g.output(g.input("x", (4, 8), dtype) @ g.param("w", (8, 32), dtype))
        (work,) = [k.work for k in to_kernels(optimise(g)[0]).main if isinstance(k.work, Contraction)]
        assert gemm.form_of(work, target) is form
        assert gemm.takes(work, target) == (dtype in ("f32", "f64"))
        width, group = gemm.panels(work, target)
        assert (width, group) == (16 if dtype == "f64" else 32, 1)
    old = isa.forced("sse", for_codegen_only=True)
    assert gemm.form_of(work, old) is BRAINS
    assert not old.converts_f16


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [3, 40])
def test_matrices_that_rows_choose(rows: int, dtype: str, device: str) -> None:
    """Indices from the back and wild ones too; rows are known to a graph, and not."""
    experts, k, n = 5, 19, 37
    for shape in (rows, "rows"):
        g = Graph()
        x, chosen = g.input("x", (shape, k), dtype), g.input("chosen", (shape,), "i64")
        g.output(ops.grouped_matmul(x, g.param("w", (experts, k, n), dtype), chosen), name="y")
        a, b = numbers(dtype, rows, k), numbers(dtype, experts, k, n, seed=1)
        which = np.random.default_rng(2).integers(-7, 9, rows)
        actual = run_on(device, g, {"x": a, "chosen": which}, {"w": b})["y"]
        for row, expert in enumerate(np.clip(np.where(which < 0, which + experts, which), 0, experts - 1)):
            check(actual[row : row + 1], a[row : row + 1], b[expert], dtype)


@pytest.mark.parametrize("shape", [64, "rows"])
def test_chosen_matrices_are_read_where_they_were_packed(shape: int | str) -> None:
    g = Graph()
    x, chosen = g.input("x", (shape, 32)), g.input("chosen", (shape,), "i64")
    g.output(ops.grouped_matmul(x, g.param("w", (4, 32, 48)), chosen), name="y")
    program, _ = program_of(g, isa.detect(), Options())
    (product,) = [k.work for k in leaves(program.main) if isinstance(k.work, Contraction)]
    assert product.packed and len(product.b.others) == 1
    copies = [k for k in leaves(program.main) if k.name == "gather" and k.slots[-1] == program.params[0]]
    assert len(copies) == 0
    # a weight that is an input is copied: nothing was packed
    g = Graph()
    x, w, chosen = g.input("x", (64, 32)), g.input("w", (4, 32, 48)), g.input("chosen", (64,), "i64")
    g.output(ops.grouped_matmul(x, w, chosen), name="y")
    program, _ = program_of(g, isa.detect(), Options())
    assert not any(k.work.b.others for k in leaves(program.main) if isinstance(k.work, Contraction))


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
@pytest.mark.parametrize("disable", [(), ("simplify",)], ids=["simplified", "as it is"])
def test_nothing_to_choose_from(shape: tuple[int, int, int], disable: tuple[str, ...]) -> None:
    _, k, n = shape
    g = Graph()
    x, chosen = g.input("x", (20, 2, k)), g.input("chosen", (20,), "i64")
    picked = ops.gather(g.param("w", shape), chosen, axis=0)
    axes = {"lhs_contract": (2,), "rhs_contract": (1,), "lhs_batch": (0,), "rhs_batch": (0,)}
    g.output(ops.dot_general(x, picked, **axes), name="y")
    compiled = rlx.Session("cpu", disable=disable, check_indices=False).compile(g)
    compiled.set_params({"w": np.ones(shape, np.float32)})
    (actual,) = compiled.run([np.ones((20, 2, k), np.float32), np.arange(20)])
    np.testing.assert_array_equal(actual, np.zeros((20, 2, n), np.float32))


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("columns", [8, 24, 40, 56, 72, 104])
def test_products_whose_last_panel_has_whole_vectors_only(columns: int, device: str) -> None:
    """With an epilogue that reads along columns, rows, and both."""
    m, k = 11, 20
    g = Graph()
    x, w = g.input("x", ("rows", k), "f32"), g.param("w", (k, columns), "f32")
    bias, scale = g.param("bias", (columns,), "f32"), g.input("scale", ("rows", 1), "f32")
    g.output(rlx.relu(x @ w + bias) * scale + g.input("z", ("rows", columns), "f32"), name="y")
    a, b, z = numbers("f32", m, k), numbers("f32", k, columns, seed=1), numbers("f32", m, columns, seed=2)
    c, s = numbers("f32", columns, seed=3), numbers("f32", m, 1, seed=4)
    actual = run_on(device, g, {"x": a, "z": z, "scale": s}, {"w": b, "bias": c})["y"]
    np.testing.assert_allclose(actual, np.maximum(a @ b + c, 0) * s + z, atol=2e-5)


@pytest.mark.parametrize(("columns", "masks"), [(72, False), (24, False), (104, False), (70, True), (100, True)])
def test_vectors_that_are_whole_are_not_masked(columns: int, masks: bool) -> None:
    """Masks cost more than the product itself where k is small and the processor has no registers of masks."""
    g = Graph()
    g.output(rlx.relu(g.input("x", ("rows", 16), "f32") @ g.param("w", (16, columns), "f32")), name="y")
    target = isa.forced("avx2", for_codegen_only=True)
    program, bounds = program_of(g, target, Options())
    module = written(program, target, bounds, _kept(program), reuse=True)
    (text,) = (text for name, text in module.kernels().items() if name.startswith("kernel.dot_general"))
    assert ("masked" in text) == masks


@pytest.mark.parametrize(
    ("columns", "block"),
    [(8, (6, 1)), (16, (6, 2)), (24, (4, 3)), (40, (6, 2)), (72, (4, 3)), (96, (6, 2)), (960, (6, 2))],
)
def test_blocks_waste_little_of_the_last_panel(columns: int, block: tuple[int, int]) -> None:
    """On AVX2, rows and vectors: three vectors are as fast as two, in fewer rows."""
    g = Graph()
    g.output(g.input("x", (64, 32), "f32") @ g.param("w", (32, columns), "f32"), name="y")
    target = isa.forced("avx2", for_codegen_only=True)
    program, _ = program_of(g, target, Options())
    (kernel,) = leaves(program.main)
    scheduled = gemm.schedule(kernel.work, target)  # type: ignore[arg-type]
    assert (scheduled.rows, scheduled.vectors) == block


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("channels", [(16, 24), (32, 40)])
def test_convolutions_by_winograd_of_open_sizes(channels: tuple[int, int], device: str) -> None:
    """Small images are one group of tiles, wide ones a row of tiles each."""
    k, n = channels
    g = Graph()
    w = g.param("w", (n, k, 3, 3), "f32")
    g.output(rlx.conv(g.input("x", ("b", k, "h", "w"), "f32"), w, low=1, high=1), name="y")
    b = numbers("f32", n, k, 3, 3, seed=1) / 8
    for h, wide in ((9, 10), (5, 41), (24, 4), (8, 130)):
        a = numbers("f32", 2, k, h, wide)
        around = np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1)))
        expected = sum(
            np.einsum("bkhw,nk->bnhw", around[:, :, i : i + h, j : j + wide], b[:, :, i, j])
            for i in range(3) for j in range(3)
        )  # fmt: skip
        np.testing.assert_allclose(run_on(device, g, {"x": a}, {"w": b})["y"], expected, atol=2e-4)


@pytest.mark.parametrize("device", FLOAT_KINDS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("columns", [16, 80, 96, 100])
@pytest.mark.parametrize("rows", [1, 9, 130])
def test_what_is_added_to_sums(rows: int, columns: int, dtype: str, device: str) -> None:
    """A row for all, a whole value, one that lies in strides, and what is more than added."""
    g = Graph()
    x, w = g.input("x", (rows, 24), dtype), g.param("w", (24, columns), dtype)
    row, whole, turned = (g.input(name, shape, dtype) for name, shape in added_shapes(rows, columns).items())
    for name, value in (("row", row), ("whole", whole), ("turned", turned.transpose(1, 0))):
        g.output(value + x @ w, name=name)
    g.output(ops.relu(x @ w + row), name="more")
    a, b = numbers(dtype, rows, 24), numbers(dtype, 24, columns, seed=1)
    given = {n: numbers(dtype, *shape, seed=2) for n, shape in added_shapes(rows, columns).items()}
    outputs = run_on(device, g, {"x": a, **given}, {"w": b})
    one = np.ones((rows, 1), a.dtype)
    for name, of in (("row", given["row"]), ("whole", given["whole"]), ("turned", given["turned"].T)):
        wide = np.broadcast_to(of, (rows, columns)).astype(np.float64)
        product = a.astype(np.float64) @ b.astype(np.float64)
        most = (abs(a.astype(np.float64)) @ abs(b.astype(np.float64))).max() + abs(wide).max()
        np.testing.assert_allclose(outputs[name].astype(np.float64), product + wide, atol=2 * ROUNDS[dtype] * most)
    np.testing.assert_allclose(outputs["more"], np.maximum(outputs["row"], 0) * one, atol=2 * ROUNDS[dtype] * 24)


def added_shapes(rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {"row": (columns,), "whole": (rows, columns), "turned": (columns, rows)}


def test_sums_in_place_need_no_addition() -> None:
    """The core adds, and the last panel of 80 columns has one of its own width."""
    level = isa.forced("avx512", for_codegen_only=True)
    g = Graph()
    w = g.param("w", (64, 80), data=numbers("f32", 64, 80))
    g.output(g.input("x", (9, 64)) @ w + g.input("b", (80,)))
    program, bounds = program_of(g, level, Options())
    kernels = written(program, level, bounds, _kept(program), True).kernels()
    (kernel,) = (text for name, text in kernels.items() if name.startswith("kernel.dot"))
    assert "fadd" not in kernel and "%scratch, i64" not in kernel
    assert {name for name in kernels if name.startswith("gemm")} == {
        f"gemm_{height}x{width}" for height in (4, 5) for width in ("3", "2of3")
    }


def test_what_is_added_is_rounded_once() -> None:
    """A sum of 1000 that begins with 1e8 would get no further."""
    g = Graph()
    g.output(g.input("x", (8, 1000)) @ g.param("w", (1000, 48)) + g.input("b", (8, 48)), name="y")
    inputs = {"x": np.ones((8, 1000), "f4"), "b": np.full((8, 48), 1e8, "f4")}
    y = run_on("cpu", g, inputs, {"w": np.ones((1000, 48), "f4")})["y"]
    np.testing.assert_array_equal(y, np.float32(1e8 + 1000))


@pytest.mark.parametrize("tallest", [1, 3, 8])
def test_every_height_that_tiles_have_has_a_core(tallest: int) -> None:
    for m in range(300):
        blocks = -(-m // 128)
        most = -(-m // blocks) if blocks else 0
        heights: set[int] = set()
        for rows in (min(most, m - first * most) for first in range(blocks)):
            count = -(-rows // tallest) if rows > 0 else 0
            heights |= {rows // count + (tile < rows % count) for tile in range(count)}
        assert heights_of(m, 128, tallest) == sorted(heights)
    assert list(heights_of(dims.symbol("n"), 128, tallest)) == list(range(1, tallest + 1))
