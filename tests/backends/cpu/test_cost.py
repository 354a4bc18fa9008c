"""What kernels are said to do on the CPU, and that rates are found again from times that they made."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import pkgutil
from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.cpu import calibrate, rates
from rlx.backends.cpu.build import program_of
from rlx.backends.cpu.cost import AMOUNTS, NEAR, _tiles, work_of
from rlx.backends.cpu.isa import LEVELS, detect, forced
from rlx.backends.cpu.work import KernelWork
from rlx.codegen import simd
from rlx.codegen.simd.module import schedule_of
from rlx.cost.fit import overlapped
from rlx.ir.graph import Graph, Value

OPTIONS = Options(cache=False)
USUAL = rates.usual(detect()) | {
    "read_l1_ns": 0.002, "read_l2_ns": 0.003, "read_l3_ns": 0.01, "read_dram_ns": 0.04, "warm_1000_ns": 0.01,
    "warm_10000000_ns": 0.03, "launch_ns": 3000.0,
}  # fmt: skip


def works(graph: Graph, **binding: int) -> list[KernelWork]:
    return rates.works(graph, OPTIONS, binding)


@pytest.mark.parametrize("m", [1, 7, 8, 9, 127, 128, 129, 300, 1000])
def test_tiles_cover_every_row_once(m: int) -> None:
    blocks = -(-m // 128)
    assert sum(height * number for height, number in _tiles(m, blocks, 8)) == m


def test_keys_that_nobody_looks_at_cost_nothing() -> None:
    def flops(**form: object) -> float:
        g = Graph()
        q = g.input("q", (1, 2, 1024, 32))
        g.output(rlx.attention(q, q, q, **form))
        return sum(work.flops for work in works(g))

    full = flops()
    assert flops(causal=True) == pytest.approx(full / 2, rel=0.02)
    assert flops(causal=True, window=64) == pytest.approx(full * 96 / 1024, rel=0.1)
    assert flops(window=64) == pytest.approx(full * 160 / 1024, rel=0.1)
    # what stands for a score in numbers is looked at
    assert flops(causal=True, fill=-1.0) == full


def test_far_rows_and_far_updates_cost_more() -> None:
    def work(axis: int) -> KernelWork:
        g = Graph()
        g.output(rlx.reduce_sum(g.input("x", (2048, 2048)), axes=(axis,), keepdims=True))
        (measured_work,) = works(g)
        return measured_work

    assert work(0).slowness > work(1).slowness == 1

    def updated(axis: int) -> float:
        g = Graph()
        x, i, u = g.input("x", (64, 64)), g.input("i", (64, 64), "i64"), g.input("u", (64, 64))
        if axis:
            g.output(rlx.scatter_nd(x, g.input("rows", (64, 1), "i64"), u))
        else:
            g.output(rlx.scatter_elements(x, i, u, axis=0, combine="add"))
        return max(w.amounts.get("updated", 0.0) for w in works(g))

    assert updated(0) == 64 * 64 > updated(1)


@pytest.mark.parametrize("name", list(LEVELS))
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_every_core_has_a_rate(dtype: str, name: str) -> None:
    target = forced(name, for_codegen_only=True)
    known = rates.usual(target)
    for n in (1, 17, 40, 100, 1000):
        graph = Graph("product")
        graph.output(graph.input("x", ("m", 64), dtype) @ graph.param("w", (64, n), dtype))
        program, _ = program_of(graph, target, OPTIONS)
        for m, kernel in itertools.product((1, 5, 8, 13, 130), program.main):
            work = work_of(program, kernel, schedule_of(kernel, target), target, {"m": m}, set())
            assert all(f"{amount}_ns" in known for amount in work.amounts)


def test_a_product_counts_its_multiplications() -> None:
    graph = Graph("product")
    graph.output(graph.input("x", ("m", 64), "f32") @ graph.param("w", (64, 96), "f32"))
    (work,) = works(graph, m=24)
    isa = detect()
    steps = sum(
        amount * _area(name) for name, amount in work.amounts.items() if name.startswith("gemm_") and "x" in name
    )
    assert steps * isa.lanes >= 24 * 96 * 64
    assert work.flops == pytest.approx(2 * 24 * 96 * 64)
    assert work.total_bytes == pytest.approx(4 * (24 * 64 + 64 * 96 + 24 * 96))


def _area(name: str) -> int:
    rows, vectors = name.removeprefix("gemm_").split("x")
    return int(rows) * int(vectors)


def test_nothing_costs_nothing_and_more_costs_more() -> None:
    graph = Graph("rows")
    x = graph.input("x", ("n", 33), "f32")
    graph.output(rlx.softmax(x @ graph.param("w", (33, 33), "f32"), axis=1))
    times = [sum(rates.kernel_ns(w, USUAL, 1, "l2")[0] for w in works(graph, n=n)) for n in (0, 1, 10, 100, 1000)]
    assert times == sorted(times)
    assert times[0] < times[1] and times[4] > 5 * times[3]


@pytest.mark.parametrize(
    "window, dilation, calls", [((5, 5), (1, 1), 5), ((3, 4), (2, 1), 3), ((3, 4), (1, 2), 12), ((7, 30), (1, 1), 1)]
)
def test_taps_side_by_side_are_one_call_of_the_core(
    window: tuple[int, int], dilation: tuple[int, int], calls: int
) -> None:
    graph = Graph("conv")
    x = graph.input("x", (1, 4, 30, 30), "f32")
    weight = graph.param("w", (16, 4, *window), "f32")
    options = {"strides": (1, 1), "dilations": dilation, "low": (0, 0), "high": (0, 0), "groups": 1}
    graph.output(rlx.ops.build.conv(x, weight, **options))
    (work,) = [w for w in works(graph) if w.kind == "convolution"]
    assert work.amounts.get("gemm_again", 0) == work.amounts["gemm_cells"] * (calls - 1)


def test_transforms_and_selections_cost_by_their_rows() -> None:
    graph = Graph("rows")
    x = graph.input("x", ("n", 512), "f32")
    graph.output(*rlx.ops.rfft(x), *rlx.ops.top_k(x, axis=1, k=4))
    for name, kind in (("transformed", "transform"), ("ranked", "order")):
        few, many = (
            next(w for w in works(graph, n=n) if name in w.amounts and w.kind == kind).amounts[name] for n in (3, 300)
        )
        assert many == pytest.approx(100 * few)


def test_threads_help_what_is_worth_sharing() -> None:
    graph = Graph("large")
    graph.output(graph.input("x", (512, 512), "f32") @ graph.param("w", (512, 512), "f32"))
    (work,) = works(graph)
    gains = {"threads_count": 4.0, "threads_compute_gain": 3.5, "threads_memory_gain": 2.0, "fork_ns": 500.0}
    usual = USUAL | gains
    one, four = (rates.kernel_ns(work, usual, n, "l2")[0] for n in (1, 4))
    assert 2.5 < one / four < 4
    work.pieces = 1.0
    assert rates.kernel_ns(work, usual, 4, "l2")[0] == one


def test_rates_are_found_again_from_the_times_they_make() -> None:
    """The suite's works priced with made-up rates, with noise: the fit predicts the times of each kernel again."""
    suite = calibrate.suite()
    measured = rates.works(suite.graph, OPTIONS, {})
    truth = {name: ns * 1.7 for name, ns in USUAL.items()}
    noise = np.random.default_rng(0).normal(1, 0.02, len(measured))
    times = np.array([_whole(w, truth) for w in measured]) * noise
    known = {name: ns for name, ns in truth.items() if name.startswith(("gemm_", "read_", "warm_"))}
    fitted = rates.fit(measured, times, known)
    again = np.array([_whole(w, fitted) for w in measured])
    assert np.median(np.abs(again / times - 1)) < 0.1
    assert all(ns >= 0 for ns in fitted.values())
    assert all(fitted[name] == ns for name, ns in known.items()), "what was measured alone stays"


