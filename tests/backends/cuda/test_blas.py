"""Products by cuBLASLt: which ones it is given, that they come out right, and how they run among kernels."""

from __future__ import annotations

import dataclasses
import gc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import rlx
from benchmarks.random_weights import MINILM, encoder_weights
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cuda import blas, device, nvrtc, plain
from rlx.backends.cuda.blas import ProductLaunch
from rlx.backends.cuda.build import NVIDIAS
from rlx.backends.cuda.finish import Finisher
from rlx.backends.cuda.launches import Launch
from rlx.backends.cuda.products import Bias, Operand, Panels, Product, product_of
from rlx.codegen.simt.module import cpp_module
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.expr import Expr
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear, accumulated, load
from rlx.kernel.ir.loops import Store
from rlx.models.bert import encoder
from support import cubin

from .emulated_driver import EmulatedDriver
from .fake_cublaslt import FakeLibrary
from .graphs import compiled, settle
from .product_graphs import ROWS, bound_of, dense, products, whole, wide
from .test_launches import asked
from .test_tiles import SMALL, force


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("out", ["same", "f32"])
def test_a_weight_a_bias_and_a_residual(dtype: str, out: str, always: FakeLibrary) -> None:
    """Weights lie in panels, and come plain to the library."""
    graph, to = Graph("layer"), dtype if out == "same" else out
    x, residual = graph.input("x", ("m", 64), dtype), graph.input("residual", ("m", 72), to)
    sums = (x @ graph.param("w", (64, 72), dtype)).cast(to)
    graph.output(sums + graph.param("bias", (72,), to) + residual)
    given = whole((ROWS, 64), 1, dtype), whole((ROWS, 72), 2, to)
    w, bias = whole((64, 72), 3, dtype), whole((72,), 4, to)
    bound = bound_of(compiled(graph, {"w": w, "bias": bias}), m=ROWS)
    (result,) = bound(given)
    np.testing.assert_array_equal(wide(result), wide(given[0]) @ wide(w) + wide(bias) + wide(given[1]))
    (launch,) = products(bound)
    assert launch.places.added != launch.places.result and launch.places.bias


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize(("turned_left", "turned_right"), [(False, False), (True, False), (False, True), (True, True)])
def test_sides_of_a_run_as_they_lie(
    dtype: str, turned_left: bool, turned_right: bool, always: FakeLibrary, driver: EmulatedDriver
) -> None:
    """Batches, and right sides that are transposed in memory."""
    graph = Graph("sides")
    x = graph.input("x", (3, 64, ROWS) if turned_left else (3, ROWS, 64), dtype)
    y = graph.input("y", (3, 56, 64) if turned_right else (3, 64, 56), dtype)
    left = x.transpose(0, 2, 1) if turned_left else x
    right = y.transpose(0, 2, 1) if turned_right else y
    graph.output(left @ right)
    given = whole(x.shape, 1, dtype), whole(y.shape, 2, dtype)
    bound = bound_of(compiled(graph))
    (result,) = bound(given)
    expected = [
        wide(array).transpose(0, 2, 1) if turned else wide(array)
        for array, turned in zip(given, (turned_left, turned_right))
    ]
    np.testing.assert_array_equal(wide(result), expected[0] @ expected[1])
    assert len(products(bound)) == 1


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_sides_that_lie_across(turned: tuple[bool, bool], always: FakeLibrary, driver: EmulatedDriver) -> None:
    """With rows that are longer than their matrices, of a batch of two."""
    m, n, k, lead = 24, 16, 40, 48
    opened = device.open_device(0)
    arrays = [whole((2, 3, lead, lead), seed) for seed in range(4)]
    extents = [(k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n), (m, n), (m, n)]
    with opened.work("run") as calls:
        memory = [opened.allocate(array.nbytes, "operands") for array in arrays]
        for array, place in zip(arrays, memory):
            calls.copy_in(place.pointer, array.ctypes.data, array.nbytes, opened.stream)
        operands = [
            Operand(slot, 0, lead, 3 * lead * lead, across) for slot, across in enumerate((*turned, False, False))
        ]
        product = Product(m, n, k, 2, dtypes.f16, dtypes.f16, *operands)
        operation = blas.operation_of(always.open(), product)
        places = blas.places_of(product, tuple(place.pointer for place in memory))
        operation.run(
            operation.algorithms(places, 1 << 20, 8)[1], places, memory[0].pointer, calls.stream_number(opened.stream)
        )
        result = np.empty_like(arrays[2])
        calls.copy_out(result.ctypes.data, memory[2].pointer, result.nbytes, opened.stream)
    left, right, _, added = (wide(array[:, 0, :rows, :columns]) for array, (rows, columns) in zip(arrays, extents))
    left, right = (side.transpose(0, 2, 1) if across else side for side, across in zip((left, right), turned))
    np.testing.assert_array_equal(wide(result[:, 0, :m, :n]), left @ right + added)


