"""Contractions with many rows, on matrix units, of 16-bit floats, of bytes, and of f32 as sums of shorter floats:
tiles of both sides come to workgroup memory, some steps ahead, and all warps of a workgroup take them from there.

Both sides lie there as weights do in panels: of eight rows, or columns, 64 bytes along k are 512 neighbouring bytes.
In them the four pieces of a row are swapped by the row's number, so that neither the lanes that copy at once meet in a
bank nor those that load matrices: 16 bytes of each of eight rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext

from rlx.codegen.simt import loops as nests
from rlx.codegen.simt import team_contraction
from rlx.codegen.simt.bounds import Bounds
from rlx.codegen.simt.code import Binding, Shader, Slot
from rlx.codegen.simt.float_parts import SUMS_AT_ONCE
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.language.cuda_warpgroups import warpgroup_product
from rlx.codegen.simt.language.wgsl.types import Target
from rlx.codegen.simt.team_contraction import TeamContraction, depth, is_aligned, mma_of
from rlx.codegen.simt.team_layouts import PAD, PANEL, WARP, guesses_of, is_of_float8, rows_of
from rlx.codegen.simt.tile_layouts import LATER_NUMBERS, MOST_BLOCKS_SPLIT, TileLayout, is_smaller_left, tile_of
from rlx.codegen.simt.tile_results import TileResults, depends_on
from rlx.errors import CompileError
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.index import Linear
from rlx.kernel.ir.loops import Store
from rlx.kernel.schedule.schedule import Schedule, Tile

Copies = Callable[[str], None]
"""Writes a lane's copies of one side for a stage that begins at a place of workgroup memory."""