def test_rates_of_bodies_are_found_again() -> None:
    """The chain's loop says how long a cycle is, which a fit of sums could not tell from work."""
    measured = rates.works(calibrate.bodies(), OPTIONS, {})
    truth = {name: ns * 1.7 for name, ns in USUAL.items()} | {"cycle_ns": 0.4, "calls_ns": USUAL["calls_ns"]}
    times = np.array([rates.compute_ns(work, truth) for work in measured])
    fitted = calibrate.body_rates(measured, times, {"calls_ns": USUAL["calls_ns"]})
    for name, ns in fitted.items():
        assert ns == pytest.approx(truth[name], rel=0.15), name


def _whole(work: KernelWork, of: dict[str, float]) -> float:
    return overlapped(rates.compute_ns(work, of), rates.memory_ns(work, of, "dram"))


def _body(build: Callable[[Value], Value], shape: tuple[int, ...] = (4096,), dtype: str = "f32") -> KernelWork:
    graph = Graph("body")
    graph.output(build(graph.input("x", shape, dtype)))
    (work,) = works(graph)
    return work


def test_a_body_takes_what_bounds_it() -> None:
    """As many instructions take longer if each waits for the one before, and not if several vectors wait together."""

    def chain(x: Value) -> Value:
        for _ in range(30):
            x = x * 0.5 + 0.25
        return x

    def tree(x: Value) -> Value:
        terms = [x * float(n + 1) + 0.25 for n in range(16)]
        while len(terms) > 1:
            terms = [a * b for a, b in zip(terms[::2], terms[1::2])]
        return terms[0]

    waiting, busy = _body(chain), _body(tree)
    known = USUAL | {"cycle_ns": 1.0}
    assert waiting.amounts["plain"] == pytest.approx(busy.amounts["plain"], rel=0.4)
    assert rates.compute_ns(waiting, known) > 2 * rates.compute_ns(busy, known)
    work = _body(rlx.ops.exp)
    assert rates.compute_ns(work, USUAL) > rates.compute_ns(_body(lambda x: x + 1.0), USUAL)
    assert work.waits < waiting.waits / 3