def test_a_batch_with_one_weight_is_rows(always: FakeLibrary) -> None:
    graph = Graph("batch")
    graph.output(graph.input("x", (5, 16, 64), "f16") @ graph.param("w", (64, 40), "f16"))
    x, w = whole((5, 16, 64), 1), whole((64, 40), 2)
    bound = bound_of(compiled(graph, {"w": w}))
    np.testing.assert_array_equal(wide(bound([x])[0]), wide(x) @ wide(w))
    assert len(products(bound)) == 1


def test_a_batch_with_one_right_side_of_a_run(always: FakeLibrary) -> None:
    graph = Graph("batch")
    graph.output(graph.input("x", (5, 16, 64), "f16") @ graph.input("y", (64, 40), "f16"))
    given = whole((5, 16, 64), 1), whole((64, 40), 2)
    bound = bound_of(compiled(graph))
    np.testing.assert_array_equal(wide(bound(given)[0]), wide(given[0]) @ wide(given[1]))
    assert len(products(bound)) == 1


def test_a_batch_is_rows_where_all_lie_behind_one_another() -> None:
    """Not what is added to all of the batch, nor left sides with something between them."""

    def product(left_stride: int, *added: Expr) -> Product:
        body = sum(added, accumulated(dtypes.f16))
        store = Store(0, Linear(0, ((0, 640), (1, 40), (2, 1))), body, False)
        left, right = Linear(0, ((0, left_stride), (1, 64), (3, 1))), Linear(0, ((2, 1), (3, 40)))
        work = Contraction((5,), 16, 40, 64, dtypes.f16, 1, left, dtypes.f16, 2, right, dtypes.f16, (store,))
        found = product_of(work, lambda dim: dims.evaluate(dim, {}))
        assert found is not None
        return found

    same = load(3, Linear(0, ((1, 40), (2, 1))), dtypes.f16)
    each = load(3, Linear(0, ((0, 640), (1, 40), (2, 1))), dtypes.f16)
    bias = load(4, Linear(8, ((2, 1),)), dtypes.f16)
    assert (product(1024).m, product(1024).count) == (product(1024, each, bias).m, 1) == (80, 1)
    assert product(1024, bias).bias == Bias(4, 8, dtypes.f16)
    for apart, strides in ((product(1024, same), (1024, 0)), (product(2048, each), (2048, 640))):
        assert apart.added is not None
        assert (apart.m, apart.count, apart.left.stride, apart.added.stride) == (16, 5, *strides)


