"""Kernels in the order in which they run, with their arguments made ready: pointers, and numbers of dims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx.backends.cuda.build import Plan
from rlx.backends.cuda.device import Function
from rlx.backends.cuda.driver import MAP_BYTES, Driver
from rlx.backends.cuda.moving import Sizes
from rlx.backends.simt_unroll import Started
from rlx.codegen.simt.code import WIDE, Shader
from rlx.codegen.simt.maps import PlacedMap, TileMap
from rlx.errors import UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.ir.literal import Array
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.fused import RowProduct
from rlx.kernel.ir.program import Kernel, Program

MOST_BLOCKS = (1 << 31) - 1
MULTIPROCESSORS = 132
"""Of the devices whose launches overlap."""
MANY_BLOCKS = 4 * MULTIPROCESSORS
"""Of WORKGROUP lanes. Of more, a gelu of 12 million elements took 31 us, and 14 in blocks of 256 lanes."""
POINTER_BYTES = 8
LINE_BYTES = 128
MOST_LATER_BYTES = 12 << 20
"""Of weights that are asked for before their kernel comes: other data pass through the common cache meanwhile."""
Weights = tuple[int, int]
"""Where weights are, and their bytes."""


class Given(ABC):
    """Something that a stream is given, in place of a kernel or for it."""

    kernel: Kernel

    @property
    def overlaps(self) -> bool:
        """Whether it is to begin while the kernel before ends."""
        return False

    @property
    def moves(self) -> bool:
        """Whether a graph that has it can be updated with another that has it on other memory."""
        return True

    @abstractmethod
    def on(self, driver: Driver, stream: Any, overlapping: bool = False) -> None:
        """Raises CallError."""


@dataclass(frozen=True)
class Launch(Given):
    """A launch of a kernel. `arguments` points to pointers to the arguments, which lie in `held`; `ahead` and
    `shared_bytes` are as in `Shader`; `maps` lie in `held` behind the pointers."""

    kernel: Kernel
    function: Function
    blocks: int
    lanes: int
    arguments: int
    held: tuple[Array, Array]
    ahead: bool = False
    shared_bytes: int = 0
    maps: tuple[PlacedMap, ...] = ()

    def on(self, driver: Driver, stream: Any, overlapping: bool = False) -> None:
        driver.launch(
            self.function.handle, self.blocks, self.lanes, self.arguments, stream, overlapping, self.shared_bytes
        )

    @property
    def overlaps(self) -> bool:
        """Where devices can: if it asks for weights before it waits, or its blocks find a multiprocessor each. More
        blocks would crowd on those that become free first."""
        return self.function.device.overlaps and (self.ahead or self.blocks <= MULTIPROCESSORS)

    def moved(self, starts: Sequence[int]) -> Launch:
        """The same on other memory, which asks for nothing on behalf of later kernels."""
        values, places = self.held[0].copy(), self.held[1]
        values[: len(starts)] = np.array(starts, np.uint64).view(np.int64)
        _put_maps(values, self.maps, starts, self.function.device.driver)
        moved = values.ctypes.data + (places - self.held[0].ctypes.data)
        return replace(self, held=(values, moved), arguments=moved.ctypes.data)


def give(driver: Driver, given: Sequence[Given], stream: Any) -> None:
    """Gives a stream kernels of a run in a row, of which some begin while the one before ends, if that is one of ours.
    What makes weights is no such row: kernels read these before they wait for the one before."""
    for number, launch in enumerate(given):
        launch.on(driver, stream, number > 0 and launch.overlaps and isinstance(given[number - 1], Launch))


def give_apart(driver: Driver, given: Sequence[Given], stream: Any) -> None:
    """Gives a stream kernels of which each begins when the one before has ended."""
    for launch in given:
        launch.on(driver, stream)


def _ours(each: Started, launch: Launch) -> Given:
    return launch


def launches(
    plan: Plan,
    functions: Mapping[str, Function],
    started: Iterable[Started],
    sizes: Sizes,
    table: int = 0,
    instead: Callable[[Started, Launch], Given] = _ours,
) -> list[Given]:
    """Kernels at known sizes, without those that have nothing to do. Raises UnsupportedOp for one with more blocks than
    a device takes.

    table     where the device has the plan's table; kernels get the places of the dims that are in it
    instead   what takes the place of a launch, if it is not the launch itself
    """
    made: list[Given] = []
    asking: list[bool] = []
    wanted: list[Weights | None] = []
    static = plan.program.static_buffers()
    binding = sizes.binding
    place = {dim: at for at, dim in enumerate(plan.table)}
    for each in started:
        kernel = each.kernel
        variant = plan.module.variant(kernel, binding)
        shader = variant.shader
        blocks, lanes = _blocks(shader, sizes)
        function = functions[variant.name]
        check_fewer(kernel, shader, sizes)
        most = min(MOST_BLOCKS, function.device.api.most_lanes // lanes)
        if blocks > most:
            raise UnsupportedOp(
                f"[{kernel.name}] expected at most {most} blocks, got {blocks} for {dict(binding)}, "
                f"at nodes {', '.join(kernel.sources)}"
            )
        numbers = [place[d] if d in place else dims.evaluate(d, binding) for d in shader.numbers]
        pointers = each.starts if place.keys().isdisjoint(shader.numbers) else (*each.starts, table)
        for brought in _rounds(shader, binding) if blocks else ():
            maps = tuple(_placed(each, binding) for each in shader.maps)
            own = _launch(kernel, function, (blocks, lanes), shader, pointers, [*brought, *numbers], maps)
            made.append(instead(each, own) if shader.rounds is None else own)
            asks = shader.later > 0 and made[-1] is own
            asking.append(asks)
            wanted.append(_weights(plan.program, each, static, binding) if asks else None)
    bring_later(made, asking, wanted)
    return made


def check_fewer(kernel: Kernel, shader: Shader, sizes: Sizes) -> None:
    """Raises UnsupportedOp where something has a number of more than 32 bits."""
    for count in map(sizes.most, shader.fewer):
        if count > MOST_BLOCKS:
            raise UnsupportedOp(
                f"[{kernel.name}] expected at most {MOST_BLOCKS} rows and keys, got {count} for {dict(sizes.binding)}, "
                f"at nodes {', '.join(kernel.sources)}"
            )


def _blocks(shader: Shader, sizes: Sizes) -> tuple[int, int]:
    """Blocks of a launch, and their lanes: more of these where there would be many blocks."""

    def of(positions: Dim, lanes: int) -> int:
        count = sizes.most(positions)
        return count if shader.team else -(-count // lanes)

    blocks = of(shader.positions, shader.lanes)
    if shader.wide_positions is None or blocks <= MANY_BLOCKS:
        return blocks, shader.lanes
    return of(shader.wide_positions, WIDE), WIDE


def _weights(program: Program, each: Started, static: set[int], binding: Mapping[str, int]) -> Weights | None:
    """Where the weights of a product are, and their bytes; None of other kernels."""
    work = each.kernel.work
    product = work.product if isinstance(work, RowProduct) else work
    if not isinstance(product, Contraction) or each.kernel.slots[product.b_slot] not in static:
        return None
    nbytes = dims.evaluate(program.buffers[each.kernel.slots[product.b_slot]].nbytes, binding)
    return each.starts[product.b_slot], nbytes


def bring_later(made: Sequence[Given], asking: Sequence[bool], wanted: Sequence[Weights | None]) -> None:
    """Has each kernel that can ask for the next weights that none has asked for, but not for more than caches hold.
    What is asked for comes from memory while kernels wait for one another, and for what they compute."""
    coming = deque((at, weights) for at, weights in enumerate(wanted) if weights is not None)
    asked: deque[tuple[int, int]] = deque()
    for at, launch in enumerate(made):
        while coming and coming[0][0] <= at:
            coming.popleft()
        while asked and asked[0][0] <= at:
            asked.popleft()
        if not coming:
            return
        number, (place, nbytes) = coming[0]
        if (
            not (asking[at] and isinstance(launch, Launch))
            or nbytes + sum(size for _, size in asked) > MOST_LATER_BYTES
        ):
            continue
        share = -(-nbytes // launch.blocks // LINE_BYTES) * LINE_BYTES
        launch.held[0][-2:] = place, share << 32 | nbytes
        asked.append((number, nbytes))
        coming.popleft()


def _spread(shader: Shader, blocks: int, function: Function) -> int:
    """Workgroup memory of a launch of so many blocks. Where there is a multiprocessor for each, those of kernels of
    many rows take more than half of one's: blocks that begin while those of the kernel before are there would else
    crowd, two and more, on multiprocessors that those have left, and take as many times as long. Kernels of few rows,
    which wait for memory, had better have the next one's blocks beside theirs."""
    if not shader.later or not shader.shared_bytes or blocks > MULTIPROCESSORS:
        return shader.shared_bytes
    return max(shader.shared_bytes, function.device.room_of_one)