def test_what_is_the_same_along_a_row_is_worked_out_once() -> None:
    work = _body(lambda x: x / rlx.sqrt(rlx.reduce_sum(x * x, axes=(1,), keepdims=True) + 1.0), (64, 4096))
    assert work.amounts["slow"] < 1.1 * 64 * 4096 / detect().lanes  # the division, and few roots


def test_a_single_element_is_priced() -> None:
    assert rates.compute_ns(_body(lambda x: rlx.gelu(x) + 1.0, ()), USUAL) > 0


def test_rates_of_before_serve() -> None:
    """Profiles that know no cycles, and loads and stores as one."""
    older = {n: ns for n, ns in USUAL.items() if n not in ("cycle_ns", "stored_ns", "divided_ns")}
    graph = Graph("older")
    graph.output(rlx.gelu(graph.input("x", (64, 64), "f32")) / 3.0)
    assert rates.CpuEstimator(graph, OPTIONS, older)({}).run_ns > 0
    # in a fit of all kernels together, instructions cost next to nothing
    fitted = rates.complete(older | {"plain_ns": 1e-3}, detect())
    assert fitted["plain_ns"] > 0.01 and rates.complete(fitted, detect()) == fitted


def test_windows_count_what_they_load_once() -> None:
    graph = Graph("depthwise")
    x, w = graph.input("x", (1, 40, 40, 64), "f32"), graph.param("w", (3, 3, 1, 64), "f32")
    graph.output(rlx.conv(x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), strides=(1, 1), dilations=(1, 1),
                          low=(1, 1), high=(1, 1), groups=64).transpose(0, 2, 3, 1))  # fmt: skip
    (work,) = [w for w in works(graph) if w.amounts.get("plain", 0) > 9 * 40 * 40 * 4]
    assert 0 < work.amounts["contiguous"] < work.amounts["plain"] / 2


