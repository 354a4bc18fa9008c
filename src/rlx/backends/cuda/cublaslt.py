"""cuBLASLt through ctypes: the few calls that a product takes, their statuses, and descriptors that end with their
objects. Numbers are those of NVIDIA's header `cublasLt.h`, as versions 12 and 13 have them.

The library comes with the package `nvidia-cublas` (extra `cuda-blas`), which torch brings too. Matrices are in its
order, column after column.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlx.backends.cuda.driver import EXECUTION_FAILED, OUT_OF_MEMORY, CallError
from rlx.errors import DeviceUnavailable
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType

INSTALL = "pip install 'rlx[cuda-blas]'"
OLDEST = 12
"""The first version with the numbers below."""
TYPES = {dtypes.f32: 0, dtypes.f16: 2, dtypes.bf16: 14}
"""cudaDataType_t."""
COMPUTE_F32 = 68
"""Sums of f32, of f32 that are not cut to TF32."""
MATMUL_TRANSPOSE_A, MATMUL_TRANSPOSE_B, MATMUL_EPILOGUE, MATMUL_BIAS, MATMUL_BIAS_TYPE = 3, 4, 7, 8, 26
NO_EPILOGUE, BIAS_EPILOGUE = 1, 4
LAYOUT_COUNT, LAYOUT_STRIDE = 5, 6
PREFER_WORKSPACE, PREFER_REDUCTIONS, PREFER_ALIGNMENTS, PREFER_UNITS = 1, 3, (5, 6, 7, 8), 12
REDUCE_IN_F32 = 2
"""Parts of a sum are added up in the dtype of the sum, and not in that of results."""
FMA_OF_F32 = 1 << 0 | 2 << 8 | 8 << 16
"""Products and sums of f32 by units that cut nothing off."""
ALGORITHM_BYTES = 64
LARGEST_ALIGNMENT = 256
UNSUPPORTED = frozenset((8, 15))
"""Statuses of products, or of cards, that the library has nothing for."""
MISFITS = UNSUPPORTED | {7}
"""Those of an algorithm that is not for a product."""
STATUSES = {
    1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR",
}  # fmt: skip
DRIVERS_CODES = {3: OUT_OF_MEMORY, 13: EXECUTION_FAILED}
"""What the driver calls what some statuses tell."""
OTHER_CODE = -1


class StatusError(CallError):
    """A call of the library that failed. `code` is what the driver calls it, where that has a word for it."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(call, status, f"CUBLAS_STATUS_{STATUSES.get(status, 'UNKNOWN')}")
        self.status = status
        self.code = DRIVERS_CODES.get(status, OTHER_CODE)


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory: `lead` elements from column to column. Of a batch there are `count`, `stride` apart."""

    dtype: DType
    rows: int
    columns: int
    lead: int
    count: int = 1
    stride: int = 0


@dataclass(frozen=True)
class Algorithm:
    """One way to make a product: the library's own bytes, which hold for its version and a card."""

    data: bytes
    workspace_bytes: int


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint8 * ALGORITHM_BYTES),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_OUT = ctypes.POINTER(_POINTER)
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "Create": (_OUT,),
    "Destroy": (_POINTER,),
    "MatmulDescCreate": (_OUT, _INT, _INT),
    "MatmulDescDestroy": (_POINTER,),
    "MatmulDescSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "MatrixLayoutCreate": (_OUT, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "MatrixLayoutDestroy": (_POINTER,),
    "MatrixLayoutSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "MatmulPreferenceCreate": (_OUT,),
    "MatmulPreferenceDestroy": (_POINTER,),
    "MatmulPreferenceSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "MatmulAlgoGetHeuristic": (*(_POINTER,) * 7, _INT, ctypes.POINTER(_Result), ctypes.POINTER(_INT)),
    "MatmulAlgoCheck": (*(_POINTER,) * 7, ctypes.POINTER(_Result)),
    "Matmul": (*(_POINTER,) * 14, _SIZE, _POINTER),
}


