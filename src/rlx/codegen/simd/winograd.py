"""Winograd convolutions on the CPU: a position is an image and a group of tile rows, all of it in the thread's scratch.

Inputs are transformed into 36 planes [tile][channel], 36 products by the core of `gemm.py` make planes [tile][output],
and these are transformed back, finished by the epilogue and written. Tiles at the lower and right edge that reach
beyond the (padded) input read its last row or column again; what they would write outside is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.codegen.simd import division, gemm
from rlx.codegen.simd.body import Body, lane_mask
from rlx.codegen.simd.function import Callee, Function, Module
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.microkernels import BlockOperands, call_core, tile_at, tiles_of
from rlx.codegen.simd.prologue import PARAMETERS, buffer_pointers
from rlx.codegen.simd.registers import Reg, Vector
from rlx.codegen.simd.scheduled import WholePositions
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.loops import Store
from rlx.kernel.ir.winograd import INPUT, OUTPUT, POINTS, TILE, Matrix, WinogradConvolution, transform
from rlx.kernel.schedule import tuned
from rlx.kernel.schedule.overrides import overridden
from rlx.kernel.schedule.schedule import Schedule, Tile

TILES = 24
"""Tiles that a position should have: enough rows for the core, few enough for L2."""
NEAR_BYTES = 3 << 20
"""Transformed weights up to this size are cheap to read again; larger ones want tiles enough to pay for it."""
FEW_GROUPS, LEAST_PANELS = 1, 3
"""Groups of tiles that threads cannot share, and panels of outputs that they then share instead. With two or more
groups sharing gained nothing."""
MANY_TILES = 9
LEAST_CHANNELS = 16
IMAGE, ROW, CHANNEL = 0, 1, 3


@dataclass(frozen=True)
class ScheduledWinograd(WholePositions):
    """How it is run; fields as in `loops.ScheduledLoops`."""

    work: WinogradConvolution
    schedule: Schedule
    positions: Dim
    weight: Dim
    scratch: Dim

    @property
    def rows(self) -> int:
        """Tiles that are multiplied at once."""
        return self.schedule.static_tile("register", "tiles")

    @property
    def vectors(self) -> int:
        """Vectors of sums along the output channels."""
        return self.schedule.vectors("register", "n")

    @property
    def group(self) -> Dim:
        """Rows of tiles of a position."""
        return self.schedule.tile("thread", "rows")

    @property
    def parts(self) -> int:
        """Positions that share a group of tiles, each for some of the outputs."""
        return self.schedule.static_tile("thread", "parts")

    def render(self, module: Module, stem: str, slots: int) -> Callee:
        return module.define(stem, lambda name: _WinogradWriter(module, name, self, slots).write())


def panel_width(work: Contraction, isa: Isa) -> int:
    """Width of the panels if the convolution gains by it, else 0."""
    assert isinstance(work.n, int) and isinstance(work.k, int)
    gains = tuned.choice("winograd", tuned.USE_WINOGRAD, work, usual=int(_gains(work, isa)))
    fits = gains and work.k % isa.lanes == 0
    return gemm.panel_vectors(work.n, isa, widest=isa.widest_block) * isa.lanes if fits else 0


def _gains(work: Contraction, isa: Isa) -> bool:
    assert isinstance(work.n, int) and isinstance(work.k, int)  # the pass takes known channels only
    if work.k % isa.lanes or min(work.n, work.k) < LEAST_CHANNELS:
        return False
    height, width = work.batch[1], work.m
    far = 4 * POINTS * POINTS * work.n * work.k > NEAR_BYTES
    if isinstance(height, int) and isinstance(width, int):
        tiles = -(-height // TILE) * -(-width // TILE)
        if height * width == 0 or tiles * TILE * TILE > 1.5 * height * width or (far and tiles < MANY_TILES):
            return False
    elif far:
        return False
    return True


def schedule(work: WinogradConvolution, isa: Isa) -> ScheduledWinograd:
    """Rows of tiles that are transformed together, and a block of sums in registers."""
    conv = work.conv
    across, down = dims.ceildiv(conv.m, TILE), dims.ceildiv(conv.batch[1], TILE)
    rows = dims.maximum(dims.ceildiv(TILES, across), 1) if across != 0 else 1
    chosen = Schedule(
        tiles=(
            Tile("thread", "rows", rows),
            Tile("thread", "parts", _parts(dims.mul(conv.batch[0], dims.ceildiv(down, rows)), conv)),
            Tile("register", "tiles", isa.block_rows(conv.packed // isa.lanes)),
            Tile("register", "n", conv.packed),
        ),
        vector=("n", isa.lanes),
        spaces=(("a", "cache"), ("b", "panels"), ("sum", "register")),
    )
    # panels have the width that they were packed with
    chosen = overridden("winograd", chosen, conv).with_tile("register", "n", conv.packed)
    group = chosen.tile("thread", "rows")
    tiles = dims.mul(across, group)
    padded = -(-conv.n // conv.packed) * conv.packed if isinstance(conv.n, int) else 0
    floats = dims.add(dims.mul(tiles, POINTS * POINTS * (_int(conv.k) + padded)), TILE * TILE * isa.lanes)
    parts = chosen.static_tile("thread", "parts")
    positions = dims.mul(dims.mul(conv.batch[0], dims.ceildiv(down, group)), parts)
    weight = dims.mul(tiles, POINTS * POINTS * _int(conv.k) * padded // (isa.lanes * parts))
    return ScheduledWinograd(work, chosen, positions, weight, dims.mul(floats, 4))


def _parts(groups: Dim, conv: Contraction) -> int:
    """How many threads share a group of tiles, each for some of the outputs, where there are few groups. Each of them
    transforms the inputs, which takes some hundredths of the time."""
    panels = -(-_int(conv.n) // conv.packed)
    return 2 if isinstance(groups, int) and groups <= FEW_GROUPS and panels >= LEAST_PANELS else 1


def _int(dim: Dim) -> int:
    assert isinstance(dim, int)  # the pass takes known channels only
    return dim


class _WinogradWriter:
    def __init__(self, module: Module, name: str, scheduled: ScheduledWinograd, slots: int) -> None:
        self.scheduled = scheduled
        self.conv = scheduled.work.conv
        self.f = Function(module, name, PARAMETERS)
        self.lanes = module.target.lanes
        self.body = Body(self.f, buffer_pointers(self.f, slots))
        self.kind = self.body.kind("float", True)
        self.channels, self.outputs = _int(self.conv.k), _int(self.conv.n)
        self.panels = -(-self.outputs // self.conv.packed)
        self.padded = self.panels * self.conv.packed
        self.epilogue = [
            Store(s.slot, s.offset, division.legalise(s.body, module.target.has_fma), False) for s in self.conv.epilogue
        ]

    def write(self) -> Function:
        f = self.f
        self.across = f.dim(dims.ceildiv(self.conv.m, TILE))
        self.down = f.dim(dims.ceildiv(self.conv.batch[1], TILE))
        self.group = f.dim(self.scheduled.group)
        tiles = f.mul(self.across, self.group)
        self.in_plane, self.out_plane = f.mul(tiles, str(self.channels)), f.mul(tiles, str(self.padded))
        count = str(POINTS * POINTS)
        self.inputs = "%scratch"
        self.products = f.offset(self.inputs, "float", f.mul(self.in_plane, count))
        self.results = f.offset(self.products, "float", f.mul(self.out_plane, count))
        f.loop("%begin", "%end", 1, [], self._position)
        return f

    def _position(self, position: str, _: list[str]) -> list[str]:
        f = self.f
        groups = f.ceil_divide(self.down, self.group)
        self.body.push()
        position = self._take_part(position)
        self.body.axes[IMAGE] = f.divide(position, groups)
        first = f.mul(f.remainder(position, groups), self.group)
        rows = f.smin(self.group, f.sub(self.down, first))
        tiles = f.mul(rows, self.across)
        f.loop("0", tiles, 1, [], lambda tile, _: self._transform_input(first, tile))
        f.loop("0", str(POINTS * POINTS), 1, [], lambda point, _: self._multiply(point, tiles))
        f.loop("0", tiles, 1, [], lambda tile, _: self._transform_output(first, tile))
        self.body.pop()
        return []

    def _take_part(self, position: str) -> str:
        """Notes which panels of outputs a position is for, and gives the number of its group of tiles."""
        f, parts = self.f, self.scheduled.parts
        if parts == 1:
            self.first_panel, self.end_panel, self.end_output = "0", str(self.panels), str(self.outputs)
            return position
        each = -(-self.panels // parts)
        self.first_panel = f.mul(f.remainder(position, str(parts)), str(each))
        self.end_panel = f.smin(f.add(self.first_panel, str(each)), str(self.panels))
        self.end_output = f.smin(f.mul(self.end_panel, str(self.conv.packed)), str(self.outputs))
        return f.divide(position, str(parts))

    def _corner(self, first: str, tile: str) -> tuple[str, str]:
        """Row and column of a tile's first result."""
        f = self.f
        row = f.add(first, f.divide(tile, self.across))
        return f.mul(row, str(TILE)), f.mul(f.remainder(tile, self.across), str(TILE))

    def _transform_input(self, first: str, tile: str) -> list[str]:
        f, conv = self.f, self.conv
        row, column = self._corner(first, tile)
        last_row, last_column = (f.add(f.dim(d), "1") for d in (conv.batch[1], conv.m))  # of the padded input
        rows = [f.smin(f.add(row, str(i)), last_row) for i in range(POINTS)]
        columns = [f.smin(f.add(column, str(i)), last_column) for i in range(POINTS)]
        starts = []
        for at in rows:
            self.body.push()
            self.body.axes[ROW], self.body.axes[conv.m_axis] = at, "0"
            starts.append(self.body.pointer(conv.a_slot, dtypes.f32, _without_sum(conv)))
            self.body.pop()
        steps = [f.mul(at, f.dim(conv.a.coefficient(conv.m_axis))) for at in columns]
        target = f.offset(self.inputs, "float", f.mul(tile, str(self.channels)))
        arguments = [*(f"ptr {start}" for start in starts), *(f"i64 {step}" for step in steps)]
        name = _input_function(f.module)
        f.emit(f"call void @{name}({', '.join(arguments)}, ptr {target}, i64 {self.in_plane}, i64 {self.channels})")
        return []

    def _multiply(self, point: str, tiles: str) -> list[str]:
        """One of the 36 products: tiles x channels by channels x outputs."""
        f, conv = self.f, self.conv
        left = f.offset(self.inputs, "float", f.mul(point, self.in_plane))
        out = f.offset(self.products, "float", f.mul(point, self.out_plane))
        weights = f.mul(point, str(self.channels * self.padded))
        right = f.offset(self.body.bases[conv.b_slot], "float", weights)
        count, base, extra = tiles_of(f, tiles, self.scheduled.rows)

        def panel(number: str, _: list[str]) -> list[str]:
            here = f.offset(right, "float", f.mul(number, str(self.channels * conv.packed)))
            ahead = f.offset(here, "float", str(self.channels * conv.packed))

            def rows(tile: str, _: list[str]) -> list[str]:
                start, height = tile_at(f, tile, base, extra)
                a = f.offset(left, "float", f.mul(start, str(self.channels)))
                c = f.offset(out, "float", f.add(f.mul(start, str(self.padded)), f.mul(number, str(conv.packed))))
                operands = BlockOperands(a, str(self.channels), here, c, str(self.padded), str(self.channels), ahead)
                call_core(f, height, self.scheduled.rows, self.scheduled.vectors, operands)
                return []

            f.loop("0", count, 1, [], rows)
            return []

        f.loop(self.first_panel, self.end_panel, 1, [], panel)
        return []

    def _transform_output(self, first: str, tile: str) -> list[str]:
        f = self.f
        row, column = self._corner(first, tile)

        def vector(channel: str, _: list[str]) -> list[str]:
            source = f.offset(self.products, "float", f.add(f.mul(tile, str(self.padded)), channel))
            name = _output_function(f.module)
            f.emit(f"call void @{name}(ptr {source}, i64 {self.out_plane}, ptr {self.results})")
            f.loop("0", str(TILE * TILE), 1, [], lambda number, _: self._finish(row, column, channel, number))
            return []

        f.loop(f.mul(self.first_panel, str(self.conv.packed)), self.end_output, self.lanes, [], vector)
        return []

    def _finish(self, row: str, column: str, channel: str, number: str) -> list[str]:
        """The epilogue of one of a tile's results, if it is inside."""
        f, conv = self.f, self.conv
        at_row, at_column = f.add(row, f.divide(number, str(TILE))), f.add(column, f.remainder(number, str(TILE)))
        inside = f.value(
            f"and i1 {f.value(f'icmp slt i64 {at_row}, {f.dim(conv.batch[1])}')}, "
            f"{f.value(f'icmp slt i64 {at_column}, {f.dim(conv.m)}')}"
        )

        def store() -> None:
            self.body.push()
            self.body.axes[ROW], self.body.axes[conv.m_axis], self.body.axes[conv.n_axis] = at_row, at_column, channel
            ragged = self.outputs % self.lanes != 0
            mask = lane_mask(self.body, f.sub(str(self.outputs), channel)) if ragged else None
            self.body.vector = Vector(conv.n_axis, mask)
            where = f.offset(self.results, "float", f.mul(number, str(self.lanes)))
            self.body.accumulated = Reg(f.value(f"load {self.kind}, ptr {where}, align 4"), dtypes.f32, True)
            for item in self.epilogue:
                self.body.store(item.slot, item.offset, self.body.gen(item.body))
            self.body.vector = None
            self.body.pop()

        f.when(inside, store)
        return []


