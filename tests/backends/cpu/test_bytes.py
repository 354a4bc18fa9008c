"""Products of bytes on every instruction set: u8 by i8 with sums in i32 are exact, whatever the shape."""

from __future__ import annotations

import itertools
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa, jit
from rlx.codegen.simd import gemm
from rlx.codegen.simd.microkernels import BYTES
from rlx.codegen.simd.module import generate, schedule_of
from rlx.codegen.simd.transpose import ScheduledTranspose
from rlx.ir.dtype import parse
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.pipeline import to_kernels
from rlx.passes.pipeline import optimise
from support import backend, run_on

from .test_compiled import ISAS

KINDS = ["cpu", *(f"cpu-{name}" for name in ISAS)]
FLOAT_KINDS = [kind for kind in KINDS if kind != f"cpu-{isa.widest().name}"]
"""Where the text of floats differs: `cpu` has that of its level (`test_levels_differ_in_products_of_bytes_alone`)."""
SHAPES = [(1, 1, 1), (1, 4, 16), (5, 37, 19), (7, 3, 5), (16, 384, 50), (33, 130, 100), (3, 2, 49), (130, 67, 97)]


def whole(kind: str, *shape: int, seed: int = 0) -> Any:
    info = np.iinfo(parse(kind).numpy)
    random = np.random.default_rng(seed)
    return random.integers(info.min, info.max, shape, endpoint=True).astype(parse(kind).numpy)


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, int, int], device: str) -> None:
    m, k, n = shape
    g = Graph()
    x, w = g.input("x", ("rows", k), "u8"), g.param("w", (k, n), "i8")
    total = ops.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,), sum_dtype="i32")
    g.output(total.cast("f32") * 0.5 + 1.0, name="y")
    a, b = whole("u8", m, k), whole("i8", k, n, seed=1)
    expected = (a.astype(np.int32) @ b.astype(np.int32)).astype(np.float32) * np.float32(0.5) + np.float32(1)
    np.testing.assert_array_equal(run_on(device, g, {"x": a}, {"w": b})["y"], expected)


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("a, b", [(255, -128), (255, 127), (128, -128)])
def test_the_greatest_bytes_do_not_saturate(a: int, b: int, device: str) -> None:
    g = Graph()
    x, w = g.input("x", (9, 1026), "u8"), g.param("w", (1026, 33), "i8")
    g.output(ops.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,), sum_dtype="i32"), name="y")
    feed, weight = np.full((9, 1026), a, np.uint8), np.full((1026, 33), b, np.int8)
    assert (run_on(device, g, {"x": feed}, {"w": weight})["y"] == 1026 * a * b).all()


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("channels", [1, 3, 4, 6, 16])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(channels: int, stride: int, device: str) -> None:
    """Windows whose columns and channels make one run, and runs with a rest beyond their groups of four."""
    g = Graph()
    x = g.input("x", (2, channels, 7, 9), "u8")
    w = g.param("w", (20, channels, 3, 2), "i8")
    sizes = {"strides": (stride, 1), "dilations": (1, 1), "low": (1, 0), "high": (1, 1)}
    zero = (g.constant(np.uint8(77)), g.constant(np.int8(0)))
    g.output(ops.integer_conv(x, w, *zero, **sizes), name="y")
    a, b = whole("u8", 2, channels, 7, 9), whole("i8", 20, channels, 3, 2, seed=1)
    expected = g.outputs["y"].op.reference(a, b, np.uint8(77), np.int8(0))
    np.testing.assert_array_equal(run_on(device, g, {"x": a}, {"w": b})["y"], expected)


def disassembled(level: isa.Isa) -> str:
    """The assembly of a product of bytes."""
    g = Graph()
    x, w = g.input("x", (16, 64), "u8"), g.param("w", (64, 32), "i8")
    g.output(ops.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,), sum_dtype="i32"), name="y")
    program, bounds = build.program_of(g, level, Options())
    texts = generate(program, level, bounds, set(), reuse=True)
    machine = jit._machine(level, 2)
    return "\n".join(machine.emit_assembly(llvm.parse_assembly(text, llvm.create_context())) for text in texts)