def test_trips_of_a_loop(always: FakeLibrary) -> None:
    """Whose rows begin at other multiples of 64 bytes than what is timed in their place would, if that did not."""
    graph, step = Graph("loop"), Graph("step")
    y = step.input("y", (24, 24), "f16")
    step.output(y, step.input("row", (20, 24), "f16") @ y)
    x = graph.input("x", (3, 20, 24), "f16")
    start = graph.input("y", (24, 24), "f16")
    _, results = ops.scan(start, x, carried=1, sequences=1, length=3, regions=(step,))
    graph.output(results)
    given = whole((3, 20, 24), 1), whole((24, 24), 2)
    bound = bound_of(compiled(graph))
    np.testing.assert_array_equal(wide(bound(given)[0]), wide(given[0]) @ wide(given[1]))
    assert {min(launch.places.alignments()) for launch in products(bound)} == {64, 128, 256}


def test_a_batch_with_a_weight_for_each(always: FakeLibrary) -> None:
    graph = Graph("several")
    graph.output(graph.input("x", (3, 66, 96), "f16") @ graph.param("w", (3, 96, 40), "f16"))
    x, w = whole((3, 66, 96), 1), whole((3, 96, 40), 2)
    bound = bound_of(compiled(graph, {"w": w}))
    np.testing.assert_array_equal(wide(bound([x])[0]), wide(x) @ wide(w))
    assert len(products(bound)) == 1


def test_weights_that_end_within_a_panel(always: FakeLibrary) -> None:
    """Of f32, whose rows may begin anywhere."""
    executable, x, expected = dense(n=37, k=45, dtype="f32")
    bound = bound_of(executable, m=ROWS)
    np.testing.assert_array_equal(wide(bound([x])[0]), expected)
    assert len(products(bound)) == 1


@pytest.mark.parametrize(("n", "k"), [(70, 64), (33, 40)])
def test_what_the_library_refuses_stays_ours(n: int, k: int, always: FakeLibrary) -> None:
    """Rows of 16-bit numbers that do not begin at multiples of 16 bytes."""
    executable, x, expected = dense(n, k)
    bound = bound_of(executable, m=ROWS)
    np.testing.assert_array_equal(wide(bound([x])[0]), expected)
    assert not products(bound) and "MatmulAlgoGetHeuristic" in always.calls()


def test_sums_over_nothing_stay_ours(always: FakeLibrary) -> None:
    """Of a batch of weights in panels, of which each has no element."""
    graph = Graph("nothing")
    graph.output(graph.input("x", (4, "m", 0)) @ graph.param("w", (4, 0, 9)))
    executable = compiled(graph, {"w": np.zeros((4, 0, 9), "f4")})
    (result,) = executable.bind({"m": 700})([np.zeros((4, 700, 0), "f4")])
    np.testing.assert_array_equal(result, np.zeros((4, 700, 9), "f4"))


def test_a_bias_of_f32_is_rounded_where_sums_are(always: FakeLibrary) -> None:
    """A net of f32 in the precision f16: the copy of its bias has the dtype of results, and is made once."""
    graph = Graph("narrowed")
    x = graph.input("x", ("m", 64), "f32")
    hidden = ops.relu(x @ graph.param("first", (64, 64), "f32") + graph.param("bias", (64,), "f32"))
    last = hidden @ graph.param("second", (64, 64), "f32") + graph.param("other", (64,), "f32")
    graph.output(last @ graph.param("third", (64, 64), "f32"))
    random = np.random.default_rng(0)
    given = {name: (random.standard_normal((64, 64)) / 8).astype("f4") for name in ("first", "second", "third")}
    given |= {name: random.standard_normal(64).astype("f4") for name in ("bias", "other")}
    bound = bound_of(compiled(graph, given, Options(cache=False, precision="f16")), m=ROWS)
    x_given = random.standard_normal((ROWS, 64)).astype("f4")
    (result,) = bound([x_given])
    hidden_given = np.maximum(wide(x_given) @ wide(given["first"]) + given["bias"], 0)
    expected = (hidden_given @ wide(given["second"]) + given["other"]) @ wide(given["third"])
    np.testing.assert_allclose(wide(result), expected, atol=2e-2)
    made = products(bound)
    assert any(len(launch.held) == 2 for launch in made), [launch.kernel.name for launch in made]