def _input_function(module: Module) -> str:
    """The transform of a tile's input, for all channels: row and column starts, where planes go, and how far apart they
    are. It is the same for every convolution, and long: so it is written once."""
    name = "winograd.input"
    if not module.has(name):
        rows, columns = ([f"%{stem}{i}" for i in range(POINTS)] for stem in ("row", "column"))
        parameters = [*(f"ptr {row}" for row in rows), *(f"i64 {column}" for column in columns)]
        f = Function(module, name, f"{', '.join(parameters)}, ptr %target, i64 %plane, i64 %channels")

        def vector(channel: str, _: list[str]) -> list[str]:
            places = [f.offset(row, "float", f.add(column, channel)) for row in rows for column in columns]
            _transform(f, INPUT, places, f.offset("%target", "float", channel), "%plane")
            return []

        f.loop("0", "%channels", module.target.lanes, [], vector)
        module.add(name, f.text())
    return name


def _output_function(module: Module) -> str:
    """The transform of a tile's results, for a vector of channels: from planes to a square in scratch."""
    name = "winograd.output"
    if not module.has(name):
        f = Function(module, name, "ptr %source, i64 %plane, ptr %target")
        places = [f.offset("%source", "float", f.mul("%plane", str(number))) for number in range(POINTS * POINTS)]
        _transform(f, OUTPUT, places, "%target", str(module.target.lanes))
        module.add(name, f.text())
    return name


def _transform(f: Function, matrix: Matrix, places: list[str], target: str, apart: str) -> None:
    """M · square · Mᵀ of vectors at these places, row by row; results lie so far apart."""
    body = Body(f, [])
    body.push()
    body.vector = Vector(CHANNEL)
    kind = body.kind("float", True)
    leaves = [Expr("register", dtypes.f32, (), str(number)) for number in range(len(places))]
    for leaf, place in zip(leaves, places):
        body.remember(leaf, Reg(f.value(f"load {kind}, ptr {place}, align 4"), dtypes.f32, True))
    square = [leaves[i : i + POINTS] for i in range(0, len(leaves), POINTS)]
    for number, expression in enumerate(v for line in transform(matrix, square) for v in line):
        place = f.offset(target, "float", f.mul(apart, str(number)))
        f.emit(f"store {kind} {body.gen(expression).name}, ptr {place}, align 4")
    body.pop()


def _without_sum(conv: Contraction) -> Linear:
    inside = (*conv.tap_axes, conv.k_axis, conv.m_axis)
    return Linear(conv.a.const, tuple((n, c) for n, c in conv.a.axes if n not in inside))
