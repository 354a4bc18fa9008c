"""Loads relocatable x86-64 ELF objects into executable memory without LLVM, whose import takes longer than this.

It supports what our objects contain: code and constants, the pool's data, a global offset table, and functions of the C
library that are called through a stub. It refuses anything else (`Unloadable`), and LLVM's loader is used instead.
Memory is written first and then made executable or read-only; it is never both writeable and executable.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from rlx.ir.literal import Array
from rlx.records import dataclass

HEADER = np.dtype([
    ("magic", "S16"), ("type", "<u2"), ("machine", "<u2"), ("version", "<u4"), ("entry", "<u8"), ("programs", "<u8"),
    ("sections", "<u8"), ("flags", "<u4"), ("size", "<u2"), ("program_size", "<u2"), ("program_count", "<u2"),
    ("section_size", "<u2"), ("section_count", "<u2"), ("names", "<u2"),
])  # fmt: skip
SECTION = np.dtype([
    ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"), ("size", "<u8"),
    ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry_size", "<u8"),
])  # fmt: skip
SYMBOL = np.dtype([
    ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8"),
])  # fmt: skip
RELOCATION = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])

IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
RELOCATABLE, X86_64 = 1, 62
PROGBITS, SYMTAB, RELA, NOBITS = 1, 2, 4, 8
_UNWIND = 0x70000001
"""How to go back through frames for exceptions, which our code has none of; it is left out."""
WRITE, ALLOC, EXECUTE, _TLS = 1, 2, 4, 0x400
UNDEFINED, _FIRST_RESERVED = 0, 0xFF00
_LOCAL = 0
R_64, R_PC32, R_PLT32, R_GOTPCREL, R_GOTPCRELX, R_REX_GOTPCRELX = 1, 2, 4, 9, 41, 42
BY_DISTANCE, BY_TABLE = (R_PC32, R_PLT32), (R_GOTPCREL, R_GOTPCRELX, R_REX_GOTPCRELX)
_JUMP = b"\xff\x25"  # jmp [rip + distance]
_STUB_BYTES = 8
_READ, _READ_WRITE, _READ_EXECUTE = 1, 3, 5


class Unloadable(Exception):
    """An object has what this loader does not know."""


@dataclass
class Part:
    """One object: its sections, where each lies in memory (-1 for those that do not), and its symbols."""

    data: Array
    sections: Array
    places: Array
    symbols: Array
    names: bytes
    addresses: Array = field(default_factory=lambda: np.empty(0, np.int64))

    def name(self, symbol: Any) -> str:
        start = int(symbol["name"])
        return self.names[start : self.names.index(b"\0", start)].decode()

    def relocations(self) -> list[tuple[int, Array]]:
        """Of each section that lies in memory."""
        tables = []
        for section in self.sections[self.sections["type"] == RELA]:
            if self.places[section["info"]] >= 0:
                tables.append((int(self.places[section["info"]]), table(self.data, section, RELOCATION)))
        return tables


class MissingFunction(Unloadable):
    """Code calls a function that the process does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the function {name!r}, which is not in this process")
        self.name = name


class Image:
    """Objects in memory, which lives as long as this; `forever` has it live as long as the process."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        """Raises Unloadable."""
        if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
            raise Unloadable("another system than 64-bit Linux")
        parts = [parsed(data) for data in objects]
        executable, constant, writeable = (_laid_out(parts, kind) for kind in (EXECUTE, 0, WRITE))
        outside = sorted({name for part in parts for name in _undefined(part)} - {n for p in parts for n in defined(p)})
        slots = sum(len(table) for part in parts for _, table in part.relocations()) + len(outside)
        stubs_at = -(-executable // _STUB_BYTES) * _STUB_BYTES
        first = _pages(stubs_at + _STUB_BYTES * len(outside))
        table_at = first + -(-constant // 8) * 8
        second = _pages(table_at + 8 * slots)
        size = _pages(second + writeable) or mmap.PAGESIZE
        # not shared: a forked process must not see what the pool writes here
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes: Array = np.frombuffer(self._memory, np.uint8)
        self._base = self._bytes.__array_interface__["data"][0]
        self._stubs_at, self._table_at = stubs_at, table_at
        self._table: dict[int, int] = {}  # address → where in the table it stands
        for part in parts:
            _place(part, (0, first, second), self._bytes)
        self.symbols = self._linked(parts, outside)
        for part in parts:
            for place, table in part.relocations():
                self._relocate(part, place, table)
        self._protect(0, first, _READ_EXECUTE)
        self._protect(first, second, _READ)

    def forever(self) -> None:
        """Keeps the memory: code that runs in threads of its own may be in it."""
        _kept.append(self)

    def _linked(self, parts: Sequence[Part], outside: Sequence[str]) -> dict[str, int]:
        """Addresses of the global symbols; those of each part's symbols are noted in it."""
        addresses: dict[str, int] = {}
        for part in parts:
            sections = part.symbols["section"]
            inside = (sections != UNDEFINED) & (sections < _FIRST_RESERVED)
            places = np.where(inside, part.places[np.where(inside, sections, 0)], -1)
            part.addresses = np.where(places >= 0, self._base + places + part.symbols["value"].astype(np.int64), 0)
            for name, number in defined(part).items():
                if name in addresses or not part.addresses[number]:
                    raise Unloadable(f"the symbol {name!r} twice, or without a place")
                addresses[name] = int(part.addresses[number])
        stubs = {name: self._stub(i, _in_process(name)) for i, name in enumerate(outside)}
        for part in parts:
            for name, number in _undefined(part).items():
                part.addresses[number] = addresses[name] if name in addresses else stubs[name]
        return addresses

    def _stub(self, number: int, address: int) -> int:
        """The address of code that jumps to a function, which may lie too far away for a call."""
        at = self._stubs_at + _STUB_BYTES * number
        distance = self._slot(address) - (at + 6)
        code = _JUMP + distance.to_bytes(4, "little", signed=True)
        self._bytes[at : at + len(code)] = np.frombuffer(code, np.uint8)
        where: int = self._base + at
        return where

    def _slot(self, address: int) -> int:
        """Where in memory the table has an address."""
        at = self._table.get(address)
        if at is None:
            at = self._table[address] = self._table_at + 8 * len(self._table)
            self._bytes[at : at + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
        return at

    def _relocate(self, part: Part, place: int, table: Array) -> None:
        kinds, at = table["kind"], place + table["offset"].astype(np.int64)
        targets = part.addresses[table["symbol"]]
        if not targets.all():
            raise Unloadable("a relocation by a symbol that has no place")
        whole, near, by_table = kinds == R_64, np.isin(kinds, BY_DISTANCE), np.isin(kinds, BY_TABLE)
        if not (whole | near | by_table).all():
            raise Unloadable(f"relocations of the kinds {sorted(set(kinds.tolist()))}")
        slots = [self._base + self._slot(int(address)) for address in targets[by_table]]
        targets[by_table] = slots
        values = targets + table["addend"] - np.where(whole, 0, self._base + at)
        short = ~whole
        if (np.abs(values[short]) >= 1 << 31).any():
            raise Unloadable("a distance of more than 31 bits")
        for chosen, width in ((short, 4), (whole, 8)):
            raw = values[chosen].astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width]
            self._bytes[at[chosen][:, None] + np.arange(width)] = raw

    def _protect(self, start: int, end: int, protection: int) -> None:
        if end > start and _c_library().mprotect(ctypes.c_void_p(self._base + start), end - start, protection):
            raise Unloadable("memory that may not be made executable")