def floats() -> Graph:
    """Products, attention, reductions and elementary functions of floats."""
    g = Graph()
    for dtype in ("f32", "f64", "f16", "bf16"):
        x, w = g.input(f"x {dtype}", ("rows", 64), dtype), g.param(f"w {dtype}", (64, 32), dtype)
        g.output(ops.softmax(ops.tanh(x @ w), axis=-1), ops.argmax(x, axis=0))
    q, k = g.input("q", (1, 2, "queries", 16)), g.input("k", (1, 2, "keys", 16))
    g.output(ops.attention(q, k, k, causal=True))
    return g


def test_levels_differ_in_products_of_bytes_alone() -> None:
    """LLVM has the same text of floats for either, so their tests run on `cpu` alone of the two."""
    texts = []
    for level in (isa.widest(), isa.forced(isa.widest().name)):
        program, bounds = build.program_of(floats(), level, Options())
        texts.append(generate(program, level, bounds, set(), reuse=True))
    assert texts[0] == texts[1]


def test_a_level_by_name_has_no_instructions_beyond_it() -> None:
    """So `cpu-avx2` is what a machine without AVX-512 runs, `cpu-avx512` what one without VNNI does."""
    for name in ISAS:
        level = isa.forced(name)
        text = disassembled(level)
        assert "pmaddwd" in text or level.triple_arch != "x86_64"
        assert "vpdpbusd" not in text
        assert ("%zmm" in text) == (name == "avx512")
    widest = isa.widest()
    assert ("vpdpbusd" in disassembled(widest)) == (widest.byte_products == "fours")


def test_neon_code_is_made() -> None:
    target = isa.forced("neon", for_codegen_only=True)
    assert target.byte_products == "" and target.byte_rows < target.gemm_rows


def test_bytes_take_the_core_for_bytes() -> None:
    g = Graph()
    x, w = g.input("x", ("rows", 64), "i8"), g.param("w", (64, 32), "u8")
    zero = (g.constant(np.int8(3)), g.constant(np.uint8(128)))
    g.output(ops.integer_matmul(x, w, *zero))
    program = to_kernels(optimise(g)[0])
    (work,) = [k.work for k in program.main if isinstance(k.work, Contraction)]
    assert gemm.form_of(work, isa.widest()) is BYTES
    assert backend("cpu").unsupported(g) == []


BYTE_KINDS = list(itertools.product(("u8", "i8"), repeat=2))
RUN_SHAPES = [(1, 9, 5), (2, 1, 1), (5, 37, 19), (7, 3, 5), (16, 64, 48), (33, 130, 100), (3, 2, 49), (300, 67, 50)]


def exact(x: Any, y: Any, x_zero: int = 0, y_zero: int = 0) -> Any:
    """(x - x_zero) · (y - y_zero) in i32."""
    return np.matmul(x.astype(np.int32) - x_zero, y.astype(np.int32) - y_zero)