def opened(path: Path) -> ctypes.CDLL:
    """The library with the signatures of its functions. Raises DeviceUnavailable."""
    try:
        library = ctypes.CDLL(str(path))
        for name, arguments in _SIGNATURES.items():
            getattr(library, f"cublasLt{name}").argtypes = arguments
        library.cublasLtGetVersion.restype = _SIZE
    except (OSError, AttributeError) as error:
        raise DeviceUnavailable(f"[device] {path} does not load: {error}") from error
    return library


class CublasLt:
    """The library, with a handle for the calling thread's context.

    version   as a number: 130100 is 13.1.0
    """

    def __init__(self, path: Path) -> None:
        """Raises DeviceUnavailable."""
        self._library = opened(path)
        self.version = int(self._of("GetVersion")())
        handle = _POINTER()
        try:
            self.call("Create", ctypes.byref(handle))
        except StatusError as error:
            raise DeviceUnavailable(f"[device] cuBLASLt {self.version} does not start: {error}") from error
        self.handle = handle

    def _of(self, name: str) -> ctypes._NamedFuncPointer:
        function: ctypes._NamedFuncPointer = getattr(self._library, f"cublasLt{name}")
        return function

    def call(self, name: str, *arguments: object) -> None:
        """Raises StatusError."""
        status = self._of(name)(*arguments)
        if status:
            raise StatusError(f"cublasLt{name}", status)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self._of("Destroy")(self.handle)


class _Described:
    """A descriptor of the library's of some kind, which goes with its object."""

    def __init__(self, library: CublasLt, kind: str, *arguments: object) -> None:
        self.library, self.kind = library, kind
        pointer = _POINTER()
        library.call(f"{kind}Create", ctypes.byref(pointer), *arguments)
        self.pointer = pointer

    def set(self, attribute: int, value: ctypes._SimpleCData[int] | ctypes.c_void_p) -> None:
        self.library.call(
            f"{self.kind}SetAttribute", self.pointer, attribute, ctypes.byref(value), ctypes.sizeof(value)
        )

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self.library._of(f"{self.kind}Destroy")(self.pointer)


def _layout(library: CublasLt, matrix: Matrix) -> _Described:
    layout = _Described(
        library, "MatrixLayout", TYPES[matrix.dtype], matrix.rows, matrix.columns, matrix.lead
    )  # fmt: skip
    if matrix.count > 1:
        layout.set(LAYOUT_COUNT, ctypes.c_int32(matrix.count))
        layout.set(LAYOUT_STRIDE, ctypes.c_int64(matrix.stride))
    return layout


@dataclass(frozen=True)
class Places:
    """Where the matrices of a product are on the device. `added` is the result's place where nothing is added."""

    left: int
    right: int
    added: int
    result: int
    bias: int = 0

    def alignments(self) -> tuple[int, ...]:
        """Of the four matrices, in bytes, as far as algorithms ask for one."""
        pointers = (self.left, self.right, self.added, self.result)
        return tuple(min(pointer & -pointer, LARGEST_ALIGNMENT) for pointer in pointers)


