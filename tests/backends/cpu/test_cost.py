"""What kernels are said to do on the CPU, and that rates are found again from times that they made."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.cpu import calibrate, rates
from rlx.backends.cpu.cost import KernelWork, _tiles
from rlx.backends.cpu.isa import detect
from rlx.ir.graph import Graph

OPTIONS = Options(cache=False)


def works(graph: Graph, **binding: int) -> list[KernelWork]:
    return rates.works(graph, OPTIONS, binding)


@pytest.mark.parametrize("m", [1, 7, 8, 9, 127, 128, 129, 300, 1000])
def test_tiles_cover_every_row_once(m: int) -> None:
    blocks = -(-m // 128)
    assert sum(height * number for height, number in _tiles(m, blocks, 8)) == m


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
    usual = rates.usual(detect()) | {"cold_1000_ns": 0.05, "cold_1000000_ns": 0.05, "warm_1000_ns": 0.02,
                                     "warm_1000000_ns": 0.02}  # fmt: skip
    times = [sum(rates.kernel_ns(w, usual, 1)[0] for w in works(graph, n=n)) for n in (0, 1, 10, 100, 1000)]
    assert times == sorted(times)
    assert times[0] < times[1] / 2 and times[4] > 5 * times[3]


def test_threads_help_what_is_worth_sharing() -> None:
    graph = Graph("large")
    graph.output(graph.input("x", (512, 512), "f32") @ graph.param("w", (512, 512), "f32"))
    (work,) = works(graph)
    gains = {"threads_count": 4.0, "threads_compute_gain": 3.5, "threads_memory_gain": 2.0, "fork_ns": 500.0}
    usual = rates.usual(detect()) | {"cold_1000_ns": 0.001, "warm_1000_ns": 0.001} | gains
    one, four = (rates.kernel_ns(work, usual, n)[0] for n in (1, 4))
    assert 2.5 < one / four < 4
    work.pieces = 1.0
    assert rates.kernel_ns(work, usual, 4)[0] == one


def test_rates_are_found_again_from_the_times_they_make() -> None:
    """The suite's works priced with made-up rates, with noise: the fit foretells the times of each kernel again."""
    made = calibrate.suite()
    measured = rates.works(made.graph, OPTIONS, {})
    truth = {name: ns * 1.7 for name, ns in rates.usual(detect()).items()}
    truth |= {"cold_1000_ns": 0.08, "cold_100000000_ns": 0.12, "warm_1000_ns": 0.03, "warm_100000000_ns": 0.06}
    noise = np.random.default_rng(0).normal(1, 0.02, len(measured))
    times = np.array([rates.together(rates.compute_ns(w, truth), rates.memory_ns(w, truth)) for w in measured]) * noise
    cold = [
        i for i, w in enumerate(measured) if w.warm_bytes == 0 and set(w.amounts) <= {"calls", "plain", "near", "rows"}
    ]
    warm = [i for i, w in enumerate(measured) if w.warm_bytes == w.total_bytes and w.total_bytes > 4096]
    found = rates.fit(measured, times, {**dict.fromkeys(cold[:5], "cold"), **dict.fromkeys(warm[:3], "warm")})
    again = np.array([rates.together(rates.compute_ns(w, found), rates.memory_ns(w, found)) for w in measured])
    off = np.abs(again / times - 1)
    assert np.median(off) < 0.1
    assert all(ns >= 0 for ns in found.values())


def test_an_estimate_tells_memory_and_goes_on_at_any_size() -> None:
    graph = Graph("sized")
    graph.output(rlx.exp(graph.input("x", ("n", 8), "f32") @ graph.param("w", (8, 8), "f32")))
    made = rates.CpuEstimator(graph, OPTIONS, rates.usual(detect()) | {
        "cold_1000_ns": 0.05, "warm_1000_ns": 0.05, "launch_ns": 3000.0})  # fmt: skip
    small, large = made({"n": 1}), made({"n": 10_000})
    assert large.run_ns > small.run_ns and large.arena_bytes >= small.arena_bytes
    assert small.weight_bytes == 256 and small.fits and small.total_ns(1) > small.total_ns(1000)