def test_a_bias_that_comes_in_parts_is_not_copied(always: FakeLibrary) -> None:
    """As parts change in its place, at any time."""
    graph = Graph("parts")
    x = graph.input("x", (ROWS, 64), "f32")
    hidden = x @ graph.param("w", (64, 64), "f32") + graph.param("bias", (64,), "f32")
    graph.output(hidden @ graph.param("last", (64, 64), "f32"))
    identity = np.eye(64, dtype="f4")
    executable = compiled(graph, {"w": identity, "last": identity}, Options(cache=False, precision="f16"))
    assert executable.reserve("bias")
    bound, given = bound_of(executable), whole((ROWS, 64), 1, "f32")
    for added in (1, 2, 3):
        for column in range(64):
            executable.write_part("bias", column, np.float32(added))
        np.testing.assert_array_equal(bound([given])[0], given + added)
    assert len(products(bound)) == 1  # the other one's


def test_sides_that_begin_at_16_bytes(always: FakeLibrary) -> None:
    """Algorithms are asked for, and timed, with places that begin as those of the run."""
    graph = Graph("shifted")
    flat = graph.input("flat", (8 + ROWS * 64,), "f16")
    shifted = ops.slice(flat, starts=(8,), stops=(8 + ROWS * 64,)).reshape(ROWS, 64)
    graph.output(shifted @ graph.param("w", (64, 72), "f16"))
    given, w = whole((8 + ROWS * 64,), 1), whole((64, 72), 2)
    bound = bound_of(compiled(graph, {"w": w}))
    (result,) = bound([given])
    np.testing.assert_array_equal(wide(result), wide(given[8:]).reshape(ROWS, 64) @ wide(w))
    (launch,) = products(bound)
    assert launch.places.right % 32 == 16