class Operation:
    """result = left · right [+ added] [+ bias along rows], with the sides as they are or transposed; sums are f32.

    added   the matrix that is added; None for none
    bias    whether each row has a number, of the result's dtype, that is added to all of it
    """

    def __init__(
        self, library: CublasLt, sides: tuple[Matrix, Matrix], transposed: tuple[bool, bool], result: Matrix,
        added: Matrix | None, bias: bool,
    ) -> None:  # fmt: skip
        """Raises StatusError."""
        self.library = library
        self.strict = sides[0].dtype is dtypes.f32
        self._product = _Described(library, "MatmulDesc", COMPUTE_F32, TYPES[dtypes.f32])
        for attribute, is_transposed in zip((MATMUL_TRANSPOSE_A, MATMUL_TRANSPOSE_B), transposed):
            self._product.set(attribute, ctypes.c_int32(is_transposed))
        self._product.set(MATMUL_EPILOGUE, ctypes.c_uint32(BIAS_EPILOGUE if bias else NO_EPILOGUE))
        if bias:
            self._product.set(MATMUL_BIAS_TYPE, ctypes.c_int32(TYPES[result.dtype]))
        self.bias = bias
        self._layouts = [_layout(library, matrix) for matrix in (*sides, added or result, result)]
        self._one, self._factor = ctypes.c_float(1), ctypes.c_float(added is not None)

    def _place_bias(self, places: Places) -> None:
        if self.bias:
            self._product.set(MATMUL_BIAS, ctypes.c_void_p(places.bias))

    @property
    def _described(self) -> tuple[ctypes.c_void_p, ...]:
        return (self.library.handle, self._product.pointer, *(layout.pointer for layout in self._layouts))

    def algorithms(self, places: Places, workspace_bytes: int, most: int) -> list[Algorithm]:
        """What the library recommends, the best first, for places that begin as these do; none for what it does not
        take. Raises StatusError."""
        wanted = _Described(self.library, "MatmulPreference")
        wanted.set(PREFER_WORKSPACE, ctypes.c_uint64(workspace_bytes))
        wanted.set(PREFER_REDUCTIONS, ctypes.c_uint32(REDUCE_IN_F32))
        for attribute, alignment in zip(PREFER_ALIGNMENTS, places.alignments()):
            wanted.set(attribute, ctypes.c_uint32(alignment))
        if self.strict:
            wanted.set(PREFER_UNITS, ctypes.c_uint64(FMA_OF_F32))
        self._place_bias(places)
        results, count = (_Result * most)(), ctypes.c_int()
        try:
            self.library.call(
                "MatmulAlgoGetHeuristic", *self._described, wanted.pointer, most, results, ctypes.byref(count)
            )
        except StatusError as error:
            if error.status not in UNSUPPORTED:
                raise
            return []
        found = [result for result in results[: count.value] if result.status == 0]
        fitting = [result for result in found if result.workspace_bytes <= workspace_bytes]
        return [Algorithm(bytes(result.algorithm), int(result.workspace_bytes)) for result in fitting]

    def check(self, data: bytes, places: Places, workspace_bytes: int) -> Algorithm | None:
        """An algorithm that was found before, if it makes this product here too, in a workspace of that size."""
        if len(data) != ALGORITHM_BYTES:
            return None
        self._place_bias(places)
        result = _Result()
        kept = ctypes.create_string_buffer(data, ALGORITHM_BYTES)
        try:
            self.library.call("MatmulAlgoCheck", *self._described, kept, ctypes.byref(result))
        except StatusError as error:
            if error.status not in MISFITS:
                raise
            return None
        fits = result.status == 0 and result.workspace_bytes <= workspace_bytes
        return Algorithm(data, int(result.workspace_bytes)) if fits else None

    def run(self, algorithm: Algorithm, places: Places, workspace: int, stream: int) -> None:
        """Gives a stream the product. Raises StatusError."""
        self._place_bias(places)
        handle, product, *layouts = self._described
        left, right, added, result = layouts
        self.library.call(
            "Matmul", handle, product, ctypes.byref(self._one), places.left, left, places.right, right,
            ctypes.byref(self._factor), places.added, added, places.result, result, algorithm.data, workspace,
            algorithm.workspace_bytes, stream,
        )  # fmt: skip


@cache
def path() -> Path | None:
    """The newest library that NVIDIA's packages have installed; None where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    found = [file for folder in folders for file in folder.glob("*/lib/libcublasLt.so.*") if _version(file) >= OLDEST]
    return max(found, key=_version, default=None)


def _version(file: Path) -> int:
    number = re.search(r"\.so\.(\d+)$", file.name)
    return int(number[1]) if number else 0


def why_absent() -> str:
    """Why there is no cuBLASLt here; empty if there is one."""
    return "" if path() else f"no cuBLASLt: {INSTALL}"


def load() -> CublasLt:
    """The library with a handle. Raises DeviceUnavailable."""
    found = path()
    if found is None:
        raise DeviceUnavailable(f"[device] {why_absent()}")
    return CublasLt(found)


def shown_version(number: int) -> str:
    """131000 as 13.10.0."""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
