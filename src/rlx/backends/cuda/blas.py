"""Products by cuBLASLt, where that is faster than our kernel: which algorithm, found once for each shape, and launches.

The first run at a size times our kernel and what the library recommends, on memory of their own with random numbers.
What was found is kept in memory and on disk, by the card, the driver, the library, our kernel and the shape.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import disk, flags, logs
from rlx.backends.cuda import cublaslt, plain
from rlx.backends.cuda.build import Plan
from rlx.backends.cuda.cublaslt import (
    LARGEST_ALIGNMENT,
    MISFITS,
    Algorithm,
    CublasLt,
    Matrix,
    Operation,
    Places,
    StatusError,
)
from rlx.backends.cuda.device import Device, Memory
from rlx.backends.cuda.driver import OUT_OF_MEMORY, CallError, Driver
from rlx.backends.cuda.finish import Finisher, of_product
from rlx.backends.cuda.launches import Given, Launch, give
from rlx.backends.cuda.moving import Sizes
from rlx.backends.cuda.products import BESIDE, Operand, Product, product_of
from rlx.backends.cuda.weights import Weights
from rlx.backends.simt_unroll import Started
from rlx.errors import DeviceUnavailable, OutOfMemory
from rlx.ir import dim as dims
from rlx.ir.dtype import DType
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import Kernel, storage_roots

LEAST_ROWS = 512
"""Of all matrices of the left side. Products of fewer take some microseconds, which our kernels partly spend while the
kernel before ends, and norms in front are parts of those of few."""
WORKSPACE_BYTES = 32 << 20
"""What the library's fastest algorithms want on compute capability 9.0."""
MOST_ALGORITHMS = 8
GAIN = 0.97
"""The part of our kernel's time that the library may take to be chosen: times differ by some percent by themselves, and
ours begins while the kernel before ends."""
ROUNDS, MOST_REPEATS = 3, 8
"""Times that each is measured, by turns, and launches in a row of each time."""
MEASURED_FLOPS = 1 << 37
"""Of launches in a row: about 0.3 ms of the fastest cards."""
RANDOM = 1 << 16
"""Random numbers that scratch memory repeats."""
LEAST_FREE = 4
"""The part of the device's memory, as a divisor, that copies of weights leave free."""
PREFIX = "cuda-product-"
"""What keys on disk begin with."""


@dataclass(frozen=True)
class Choice:
    """The library's best algorithm for a product, b"" for none, and what it and our kernel take."""

    algorithm: bytes
    library_ns: float
    own_ns: float

    @property
    def is_faster(self) -> bool:
        return bool(self.algorithm) and self.library_ns < GAIN * self.own_ns

    def encoded(self) -> bytes:
        return json.dumps([self.algorithm.hex(), self.library_ns, self.own_ns]).encode()

    @staticmethod
    def decoded(body: bytes) -> Choice:
        algorithm, library_ns, own_ns = json.loads(body)
        return Choice(bytes.fromhex(algorithm), float(library_ns), float(own_ns))


@dataclass(frozen=True)
class ProductLaunch(Given):
    """A product that the library makes in place of a kernel, and what of ours finishes it. `workspace` and `held` stay
    as long as it does."""

    kernel: Kernel
    operation: Operation
    algorithm: Algorithm
    places: Places
    workspace: Memory
    held: tuple[Memory, ...] = ()
    finish: Launch | None = None

    def on(self, driver: Driver, stream: Any, overlapping: bool = False) -> None:
        self.operation.run(self.algorithm, self.places, self.workspace.pointer, driver.stream_number(stream))
        if self.finish is not None:
            self.finish.on(driver, stream)


class Blas:
    """The library on a device, and what was found there.

    reason    why it is not there; empty if it is
    choices   by what they depend on
    """

    def __init__(self, device: Device) -> None:
        """Call it within `Device.work`."""
        self.device = device
        self.reason = ""
        self.library: CublasLt | None = None
        self.choices: dict[str, Choice] = {}
        self.copier = plain.Copier(device)
        self.finisher = Finisher(device)
        self._workspace: Memory | None = None
        self._beside: Callable[[], Memory | None] = lambda: None
        try:
            self.library = device.driver.blas()
        except DeviceUnavailable as error:
            self.reason = str(error)
            logs.tell(logs.COMPILES, "cuda", f"products are made by kernels of rlx alone: {error}")

    def __str__(self) -> str:
        if self.library is None:
            return self.reason
        faster = sum(choice.is_faster for choice in self.choices.values())
        version = cublaslt.shown_version(self.library.version)
        return f"cuBLASLt {version}, which is faster for {faster} of {len(self.choices)} that were measured"

    def workspace(self) -> Memory:
        """What all products share, which run one after the other. Call it within `Device.work`. Raises OutOfMemory."""
        if self._workspace is None:
            self._workspace = self.device.allocate(WORKSPACE_BYTES, "the workspace of cuBLASLt")
        return self._workspace

    def beside(self, nbytes: int) -> Memory:
        """Memory for results that only a map reads, which products share as they do the workspace, and keep: it is
        given back with the last of them. Call it within `Device.work`. Raises OutOfMemory."""
        shared = self._beside()
        if shared is None or shared.nbytes < nbytes:
            keep_free(self.device, nbytes)
            shared = self.device.allocate(nbytes, "results of a product by cuBLASLt")
            self._beside = weakref.ref(shared)
        return shared