@pytest.mark.skipif(bool(nvrtc.why_absent()), reason=nvrtc.why_absent())
def test_copies_compile() -> None:
    """Of an encoder's weights, and of one that ends within a panel."""
    forms = [
        plain.of_panels(Panels(2304, 768, 8, 32, 1), dtypes.f16),
        plain.of_panels(Panels(70, 45, 8, 32, 3), dtypes.bf16),
        plain.of_panels(Panels(768, 3072, 64, 1, 1), dtypes.f32),
        plain.rounded(768, Bias(0, 16, dtypes.f32), dtypes.f16),
    ]
    module = cpp_module([plain.program_of(form) for form in forms], target=NVIDIAS.on("sm_90a").target)
    assert cubin("\n".join([module.prelude, *module.kernels.values()]), "sm_90a")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_an_activation_is_made_where_the_result_lies(
    dtype: str, batch: tuple[int, ...], always: FakeLibrary, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kernel behind the product would make it: of the rounded sum with its bias."""
    graph = Graph("gelu")
    x, gate = (graph.input(name, (*batch, ROWS, n), dtype) for name, n in (("x", 64), ("gate", 72)))
    sums = x @ graph.param("w", (64, 72), dtype) + graph.param("bias", (72,), dtype)
    graph.output(ops.gelu(sums * 0.125) * gate)
    given = whole((*batch, ROWS, 64), 1, dtype), whole((*batch, ROWS, 72), 2, dtype)
    weights = {"w": whole((64, 72), 3, dtype), "bias": whole((72,), 4, dtype)}
    bound = bound_of(compiled(graph, weights))
    results = [np.array(bound(given)[0]) for _ in range(3)]
    (launch,) = products(bound)
    assert launch.finish is not None
    monkeypatch.setenv("RLX_CUDA_BLAS", "off")
    ours = bound_of(compiled(graph, weights))
    (expected,) = ours(given)
    assert not products(ours) and len(np.unique(wide(expected))) > 20
    for result in results:
        np.testing.assert_array_equal(wide(result), wide(expected))


def test_what_would_be_rounded_elsewhere_stays_ours(always: FakeLibrary) -> None:
    """Results of another dtype than that of sums, which are more than those."""
    graph = Graph("elsewhere")
    x, y = (graph.input(name, (ROWS, 64), "f16") for name in "xy")
    w = graph.param("w", (64, 64), "f16")
    graph.output((x @ w).cast("i8"), ops.gelu((y @ w).cast("f32")))
    bound = bound_of(compiled(graph, {"w": whole((64, 64), 2)}))
    bound([whole((ROWS, 64), 1), whole((ROWS, 64), 3)])
    assert not products(bound) and not always.calls()


def test_precisions_of_our_own_stay_ours(always: FakeLibrary) -> None:
    graph = Graph("parts")
    graph.output(graph.input("x", (ROWS, 64), "f32") @ graph.param("w", (64, 64), "f32"))
    bound = bound_of(compiled(graph, {"w": whole((64, 64), 2, "f32")}, Options(cache=False, precision="f32_fast")))
    bound([whole((ROWS, 64), 1, "f32")])
    assert not products(bound) and not always.calls()


def test_as_many_rows_as_a_table_of_the_device_says_stay_ours(always: FakeLibrary) -> None:
    graph = Graph("appending")
    row, counted = graph.input("row", (1, 64), "f16"), graph.input("cached", ("past",), "u8")
    past = counted.shape[0]
    state = graph.state("cache", (80, 64), "f16")
    written = ops.update_slice(state, row, ops.dims_tensor(graph, values=(past,)).reshape(()))
    graph.set_next(state, written)
    seen = ops.slice(written, starts=(0, 0), stops=(dims.add(past, 1), 64), steps=(1, 1))
    graph.output(ops.reduce_sum(seen @ graph.param("w", (64, 40), "f16"), axes=(0,)), name="sum")
    w, rows = whole((64, 40), 1), whole((72, 64), 2) // 2
    program = rlx.Session("cuda").compile(graph)
    program.set_param("w", w)
    program.bind_handle("cache", np.concatenate([rows[:62], np.zeros((18, 64), np.float16)]))
    for past in range(62, 66):
        (result,) = program.run([rows[past : past + 1], np.zeros(past, np.uint8)])
        np.testing.assert_array_equal(wide(result), wide(rows[: past + 1] @ w).sum(0))
    assert not always.calls()


def test_an_encoder_in_16_bits(always: FakeLibrary) -> None:
    """Of whose products all are the library's, and the gelu ours."""
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 50}
    config = dataclasses.replace(MINILM, num_hidden_layers=1, **sizes)
    graph = encoder(config, encoder_weights(config))
    ids = np.random.default_rng(1).integers(0, 50, (2, 16))
    given = [ids, np.ones_like(ids)]
    program = rlx.Session("cuda", precision="f16").compile(graph)
    for _ in range(3):
        before = len(always.jobs)
        results = program.run(given)
    assert len(always.jobs) - before == 4
    for result, exact in zip(results, rlx.Session("reference").compile(graph).run(given), strict=True):
        np.testing.assert_allclose(result, exact, atol=5e-3)


# runs


def test_runs_are_replayed_with_other_inputs_and_weights(always: FakeLibrary, driver: EmulatedDriver) -> None:
    executable, x, _ = dense()
    bound = bound_of(executable, m=ROWS)
    for seed in range(1, 5):
        x = whole((ROWS, 64), seed)
        with driver.counted() as calls:
            (result,) = bound([x])
        np.testing.assert_array_equal(wide(result), wide(x) @ wide(whole((64, 72), 2)))
    assert calls.count("replay") == 1 and not calls.count("launch")
    other = whole((64, 72), 9)
    executable.set_params({"w": other})
    always.calls()
    for _ in range(3):
        np.testing.assert_array_equal(wide(bound([x])[0]), wide(x) @ wide(other))
    assert "MatmulAlgoGetHeuristic" not in always.calls()


