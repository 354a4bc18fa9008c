"""What assemblers make of kernels for compute capability 9.0: the operations of machine code, in order."""

from __future__ import annotations

import struct

LOAD, STORE, WAIT, MULTIPLY = 0x981, 0x986, 0x82E, 0x23C
"""From memory to registers, and back; for earlier kernels (`griddepcontrol.wait`); and halves, on matrix units."""
INSTRUCTION_BYTES = 16


def operations(cubin: bytes) -> list[int]:
    """The numbers of a cubin's operations; it has one kernel."""
    (start,), (size, count, names) = struct.unpack_from("<Q", cubin, 0x28), struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + number * size) for number in range(count)]
    found = []
    for name, _, _, _, offset, length in sections:
        if cubin[sections[names][4] + name :].startswith(b".text."):
            places = range(offset, offset + length, INSTRUCTION_BYTES)
            found += [struct.unpack_from("<H", cubin, place)[0] & 0xFFF for place in places]
    return found
