"""Object files by function: a `Unit` is the machine code of one, with what it reads and calls. `split` takes objects of
x86-64 apart, and `linked` makes one object of units, whose calls of one another have become jumps of known distance.

A unit knows the functions that it calls by name only. So it serves every program in which the names stand for the same
kind of function, whatever these compute.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import numpy as np

from rlx.backends.cpu import elf
from rlx.backends.cpu.elf import Unloadable
from rlx.ir.literal import Array
from rlx.records import dataclass

_STRTAB = 3
"""The type of a section of names."""
_FUNCTION, _SECTION = 2, 3
"""What symbols stand for."""
_MERGED = 0x10
"""Of a section of constants that all have the size of an entry."""
_CODE_ALIGN, _MOST_ALIGN = 16, 64
_PLACE_BYTES = 4
"""Of a distance in code."""
_GLOBAL_FUNCTION, _GLOBAL_UNKNOWN, _LOCAL_SECTION = 1 << 4 | _FUNCTION, 1 << 4, _SECTION

Reference = tuple[int, int, str | int, int]
"""Where in the code, the kind of relocation, a function's name or a constant's number, and what to add."""


@dataclass(frozen=True)
class Unit:
    """The machine code of one function; `constants` lie elsewhere, each aligned to its size."""

    code: bytes
    references: tuple[Reference, ...] = ()
    constants: tuple[bytes, ...] = ()


def to_bytes(unit: Unit) -> bytes:
    """The unit as one string of bytes."""
    header = json.dumps([len(unit.code), unit.references, [len(c) for c in unit.constants]]).encode()
    return b"".join([len(header).to_bytes(4, "little"), header, unit.code, *unit.constants])


def from_bytes(data: bytes) -> Unit:
    """Reads what `to_bytes` wrote. Raises ValueError, TypeError for anything else."""
    at = 4 + int.from_bytes(data[:4], "little")
    size, references, sizes = json.loads(data[4:at])
    code = data[at : at + size]
    at += size
    constants = []
    for length in sizes:
        constants.append(data[at : at + length])
        at += length
    if at != len(data):
        raise ValueError(f"expected a unit of {at} bytes, got {len(data)}")
    return Unit(code, tuple((offset, kind, target, add) for offset, kind, target, add in references), tuple(constants))


def split(content: bytes) -> dict[str, Unit]:
    """The functions of an object, by name. Each must be called by name, not by how far it is: all of them are global.
    Raises Unloadable for what is none of that."""
    part = elf.parsed(content)
    kinds = part.symbols["info"] & 15
    functions = np.flatnonzero((kinds == _FUNCTION) & (part.symbols["section"] != elf.UNDEFINED))
    if not (part.symbols["info"][functions] >> 4).all():
        raise Unloadable("functions that are called by how far they are")
    texts = set(part.symbols["section"][functions].tolist())
    constants = _Constants(part)
    found = {}
    for section in sorted(texts):
        references = np.concatenate([
            elf.table(part.data, s, elf.RELOCATION)
            for s in part.sections if s["type"] == elf.RELA and s["info"] == section
        ] or [np.empty(0, elf.RELOCATION)])  # fmt: skip
        data = elf.table(part.data, part.sections[section], np.dtype(np.uint8))
        for symbol in part.symbols[[n for n in functions if part.symbols["section"][n] == section]]:
            begin, end = int(symbol["value"]), int(symbol["value"]) + int(symbol["size"])
            inside = references[(references["offset"] >= begin) & (references["offset"] < end)]
            found[part.name(symbol)] = constants.unit(data[begin:end].tobytes(), inside, begin, texts)
    return found


class _Constants:
    """What functions of an object read that lies outside of their code."""

    def __init__(self, part: elf.Part) -> None:
        self._part = part
        self._starts = self._of_sections()

    def _of_sections(self) -> dict[int, list[int]]:
        """Where constants begin in the sections in which they have no names: each is as long as it is aligned, or ends
        where the next begins."""
        starts: dict[int, set[int]] = {}
        for relocations in self._part.sections[self._part.sections["type"] == elf.RELA]:
            for entry in elf.table(self._part.data, relocations, elf.RELOCATION):
                symbol = self._part.symbols[entry["symbol"]]
                if symbol["info"] & 15 == _SECTION:
                    starts.setdefault(int(symbol["section"]), set()).add(self._start(int(entry["addend"])))
        return {section: sorted(found) for section, found in starts.items()}

    @staticmethod
    def _start(addend: int) -> int:
        """Where a constant begins to which an instruction refers: its distance counts from the end of the instruction,
        which is that of the distance, or a byte behind it."""
        return -(-(addend + _PLACE_BYTES) // 4) * 4

    def unit(self, code: bytes, relocations: Array, begin: int, texts: Collection[int]) -> Unit:
        """A function that begins so far into its section and has these relocations. Raises Unloadable."""
        references: list[Reference] = []
        held: dict[bytes, int] = {}
        for entry in relocations:
            symbol = self._part.symbols[entry["symbol"]]
            at, kind, add = int(entry["offset"]) - begin, int(entry["kind"]), int(entry["addend"])
            if int(symbol["section"]) in texts or symbol["section"] == elf.UNDEFINED:
                if symbol["info"] & 15 == _SECTION:
                    raise Unloadable("code that refers to places in code")
                references.append((at, kind, self._part.name(symbol), add))
                continue
            if kind != elf.R_PC32:
                raise Unloadable(f"constants that are found by relocations of the kind {kind}")
            constant, moved = self._constant(symbol, add)
            references.append((at, kind, held.setdefault(constant, len(held)), add - moved))
        return Unit(code, tuple(references), tuple(held))

    def _constant(self, symbol: Array, addend: int) -> tuple[bytes, int]:
        """The constant that a symbol and a distance stand for, and where in the section of the symbol it begins, less
        where the symbol does. Raises Unloadable."""
        number = int(symbol["section"])
        section = self._part.sections[number]
        flags = int(section["flags"])
        if section["type"] != elf.PROGBITS or flags & (elf.WRITE | elf.EXECUTE):
            raise Unloadable("code that refers to data")
        data = elf.table(self._part.data, section, np.dtype(np.uint8))
        if symbol["info"] & 15 != _SECTION:
            start, end = int(symbol["value"]), int(symbol["value"]) + int(section["entry_size"])
            if not flags & _MERGED or not 0 <= addend + 2 * _PLACE_BYTES <= end - start + _PLACE_BYTES:
                raise Unloadable("a constant of unknown size")
            return data[start:end].tobytes(), 0
        target = self._start(addend)
        if flags & _MERGED:
            size = int(section["entry_size"])
            start = target // size * size
            return data[start : start + size].tobytes(), start
        if target % _MOST_ALIGN or section["align"] != _MOST_ALIGN:
            raise Unloadable("a constant of unknown size")
        later = [start for start in self._starts[number] if start > target]
        return data[target : later[0] if later else None].tobytes(), target


class _Linker:
    """Places units one behind the other, and their constants, each once."""

    def __init__(self, units: Mapping[str, Unit]) -> None:
        self.units = units
        self.code = bytearray()
        self.constants = bytearray()
        self.places: dict[str, int] = {}
        self.known: dict[bytes, int] = {}
        self.left: list[tuple[int, int, str, int]] = []
        """References for the loader; those to constants have no name."""

    def place(self) -> None:
        for name, unit in self.units.items():
            self.code += bytes(-len(self.code) % _CODE_ALIGN)
            self.places[name] = len(self.code)
            self.code += unit.code
        for name, unit in self.units.items():
            for at, kind, target, add in unit.references:
                meant = unit.constants[target] if isinstance(target, int) else target
                self._refer(self.places[name] + at, kind, meant, add)

    def _refer(self, at: int, kind: int, target: str | bytes, add: int) -> None:
        if isinstance(target, bytes):
            self.left.append((at, kind, "", self._constant(target) + add))
        elif target not in self.places:
            self.left.append((at, kind, target, add))
        elif kind in elf.BY_DISTANCE:
            self._write(at, self.places[target] + add - at)
        elif kind not in elf.BY_TABLE or not self._direct(at, self.places[target]):
            self.left.append((at, kind, target, add))

    def _constant(self, constant: bytes) -> int:
        if constant not in self.known:
            align = min(1 << max(len(constant) - 1, 0).bit_length(), _MOST_ALIGN)
            self.constants += bytes(-len(self.constants) % align)
            self.known[constant] = len(self.constants)
            self.constants += constant
        return self.known[constant]

    def _write(self, at: int, distance: int) -> None:
        self.code[at : at + _PLACE_BYTES] = distance.to_bytes(_PLACE_BYTES, "little", signed=True)

    def _direct(self, at: int, target: int) -> bool:
        """Goes to a function without the table of addresses, as linkers do; whether it was an instruction that can."""
        before = bytes(self.code[at - 2 : at])
        if before == b"\xff\x15":  # call [table] → call, with a prefix that does nothing
            self.code[at - 2 : at] = b"\x67\xe8"
        elif before == b"\xff\x25":  # jmp [table] → jmp, nop
            self.code[at - 2 : at + _PLACE_BYTES] = b"\xe9" + bytes(_PLACE_BYTES) + b"\x90"
            at -= 1
        elif before[:1] == b"\x8b":  # mov register, [table] → lea register, [target]
            self.code[at - 2] = 0x8D
        else:
            return False
        self._write(at, target - (at + _PLACE_BYTES))
        return True


def linked(units: Mapping[str, Unit], visible: Collection[str]) -> bytes:
    """An object file of units, in which others find the `visible` functions."""
    linker = _Linker(units)
    linker.place()
    wanted = {name for _, _, name, _ in linker.left if name}
    names = ["", *dict.fromkeys([*(n for n in units if n in visible or n in wanted), *sorted(wanted)])]
    strings = b"\0".join([b"", *(name.encode() for name in names[1:]), b""])
    at, starts = 1, [0]
    for name in names[1:]:
        starts.append(at)
        at += len(name.encode()) + 1
    symbols = np.zeros(len(names) + 1, elf.SYMBOL)  # none, that of the constants, the functions
    symbols[1]["info"], symbols[1]["section"] = _LOCAL_SECTION, 3
    for number, name in enumerate(names[1:], 2):
        inside = name in linker.places
        symbols[number]["name"] = starts[number - 1]
        symbols[number]["info"] = _GLOBAL_FUNCTION if inside else _GLOBAL_UNKNOWN
        if inside:
            symbols[number]["section"], symbols[number]["value"] = 1, linker.places[name]
            symbols[number]["size"] = len(units[name].code)
    number_of = {name: number for number, name in enumerate(names[1:], 2)} | {"": 1}
    relocations = np.array([(at, kind, number_of[name], add) for at, kind, name, add in linker.left], elf.RELOCATION)
    return _object(bytes(linker.code), relocations, bytes(linker.constants), symbols, strings)


def _object(code: bytes, relocations: Array, constants: bytes, symbols: Array, strings: bytes) -> bytes:
    """An ELF object file: sections of code, its relocations, constants, symbols and their names."""
    blobs = [code, relocations.tobytes(), constants, symbols.tobytes(), strings]
    sections = np.zeros(len(blobs) + 1, elf.SECTION)
    read, run = elf.ALLOC, elf.ALLOC | elf.EXECUTE
    rows = [
        (elf.PROGBITS, run, 0, 0, _MOST_ALIGN, 0),
        (elf.RELA, 0, 4, 1, 8, elf.RELOCATION.itemsize),
        (elf.PROGBITS, read, 0, 0, _MOST_ALIGN, 0),
        (elf.SYMTAB, 0, 5, 2, 8, elf.SYMBOL.itemsize),
        (_STRTAB, 0, 0, 0, 1, 0),
    ]
    at = -(-elf.HEADER.itemsize // _MOST_ALIGN) * _MOST_ALIGN
    parts = [b""]
    names = ["type", "flags", "link", "info", "align", "entry_size"]
    for section, row, blob in zip(sections[1:], rows, blobs):
        for name, value in zip(names, row):
            section[name] = value
        section["offset"], section["size"] = at, len(blob)
        padding = -len(blob) % _MOST_ALIGN
        parts += [blob, bytes(padding)]
        at += len(blob) + padding
    header = np.zeros(1, elf.HEADER)
    header["magic"], header["type"], header["machine"], header["version"] = elf.IDENT, elf.RELOCATABLE, elf.X86_64, 1
    header["sections"], header["size"] = at, elf.HEADER.itemsize
    header["section_size"], header["section_count"], header["names"] = elf.SECTION.itemsize, len(sections), len(blobs)
    start = header.tobytes()
    parts[0] = start + bytes(-len(start) % _MOST_ALIGN)
    return b"".join([*parts, sections.tobytes()])