def _rounds(shader: Shader, binding: Mapping[str, int]) -> Sequence[tuple[int, ...]]:
    """What the launches of a kernel bring beside dims; one that brings nothing where it has no rounds."""
    return [()] if shader.rounds is None else shader.rounds.of(dims.evaluate(shader.rounds.extent, binding))


def _launch(
    kernel: Kernel, function: Function, grid: tuple[int, int], shader: Shader, starts: Sequence[int],
    record: Sequence[int], maps: tuple[PlacedMap, ...],
) -> Launch:  # fmt: skip
    """A launch of so many blocks of so many lanes. Behind the pointers comes the record, which has at least one number,
    and behind its own those of what comes later. The last arguments are maps."""
    words = MAP_BYTES // POINTER_BYTES
    first = len(starts) + words * len(maps)
    values = np.zeros(first + max(len(record), 1) + shader.later, np.int64)
    values[: len(starts)] = np.array(starts, np.uint64).view(np.int64)
    _put_maps(values, maps, starts, function.device.driver)
    values[first : first + len(record)] = record
    at = [*range(len(starts)), first, *range(len(starts), first, words)]
    places = values.ctypes.data + POINTER_BYTES * np.array(at, np.int64)
    shared_bytes = _spread(shader, grid[0], function)
    return Launch(kernel, function, *grid, places.ctypes.data, (values, places), shader.ahead, shared_bytes, maps)


def _put_maps(values: Array, maps: Sequence[PlacedMap], starts: Sequence[int], driver: Driver) -> None:
    """Writes maps behind the pointers of a launch."""
    words = MAP_BYTES // POINTER_BYTES
    for number, each in enumerate(maps):
        at = len(starts) + number * words
        values[at : at + words] = np.frombuffer(driver.encode_map(each, starts[each.slot]), np.int64)


def _placed(each: TileMap, binding: Mapping[str, int]) -> PlacedMap:
    nbytes = each.dtype.itemsize
    extents = tuple(dims.evaluate(extent, binding) for extent in each.extents)
    strides = tuple(dims.evaluate(stride, binding) * nbytes for stride in each.strides)
    return PlacedMap(each.slot, each.dtype, dims.evaluate(each.first, binding) * nbytes, extents, strides, each.box)
