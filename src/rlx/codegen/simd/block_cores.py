"""Cores for panels of weights of few bits: they are unpacked in registers as they are read, with the scales of their
blocks. Where many rows pass by, a panel is unpacked into scratch first, once, and multiplied there as floats are.

A panel has [bytes of a row][columns] of bytes, each with several elements of a column, low bits first, and as many
scales of a column as it has blocks, [blocks][columns], and zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.codegen.simd.function import Function, Module
from rlx.codegen.simd.microkernels import BlockOperands, Form, call_of_height
from rlx.ir import dtype as dtypes
from rlx.kernel.ir.blocks import Blocks

FEW_ROWS = 4
"""Rows up to which a core unpacks: each tile does."""
UNROLL = 4


@dataclass(frozen=True)
class BlockForm(Form):
    """Elements of `bits`, `block` of which share a scale.

    zeros   "none": all are half of what the bits can say; "given"; "added" to scaled elements
    """

    bits: int = 4
    block: int = 32
    zeros: str = "none"

    @property
    def moves(self) -> bool:
        return False

    @property
    def element_bytes(self) -> float:
        """Of an element of the panel, with its share of scales and zeros."""
        return self.bits / 8 + self.dtype.itemsize * (1 if self.zeros == "none" else 2) / self.block

    @property
    def block_bytes(self) -> int:
        """Bytes of a column that share a scale."""
        return self.block * self.bits // 8


def form_of(blocks: Blocks) -> BlockForm:
    """That of a right side."""
    zeros = "none" if blocks.zero_slot == Blocks.NO_ZERO else "added" if blocks.added else "given"
    stem = f"gemm_{blocks.bits}_bits_{blocks.block}_{zeros}"
    return BlockForm(stem, dtypes.f32, dtypes.f32, 1, blocks.bits, blocks.block, zeros)


@dataclass(frozen=True)
class Panel:
    """The pointers of a panel, as LLVM values: bytes, scales and zeros."""

    data: str
    scales: str
    zeros: str

    def __str__(self) -> str:
        return f"ptr {self.data}, ptr {self.scales}, ptr {self.zeros}"


def call_block_core(f: Function, height: str, vectors: int, tile: BlockOperands, panel: Panel, form: BlockForm) -> None:
    """Calls the core of a height that is only known at run time, at most FEW_ROWS. `tile.k` counts blocks."""
    text = f"ptr {tile.a}, i64 {tile.lda}, {panel}, ptr {tile.c}, i64 {tile.ldc}, i64 {tile.k}"
    call_of_height(f, height, FEW_ROWS, lambda rows: f"{_core(f.module, rows, vectors, form)}({text})")


def call_unpack(f: Function, vectors: int, panel: Panel, target: str, count: str, form: BlockForm) -> None:
    """Unpacks a panel of so many blocks a column: [k][columns] of f32."""
    stem = f"unpack_{form.stem}_{vectors}"
    if not f.module.has(stem):
        f.module.add(stem, _Unpack(f.module, stem, vectors, form).write().text())
    f.emit(f"call void @{stem}({panel}, ptr {target}, i64 {count})")


def _core(module: Module, rows: int, vectors: int, form: BlockForm) -> str:
    stem = f"{form.stem}_{rows}x{vectors}"
    if not module.has(stem):
        module.add(stem, _BlockCore(module, stem, rows, vectors, form).write().text())
    return stem


class _Reader:
    """What reads a panel, block by block."""

    PANEL = "ptr noalias %b, ptr noalias %s, ptr noalias %z"

    def __init__(self, f: Function, vectors: int, form: BlockForm) -> None:
        self.f, self.vectors, self.form = f, vectors, form
        self.lanes = f.module.target.lanes
        self.width = vectors * self.lanes
        self.kind, self.whole = f"<{self.lanes} x float>", f"<{self.lanes} x i32>"
        self.step = next(count for count in (UNROLL, 2, 1) if form.block_bytes % count == 0)

    def scales(self, block: str) -> list[tuple[str, str]]:
        """The scale of each vector of columns, and what is added to scaled elements."""
        f, kind = self.f, self.kind
        at = f.mul(block, str(self.width))
        found = []
        for j in range(self.vectors):
            scale = self._load("%s", at, j)
            if self.form.zeros == "added":
                found.append((scale, self._load("%z", at, j)))
                continue
            half = ", ".join([f"float {float(1 << (self.form.bits - 1)):e}"] * self.lanes)
            zero = self._load("%z", at, j) if self.form.zeros == "given" else f"<{half}>"
            found.append((scale, f.value(f"fneg {kind} {f.value(f'fmul {kind} {zero}, {scale}')}")))
        return found

    def _load(self, base: str, at: str, j: int) -> str:
        f = self.f
        place = f.offset(f.offset(base, "float", at), "float", str(j * self.lanes))
        return f.value(f"load {self.kind}, ptr {place}, align 4")

    def weights(self, byte: str, scales: list[tuple[str, str]]) -> list[list[str]]:
        """The elements of a byte of each column: for each place along k, its vectors."""
        f, form = self.f, self.form
        row = f.offset("%b", "i8", f.mul(byte, str(self.width)))
        found: list[list[str]] = [[] for _ in range(8 // form.bits)]
        for j, (scale, zero) in enumerate(scales):
            place = f.offset(row, "i8", str(j * self.lanes))
            narrow = f.value(f"load <{self.lanes} x i8>, ptr {place}, align 1")
            wide = f.value(f"zext <{self.lanes} x i8> {narrow} to {self.whole}")
            for place_in_byte, vectors in enumerate(found):
                part = wide
                if place_in_byte:
                    part = f.value(f"lshr {self.whole} {part}, {self._splat(place_in_byte * form.bits)}")
                if place_in_byte < len(found) - 1:
                    part = f.value(f"and {self.whole} {part}, {self._splat((1 << form.bits) - 1)}")
                number = f.value(f"sitofp {self.whole} {part} to {self.kind}")
                vectors.append(f.multiply_add(self.kind, number, scale, zero))
        return found

    def _splat(self, number: int) -> str:
        return "<" + ", ".join([f"i32 {number}"] * self.lanes) + ">"


class _Unpack(_Reader):
    """Writes the elements of a panel as f32."""

    def __init__(self, module: Module, name: str, vectors: int, form: BlockForm) -> None:
        f = Function(module, name, f"{self.PANEL}, ptr noalias %out, i64 %count")
        super().__init__(f, vectors, form)

    def write(self) -> Function:
        self.f.loop("0", "%count", 1, [], self._block)
        return self.f

    def _block(self, block: str, _: list[str]) -> list[str]:
        f = self.f
        scales = self.scales(block)
        first = f.mul(block, str(self.form.block_bytes))

        def one(at: str, _: list[str]) -> list[str]:
            byte = f.add(first, at)
            row = f.offset("%out", "float", f.mul(byte, str(8 // self.form.bits * self.width)))
            for i, vectors in enumerate(self.weights(byte, scales)):
                for j, vector in enumerate(vectors):
                    place = f.offset(row, "float", str(i * self.width + j * self.lanes))
                    f.emit(f"store {self.kind} {vector}, ptr {place}, align 4")
            return []

        f.loop("0", str(self.form.block_bytes), 1, [], one)
        return []


class _BlockCore(_Reader):
    """The multiplication of a few rows with a panel; sums stay in registers over all of k."""

    def __init__(self, module: Module, name: str, rows: int, vectors: int, form: BlockForm) -> None:
        parameters = f"ptr noalias %a, i64 %lda, {self.PANEL}, ptr noalias %c, i64 %ldc, i64 %count"
        super().__init__(Function(module, name, parameters), vectors, form)
        self.rows = rows
        self.starts = [self.f.offset("%a", "float", self.f.mul("%lda", str(r))) for r in range(rows)]
        few = rows * vectors
        # few sums would wait for one another: there are several sets of them, added at the end
        room = module.target.vector_registers // 2  # beside elements that are unpacked
        self.ways = 4 if few * 4 <= room else 2 if few * 2 <= room else 1

    def write(self) -> Function:
        f, count = self.f, self.rows * self.vectors
        start = [(self.kind, "zeroinitializer")] * (count * self.ways)
        parts = f.loop("0", "%count", 1, start, self._block)
        sums = parts[:count]
        for way in range(1, self.ways):
            more = parts[way * count : (way + 1) * count]
            sums = [f.value(f"fadd {self.kind} {a}, {b}") for a, b in zip(sums, more)]
        for r in range(self.rows):
            target = f.offset("%c", "float", f.mul("%ldc", str(r)))
            for j in range(self.vectors):
                place = f.offset(target, "float", str(j * self.lanes))
                f.emit(f"store {self.kind} {sums[r * self.vectors + j]}, ptr {place}, align 4")
        return f

    def _block(self, block: str, sums: list[str]) -> list[str]:
        f, form, count = self.f, self.form, self.rows * self.vectors
        scales = self.scales(block)
        first = f.mul(block, str(form.block_bytes))
        a_byte = 8 // form.bits

        def some(at: str, carried: list[str]) -> list[str]:
            sets = [carried[w * count : (w + 1) * count] for w in range(self.ways)]
            for step in range(self.step):
                byte = f.add(f.add(first, at), str(step))
                for i, vectors in enumerate(self.weights(byte, scales)):
                    way = (step * a_byte + i) % self.ways
                    k = f.add(f.mul(byte, str(a_byte)), str(i))
                    sets[way] = self._multiplied(k, vectors, sets[way])
            return [value for part in sets for value in part]

        carried = [(self.kind, value) for value in sums]
        return f.loop("0", str(form.block_bytes), self.step, carried, some)

    def _multiplied(self, k: str, vectors: list[str], sums: list[str]) -> list[str]:
        """`sums` with a column of A times the panel's row added."""
        f, kind = self.f, self.kind
        made = []
        for r in range(self.rows):
            scalar = f.value(f"load float, ptr {f.offset(self.starts[r], 'float', k)}, align 4")
            first = f.value(f"insertelement {kind} poison, float {scalar}, i64 0")
            left = f.value(f"shufflevector {kind} {first}, {kind} poison, <{self.lanes} x i32> zeroinitializer")
            made += [f.multiply_add(kind, left, vector, sums[r * self.vectors + j]) for j, vector in enumerate(vectors)]
        return made
