"""cuBLASLt on the processor (`cublaslt_library.cpp`): products are done when the emulated stream comes to them."""

from __future__ import annotations

import ctypes
import gc
import subprocess
from pathlib import Path
from typing import Any

from rlx.backends.cuda.cublaslt import CublasLt

from .emulated_driver import EmulatedDriver, Operation

SOURCE = Path(__file__).with_name("cublaslt_library.cpp")
NOT_INITIALIZED, ALLOC_FAILED, INVALID_VALUE, EXECUTION_FAILED, INTERNAL_ERROR, NOT_SUPPORTED = 1, 3, 7, 13, 14, 15


def build(folder: Path) -> Path:
    library = folder / "libcublasLt.so.13"
    subprocess.run(["g++", "-O1", "-std=c++17", "-shared", "-fPIC", str(SOURCE), "-o", str(library)], check=True)
    return library


class FakeLibrary:
    """The library that a driver has.

    costs   ns of each algorithm by the clock of events
    jobs    algorithms of the products that were done, in their order
    places  where each of these read and wrote: pairs of a place and bytes
    """

    def __init__(self, path: Path, driver: EmulatedDriver) -> None:
        self.path = path
        self.driver = driver
        self.library = ctypes.CDLL(str(path))
        self.library.noted_calls.restype = ctypes.c_char_p
        self.library.living_objects.restype = ctypes.c_long
        self.library.offer.argtypes = (ctypes.c_int, ctypes.c_uint64)
        self.costs: dict[int, int] = {}
        self.jobs: list[int] = []
        self.places: list[list[tuple[int, int]]] = []
        self._give = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)(self._given)
        self.library.set_give(self._give)
        gc.collect()  # of devices that earlier tests have left
        self.library.forget_calls()
        self.library.forget_failures()
        self.offer(3)

    def open(self) -> CublasLt:
        return CublasLt(self.path)

    def _given(self, stream: int, job: int, algorithm: int) -> None:
        self.driver._of(stream).give(Operation("product", lambda: self._do(job, algorithm), algorithm))

    def _do(self, job: int, algorithm: int) -> None:
        numbers = (ctypes.c_uint64 * 12)()
        self.library.job_places(job, numbers)
        pairs = [(int(place), int(nbytes)) for place, nbytes in zip(numbers[::2], numbers[1::2])]
        for place, nbytes in pairs:
            if nbytes:
                self.driver._check(place, nbytes)
        self.places.append(pairs)
        self.jobs.append(algorithm)
        self.library.run_job(job)
        self.driver.clock += self.costs.get(algorithm, 0)

    # what tests look at, and set

    def calls(self) -> list[str]:
        """Names of calls since the last time, but of those that end what others may have made: see `living`."""
        calls = self.library.noted_calls().decode().splitlines()
        self.library.forget_calls()
        return [call for call in calls if not call.endswith("Destroy")]

    def fail(self, call: str, status: int, after: int = 0) -> None:
        """Has a call fail: the first, or the one after so many."""
        self.library.fail_call(call.encode(), status, after)

    def offer(self, algorithms: int, workspace: int = 4096) -> None:
        """Has so many algorithms, of which all but the first want a workspace."""
        self.library.offer(algorithms, workspace)

    @property
    def living(self) -> int:
        """Handles and descriptors that were made and not destroyed."""
        return int(self.library.living_objects())


def installed(monkeypatch: Any, path: Path, driver: EmulatedDriver) -> FakeLibrary:
    """The library as that of a driver."""
    fake = FakeLibrary(path, driver)
    monkeypatch.setattr(driver, "blas", fake.open)
    monkeypatch.setattr(driver, "why_no_blas", lambda: "")
    return fake
