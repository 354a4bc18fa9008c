"""What kernels are said to take on a device of which only small graphs were timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.cuda.cost import CudaEstimator
from rlx.backends.null import NullBackend
from rlx.backends.wgpu.cost import WgpuEstimator
from rlx.backends.xla import XlaBackend
from rlx.cost import microbenchmarks as probes
from rlx.cost.estimate import KernelEstimate, Rates
from rlx.cost.generic import GenericEstimator
from rlx.device import calibration
from rlx.device.device import Device
from rlx.ir.graph import Value
from rlx.kernel.ir.attention import FusedAttention
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct


def known(**rates: float) -> Rates:
    return {**calibration.calibration(Device("null")).rates, **rates}


def kernels(build: Callable[..., Value], *shapes: tuple[int, ...], rates: Rates | None = None) -> list[KernelEstimate]:
    graph = rlx.Graph()
    graph.output(build(*(graph.input(f"x{i}", shape) for i, shape in enumerate(shapes))))
    return list(GenericEstimator(graph, rates or known())({}).kernels)


READ = {"sums_1024x1024_per_ns": 16.0, "columns_1024x1024_per_ns": 4.0, "place_256x1024_per_ns": 2.0}


@pytest.mark.parametrize(
    "build, per_ns",
    [
        (lambda x: rlx.reduce_sum(x, axes=(1,)), 16.0),
        (lambda x: rlx.reduce_max(x, axes=(0, 1)), 16.0),
        (lambda x: rlx.reduce_sum(x, axes=(0,)), 4.0),
        (lambda x: rlx.argmax(x, axis=1), 2.0),
    ],
)
def test_reductions_of_what_is_there_have_rates_of_their_own(build: Callable[..., Value], per_ns: float) -> None:
    (kernel,) = kernels(build, (1024, 1024), rates=known(**READ))
    assert kernel.ns == pytest.approx(1024 * 1024 / per_ns)


def test_what_is_worked_out_on_the_way_has_another_rate() -> None:
    slow = {name: 0.01 for name in known() if name.startswith("reduce_")}
    (mixed,) = kernels(lambda x: rlx.reduce_sum(rlx.exp(x), axes=(1,)), (1024, 1024), rates=known(**READ, **slow))
    assert mixed.ns >= 1024 * 1024 / 0.01


def test_reductions_of_before_serve() -> None:
    """A profile that knows no reductions of what is there."""
    rates = {name: ns for name, ns in known().items() if not name.startswith(("sums_", "columns_", "place_"))}
    for axis in (0, 1):
        (kernel,) = kernels(lambda x, axis=axis: rlx.reduce_sum(x, axes=(axis,)), (1024, 1024), rates=rates)
        assert kernel.ns > 0


def test_columns_are_not_gathered() -> None:
    rates = known(gather_per_ns=1e-6)
    (kernel,) = kernels(lambda x: rlx.reduce_sum(x * 2.0, axes=(0,)), (1024, 1024), rates=rates)
    assert kernel.ns < 1e9
    (kernel,) = kernels(lambda x: x.T * 2.0, (1024, 1000), rates=rates)
    assert kernel.ns > 1e9


def test_rows_that_data_choose_are_read_whole() -> None:
    graph = rlx.Graph()
    graph.output(rlx.gather(graph.input("x", (1000, 256)), graph.input("i", (64,), "i64"), axis=0))
    (kernel,) = GenericEstimator(graph, known(gather_per_ns=1e-6))({}).kernels
    assert kernel.ns < 1e9


def test_a_sum_over_several_axes_is_no_window() -> None:
    slow = known(depthwise_9_per_ns=1e-6, depthwise_25_per_ns=1e-6)
    whole = kernels(lambda x: rlx.reduce_sum(x * 2.0, axes=(0, 1)), (64, 64), rates=slow)
    channels_last = kernels(lambda x: rlx.reduce_sum(x, axes=(1, 2)), (2, 8, 8, 64), rates=slow)
    assert all(kernel.kind == "reduction" or kernel.kind == "move" for kernel in (*whole, *channels_last))
    (pool,) = kernels(
        lambda x: rlx.average_pool(x, window=(2, 2), strides=(2, 2), dilations=(1, 1), low=(0, 0), high=(0, 0)),
        (1, 4, 8, 8), rates=slow,
    )  # fmt: skip
    assert pool.kind == "window"


def test_functions_of_angles_have_their_rate() -> None:
    rates = known(heavy_per_ns=1.0, angle_per_ns=0.01)
    (sine,), (exponential,) = (kernels(f, (4096, 64), rates=rates) for f in (rlx.sin, rlx.exp))
    assert sine.ns > 20 * exponential.ns


def test_memory_is_as_quick_as_the_quickest_reads() -> None:
    streams = {name: 0.001 for name in known() if name.startswith("stream_")}
    (slow,) = kernels(lambda x: x + 1.0, (1024, 1024), rates=known(**streams))
    (quick,) = kernels(lambda x: x + 1.0, (1024, 1024), rates=known(**streams, **READ))
    assert quick.memory_ns == pytest.approx(8 * 1024 * 1024 / (4 * 16.0))
    assert slow.memory_ns > 10 * quick.memory_ns


def test_scans_down_have_their_rate() -> None:
    rates = known(running_64x1024_per_ns=1.0, downward_1024x1024_per_ns=0.1)
    (along,), (down,) = (
        kernels(lambda x, axis=axis: rlx.cumsum(x, axis=axis), (512, 512), rates=rates) for axis in (1, 0)
    )
    assert down.ns == pytest.approx(10 * along.ns)


def test_inputs_of_probes_lie_as_large_arrays_do() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    placed = probes.as_allocated(array)
    assert placed.ctypes.data % probes.LINE_BYTES == probes.BEHIND_BYTES
    np.testing.assert_array_equal(placed, array)
    assert placed.flags.c_contiguous


def test_inputs_that_are_on_the_device_are_not_brought_there() -> None:
    for name in probes.READS:
        probe = probes.read(name)
        assert probe.bytes_in == 0 < probe.inputs[0].nbytes


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_products_are_priced_in_the_precision_that_they_compute_in(precision: str) -> None:
    rates = known(times_of_f16=0.5, times_of_bf16=0.25)

    def product_ns(chosen: str) -> float:
        graph = rlx.Graph()
        graph.output(rlx.softmax(graph.input("x", (512, 512)) @ graph.param("w", (512, 512)), axis=1))
        estimator = NullBackend().estimator(graph, Options(precision=chosen), rates)
        return next(k.ns for k in estimator({}).kernels if k.kind == "product")

    assert product_ns(precision) == pytest.approx(rates[f"times_of_{precision}"] * product_ns("f32"), rel=0.02)


def test_every_estimator_knows_the_precision() -> None:
    graph = rlx.Graph()
    q = graph.input("q", (1, 4, 64, 32))
    graph.output(rlx.attention(q, q, q))
    graph.output(q @ graph.param("w", (32, 32)))

    def narrow(estimator: GenericEstimator) -> set[str]:
        works = [kernel.work for kernel in estimator.program.main]
        return {w.dtype.name for w in works if isinstance(w, FusedAttention)} | {
            w.b_dtype.name for w in works if isinstance(w, Contraction)
        }

    options = Options(precision="f16")
    xla = XlaBackend().estimator(graph, options, known())
    assert isinstance(xla, GenericEstimator) and "f16" in narrow(xla)  # attention is several products there
    for simt in (WgpuEstimator, CudaEstimator):
        assert narrow(simt(graph, options, known(shader_f16=1.0))) == {"f16"}
        assert narrow(simt(graph, Options(), known(shader_f16=1.0))) == {"f32"}


def test_weights_of_few_bits_are_read_as_they_are() -> None:
    graph = rlx.Graph()
    x = graph.input("x", ("n", 256))
    w, scale = graph.param("w", (512, 128), "u8"), graph.param("scale", (512, 8))
    graph.output(rlx.ops.packed_matmul(x, w, scale, depth=256, bits=4, block=32))
    estimator = CudaEstimator(graph, Options(precision="f16"), known(asked_ns=1.0))
    works = [kernel.work for kernel in estimator.program.main if isinstance(kernel.work, Contraction)]
    assert [(work.a_dtype.name, work.blocks is None) for work in works] == [("f16", False), ("f16", True)]
    few, many = estimator({"n": 1}), estimator({"n": 100})
    weights = 512 * 128 + 512 * 8 * 4
    (product,) = (kernel for kernel in few.kernels if "packed" in kernel.name and kernel.nbytes)
    assert weights <= product.nbytes < 1.1 * weights
    assert "unpack" in {kernel.name for kernel in many.kernels}


def test_kernels_of_parts_are_priced_and_those_that_a_run_leaves_out_are_not() -> None:
    graph = rlx.Graph()
    x = graph.input("x", ("n", 64))
    y = rlx.softmax(x, axis=-1).cast("f16") @ graph.param("w", (64, 512), "f16")
    graph.output(y, rlx.softmax(x * 2.0, axis=-1))
    estimator = CudaEstimator(graph, Options(), known(asked_ns=1.0))
    assert any(isinstance(kernel.work, RowProduct) for kernel in estimator.program.main)
    few, many = estimator({"n": 1}), estimator({"n": 100})
    assert len(few.kernels) == 2 and len(many.kernels) == 3
    assert all(kernel.ns > 0 and kernel.nbytes > 0 for kernel in (*few.kernels, *many.kernels))


@pytest.mark.parametrize("channels, per_ns", [(1, 8.0), (2, 0.5)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [20, "s"])
def test_windows_over_channels_have_their_rate(channels: int, per_ns: float, stride: int, size: int | str) -> None:
    """Also of images of open size, whose rows are as far apart as only a run tells."""
    graph = rlx.Graph()
    x, w = graph.input("x", (1, 64, size, size)), graph.param("w", (64, channels, 3, 3))
    graph.output(rlx.conv(x, w, strides=(stride,) * 2, dilations=(1, 1), low=(0, 0), high=(0, 0),
                          groups=64 // channels))  # fmt: skip
    rates = {
        name: 8.0 if name.startswith("depthwise_") else rate for name, rate in known(grouped_18_per_ns=0.5).items()
    }
    made = GenericEstimator(graph, rates)({"s": 20} if size == "s" else {}).kernels
    (window,) = [kernel for kernel in made if kernel.kind == "window"]
    assert window.flops / window.compute_ns == pytest.approx(per_ns)
