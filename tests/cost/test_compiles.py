"""What compiles are expected to take: equal kernels share their code, compilers work side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.cpu import CpuBackend, topology
from rlx.backends.cuda import build
from rlx.backends.cuda.cost import CudaEstimator, compiler_of
from rlx.backends.wgpu.cost import WgpuEstimator
from rlx.backends.xla import XlaBackend
from rlx.cost.compiles import ALIKE, Compiler, Weights
from rlx.cost.estimate import Rates
from rlx.cost.generic import GenericEstimator
from rlx.device import calibration
from rlx.device.device import Device
from rlx.kernel.ir.program import Program, leaves

PLAIN = Weights(map=1.0, reduction=2.0, product=4.0, narrow=3.0, attention=8.0, composite=5.0, other=1.0)


def rates(**more: float) -> Rates:
    return {**calibration.calibration(Device("null")).rates, "asked_ns": 1.0, **more}


def layers(count: int, batch: int | str = 8, width: int = 64) -> rlx.Graph:
    """Equal layers of a product and a norm of its rows, each with weights of its own."""
    graph = rlx.Graph()
    x = graph.input("x", (batch, width))
    for number in range(count):
        x = rlx.softmax(rlx.relu(x @ graph.param(f"w{number}", (width, width))), axis=1)  # no attention
    graph.output(x)
    return graph


def program(graph: rlx.Graph) -> Program:
    return GenericEstimator(graph, rates()).program


def test_equal_kernels_are_compiled_once_where_they_share_code() -> None:
    few, many = program(layers(2)), program(layers(10))
    sharing, apart = Compiler(PLAIN, again=0.0), Compiler(PLAIN)
    assert sharing.amount(many) == sharing.amount(few) > 0
    assert apart.amount(many) == pytest.approx(5 * apart.amount(few))
    part = Compiler(PLAIN, again=0.25)
    assert sharing.amount(many) < part.amount(many) < apart.amount(many)


def test_kernels_of_other_sizes_and_dtypes_are_others() -> None:
    graph = rlx.Graph()
    x = graph.input("x", (8, 64))
    graph.output(x + 1.0)
    once = Compiler(PLAIN, again=0.0).amount(program(graph))
    graph.output(graph.input("y", (9, 64)) + 1.0, graph.input("z", (8, 64), "f64") + 1.0)
    assert Compiler(PLAIN, again=0.0).amount(program(graph)) == pytest.approx(3 * once)


def test_products_take_more_than_maps_and_narrow_ones_less() -> None:
    def amount(dtype: str) -> float:
        graph = rlx.Graph()
        graph.output(graph.input("x", (8, 64), dtype) @ graph.param("w", (64, 64), dtype))
        return Compiler(PLAIN).amount(program(graph))

    assert (amount("f32"), amount("f16")) == (4.0, 3.0)


def test_threads_share_what_is_compiled_but_for_one_function() -> None:
    many = program(layers(6))  # a product and norms of rows each
    alone = Compiler(PLAIN).amount(many)
    amounts = [Compiler(PLAIN, at_once=threads).amount(many) for threads in (1, 2, 4, 1000)]
    assert amounts[0] == alone and amounts == sorted(amounts, reverse=True)
    assert amounts[1] < 0.7 * alone
    assert amounts[3] == pytest.approx(PLAIN.product, rel=0.01)  # nothing is ready before the longest of them
    assert Compiler(PLAIN, at_once=4, least=alone).amount(many) == alone


def test_what_one_thread_does_is_not_shared() -> None:
    some = program(layers(3))
    kernels = len(list(leaves(some.main)))
    shared = Compiler(PLAIN, again=0.0, at_once=4)
    more = replace(shared, lowered=10.0).amount(some) - shared.amount(some)
    assert more == pytest.approx(10.0 * kernels)
    assert replace(shared, written=10.0).amount(some) - shared.amount(some) < more


def test_cores_are_there_once_for_all_products() -> None:
    compiler = Compiler(PLAIN, again=0.0, cores=7)
    assert compiler.amount(program(layers(5))) == replace(compiler, cores=0).amount(program(layers(5))) + 7
    graph = rlx.Graph()
    graph.output(graph.input("x", (8,)) + 1.0)
    assert compiler.amount(program(graph)) == PLAIN.map


def test_a_device_that_nothing_is_known_of_compiles_each_kernel() -> None:
    estimate = GenericEstimator(layers(4), rates(compile_ns=10.0))({})
    assert estimate.compile_ns == pytest.approx(10.0 * len(estimate.kernels) * ALIKE.map)
    tiny = rlx.Graph()
    tiny.output(tiny.input("x", (8,)) + 1.0)
    assert GenericEstimator(tiny, rates(compile_ns=10.0))({}).compile_ns == 10.0  # as much as small programs take


def compile_ns(kind: str, graph: rlx.Graph) -> float:
    match kind:
        case "cpu":
            return CpuBackend().estimator(graph, Options(), calibration.calibration(Device("cpu")).rates)({}).compile_ns
        case "xla":
            return XlaBackend().estimator(graph, Options(), rates(compile_ns=1.0))({}).compile_ns
    made = (CudaEstimator if kind == "cuda" else WgpuEstimator)(graph, Options(), rates(compile_ns=1.0))
    return made({}).compile_ns


@pytest.mark.parametrize("kind, most", [("cpu", 2.0), ("cuda", 2.0), ("vulkan", 1.01), ("xla", 6.0)])
def test_more_equal_layers_take_every_backend_little_more(kind: str, most: float) -> None:
    few, many = compile_ns(kind, layers(2, width=256)), compile_ns(kind, layers(16, width=256))
    assert few <= many < most * few


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_texts_for_cuda_are_counted_without_writing_them(precision: str) -> None:
    """Of open rows, products have several."""
    options = Options(precision=precision)
    estimator = CudaEstimator(layers(4, batch="n", width=256), options, rates())
    functions = list(estimator.compiler._functions(estimator.program, list(leaves(estimator.program.main))))
    main = build.build(layers(4, batch="n", width=256), options)
    texts = {v.name for k in leaves(main.program.main) for v in main.module.variants[id(k)]}
    assert len({kernel.work for kernel in leaves(main.program.main)}) < len(texts)
    assert len(texts) <= len(functions) <= 1.5 * len(texts)


def test_compilers_for_cuda_are_as_many_as_were_measured() -> None:
    assert compiler_of(build.NVIDIAS, {"compilers_count": 5.5}).at_once == 5.5
    assert compiler_of(build.NVIDIAS, {}).at_once == topology.usable()


def test_kernels_that_a_run_leaves_out_are_compiled_too() -> None:
    graph = rlx.Graph()
    x = graph.input("x", ("n", 64))
    graph.output(rlx.softmax(x, axis=-1).cast("f16") @ graph.param("w", (64, 512), "f16"))
    estimator = CudaEstimator(graph, Options(), rates(compile_ns=1.0))
    few, many = estimator({"n": 1}), estimator({"n": 100})
    assert len(few.kernels) < len(many.kernels) and few.compile_ns == many.compile_ns