def scalar(kind: str, value: int) -> Any:
    return np.asarray(value, parse(kind).numpy)


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", RUN_SHAPES, ids=str)
def test_products_of_two_values_of_a_run(shape: tuple[int, int, int], turned: bool, device: str) -> None:
    """The right side with columns, or the sum, along memory."""
    m, k, n = shape
    g = Graph()
    x, y = g.input("x", (2, m, k), "u8"), g.input("y", (2, n, k) if turned else (2, k, n), "i8")
    right = y.transpose(0, 2, 1) if turned else y
    g.output(ops.integer_matmul(x, right, g.constant(np.uint8(0)), g.constant(np.int8(0))) * 3 + 1, name="y")
    a, b = whole("u8", *x.shape), whole("i8", *y.shape, seed=1)
    expected = exact(a, b.swapaxes(1, 2) if turned else b) * 3 + 1
    np.testing.assert_array_equal(run_on(device, g, {"x": a, "y": b})["y"], expected)


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("kinds", BYTE_KINDS, ids="-".join)
def test_open_sizes_of_two_values_of_a_run(kinds: tuple[str, str], device: str) -> None:
    """One program, sums with any rest beyond four, both orders of the right side, zero points of a run."""
    g = Graph()
    x, y = g.input("x", ("b", "m", "k"), kinds[0]), g.input("y", ("b", "k", "n"), kinds[1])
    z = g.input("z", ("b", "n", "k"), kinds[1])
    zeros = g.input("x_zero", (), kinds[0]), g.input("y_zero", (), kinds[1])
    g.output(ops.integer_matmul(x, y, *zeros), name="along")
    g.output(ops.integer_matmul(x, z.transpose(0, 2, 1), *zeros), name="across")
    for seed, (m, k, n) in enumerate([(5, 8, 70), (9, 1, 3), (2, 69, 33), (17, 130, 48), (1, 3, 1), (4, 0, 5)]):
        a, b = whole(kinds[0], 3, m, k, seed=seed), whole(kinds[1], 3, k, n, seed=seed + 1)
        low, high = (int(np.iinfo(a.dtype).min), int(np.iinfo(b.dtype).max))
        feeds = {
            "x": a, "y": b, "z": b.swapaxes(1, 2).copy(),
            "x_zero": scalar(kinds[0], low), "y_zero": scalar(kinds[1], high),
        }  # fmt: skip
        results = run_on(device, g, feeds)
        for name in ("along", "across"):
            np.testing.assert_array_equal(results[name], exact(a, b, low, high), err_msg=f"{name} {m} {k} {n}")


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("kinds", BYTE_KINDS, ids="-".join)
def test_extremes_of_two_values_of_a_run(kinds: tuple[str, str], device: str) -> None:
    """All combinations of the least and the greatest bytes, with extreme zero points."""
    limits = [(int(np.iinfo(parse(kind).numpy).min), int(np.iinfo(parse(kind).numpy).max)) for kind in kinds]
    g = Graph()
    x, y = g.input("x", (9, 1026), kinds[0]), g.input("y", (1026, 33), kinds[1])
    for i, zeros in enumerate(itertools.product(*limits)):
        values = (g.constant(scalar(kind, zero)) for kind, zero in zip(kinds, zeros))
        g.output(ops.integer_matmul(x, y, *values), name=f"y{i}")
    for of_x, of_y in itertools.product(*limits):
        a, b = np.full((9, 1026), scalar(kinds[0], of_x)), np.full((1026, 33), scalar(kinds[1], of_y))
        results = run_on(device, g, {"x": a, "y": b})
        for i, (x_zero, y_zero) in enumerate(itertools.product(*limits)):
            assert (results[f"y{i}"] == 1026 * (of_x - x_zero) * (of_y - y_zero)).all()