_kept: list[Image] = []


def _c_library() -> Any:
    library = ctypes.CDLL(None)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


def _in_process(name: str) -> int:
    """The address of a function that the process has. Raises Unloadable."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise MissingFunction(name) from None


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def table(data: Array, section: Any, of: np.dtype[Any]) -> Array:
    """The records that a section consists of."""
    return data[int(section["offset"]) :][: int(section["size"])].view(of)


def parsed(content: bytes) -> Part:
    """An object as it is written, none of which has a place yet. Raises Unloadable."""
    data = np.frombuffer(content, np.uint8)
    if len(content) < HEADER.itemsize or not content.startswith(IDENT):
        raise Unloadable("no ELF object of 64 bits")
    header = data[: HEADER.itemsize].view(HEADER)[0]
    if header["type"] != RELOCATABLE or header["machine"] != X86_64 or not header["section_count"]:
        raise Unloadable("no relocatable object of x86-64")
    sections = data[int(header["sections"]) :][: int(header["section_count"]) * SECTION.itemsize].view(SECTION)
    loaded = sections[(sections["flags"] & ALLOC != 0) & (sections["type"] != _UNWIND)]
    if not np.isin(loaded["type"], (PROGBITS, NOBITS)).all() or (loaded["flags"] & _TLS).any():
        raise Unloadable(f"sections of the types {sorted(set(loaded['type'].tolist()))}")
    symbol_tables = [section for section in sections if section["type"] == SYMTAB]
    if len(symbol_tables) != 1:
        raise Unloadable(f"{len(symbol_tables)} tables of symbols")
    symbols = table(data, symbol_tables[0], SYMBOL)
    names = table(data, sections[int(symbol_tables[0]["link"])], np.dtype(np.uint8)).tobytes()
    return Part(data, sections, np.full(len(sections), -1, np.int64), symbols, names)


def _laid_out(parts: Sequence[Part], kind: int) -> int:
    """Gives the sections of a kind their places, from 0 on; how many bytes they take."""
    end = 0
    for part in parts:
        for number, section in enumerate(part.sections):
            flags = int(section["flags"])
            if section["type"] == _UNWIND:
                continue
            if flags & ALLOC and flags & (WRITE | EXECUTE) == kind:
                align = max(int(section["align"]), 1)
                if align > mmap.PAGESIZE:
                    raise Unloadable(f"a section that is aligned to {align} bytes")
                end = -(-end // align) * align
                part.places[number] = end
                end += int(section["size"])
            elif flags & ALLOC and flags & WRITE and flags & EXECUTE:
                raise Unloadable("a section that is code and data")
    return end


def _place(part: Part, starts: tuple[int, int, int], memory: Array) -> None:
    """Moves the places to where their kind begins, and copies what lies there."""
    for number in np.flatnonzero(part.places >= 0):
        section = part.sections[number]
        flags = int(section["flags"])
        part.places[number] += starts[0 if flags & EXECUTE else 2 if flags & WRITE else 1]
        if section["type"] == PROGBITS:
            at, size = int(part.places[number]), int(section["size"])
            memory[at : at + size] = part.data[int(section["offset"]) :][:size]


def defined(part: Part) -> dict[str, int]:
    """Global symbols that a part has, by name, with their numbers."""
    inside = (part.symbols["info"] >> 4 != _LOCAL) & (part.symbols["section"] != UNDEFINED)
    return {part.name(part.symbols[number]): int(number) for number in np.flatnonzero(inside)}


def _undefined(part: Part) -> dict[str, int]:
    """Global symbols that a part wants from elsewhere."""
    undefined = (part.symbols["info"] >> 4 != _LOCAL) & (part.symbols["section"] == UNDEFINED)
    return {part.name(part.symbols[number]): int(number) for number in np.flatnonzero(undefined)}