def test_no_kernel_begins_before_a_product_of_the_library_ends(
    always: FakeLibrary, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph("chain")
    y = graph.input("x", (ROWS, 64), "f16") @ graph.param("w", (64, 64), "f16")
    graph.output(ops.reduce_sum(y, axes=(1,)), y)
    executable = compiled(graph, {"w": whole((64, 64), 2)})
    bound = bound_of(executable)
    bound([whole((ROWS, 64), 1)])
    given: list[tuple[str, bool]] = []
    launch, run = driver.launch, ProductLaunch.on

    def noting(
        function: Any, blocks: int, lanes: int, arguments: int, stream: Any, overlapping: bool, *rest: Any
    ) -> None:
        given.append(("kernel", overlapping))
        launch(function, blocks, lanes, arguments, stream, overlapping, *rest)

    def noting_product(self: ProductLaunch, driver: Any, stream: Any, overlapping: bool = False) -> None:
        given.append(("product", overlapping))
        run(self, driver, stream)

    monkeypatch.setattr(driver, "launch", noting)
    monkeypatch.setattr(ProductLaunch, "on", noting_product)
    bound([whole((ROWS, 64), 1)])
    behind = [after for before, after in pairwise(given) if before[0] == "product"]
    assert behind and not any(overlapping for _, overlapping in behind)
    assert not any(overlapping for kind, overlapping in given if kind == "product")


def test_nobody_asks_for_panels_that_the_library_does_not_read(
    always: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for any on behalf of products that are ours as no map can finish them, where they lie."""
    force(monkeypatch, SMALL)
    monkeypatch.setattr(Finisher, "launch", lambda *_: None)
    graph = Graph("chain")
    value = graph.input("x", (ROWS, 64), "f16")
    weights = [whole((64, 64), seed) // 2 for seed in range(3)]
    for number, array in enumerate(weights):
        value = value @ graph.param(f"w{number}", (64, 64), "f16", data=array)
        value = ops.relu(value) if number < 2 else value
    graph.output(value)
    bound = bound_of(compiled(graph))
    bound([whole((ROWS, 64), 4)])
    first, second, third = bound._whole()
    assert isinstance(first, Launch) and isinstance(second, Launch) and isinstance(third, ProductLaunch)
    assert asked(first)[0] and not asked(second)[0]


def test_profiles_have_the_librarys_times(always: FakeLibrary) -> None:
    graph = Graph("timed")
    graph.output(graph.input("x", (ROWS, 64), "f16") @ graph.param("w", (64, 72), "f16"))
    executable = compiled(graph, {"w": whole((64, 72), 2)}, Options(cache=False, profile=True))
    always.costs = dict.fromkeys(range(3), 50_000)
    (time,) = bound_of(executable).profile([whole((ROWS, 64), 1)])
    assert time.total_ns > 50_000


def test_nothing_is_measured_on_memory_of_a_run(always: FakeLibrary) -> None:
    executable, x, _ = dense()
    bound = bound_of(executable, m=ROWS)
    bound([x])
    assert bound._memory is not None
    first, end = bound._memory.pointer, bound._memory.pointer + bound._memory.nbytes
    weights = [(m.pointer, m.pointer + m.nbytes) for m in executable.weights().memory.values()]
    *measured, run = always.places
    assert len(measured) > 3
    for pairs in measured:
        for place, nbytes in (*pairs[:4], pairs[5]):
            assert all(place + nbytes <= low or place >= high for low, high in [(first, end), *weights])
    assert first <= run[3][0] < end


def test_what_is_made_there_is_destroyed(always: FakeLibrary) -> None:
    before = always.living
    executable, x, _ = dense()
    bound = bound_of(executable, m=ROWS)
    for _ in range(3):
        bound([x])
    assert always.living > before + 1
    settle(executable)
    del executable, bound
    gc.collect()
    assert always.living == before + 1  # the device's handle
    device._devices.clear()
    gc.collect()
    assert always.living == before
