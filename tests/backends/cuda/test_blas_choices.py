"""Whether our kernel or an algorithm of cuBLASLt's makes a product, what is kept of that, and what fails there."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import rlx
from benchmarks import gpu_blas
from rlx.backends.base import Options
from rlx.backends.cuda import blas, cublaslt, device
from rlx.backends.cuda.blas import Blas
from rlx.backends.cuda.bound import CudaBound
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.cuda.products import Bias, Operand, Product
from rlx.errors import DeviceLost, DriverError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.literal import Array

from .emulated_driver import EmulatedDriver
from .fake_cublaslt import (
    ALLOC_FAILED,
    EXECUTION_FAILED,
    INTERNAL_ERROR,
    INVALID_VALUE,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    FakeLibrary,
)
from .graphs import compiled
from .product_graphs import ROWS, bound_of, dense, products, whole, wide


@pytest.mark.parametrize(
    ("own", "costs", "chosen"),
    [
        (50_000, (40_000, 10_000, 20_000), 1),
        (50_000, (30_000, 40_000, 60_000), 0),
        (9_000, (40_000, 10_000, 20_000), None),
    ],
)
def test_the_fastest_is_chosen(
    own: int, costs: tuple[int, ...], chosen: int | None, fake: FakeLibrary, driver: EmulatedDriver
) -> None:
    driver.launch_ns, fake.costs = own, dict(enumerate(costs))
    executable, x, expected = dense()
    bound = bound_of(executable, m=ROWS)
    for _ in range(3):
        np.testing.assert_array_equal(wide(bound([x])[0]), expected)
    made = products(bound)
    assert len(made) == (chosen is not None)
    if chosen is not None:
        assert fake.jobs[-1] == chosen
    assert f"13.1.0, which is faster for {len(made)} of 1" in executable.describe()["products"]
    (choice,) = choices(executable).values()
    assert choice.own_ns >= own and min(costs) <= choice.library_ns < min(costs) + 1000


def choices(executable: CudaExecutable) -> dict[str, blas.Choice]:
    found = executable.device.blas
    assert isinstance(found, Blas)
    return found.choices


def test_a_gain_within_the_noise_is_none(fake: FakeLibrary, driver: EmulatedDriver) -> None:
    driver.launch_ns, fake.costs = 1_000_000, dict.fromkeys(range(3), 990_000)
    executable, x, _ = dense()
    bound = bound_of(executable, m=ROWS)
    bound([x])
    assert not products(bound)


def test_few_rows_stay_ours(fake: FakeLibrary, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "LEAST_ROWS", ROWS + 1)
    driver.launch_ns = 50_000
    executable, x, _ = dense()
    bound_of(executable, m=ROWS)([x])
    assert not fake.calls() and f"a run with {ROWS + 1} rows" in executable.describe()["products"]


def test_off_is_off(fake: FakeLibrary, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CUDA_BLAS", "off")
    driver.launch_ns = 50_000
    executable, x, expected = dense()
    np.testing.assert_array_equal(wide(bound_of(executable, m=ROWS)([x])[0]), expected)
    assert not fake.calls() and "RLX_CUDA_BLAS" in executable.describe()["products"]


def test_copies_of_weights_leave_memory_to_others(
    fake: FakeLibrary, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "LEAST_FREE", 1)
    driver.launch_ns = 50_000
    executable, x, expected = dense()
    bound = bound_of(executable, m=ROWS)
    np.testing.assert_array_equal(wide(bound([x])[0]), expected)
    assert not products(bound)


def test_a_choice_is_remembered(fake: FakeLibrary, driver: EmulatedDriver) -> None:
    """By programs of a device, at numbers of rows that are about the same."""
    driver.launch_ns = 50_000
    executable, x, _ = dense()
    bound_of(executable, m=ROWS)([x])
    assert fake.calls().count("MatmulAlgoGetHeuristic") == 1
    again, x, expected = dense()
    bound = bound_of(again, m=ROWS)
    np.testing.assert_array_equal(wide(bound([x])[0]), expected)
    assert len(products(bound)) == 1
    more = bound_of(again, m=ROWS + 3)
    more([whole((ROWS + 3, 64), 1)])
    assert len(products(more)) == 1
    calls = fake.calls()
    assert "MatmulAlgoGetHeuristic" not in calls and "MatmulAlgoCheck" in calls
    many = bound_of(again, m=4 * ROWS)
    many([whole((4 * ROWS, 64), 1)])
    assert fake.calls().count("MatmulAlgoGetHeuristic") == 1


def test_products_of_one_program_that_share_a_choice(fake: FakeLibrary, driver: EmulatedDriver) -> None:
    """Each with its own number of rows."""
    driver.launch_ns = 50_000
    graph = Graph("two")
    w = graph.param("w", (64, 72), "f16")
    graph.output(graph.input("x", ("m", 64), "f16") @ w, graph.input("y", ("l", 64), "f16") @ w)
    given, w_given = (whole((ROWS, 64), 1), whole((ROWS + 5, 64), 3)), whole((64, 72), 2)
    bound = bound_of(compiled(graph, {"w": w_given}), m=ROWS, l=ROWS + 5)
    for result, array in zip(bound(given), given):
        np.testing.assert_array_equal(wide(result), wide(array) @ wide(w_given))
    assert len(products(bound)) == 2


def test_numbers_of_rows_that_share_a_choice() -> None:
    assert [blas.bucket_of(rows) for rows in (512, 639, 640, 1000, 4096, 5119, 5120)] == [
        512,
        512,
        640,
        896,
        4096,
        4096,
        5120,
    ]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "kept"))


def kept_run(monkeypatch: pytest.MonkeyPatch) -> CudaBound:
    """A run on a device that was just opened, by a program that keeps what it finds."""
    monkeypatch.setattr(device, "_devices", {})
    graph = Graph("kept")
    graph.output(graph.input("x", (ROWS, 64), "f16") @ graph.param("w", (64, 72), "f16"))
    x, w = whole((ROWS, 64), 1), whole((64, 72), 2)
    bound = bound_of(compiled(graph, {"w": w}, Options(cache=True)))
    np.testing.assert_array_equal(wide(bound([x])[0]), wide(x) @ wide(w))
    return bound


def test_a_choice_is_kept_on_disk(
    fake: FakeLibrary, driver: EmulatedDriver, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.launch_ns = 50_000
    kept_run(monkeypatch)
    assert "MatmulAlgoGetHeuristic" in fake.calls()
    assert len(products(kept_run(monkeypatch))) == 1
    assert "MatmulAlgoGetHeuristic" not in fake.calls()
    monkeypatch.setattr(driver, "device_name", lambda ordinal: "Another")
    kept_run(monkeypatch)
    assert "MatmulAlgoGetHeuristic" in fake.calls()


def test_our_own_kernel_is_kept_on_disk_too(
    fake: FakeLibrary, driver: EmulatedDriver, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.costs = dict.fromkeys(range(3), 50_000)
    for _ in range(2):
        fake.calls()
        assert not products(kept_run(monkeypatch))
    assert "MatmulAlgoGetHeuristic" not in fake.calls()


def test_a_kept_algorithm_that_does_not_fit_is_found_anew(
    fake: FakeLibrary, driver: EmulatedDriver, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.launch_ns = 50_000
    kept_run(monkeypatch)
    fake.calls()
    fake.fail("MatmulAlgoCheck", INVALID_VALUE)
    assert len(products(kept_run(monkeypatch))) == 1
    assert "MatmulAlgoGetHeuristic" in fake.calls()


# failures


def run(executable: CudaExecutable, x: Array, expected: Array) -> CudaBound:
    bound = bound_of(executable, m=ROWS)
    np.testing.assert_array_equal(wide(bound([x])[0]), expected)
    return bound


def test_without_the_library_kernels_are_ours_and_the_reason_is_told(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "LEAST_ROWS", 8)
    monkeypatch.setenv("RLX_CUDA_BLAS", "auto")
    executable, x, expected = dense()
    for _ in range(2):  # known before it was asked for, too
        assert "no library of products" in executable.describe()["products"]
        assert not products(run(executable, x, expected))


def test_a_library_that_does_not_start(fake: FakeLibrary) -> None:
    fake.fail("Create", NOT_INITIALIZED)
    executable, x, expected = dense()
    assert not products(run(executable, x, expected))
    assert "CUBLAS_STATUS_NOT_INITIALIZED" in executable.describe()["products"]
    assert fake.calls() == ["Create"]


def test_products_that_are_not_supported(always: FakeLibrary) -> None:
    always.fail("MatmulAlgoGetHeuristic", NOT_SUPPORTED)
    assert not products(run(*dense()))


def test_no_algorithm(always: FakeLibrary) -> None:
    always.offer(0)
    assert not products(run(*dense()))


def test_an_algorithm_that_does_not_run(always: FakeLibrary) -> None:
    """The others are left."""
    always.fail("Matmul", NOT_SUPPORTED)
    always.costs = {1: 9_000, 2: 3_000}
    assert len(products(run(*dense()))) == 1
    assert 0 not in always.jobs and always.jobs[-1] == 2


def test_a_workspace_that_there_is_no_memory_for(always: FakeLibrary, driver: EmulatedDriver) -> None:
    driver.capacity = blas.WORKSPACE_BYTES
    executable, x, expected = dense()
    assert not products(run(executable, x, expected))
    driver.capacity = 1 << 28
    assert len(products(run(executable, x, expected))) == 1  # at the next size or program, which tries again


def test_memory_that_the_library_itself_lacks(always: FakeLibrary) -> None:
    always.fail("MatmulDescCreate", ALLOC_FAILED)
    assert not products(run(*dense()))


@pytest.mark.parametrize("call", ["MatmulAlgoGetHeuristic", "MatrixLayoutCreate", "MatmulDescSetAttribute"])
def test_calls_that_are_wrong_are_errors(call: str, always: FakeLibrary) -> None:
    executable, x, expected = dense()
    before = always.living
    always.fail(call, INVALID_VALUE)
    with pytest.raises(DriverError, match=rf"cublasLt{call} gave CUBLAS_STATUS_INVALID_VALUE \(7\)"):
        bound_of(executable, m=ROWS)([x])
    gc.collect()
    assert always.living <= before + 1
    assert len(products(run(executable, x, expected))) == 1


def test_an_unknown_failure_of_a_run_is_an_error(always: FakeLibrary) -> None:
    executable, x, expected = dense()
    bound = run(executable, x, expected)
    always.fail("Matmul", INTERNAL_ERROR)
    with pytest.raises(DriverError, match="INTERNAL_ERROR"):
        bound([x])  # takes down the graph
    np.testing.assert_array_equal(wide(bound([x])[0]), expected)


def test_a_failed_execution_is_a_lost_device(always: FakeLibrary) -> None:
    """The next run opens it anew, with another handle of the library."""
    executable, x, expected = dense()
    bound = run(executable, x, expected)
    lost = executable.device
    always.fail("Matmul", EXECUTION_FAILED)
    with pytest.raises(DeviceLost, match="EXECUTION_FAILED"):
        bound([x])
    always.calls()
    np.testing.assert_array_equal(wide(bound([x])[0]), expected)
    assert executable.device is not lost and "Create" in always.calls() and len(products(bound)) == 1


# the library's files


def test_the_newest_library_of_the_packages_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, name in (("cublas", "libcublasLt.so.12"), ("cu13", "libcublasLt.so.13"), ("old", "libcublasLt.so.11")):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib" / name).touch()

    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(cublaslt.importlib.util, "find_spec", lambda name: spec)
    cublaslt.path.cache_clear()
    found = cublaslt.path()
    assert found is not None and found.name == "libcublasLt.so.13"
    with pytest.raises(rlx.errors.DeviceUnavailable, match=r"libcublasLt\.so\.13 does not load"):
        cublaslt.load()
    for file in tmp_path.glob("*/lib/*"):
        file.unlink()
    cublaslt.path.cache_clear()
    assert "rlx[cuda-blas]" in cublaslt.why_absent()
    cublaslt.path.cache_clear()


class WithoutDevice(cublaslt.CublasLt):
    """The library of this machine, without a handle, as it starts on no machine without a GPU."""

    def __init__(self, path: Path) -> None:
        self._library = cublaslt.opened(path)
        self.handle = ctypes.c_void_p()

    def __del__(self) -> None:
        """There is nothing to destroy."""


@pytest.mark.skipif(cublaslt.path() is None, reason=cublaslt.why_absent())
@pytest.mark.parametrize("dtype", cublaslt.TYPES, ids=str)
def test_the_real_library_takes_descriptors(dtype: DType) -> None:
    """Attributes have the sizes that it wants; what is asked for next is refused for want of a GPU alone."""
    found = cublaslt.path()
    assert found is not None
    operands = [Operand(slot, 0, lead, lead * 4096, slot == 1) for slot, lead in enumerate((3072, 3072, 768, 768))]
    product = Product(4096, 768, 3072, 3, dtype, dtype, *operands, Bias(4, 0, dtype))
    operation = blas.operation_of(WithoutDevice(found), product)
    with pytest.raises(cublaslt.StatusError) as told:
        operation.algorithms(blas.places_of(product, (256, 512, 1024, 2048, 4096)), blas.WORKSPACE_BYTES, 8)
    assert told.value.status == NOT_INITIALIZED


# the benchmark


def test_the_benchmark_of_products_runs(
    fake: FakeLibrary, driver: EmulatedDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.launch_ns, fake.costs = 30_000, {0: 40_000, 1: 20_000, 2: 50_000}
    gpu_blas.main(["64x72", "64x48+", "--rows", "40"])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("40x64x72") and second.startswith("40x64x48+")
    for line in (first, second):
        ours, library = (float(line.split(word)[1].split()[0].rstrip(",")) for word in ("ours", "cuBLASLt"))
        assert 30 <= ours < 32 and 20 <= library < 22 and "chosen cuBLASLt" in line


def test_the_benchmark_says_why_there_is_no_library(driver: EmulatedDriver) -> None:
    with pytest.raises(SystemExit, match="no library of products"):
        gpu_blas.main(["64x72", "--rows", "40"])