def of(device: Device) -> Blas:
    """The library on a device, loaded once for each. Call it within `Device.work`."""
    if not isinstance(device.blas, Blas):
        device.blas = Blas(device)
    return device.blas


def told(device: Device) -> str:
    """What makes products beside our kernels, or why nothing does; nothing is loaded for it."""
    if flags.cuda_blas() == "off":
        return "kernels of rlx alone: RLX_CUDA_BLAS is off"
    if isinstance(device.blas, Blas):
        return str(device.blas)
    return device.driver.why_no_blas() or f"cuBLASLt, asked for by a run with {LEAST_ROWS} rows"


class Chooser:
    """Has the library make those products of a program at one size that it makes faster.

    cache   whether what is found is kept on disk
    """

    def __init__(self, device: Device, plan: Plan, sizes: Sizes, weights: Weights, cache: bool) -> None:
        self.device = device
        self.plan = plan
        self.sizes = sizes
        self.weights = weights
        self.cache = cache
        self.mode = flags.cuda_blas()
        self._static = plan.program.static_buffers()
        self._found: dict[tuple[str, Product], tuple[Operation, Algorithm] | None] = {}

    def __call__(self, each: Started, own: Launch) -> Given:
        """The launch of a product, or our own. Call it within `Device.work`. Raises CallError, CompileError."""
        product = self._product(each.kernel)
        if product is None:
            return own
        blas = of(self.device)
        if blas.library is None:
            return own
        try:
            return self._launch(blas, blas.library, product, each, own)
        except (OutOfMemory, CallError) as error:
            if isinstance(error, CallError) and error.code != OUT_OF_MEMORY:
                raise
            logs.tell(logs.COMPILES, "cuda", f"{each.kernel.name} is not made by cuBLASLt: {error}")
            return own

    def _product(self, kernel: Kernel) -> Product | None:
        """A kernel as the library may have it; None of all that it may not."""
        work, moving = kernel.work, self.sizes.moving.keys()
        if self.mode == "off" or not isinstance(work, Contraction):
            return None
        if any(dims.symbols(dim) & moving for dim in work.dims()):
            return None
        product = product_of(work, lambda dim: dims.evaluate(dim, self.sizes.binding))
        if product is None or (self.mode == "auto" and product.m * product.count < LEAST_ROWS):
            return None
        copied = [product.right.slot] if product.panels else []
        if product.bias is not None and product.bias.dtype is not product.out:
            copied.append(product.bias.slot)
        return product if all(self._stays(kernel.slots[slot]) for slot in copied) else None

    def _stays(self, number: int) -> bool:
        """Whether a buffer is the same until weights are set anew."""
        roots = storage_roots(self.plan.program, number)
        return (number in self._static or roots <= self._static) and roots.isdisjoint(self.weights.reserved)

    def _launch(self, blas: Blas, library: CublasLt, product: Product, each: Started, own: Launch) -> Given:
        key = self._key(library, product, each, own)
        if (key, product) not in self._found:
            self._found[key, product] = self._find(blas, library, key, product, each, own)
        found = self._found[key, product]
        if found is None:
            return own
        beside = blas.beside(product.beside_bytes) if product.beside_bytes else None
        finish = self._finish(blas, product, each.kernel, (*each.starts, *([beside.pointer] if beside else [])))
        if product.rest is not None and finish is None:
            return own
        copies = (*self._copies(blas.copier, product, each), beside)
        places = places_of(product, each.starts, *(copy.pointer if copy else 0 for copy in copies))
        held = tuple(copy for copy in copies if copy is not None)
        return ProductLaunch(each.kernel, *found, places, blas.workspace(), held, finish)

    def _finish(self, blas: Blas, product: Product, kernel: Kernel, starts: Sequence[int]) -> Launch | None:
        """What makes the rest of a product; None if there is none, or not for buffers that begin there, and behind them
        memory beside them, if the product has results in that."""
        if product.rest is None:
            return None
        work, buffers = kernel.work, self.plan.program.buffers
        assert isinstance(work, Contraction)
        dtypes = [buffers[number].dtype for number in kernel.slots] + [product.out] * (product.beside_bytes > 0)
        finish = of_product(work, product.rest, product.out, dtypes)
        return blas.finisher.launch(finish, starts, self.sizes, self.cache)

    def _key(self, library: CublasLt, product: Product, each: Started, own: Launch) -> str:
        driver = self.device.driver
        shape = dataclasses.replace(product, m=bucket_of(product.m))
        parts = (
            self.device.name, self.device.architecture, driver.version(), driver.compiler, library.version,
            own.function.name, shape, places_of(product, each.starts).alignments(),
        )  # fmt: skip
        return PREFIX + hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()

    def _find(
        self, blas: Blas, library: CublasLt, key: str, product: Product, each: Started, own: Launch
    ) -> tuple[Operation, Algorithm] | None:
        """The algorithm to take; None for our own kernel."""
        operation = operation_of(library, product)
        choice = blas.choices.get(key) or self._kept(key)
        places = places_of(product, each.starts)
        if choice is None or (choice.algorithm and not operation.check(choice.algorithm, places, WORKSPACE_BYTES)):
            choice = self._measured(blas, operation, product, each, own)
            self.device.trim()  # of what that took
            if self.cache:
                disk.write(key, choice.encoded())
            logs.tell(
                logs.PASSES, "cuda",
                f"{each.kernel.name} {product.m}x{product.k}x{product.n}: {choice.own_ns / 1e3:.1f} us, by cuBLASLt "
                f"{choice.library_ns / 1e3:.1f}",
            )  # fmt: skip
        blas.choices[key] = choice
        if not (choice.is_faster or (self.mode == "always" and choice.algorithm)):
            return None
        algorithm = operation.check(choice.algorithm, places, WORKSPACE_BYTES)
        return None if algorithm is None else (operation, algorithm)

    def _kept(self, key: str) -> Choice | None:
        body = disk.read(key) if self.cache else None
        return None if body is None else Choice.decoded(body)

    def _copies(self, copier: plain.Copier, product: Product, each: Started) -> tuple[Memory | None, Memory | None]:
        """The weight and the bias as the library reads them, where they do not lie so."""
        weight = bias = None
        slots, starts, cache = each.kernel.slots, each.starts, self.cache
        panels, of, right = product.panels, product.bias, product.right.slot
        if panels is not None:
            form = plain.of_panels(panels, product.dtype)

            def made() -> Memory:
                keep_free(self.device, panels.count * product.n * product.k * product.dtype.itemsize)
                return copier.made(form, starts[right], cache)

            weight = self.weights.copy(slots[right], form, made)
        if of is not None and of.dtype is not product.out:
            narrow = plain.rounded(product.n, of, product.out)
            bias = self.weights.copy(slots[of.slot], narrow, lambda: copier.made(narrow, starts[of.slot], cache))
        return weight, bias

    # measurements

    def _measured(self, blas: Blas, operation: Operation, product: Product, each: Started, own: Launch) -> Choice:
        """Times our kernel and the library's algorithms."""
        scratch = _Scratch(self.device, self.plan, self.sizes, product, each)
        workspace = blas.workspace()
        finish = self._finish(blas, product, each.kernel, (*scratch.starts, *scratch.beside))
        made: list[ProductLaunch] = []
        for algorithm in operation.algorithms(scratch.places, WORKSPACE_BYTES, MOST_ALGORITHMS):
            launch = ProductLaunch(each.kernel, operation, algorithm, scratch.places, workspace, (), finish)
            try:
                launch.on(self.device.driver, self.device.stream)
            except StatusError as error:
                if error.status not in MISFITS:
                    raise
                continue
            made.append(launch)
        flops = 2 * product.m * product.n * product.k * product.count
        repeats = max(1, min(MOST_REPEATS, MEASURED_FLOPS // flops))
        own_ns, *times = timed(self.device, [own.moved(scratch.starts), *made], repeats)
        if not made:
            return Choice(b"", 0.0, own_ns)
        best = int(np.argmin(times))
        return Choice(made[best].algorithm.data, times[best], own_ns)


def keep_free(device: Device, nbytes: int) -> None:
    """Raises OutOfMemory where so many bytes more would leave too little memory to others."""
    free, total = device.driver.memory()
    if free - nbytes < total // LEAST_FREE:
        raise OutOfMemory(
            f"[memory] expected a quarter of {total} bytes on {device.name} to stay free behind a copy of {nbytes}, "
            f"got {free} free"
        )


def bucket_of(rows: int) -> int:
    """Numbers of rows that share a choice, by the first three bits: a size in traffic is not measured each time."""
    unit = 1 << max(rows.bit_length() - 3, 0)
    return rows // unit * unit


def operation_of(library: CublasLt, product: Product) -> Operation:
    """A product as the library has it: its columns are our rows, so that all is transposed and sides are swapped.
    Raises StatusError."""
    n, m, k, count = product.n, product.m, product.k, product.count

    def side(operand: Operand, rows: int, columns: int) -> Matrix:
        extents = (columns, rows) if operand.across else (rows, columns)
        return Matrix(product.dtype, *extents, operand.lead, count, operand.stride)

    def whole(operand: Operand) -> Matrix:
        return Matrix(product.out, n, m, operand.lead, count, operand.stride)

    return Operation(
        library, (side(product.right, n, k), side(product.left, k, m)), (product.right.across, product.left.across),
        whole(product.result), whole(product.added) if product.added else None, product.bias is not None,
    )  # fmt: skip


def places_of(
    product: Product,
    starts: tuple[int, ...],
    weight: int = LARGEST_ALIGNMENT,
    bias: int = LARGEST_ALIGNMENT,
    beside: int = LARGEST_ALIGNMENT,
) -> Places:
    """Where the matrices lie in buffers that start there; `weight` and `bias` are copies, where the library takes such,
    and `beside` is where results begin that lie in none. These begin at multiples of what any algorithm asks for,
    wherever they will be."""

    def place(operand: Operand, dtype: DType) -> int:
        start = beside if operand.slot == BESIDE else starts[operand.slot]
        return start + operand.first * dtype.itemsize

    right = weight if product.panels else place(product.right, product.dtype)
    result = place(product.result, product.out)
    of = product.bias
    if of is not None and of.dtype is product.out:
        bias = starts[of.slot] + of.first * of.dtype.itemsize
    added = place(product.added, product.out) if product.added else result
    return Places(right, place(product.left, product.dtype), added, result, bias)


class _Scratch:
    """Memory with random numbers for a product, by our kernel and by the library. Buffers begin as far from aligned
    places as those that it is for.

    starts   of the buffers in the kernel's slots
    beside   where results begin that lie in none of them, if there are such
    places   of the matrices
    """

    def __init__(self, device: Device, plan: Plan, sizes: Sizes, product: Product, each: Started) -> None:
        """Call it within `Device.work`. Raises OutOfMemory."""
        self.device = device
        self._memory: list[Memory] = []
        buffers = [plan.program.buffers[number] for number in each.kernel.slots]
        by_start: dict[int, tuple[int, DType]] = {}
        for buffer, start in zip(buffers, each.starts):
            nbytes = dims.evaluate(buffer.nbytes, sizes.binding)
            by_start[start] = max(nbytes, by_start.get(start, (0, buffer.dtype))[0]), buffer.dtype
        moved = {start: self._place(nbytes, dtype, start) for start, (nbytes, dtype) in by_start.items()}
        self.starts = tuple(moved[start] for start in each.starts)
        weight = bias = 0
        if product.panels is not None:
            weight = self._place(product.panels.count * product.n * product.k * product.dtype.itemsize, product.dtype)
        if product.bias is not None and product.bias.dtype is not product.out:
            bias = self._place(product.n * product.out.itemsize, product.out)
        self.beside = [self._place(product.beside_bytes, product.out)] if product.beside_bytes else []
        self.places = places_of(product, self.starts, weight, bias, *self.beside)

    def _place(self, nbytes: int, dtype: DType, like: int = 0) -> int:
        away = like % LARGEST_ALIGNMENT
        memory = self.device.allocate(nbytes + away, "operands to time a product")
        self._memory.append(memory)
        driver, stream = self.device.driver, self.device.stream
        numbers = np.random.default_rng(0).standard_normal(RANDOM).astype(dtype.numpy)
        first, done = memory.pointer + away, min(numbers.nbytes, nbytes)
        if done:
            driver.copy_in(first, numbers.ctypes.data, done, stream)
        while done < nbytes:
            more = min(done, nbytes - done)
            driver.copy(first + done, first, more, stream)
            done += more
        return first


def timed(device: Device, launches: list[Given], repeats: int) -> list[float]:
    """The least times in ns of each, alone on the device, by graphs of `repeats` in a row. Call it within
    `Device.work`."""
    driver, stream = device.driver, device.stream
    executables, events = [], [driver.event(timed=True) for _ in range(2)]
    best = [float("inf")] * len(launches)
    try:
        for launch in launches:
            driver.begin_capture(stream)
            try:
                give(driver, [launch] * repeats, stream)
            finally:
                graph = driver.end_capture(stream)
            executables.append(driver.instantiate(graph))
            driver.drop_graph(graph)
            driver.replay(executables[-1], stream)
        for _ in range(ROUNDS):
            for number, executable in enumerate(executables):
                driver.record(events[0], stream)
                driver.replay(executable, stream)
                driver.record(events[1], stream)
                driver.wait_for(events[1])
                best[number] = min(best[number], driver.elapsed_ns(*events) / repeats)
    finally:
        for executable in executables:
            device.later(driver.drop_executable, executable)
        for event in events:
            device.later(driver.drop_event, event)
    return best
