"""The types of elements in GGUF files: plain numbers, and blocks of few bits with scales.

Blocks become what `rlx.ops.packed.PackedMatmul` takes: integers of 2, 4 or 8 bits, low bits first, and for each
stretch of `block` elements a scale, and a minimum where the type has one: an element is scale · (q - 2^(bits - 1)), or
scale · q + minimum. That is exact: scales of blocks and of their parts are multiplied in f32, as ggml does it. Layouts:
ggml's `ggml-common.h`, and its Python package.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from rlx.ir.literal import Array
from rlx.records import dataclass

CHUNK = 1 << 20
"""Elements that are laid out at a time: what comes between stays in the cache."""
Parts = tuple[Array, Array, Array | None]
"""Of n blocks: integers u8 [n, bytes], scales [n, count], and minima like scales."""


@dataclass(frozen=True)
class BlockType:
    """A type of elements.

    elements, bytes   of a block; plain numbers are blocks of one
    dtype             of plain numbers
    bits, block       of packed elements, and how many of them share a scale
    parts             takes blocks apart, u8 [n, bytes]; None for types that are only known by name
    """

    name: str
    elements: int = 1
    bytes: int = 1
    dtype: np.dtype | None = None
    bits: int = 0
    block: int = 0
    parts: Callable[[Array], Parts] | None = None

    @property
    def is_known(self) -> bool:
        """Whether elements of the type can be read."""
        return self.dtype is not None or self.parts is not None


def packed(of: BlockType, data: Array, shape: tuple[int, int]) -> Parts:
    """The integers u8 [rows, bytes], scales [rows, count] and minima of a matrix in blocks."""
    assert of.parts is not None
    blocks = data.reshape(-1, of.bytes)
    step = max(CHUNK // of.elements, 1)
    made: list[Array] = []
    for start in range(0, len(blocks), step):
        with np.errstate(all="ignore"):  # scales may be anything
            parts = of.parts(blocks[start : start + step])
        if not made:
            made = [np.empty((len(blocks), part.shape[1]), part.dtype) for part in parts if part is not None]
        for whole, part in zip(made, parts):
            whole[start : start + step] = part
    integers, scales, *minima = (whole.reshape(shape[0], -1) for whole in made)
    return integers, scales, minima[0] if minima else None


def dequantised(of: BlockType, parts: Parts) -> Array:
    """The elements, f32 [rows, elements], of packed rows."""
    integers, scales, minima = parts
    shifts = np.arange(0, 8, of.bits, dtype=np.uint8)
    whole = (integers[..., None] >> shifts & ((1 << of.bits) - 1)).reshape(*scales.shape, of.block).astype(np.float32)
    step = scales.astype(np.float32)[..., None]
    with np.errstate(all="ignore"):
        if minima is None:
            values = (whole - np.float32(1 << (of.bits - 1))) * step
        else:
            values = whole * step + minima.astype(np.float32)[..., None]
    return np.asarray(values.reshape(len(integers), -1))


def numbers(of: BlockType, data: Array, shape: tuple[int, ...]) -> Array:
    """The elements of any type: plain numbers where they lie, blocks dequantised to f32."""
    if of.dtype is not None:
        return data.view(of.dtype).reshape(shape)
    rows = data.size // of.bytes * of.elements // shape[-1]
    return dequantised(of, packed(of, data, (rows, shape[-1]))).reshape(shape)


# pieces of blocks


def _halves(blocks: Array, at: int) -> Array:
    """Numbers of f16 from a byte on, one of each block: [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")


def _halves32(blocks: Array, at: int) -> Array:
    return _halves(blocks, at).astype(np.float32)


def _nibbles(quants: Array, run: int) -> Array:
    """Runs of bytes of which the low halves are elements in turn, and then the high halves, as halves in turn."""
    words = np.ascontiguousarray(quants).view("<u2").reshape(-1, run // 2)
    low = words & 0x0F | words >> 4 & 0xF0
    high = words >> 4 & 0x0F | words >> 8 & 0xF0
    return np.concatenate([low.astype(np.uint8), high.astype(np.uint8)], axis=1).reshape(len(quants), -1)


def _spread(quants: Array, run: int, shifts: tuple[int, ...], mask: int) -> Array:
    """The pieces of runs of bytes, all of one place first: u8 [n, elements]."""
    runs = quants.reshape(len(quants), -1, 1, run) >> np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    return np.asarray((runs & np.uint8(mask)).reshape(len(quants), -1))


def _joined(whole: Array, bits: int) -> Array:
    """Integers packed into bytes, low bits first."""
    count = 8 // bits
    joined: Array = whole[:, 0::count].copy()
    for i in range(1, count):
        joined |= whole[:, i::count] << np.uint8(i * bits)
    return joined


# blocks of 32


def _q4_0(blocks: Array) -> Parts:
    return _nibbles(blocks[:, 2:], 16), _halves(blocks, 0), None


def _q4_1(blocks: Array) -> Parts:
    return _nibbles(blocks[:, 4:], 16), _halves(blocks, 0), _halves(blocks, 2)


def _fives(blocks: Array, at: int) -> Array:
    """Integers of 5 bits: the highest of all in 4 bytes from `at` on, then the others."""
    high = np.unpackbits(np.ascontiguousarray(blocks[:, at : at + 4]), axis=1, bitorder="little")
    return np.asarray(_spread(blocks[:, at + 4 :], 16, (0, 4), 15) | high << np.uint8(4))


def _q5_0(blocks: Array) -> Parts:
    return _fives(blocks, 2) + np.uint8(128 - 16), _halves(blocks, 0), None


def _q5_1(blocks: Array) -> Parts:
    return _fives(blocks, 4), _halves(blocks, 0), _halves(blocks, 2)


def _q8_0(blocks: Array) -> Parts:
    return blocks[:, 2:] ^ np.uint8(128), _halves(blocks, 0), None


def _table(*values: int) -> Array:
    """What 4 bits stand for, as unsigned numbers with the zero 128."""
    return (np.array(values, np.int16) + 128).astype(np.uint8)


_NONLINEAR = _table(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_DOUBLED = _table(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _iq4_nl(blocks: Array) -> Parts:
    return _NONLINEAR[_spread(blocks[:, 2:], 16, (0, 4), 15)], _halves(blocks, 0), None


def _mxfp4(blocks: Array) -> Parts:
    """Scales are powers of 2, of which half goes with elements that are doubled."""
    exponents = blocks[:, :1].astype(np.int32) - 128
    return _E2M1_DOUBLED[_spread(blocks[:, 1:], 16, (0, 4), 15)], np.ldexp(np.float32(1), exponents), None


# blocks of 256, whose parts have scales of few bits


def _q2_k(blocks: Array) -> Parts:
    """16 bytes with scales (low) and minima (high) of 16 elements each, elements of 2 bits, and the scales of both."""
    parts = blocks[:, :16]
    scales = _halves32(blocks, 80) * (parts & np.uint8(15)).astype(np.float32)
    minima = _halves32(blocks, 82) * (parts >> np.uint8(4)).astype(np.float32)
    return _joined(_spread(blocks[:, 16:80], 32, (0, 2, 4, 6), 3), 2), scales, -minima


def _q3_k(blocks: Array) -> Parts:
    """The highest bits of elements, 2 bits of each, 16 scales of 6 bits, and the scale of these."""
    packed_scales = blocks[:, 96:108]
    low = _spread(packed_scales[:, :8], 8, (0, 4), 15)
    high = _spread(packed_scales[:, 8:], 4, (0, 2, 4, 6), 3)
    scales = (low | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    highest = _spread(blocks[:, :32], 32, tuple(range(8)), 1)
    whole = _spread(blocks[:, 32:96], 32, (0, 2, 4, 6), 3) | highest << np.uint8(2)
    return _joined(whole + np.uint8(4), 4), _halves32(blocks, 108) * scales, None


def _sixes(blocks: Array) -> tuple[Array, Array]:
    """The scales and minima of blocks of 8 parts, from 6 bits each in 12 bytes behind the scales of both."""
    first, second, third = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=1).astype(np.float32)
    minima = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=1).astype(np.float32)
    return _halves32(blocks, 0) * scales, -(_halves32(blocks, 2) * minima)


def _q4_k(blocks: Array) -> Parts:
    return _nibbles(blocks[:, 16:], 32), *_sixes(blocks)


def _q5_k(blocks: Array) -> Parts:
    highest = _spread(blocks[:, 16:48], 32, tuple(range(8)), 1)
    return _spread(blocks[:, 48:], 32, (0, 4), 15) | highest << np.uint8(4), *_sixes(blocks)


def _q6_k(blocks: Array) -> Parts:
    """4 bits of each element, 2 more of each, 16 scales of 8 bits, and the scale of these."""
    whole = _spread(blocks[:, :128], 64, (0, 4), 15) | _spread(blocks[:, 128:192], 32, (0, 2, 4, 6), 3) << np.uint8(4)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return whole + np.uint8(128 - 32), _halves32(blocks, 208) * scales, None


def _iq4_xs(blocks: Array) -> Parts:
    """8 scales of 6 bits, of which the 2 high ones come first, behind the scale of these."""
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & np.uint8(15)).reshape(len(blocks), 8)
    scales = (low | high << 4).astype(np.float32) - np.float32(32)
    return _NONLINEAR[_spread(blocks[:, 8:], 16, (0, 4), 15)], _halves32(blocks, 0) * scales, None


def _tq1_0(blocks: Array) -> Parts:
    """Elements -1, 0 and 1: five to a byte, and four in each of the last ones, as digits in base 3 of a fraction."""
    runs = []
    for begin, end, run, count in ((0, 32, 32, 5), (32, 48, 16, 5), (48, 52, 4, 4)):
        powers = (3 ** np.arange(count)).astype(np.uint8).reshape(1, 1, -1, 1)
        digits = blocks[:, begin:end].reshape(len(blocks), -1, 1, run) * powers
        runs.append((digits.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(blocks), -1))
    return _joined(np.concatenate(runs, axis=1) + np.uint8(1), 2), _halves(blocks, 52), None


def _tq2_0(blocks: Array) -> Parts:
    """Elements from -1 on, of 2 bits."""
    scales = _halves(blocks, 64)
    return _joined(_spread(blocks[:, :64], 32, (0, 2, 4, 6), 3), 2), scales, -scales


def _plain(name: str, dtype: object) -> BlockType:
    of = np.dtype(dtype)  # type: ignore[call-overload]  # ml_dtypes' too
    return BlockType(name, 1, of.itemsize, of)


_NAMES = (
    (9, "Q8_1"), (15, "Q8_K"), (16, "IQ2_XXS"), (17, "IQ2_XS"), (18, "IQ3_XXS"), (19, "IQ1_S"), (21, "IQ3_S"),
    (22, "IQ2_S"), (29, "IQ1_M"), (40, "NVFP4"),
)  # fmt: skip
"""Types that are known by name alone."""
TYPES: dict[int, BlockType] = {
    0: _plain("F32", "<f4"),
    1: _plain("F16", "<f2"),
    2: BlockType("Q4_0", 32, 18, None, 4, 32, _q4_0),
    3: BlockType("Q4_1", 32, 20, None, 4, 32, _q4_1),
    6: BlockType("Q5_0", 32, 22, None, 8, 32, _q5_0),
    7: BlockType("Q5_1", 32, 24, None, 8, 32, _q5_1),
    8: BlockType("Q8_0", 32, 34, None, 8, 32, _q8_0),
    10: BlockType("Q2_K", 256, 84, None, 2, 16, _q2_k),
    11: BlockType("Q3_K", 256, 110, None, 4, 16, _q3_k),
    12: BlockType("Q4_K", 256, 144, None, 4, 32, _q4_k),
    13: BlockType("Q5_K", 256, 176, None, 8, 32, _q5_k),
    14: BlockType("Q6_K", 256, 210, None, 8, 16, _q6_k),
    20: BlockType("IQ4_NL", 32, 18, None, 8, 32, _iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, None, 8, 32, _iq4_xs),
    24: _plain("I8", "i1"),
    25: _plain("I16", "<i2"),
    26: _plain("I32", "<i4"),
    27: _plain("I64", "<i8"),
    28: _plain("F64", "<f8"),
    30: _plain("BF16", ml_dtypes.bfloat16),
    34: BlockType("TQ1_0", 256, 54, None, 2, 256, _tq1_0),
    35: BlockType("TQ2_0", 256, 66, None, 2, 256, _tq2_0),
    39: BlockType("MXFP4", 32, 17, None, 8, 32, _mxfp4),
    **{number: BlockType(name) for number, name in _NAMES},
}  # fmt: skip
"""By their numbers in files."""