def test_two_values_of_a_run_take_the_core_for_bytes() -> None:
    """But one row, which a nest multiplies where the right side lies."""
    for name, (rows, packs) in itertools.product(("widest", *ISAS), ((1, False), (2, True), ("m", True))):
        level = isa.widest() if name == "widest" else isa.forced(name)
        g = Graph()
        x, y = g.input("x", (3, rows, 64), "i8"), g.input("y", (3, 64, 32), "u8")
        g.output(ops.integer_matmul(x, y, g.constant(np.int8(3)), g.constant(np.uint8(128))))
        program, _ = build.program_of(g, level, Options())
        (kernel,) = [k for k in program.main if isinstance(k.work, Contraction)]
        scheduled = schedule_of(kernel, level)
        assert isinstance(scheduled, gemm.ScheduledMatmul) == packs
        assert not packs or scheduled.form is BYTES


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("kinds", BYTE_KINDS, ids="-".join)
def test_products_that_are_written_in_i32(kinds: tuple[str, str], device: str) -> None:
    g = Graph()
    x, y = g.input("x", (2, 6, 37), kinds[0]), g.input("y", (2, 21, 37), kinds[1])
    g.output(x.cast("i32") @ y.cast("i32").transpose(0, 2, 1), name="y")
    program, _ = build.program_of(g, isa.widest(), Options())
    (kernel,) = [k for k in program.main if isinstance(k.work, Contraction)]
    assert gemm.form_of(kernel.work, isa.widest()) is BYTES
    a, b = whole(kinds[0], *x.shape), whole(kinds[1], *y.shape, seed=1)
    np.testing.assert_array_equal(run_on(device, g, {"x": a, "y": b})["y"], exact(a, b.swapaxes(1, 2)))


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_transposed_bytes(kind: str, device: str) -> None:
    """Squares of them, what squares leave, few rows and columns, and sizes that a run knows."""
    orders = {
        (70, 37): (1, 0), (2, 33, 64): (0, 2, 1), (1, 9, 11, 3): (0, 3, 1, 2), (1, 3, 20, 17): (0, 2, 3, 1),
        (12, 100): (1, 0), (100, 12): (1, 0), (5, 1): (1, 0), (2, 19, 7, 40): (3, 0, 1, 2),
    }  # fmt: skip
    g = Graph()
    feeds, expected = {}, {}
    for i, (shape, order) in enumerate(orders.items()):
        x = g.input(f"x{i}", tuple(f"d{i}_{j}" for j in range(len(shape))) if i % 2 else shape, kind)
        feeds[x.name] = whole(kind, *shape, seed=i)
        moved = feeds[x.name].transpose(order)
        g.output(x.transpose(*order), name=f"y{i}")
        g.output(x.transpose(*order).cast("f32") * 0.5, name=f"z{i}")
        expected |= {f"y{i}": moved, f"z{i}": moved.astype(np.float32) * np.float32(0.5)}
    results = run_on(device, g, feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array, err_msg=name)


def test_squares_of_bytes_are_turned_in_registers() -> None:
    """But where there are fewer rows than a square has."""
    for shape, turns in (((64, 40), True), ((64, 3), False), ((3, 64), True)):
        g = Graph()
        g.output(g.input("x", shape, "u8").transpose(1, 0))
        level = isa.forced("avx2")
        program, _ = build.program_of(g, level, Options())
        (kernel,) = program.main
        assert isinstance(schedule_of(kernel, level), ScheduledTranspose) == turns, shape


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(1, 70)),
    batches=st.sampled_from([((), ()), ((3,), (3,)), ((2, 3), (3,)), ((3,), (1,)), ((), (2,))]),
    kinds=st.sampled_from(BYTE_KINDS),
    lasts=st.tuples(st.integers(-3, -1), st.integers(-3, -1)),
    device=st.sampled_from(KINDS),
    seed=st.integers(0, 999),
)
def test_any_two_values_of_a_run(
    sizes: tuple[int, int, int], batches: tuple[tuple[int, ...], tuple[int, ...]], kinds: tuple[str, str],
    lasts: tuple[int, int], device: str, seed: int,
) -> None:  # fmt: skip
    """Any sizes, batches that broadcast, and any axis of either side along memory: also one of the batch."""
    m, k, n = sizes
    g, feeds, sides, arrays = Graph(), {}, [], []
    for name, kind, shape, last in zip("xy", kinds, ((*batches[0], m, k), (*batches[1], k, n)), lasts):
        rank = len(shape)
        near = max(last, -rank) % rank
        order = [axis for axis in range(rank) if axis != near] + [near]
        array = whole(kind, *shape, seed=seed + len(arrays))
        lies = g.input(name, tuple(shape[axis] for axis in order), kind)
        feeds[name] = array.transpose(order).copy()
        sides.append(lies.transpose(*(order.index(axis) for axis in range(rank))))
        arrays.append(array)
    random = np.random.default_rng(seed)
    zeros = [whole(kind, *shape, seed=seed + 7) for kind, shape in zip(kinds, ((m, 1), (n,)))]
    if random.integers(2):
        zeros = [np.zeros_like(zero) for zero in zeros]
    g.output(ops.integer_matmul(*sides, *(g.constant(zero) for zero in zeros)), name="y")
    expected = np.matmul(*(array.astype(np.int32) - zero for array, zero in zip(arrays, zeros)))
    np.testing.assert_array_equal(run_on(device, g, feeds)["y"], expected)