class TileContraction(TeamContraction):
    """The shader of a contraction whose operands come to workgroup memory.

    rows_first   whether workgroups that follow one another have the same columns, so that the right side comes from
                 memory once, and the left one stays in the common cache; else the other way round
    """

    def __init__(
        self, work: Contraction, slots: Sequence[Slot], language: Language, rows_guess: int, layout: TileLayout
    ) -> None:
        super().__init__(work, slots, language, rows_guess, layout)
        self.ring = layout
        blocks = dims.mul(dims.product(self.grid), layout.splits)
        weights = bool(work.packed) and not work.b.others and self.body.slots[work.b_slot].static
        self.code.follows = weights and isinstance(blocks, int) and blocks <= MOST_BLOCKS_SPLIT
        self.rows_first = is_smaller_left(work, rows_guess)
        if self.rows_first:
            *batch, down, across = self.grid
            self.grid = (*batch, across, down)
        if layout.splits > 1:  # neighbours are a cluster
            self.grid = (*self.grid, layout.splits)
            self.code.cluster = layout.splits
        self.code.dynamic_shared = layout.shared_bytes
        self.within = "parts" if layout.together and is_of_float8(work) else "sums"
        """What products that are made together add up in."""
        self.code.later = LATER_NUMBERS
        if layout.together:
            self.product, text = warpgroup_product(work.a_dtype, work.b_dtype, layout.columns)
            self.code.functions[self.product] = text
        workgroup = (Tile("workgroup", axis, extent) for axis, extent in zip("mnk", (*layout.tile, layout.depth)))
        warp = (Tile("thread", "m", layout.rows), Tile("thread", "n", layout.columns))
        spaces = (("a", "shared"), ("b", "shared"), ("sum", "register"))
        self.schedule = Schedule((*workgroup, *warp), spaces=spaces, stages=layout.stages, mma=mma_of(work))

    def write(self) -> Dim:
        """Everything of one tile."""
        work, code, layout = self.work, self.code, self.ring
        rows, columns = layout.results
        split = self.body.axes[len(self.grid) - 1] if layout.splits > 1 else ""
        if split:
            code.emit(f"const int split = (int)({split});")
        if self.rows_first:
            axes = self.body.axes
            axes[work.m_axis], axes[work.n_axis] = axes[work.n_axis], axes[work.m_axis]
        self.top = code.let(f"{self.body.axes[work.m_axis]} * {self.language.index(rows)}", "top")
        self.left = code.let(f"{self.body.axes[work.n_axis]} * {self.language.index(columns)}", "left")
        code.emit("const int warp = (int)lane / 32, own = (int)lane % 32;")
        along_m, along_n, along_k = layout.warps
        group, rows_of_group = layout.group, layout.group * layout.rows
        row, of_group = f"warp / {group} % {along_m // group}", f"warp % {group} * 16"
        code.emit(f"const int warp_row = {row} * {rows_of_group} + {of_group};")
        code.emit(f"const int part_row = {row} * {rows_of_group // layout.parts} + {of_group};")
        code.emit(f"const int warp_column = warp / {along_m} % {along_n} * {layout.columns};")
        slice_of_k = f"warp / {along_m * along_n}" if along_k > 1 else "0"
        code.emit(f"const int slice = {slice_of_k}, first_piece = slice * {layout.slice * WARP};")
        self._declare_sums()
        stages = [stage for stage in nests.legal_stages(work.epilogue) if isinstance(stage, Store)]
        second = layout.results[1] if work.paired else 0
        results = TileResults(work, layout, self.body, stages, self.top, self.left, second)
        self.results = results
        self._sums()
        code.emit("float* const shared_sums = (float*)dynamic_shared;")
        if work.float_parts:
            code.emit("bool lost = false;")
        for part in range(layout.parts):
            for number in range(along_k):
                code.emit(self.language.barrier())
                with code.block(f"if (slice == {number})") if along_k > 1 else nullcontext():
                    self._put_part(part, number > 0)
            if split:
                code.emit("cluster_barrier();")
                if work.float_parts:
                    self._join()
                    self._make_sure(results, part)
                results.write(part)
                code.emit("leave_cluster();")  # nobody's sums go while others read them
                continue
            if work.float_parts:
                self._make_sure(results, part)
            else:
                code.emit(self.language.barrier())
            results.write(part)
        return dims.add(dims.mul(dims.product(work.taps), dims.add(work.k, 64)), rows * columns)

    def _declare_sums(self) -> None:
        extents = f"[{self.ring.rows // 16}][{self.ring.columns // 8}][4]"
        self.code.emit(f"{self.sum_type} sums{extents} = {{}};")
        if self.within == "parts":
            self.code.emit(f"{self.sum_type} parts{extents} = {{}};")

    # operands

    def _sums(self) -> None:
        """The ring of stages: one is waited for and used, and another one asked for in the place of one that is used no
        more. Products of warpgroups go on meanwhile: those of the stage before end when those of this one follow them,
        so that matrix units always have some."""
        work, code, layout = self.work, self.code, self.ring
        a_turn = -(-_static(work.k) // layout.depth)
        steps, first = self._name_steps(_static(dims.product(work.taps)) * a_turn)
        self._places()
        self._name_matrices()
        start = layout.side_pieces[0]
        right = self._panel_copies(start) if work.packed else self._right_copies(start)
        if code.follows:
            self._bring_first(right, steps, first)
        left = self._row_copies("left", work.a_slot, work.a, work.m_axis, 0)
        self.results.ask_early()
        code.emit("#pragma unroll 1")
        with code.block(f"for (int ahead = 0; ahead < {steps} + {layout.distance}; ahead++)"):
            code.emit(f"const int step = ahead - {layout.distance};")
            code.emit("const Piece* from = dynamic_shared;")
            with code.block("if (step >= 0)"):
                code.emit(f"wait_copies<{layout.distance - 1}>();")
                if layout.together:
                    code.emit("show_to_warpgroups();")
                code.emit(self.language.barrier())
                pieces = sum(layout.side_pieces)
                code.emit(f"from = dynamic_shared + step % {layout.stages} * {pieces};")
                if layout.together:
                    with code.block("if (has_warpgroups)"):
                        self._multiply_together()
            with code.block(f"if (ahead < {steps})"):
                code.emit(f"const int now = {first}ahead;")
                code.emit(f"const int along = now % {a_turn} * {layout.depth};")
                self._name_taps(f"now / {a_turn}")
                stage = f"dynamic_shared + ahead % {layout.stages} * {sum(layout.side_pieces)}"
                code.emit(f"Piece* const stage = {stage};")
                left("stage")
                with code.block(f"if (ahead >= {layout.distance})") if code.follows else nullcontext():
                    right("stage")
            code.emit("commit_copies();")
            if self.within == "parts":
                self._add_parts()
            elif layout.together:
                code.emit("if (has_warpgroups) await_products<1>();")
            code.emit(f"if (step < 0{' || has_warpgroups' * layout.together}) continue;")
            self._multiply_stage()
        if layout.together and self.within == "sums":
            code.emit("if (has_warpgroups) await_products<0>();")
            code.emit(self._hold())

    def _name_steps(self, count: int) -> tuple[str, str]:
        """Of so many steps those of the workgroup: how many, and what is in front of the number of one."""
        splits = self.ring.splits
        if splits == 1:
            return str(count), ""
        self.code.emit(
            f"const int begin = split * {count} / {splits}, steps = (split + 1) * {count} / {splits} - begin;"
        )
        return "steps", "begin + "

    def _bring_first(self, right: Copies, steps: str, first: str) -> None:
        """Asks for the weights of the first stages while the kernel before still runs, which made none of them."""
        code, layout = self.code, self.ring
        with code.block(f"for (int ahead = 0; ahead < {layout.distance} && ahead < {steps}; ahead++)"):
            code.emit(f"const int now = {first}ahead;")
            code.emit(f"const int along = now % {-(-_static(self.work.k) // layout.depth)} * {layout.depth};")
            code.emit(f"Piece* const stage = dynamic_shared + ahead * {sum(layout.side_pieces)};")
            right("stage")
        code.emit("follow();")

    def _name_taps(self, tap: str) -> None:
        """Where in the window a step is."""
        rest = tap
        for number, (axis, extent) in reversed(list(enumerate(zip(self.work.tap_axes, self.work.taps)))):
            self.body.axes[axis] = self.code.let(f"(long long)({rest} % {extent})", f"tap{number}_")
            rest = f"{rest} / {extent}"

    def _places(self) -> None:
        """What of rows, or columns, a lane brings: where it begins in them and along k, and where it puts that. Eight
        lanes in a row fill all banks, and read whole lines of memory with their neighbours."""
        code, chunks = self.code, self.ring.chunks
        if chunks == 1:
            code.emit("const int from_row = (int)lane / 4, from_chunk = 0;")
        else:
            code.emit("const int from_row = (int)lane / 16 * 2 + (int)lane / 4 % 2;")
            code.emit("const int from_chunk = (int)(lane / 4 ^ lane / 8) & 1;")
        code.emit(f"const int from_along = from_chunk * {self.chunk} + (int)lane % 4 * {self.piece};")
        place = f"(from_row / 8 * {chunks} + from_chunk) * {WARP} + from_row % 8 * 4"
        code.emit(f"const int to_place = {place} + ((int)lane % 4 ^ from_row / 2 % 4);")

    def _row_copies(self, name: str, slot: int, line: Linear, axis: int, start: int) -> Copies:
        """Those of a side with rows, or columns, that are contiguous along k."""
        work, code, layout = self.work, self.code, self.ring
        tile = layout.tile[axis - work.m_axis]
        first = self.top if axis == work.m_axis else self.left
        extent = self.work.m if axis == work.m_axis else self.work.n
        count = layout.side_pieces[axis - work.m_axis] // layout.lanes
        step = tile // count
        outside = self._outside(line)
        bounds = Bounds(work, self.body) if axis == work.m_axis else None
        positions: list[list[str]] = [[]] * count
        if depends_on(outside, axis) or (bounds is not None and work.bounds):
            last = f"{self.record.dim(extent)} - {self.language.index(1)}"
            starts, positions = [], []
            for i in range(count):
                at = self._offset_at(outside, axis, f"min({first} + from_row + {i * step}, {last})")
                starts.append(code.let(f"slot{slot} + {at} + from_along", name))
                positions.append([] if bounds is None else bounds.of_row())
        else:
            at = self._offset_at(outside, axis, f"{first} + from_row")
            begin = code.let(f"slot{slot} + {at} + from_along", name)
            stride = self.record.dim(outside.coefficient(axis))
            starts = [f"{begin} + {i * step} * {stride}" for i in range(count)]
        guards = [""] * count
        if dims.exact_div(extent, tile) is None and not depends_on(outside, axis) and not any(positions):
            there = code.let(f"(int)min({self.record.dim(extent)} - {first}, {self.language.index(tile)})", "there")
            guards = [f"from_row + {i * step} < {there}" for i in range(count)]
        k = _static(work.k)
        inside = f"from_along + along < {k}" if k % layout.depth else ""
        left_of_k = f"{k} - from_along - along" if k % self.piece else ""

        def write(stage: str) -> None:
            tap = f" + {self._tap_offset(line)}" if work.taps else ""
            taps = [] if bounds is None else bounds.of_taps()
            for number, (begin, guard, of_row) in enumerate(zip(starts, guards, positions)):
                place = f"{stage} + {start + number * layout.lanes} + to_place"
                within = "" if bounds is None else bounds.test(of_row, taps)
                self._copy(place, f"{begin} + (along{tap})", guard, inside, within, elements=left_of_k)

        return write

    def _right_copies(self, start: int) -> Copies:
        work = self.work
        return self._row_copies("right", work.b_slot, work.b, work.n_axis, start)

    def _offset_at(self, line: Linear, axis: int, position: str) -> str:
        self.body.axes[axis] = self.code.let(position, "row")
        return self.body.fresh_offset(line)

    def _panel_copies(self, start: int) -> Copies:
        """Those of a packed right side, which lies in workgroup memory as it does everywhere."""
        work, code, layout = self.work, self.code, self.ring
        chunks = -(-_static(work.k) // self.chunk)
        lanes_a_panel = WARP * layout.chunks
        count = layout.side_pieces[1] // layout.lanes
        tap_size = depth(work) * PANEL
        size = self.language.index(_static(dims.product(work.taps)) * tap_size)
        code.emit(f"const int from_panel = (int)lane / {lanes_a_panel}, from_piece = (int)lane % {lanes_a_panel};")
        code.emit("const int to_piece = (int)lane ^ (int)lane / 8 % 4;")
        panel = f"({self.left} / {PANEL} + from_panel)"
        start_of_all = self.body.fresh_offset(work.b)
        begin = code.let(f"slot{work.b_slot} + {start_of_all} + {panel} * {size} + from_piece * {self.piece}", "right")
        guards, places = [""] * count, [self._panel_place(i * layout.panels_at_once) for i in range(count)]
        if dims.exact_div(work.n, layout.results[1]) is None:
            panels = self.language.index(-(-_static(work.n) // PANEL))
            there = code.let(f"(int)({panels} - {self.left} / {PANEL})", "there")
            guards = [f"from_panel + {on} < {there}" for on, _ in places]
        inside = f"along / {self.chunk} + from_piece / {WARP} < {chunks}" if chunks % layout.chunks else ""
        tap = f" + now / {-(-_static(work.k) // layout.depth)} * {tap_size}" if work.taps else ""

        def write(stage: str) -> None:
            for number, (guard, (_, on)) in enumerate(zip(guards, places)):
                place = f"{stage} + {start + number * layout.lanes} + to_piece"
                self._copy(place, f"{begin} + {on} * {size} + along * {PANEL}{tap}", guard, inside)

        return write

    def _panel_place(self, step: int) -> tuple[str, str]:
        """How far behind the first panel that a lane copies one is that is `step` panels further on in the tile: in its
        half of the tile, and in memory. The second half of a paired tile has the columns of second sums."""
        half, apart = self.ring.results[1] // PANEL, -(-_static(self.work.n) // PANEL)
        if not self.work.paired or step + self.ring.panels_at_once <= half:
            return str(step), str(step)
        if step >= half:
            return str(step - half), str(step - half + apart)
        second = self.code.let(f"from_panel >= {half - step}", "second")
        back = step - half
        within, on = (self.code.let(f"{second} ? {back + more} : {step}", "on") for more in (0, apart))
        return within, on

    def _copy(self, place: str, source: str, *guards: str, elements: str = "") -> None:
        """Of 16 bytes, or of so many `elements` where there are fewer."""
        guard = " && ".join(each for each in guards if each)
        if elements:
            self.code.emit(f"copy_elements_ahead({guard} ? {elements} : 0, {place}, {source});")
            return
        self.code.emit(f"copy_ahead_if({guard}, {place}, {source});" if guard else f"copy_ahead({place}, {source});")

    # products

    def _name_matrices(self) -> None:
        """Where in a stage a lane's rows are of the matrices that a warp loads: four of 16 rows and 32 bytes along k,
        and four of 8 columns and 64 bytes."""
        code, layout = self.code, self.ring
        chunks = layout.chunks
        code.emit("const int swap = own % 8 / 2;")
        row = f"(warp_row / 8 + own / 8 % 2) * {chunks * WARP} + own % 8 * 4"
        code.emit(f"const int left_high = first_piece + {row} + (own / 16 ^ swap), left_low = left_high ^ 2;")
        column = f"{layout.side_pieces[0]} + warp_column / 8 * {chunks * WARP} + own % 8 * 4"
        code.emit(f"const int right_at = first_piece + {column} + (own / 8 ^ swap);")

    def _multiply_stage(self) -> None:
        """All products of a stage: two of each pair of a warp's row and column tiles, 64 bytes along k."""
        if self.work.float_parts:
            self._multiply_parts()
            return
        code, layout = self.code, self.ring
        m_tiles, n_tiles, chunks = layout.rows // 16, layout.columns // 8, layout.chunks
        with ExitStack() as loops:
            self._unrolled(loops, "chunk", layout.slice)
            code.emit(f"Piece left[2][{m_tiles}], right[{n_tiles}];")
            with ExitStack() as inner:
                self._unrolled(inner, "i", m_tiles)
                for number, name in enumerate(("left_high", "left_low")):
                    place = f"from + {name} + (i * {2 * layout.group * chunks} + chunk) * {WARP}"
                    code.emit(f"left[{number}][i] = load_matrices({place});")
            with ExitStack() as inner:
                self._unrolled(inner, "j", n_tiles)
                code.emit(f"right[j] = load_matrices(from + right_at + (j * {chunks} + chunk) * {WARP});")
            if is_of_float8(self.work):
                self._unrolled(loops, "j", n_tiles)
                self._unrolled(loops, "i", m_tiles)
                code.emit("add_products(sums[i][j], left[0][i], left[1][i], right[j]);")
                return
            for number, (x, y) in enumerate((("x", "y"), ("z", "w"))):
                with ExitStack() as inner:
                    self._unrolled(inner, "j", n_tiles)
                    self._unrolled(inner, "i", m_tiles)
                    rows = ", ".join(f"left[{number}][i].{word}" for word in "xyzw")
                    code.emit(f"{self.mma}(sums[i][j], {rows}, right[j].{x}, right[j].{y});")

    def _multiply_parts(self) -> None:
        """The same of f32: both sides are taken apart, the columns some tiles at a time."""
        code, layout = self.code, self.ring
        m_tiles, n_tiles, chunks = layout.rows // 16, layout.columns // 8, layout.chunks
        with ExitStack() as loops:
            self._unrolled(loops, "chunk", layout.slice)
            code.emit(f"Parts left[2][{m_tiles}];")
            with ExitStack() as inner:
                self._unrolled(inner, "i", m_tiles)
                for number, name in enumerate(("left_high", "left_low")):
                    place = f"from + {name} + (i * {2 * layout.group * chunks} + chunk) * {WARP}"
                    code.emit(f"left[{number}][i] = in_parts<false>(load_matrices({place}));")
            at_once = min(max(SUMS_AT_ONCE // m_tiles, 1), n_tiles)
            self._unrolled(loops, "block", n_tiles // at_once)
            code.emit(f"Parts right[{at_once}];")
            with ExitStack() as inner:
                self._unrolled(inner, "j", at_once)
                place = f"from + right_at + ((block * {at_once} + j) * {chunks} + chunk) * {WARP}"
                code.emit(f"right[j] = in_parts<false>(load_matrices({place}));")
            code.emit(f"mma_f32(sums, block * {at_once}, left[0], left[1], right);")

    def _multiply_together(self) -> None:
        """The same by products of four warps."""
        code, layout = self.code, self.ring
        stride = layout.chunks * WARP
        rows = layout.group * layout.rows
        own_rows = f"warp / 4 % {layout.warps[0] // 4} * {rows // 8 * stride}"
        code.emit(f"const Piece* const rows = from + first_piece + {own_rows};")
        own_columns = f"{layout.side_pieces[0]} + warp_column / 8 * {stride}"
        code.emit(f"const Piece* const columns = from + first_piece + {own_columns};")
        code.emit(f"{self._hold()} begin_products();")
        with ExitStack() as loops:
            self._unrolled(loops, "k", 2 * layout.slice)
            self._unrolled(loops, "i", layout.rows // 16)
            left = f"matrix_at(rows + i * {8 * stride} + k / 2 * {WARP} + k % 2 * 2, {16 * stride})"
            right = f"matrix_at(columns + k / 2 * {WARP} + k % 2 * 2, {16 * stride})"
            adds = ", k > 0" if self.within == "parts" else ""
            code.emit(f"{self.product}({self.within}[i], {left}, {right}{adds});")
        code.emit("commit_products();")

    def _add_parts(self) -> None:
        """Waits for the products of the stage, which matrix units have cut off, and has f32 add them to the sums.
        Before the first stage they are zeros."""
        with self.code.block("if (has_warpgroups)"), ExitStack() as loops:
            self.code.emit(f"await_products<0>(); {self._hold()}")
            self._unrolled(loops, "i", self.ring.rows // 16)
            self._unrolled(loops, "j", self.ring.columns // 8)
            self._unrolled(loops, "e", 4)
            self.code.emit("sums[i][j][e] += parts[i][j][e];")

    def _hold(self) -> str:
        return " ".join(f"hold({self.within}[{i}]);" for i in range(self.ring.rows // 16))

    def _unrolled(self, loops: ExitStack, name: str, count: int) -> None:
        self.code.emit("#pragma unroll")
        loops.enter_context(self.code.block(f"for (int {name} = 0; {name} < {count}; {name}++)"))

    # results

    def _put_part(self, part: int, adds: bool) -> None:
        """The sums of a part of each warp's rows, into workgroup memory, or added to those of other warps there."""
        code, layout = self.code, self.ring
        of_a_warp, pitch = layout.rows // layout.parts, layout.tile[1] + PAD
        bits = ("__uint_as_float", "__float_as_uint")
        to_sum, to_bits = bits if self.work.dtype.is_float else ("(int)", "(unsigned)")
        first = part * of_a_warp // 16
        with ExitStack() as loops:
            self._unrolled(loops, "i", of_a_warp // 16)
            self._unrolled(loops, "j", layout.columns // 8)
            self._unrolled(loops, "half", 2)
            row = f"part_row + i * {16 * layout.group} + half * 8 + own / 4"
            column = "warp_column + j * 8 + own % 4 * 2"
            code.emit(f"HalfPiece* const place = (HalfPiece*)(shared_sums + ({row}) * {pitch} + {column});")
            pair = [f"sums[{first} + i][j][2 * half + {self._of_pair(k)}]" for k in range(2)]
            if adds:
                pair = [f"{to_sum}(place->{word}) + {total}" for word, total in zip("xy", pair)]
            code.emit(f"*place = HalfPiece{{{', '.join(f'{to_bits}({total})' for total in pair)}}};")
            if self.work.float_parts:
                code.emit("lost |= is_lost(__uint_as_float(place->x)) || is_lost(__uint_as_float(place->y));")

    def _of_pair(self, number: int) -> str:
        """Which of a lane's neighbouring sums, of tile of eight columns `j`, is that of a column."""
        return str(number)

    def _join(self) -> None:
        """Puts whole sums where a workgroup of a cluster has its parts of them, of the rows that it finishes: nobody
        else reads these."""
        code, layout = self.code, self.ring
        columns = layout.tile[1]
        quads, count = columns // 4, layout.share * columns // 4
        with code.block(f"for (int e = (int)lane; e < {count}; e += {layout.lanes})"):
            row = f"(split * {layout.share} + e / {quads})"
            code.emit(f"float4* const place = (float4*)(shared_sums + {row} * {columns + PAD} + e % {quads} * 4);")
            code.emit(f"const float4 total = sum_of_cluster<{layout.splits}>((const float4*)place);")
            code.emit("*place = total;")
            code.emit(f"lost |= {' || '.join(f'is_lost(total.{component})' for component in 'xyzw')};")

    def _make_sure(self, results: TileResults, part: int) -> None:
        """Waits for the sums of a part that a workgroup finishes, and makes those again that are not finite."""
        code, work, layout, axes = self.code, self.work, self.ring, self.body.axes
        columns = layout.tile[1]
        with self.body.scope("if (__syncthreads_or(lost))"):
            with self.body.scope(f"for (int e = (int)lane; e < {layout.share * columns}; e += {layout.lanes})"):
                first = f"split * {layout.share} + " if layout.splits > 1 else ""
                row = code.let(f"{first}e / {columns}", "row")
                axes[work.m_axis] = results.at_m(row, part)
                axes[work.n_axis] = code.let(f"{self.left} + e % {layout.results[1]}", "at")
                ends = zip((work.m_axis, work.n_axis), (work.m, work.n))
                inside = " && ".join(f"{axes[axis]} < {self.record.dim(extent)}" for axis, extent in ends)
                with self.body.scope(f"if ({inside})"):
                    if work.paired:
                        second = f"e % {columns} / {layout.results[1]}"
                        axes[work.n_axis] = code.let(f"{axes[work.n_axis]} + {second} * {_static(work.n)}", "at")
                    place = f"shared_sums[{row} * {columns + PAD} + e % {columns}]"
                    code.emit(f"{place} = {self.made_sure(code.let(place, 'total'))};")
            code.emit(self.language.barrier())


def fits(work: Contraction, slots: Sequence[Slot]) -> bool:
    """Whether both sides are pieces of 16 bytes that begin at multiples of them."""
    sides = ((work.a_slot, work.a), (work.b_slot, work.b))
    known = all(isinstance(d, int) for d in (*work.taps, *([work.n] if work.packed else ())))
    return known and all(slots[slot].aligned and is_aligned(line, work) for slot, line in sides)


def layout_of(work: Contraction, slots: Sequence[Slot], target: Target) -> TileLayout | None:
    """The layout of a contraction's tiles, if it should have any."""
    return tile_of(work, target.rows, target.warpgroups) if fits(work, slots) else None


def most_unpaired(work: Contraction, slots: Sequence[Slot], warpgroups: bool) -> int | None:
    """Of a paired contraction, the number of rows up to which a product and a map should be faster; None where they
    always are, or have to do."""
    whole = work.packed == PANEL and dims.exact_div(work.n, PANEL) is not None
    if not (whole and team_contraction.takes(work) and fits(work, slots)):
        return None
    rows = rows_of(work)
    if isinstance(rows, int):
        return None if tile_of(work, rows, warpgroups) is None else 0
    fewer = (most for most, guess in reversed(guesses_of(work)) if tile_of(work, guess, warpgroups) is None)
    return next(fewer, 0)


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)  # asked by `takes` and `fits`
    return dim


def render(
    work: Contraction, slots: Sequence[Slot], bindings: Sequence[Binding], name: str, target: Target, language: Language
) -> Shader:
    """The shader of a contraction that `team_contraction.py` takes: of this form where that should be faster, and of
    paired ones. Raises CompileError for one of these that has no tile."""
    layout = layout_of(work, slots, target)
    if layout is None and work.paired:
        raise CompileError(f"[{name}] expected a tile with the columns of both sums, got none for {target.rows} rows")
    if layout is None:
        return team_contraction.render(work, slots, bindings, name, target, language)
    return TileContraction(work, slots, language, target.rows, layout).shader(bindings, name)