def test_squares_that_want_the_same_lines_cost_more() -> None:
    apart, together = (_body(lambda x: x.T, (side, side)).amounts["turned"] / side**2 for side in (1008, 1024))
    assert together > 2 * apart


def test_elements_of_a_short_row_are_near() -> None:
    def gathered(*shape: int) -> float:
        graph = Graph("gather")
        x, i = graph.input("x", shape, "f32"), graph.input("i", shape, "i64")
        graph.output(rlx.gather_elements(x, i, axis=len(shape) - 1))
        (work,) = works(graph)
        return work.amounts["strided"]

    assert gathered(256, 256) == pytest.approx(NEAR * gathered(256 * 256))


def test_memory_is_as_near_as_the_program_is_small() -> None:
    graph = Graph("read")
    graph.output(graph.input("x", (1, 512), "f32") @ graph.param("w", (512, 512), "f32"))
    (work,) = works(graph)
    near, far = (rates.memory_ns(work, USUAL, level) for level in ("l2", "dram"))
    assert near < far / 5
    # a loop finds its weights where the last trip left them
    assert rates.memory_ns(work, USUAL, "l2", looped=True) <= near


def test_an_estimate_tells_memory_and_goes_on_at_any_size() -> None:
    graph = Graph("sized")
    graph.output(rlx.exp(graph.input("x", ("n", 8), "f32") @ graph.param("w", (8, 8), "f32")))
    estimator = rates.CpuEstimator(graph, OPTIONS, USUAL)
    small, large = estimator({"n": 1}), estimator({"n": 10_000})
    assert large.run_ns > small.run_ns and large.arena_bytes >= small.arena_bytes
    assert small.weight_bytes == 256 and small.fits and small.total_ns(1) > small.total_ns(1000)


def test_bytes_that_a_run_packs_have_a_price() -> None:
    """In either order, some of the product's; a weight is packed before."""

    def price(turned: bool, k: int = 256, weight: bool = False) -> float:
        graph = Graph("bytes")
        make = graph.param if weight else graph.input
        x, y = graph.input("x", (256, k), "u8"), make("y", (256, k) if turned else (k, 256), "i8")
        right = y.transpose(1, 0) if turned else y
        graph.output(rlx.integer_matmul(x, right, graph.constant(np.uint8(0)), graph.constant(np.int8(0))))
        (work,) = works(graph)
        assert work.kind == "product"
        return rates.compute_ns(work, USUAL)

    packed = price(turned=False, weight=True)
    for turned in (False, True):
        assert packed < price(turned) < 1.5 * packed
    assert price(turned=True, k=255) > price(turned=True)  # the last words byte by byte


def test_threads_share_a_long_transform() -> None:
    """The estimate is of the kernels that a run on so many threads has."""
    graph = Graph("long")
    graph.output(*rlx.ops.rfft(graph.input("x", (1 << 16,))))
    gains = USUAL | {"threads_compute_gain": 1.9, "threads_memory_gain": 1.9, "threads_count": 2.0}
    estimator = rates.CpuEstimator(graph, OPTIONS, gains)
    times = []
    for threads in (1, 2):
        estimator.threads = threads
        times.append(estimator({}).run_ns)
    assert times[0] / 2 < times[1] < times[0]


def test_every_way_of_running_a_kernel_has_a_price() -> None:
    names = [module.name for module in pkgutil.iter_modules(simd.__path__)]
    modules = [importlib.import_module(f"rlx.codegen.simd.{name}") for name in names]
    found = {kind for module in modules for kind in vars(module).values() if _is_scheduled(kind)}
    assert len(found) > 5 and found == set(AMOUNTS)


def _is_scheduled(kind: object) -> bool:
    return isinstance(kind, type) and kind.__name__.startswith("Scheduled") and dataclasses.is_dataclass(kind)
