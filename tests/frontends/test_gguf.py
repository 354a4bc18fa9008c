"""The reader of GGUF files: types of blocks against the package `gguf`, metadata, and files that lie."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_files import F32, Q4_0, small_decoder, tensor, text, value, whole
from rlx.errors import ModelError
from rlx.frontends.gguf import File
from rlx.frontends.gguf_blocks import TYPES, dequantised, numbers, packed

BLOCKS = {number: of for number, of in TYPES.items() if of.parts is not None}


def random_rows(size: int, rows: int = 6, blocks: int = 3) -> Any:
    return np.random.default_rng(5).integers(0, 256, (rows, blocks * size), np.uint8)


@pytest.mark.parametrize("number", BLOCKS, ids=lambda number: TYPES[number].name)
def test_blocks_are_what_the_package_makes_of_them(number: int) -> None:
    gguf = pytest.importorskip("gguf")
    of, kind = TYPES[number], gguf.GGMLQuantizationType(number)
    assert kind.name == of.name and gguf.GGML_QUANT_SIZES[kind] == (of.elements, of.bytes)
    data = random_rows(of.bytes)
    with np.errstate(all="ignore"):
        expected, actual = gguf.dequantize(data, kind), numbers(of, data.reshape(-1), (6, 3 * of.elements))
    assert actual.dtype == np.float32
    # NaN is NaN; a scale that no file has, 2^-128, is what f32 has least digits of
    assert np.array_equal(actual, expected, equal_nan=True)


def test_types_are_those_of_the_package() -> None:
    gguf = pytest.importorskip("gguf")
    for number, of in TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == of.name
        if of.is_known:
            assert gguf.GGML_QUANT_SIZES[number] == (of.elements, of.bytes)


@pytest.mark.parametrize("number", BLOCKS, ids=lambda number: TYPES[number].name)
def test_blocks_are_laid_out_in_pieces_as_they_are_at_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    of, data = TYPES[number], random_rows(TYPES[number].bytes)
    shape = (6, 3 * of.elements)
    at_once = packed(of, data, shape)
    monkeypatch.setattr("rlx.frontends.gguf_blocks.CHUNK", 2 * of.elements)
    for part, expected in zip(packed(of, data, shape), at_once):
        assert (part is None) == (expected is None) and (part is None or part.tobytes() == expected.tobytes())
    integers, scales, _ = at_once
    assert integers.shape == (6, shape[1] * of.bits // 8) and scales.shape == (6, shape[1] // of.block)
    assert dequantised(of, at_once).shape == shape


# metadata


def test_metadata_of_every_type(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    plain = {"u8": 200, "i8": -3, "u16": 65535, "i16": -300, "u32": 1 << 31, "i32": -9, "u64": 1 << 63, "i64": -1}
    for name, number in plain.items():
        kind = {"u": "UINT", "i": "INT"}[name[0]] + name[1:]
        writer.add_key_value(name, number, getattr(gguf.GGUFValueType, kind))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e300)
    writer.add_bool("flag", True)
    writer.add_string("text", "na\u00efve \U0001f642")
    writer.add_array("texts", ["a", "", "\u65e5\u672c"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("flags", [True, False])
    arrays = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.arange(5, dtype="i8"), "c": np.ones((2, 1), "f2")}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    file = File(tmp_path / "a.gguf")
    assert {name: file.get(name) for name in plain} == plain
    assert file.get("f32") == 0.5 and file.get("f64") == 1e300 and file.get("flag") is True
    assert file.get("text") == "na\u00efve \U0001f642" and file.get("texts") == ["a", "", "\u65e5\u672c"]
    assert file.get("numbers").tolist() == [1, -2, 3] and file.get("floats").tolist() == [0.5, -1.5]
    assert file.get("flags").tolist() == [True, False] and file.count("texts") == 3 and file.count("text") == 0
    assert file.get("other") is None and file.get("other", 4) == 4 and "text" in file and "other" not in file
    for name, array in arrays.items():
        found = file.tensors[name]
        read = numbers(found.type, found.data, found.shape)
        assert read.dtype == array.dtype and np.array_equal(read, array) and np.shares_memory(read, file.bytes)


def test_a_vocabulary_is_passed_quickly_and_read_late() -> None:
    """150,000 words and as many merges, as large files have them: no time that grows with their square."""
    words = [f"word{i}" for i in range(150_000)]
    data = whole([("tokens", words), ("merges", words)])
    start = time.perf_counter()
    file = File(data)
    found = file.get("tokens")
    assert time.perf_counter() - start < 30, "minutes, where something is quadratic"
    assert found == words and file.get("tokens") is found


def test_texts_that_are_no_utf_8_are_refused_when_they_are_read() -> None:
    listed = struct.pack("<IIQ", 9, 8, 2) + text("a") + text(b"\xff")
    file = File(whole([("tokens", listed)]))
    with pytest.raises(ModelError, match=r"texts in UTF-8.* in text 1.*'tokens'"):
        file.get("tokens")


# files that lie

_ONE = [("general.architecture", "llama")]
_FAR = (1 << 64) - 1


def _array(kind: int, count: int, rest: bytes = b"") -> bytes:
    return struct.pack("<IIQ", 9, kind, count) + rest


LIES: dict[str, tuple[bytes, str]] = {
    "magic": (b"GGML" + bytes(40), "begins with"),
    "no-header": (b"GGUF\3\0\0\0", "the header"),
    "version-1": (whole(_ONE, version=1), "version 2 or 3, got 1"),
    "version-9": (whole(_ONE, version=9), "version 2 or 3, got 9"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 1) + bytes(64), "little-endian"),
    "tensors": (whole(_ONE, counts=(_FAR, 1)), "tensors that fit"),
    "metadata": (whole(_ONE, counts=(0, _FAR)), "metadata that fit"),
    "more-metadata": (whole(_ONE, counts=(0, 3)), r"expected|bytes"),
    "key-length": (whole([], counts=(0, 1)) + struct.pack("<Q", _FAR) + bytes(64), "expected"),
    "key-twice": (whole(_ONE * 2), "each key once"),
    "key-text": (whole([(b"\xff\xfe", 1)]), "UTF-8"),
    "value-type": (whole([("a", struct.pack("<I", 13))]), "type among 0 to 12"),
    "text-length": (whole([("a", struct.pack("<IQ", 8, _FAR))]), "bytes at"),
    "text": (whole([("a", struct.pack("<I", 8) + text(b"\xff"))]), "UTF-8"),
    "array-count": (whole([("a", _array(4, _FAR))]), "an array that fits"),
    "array-bytes": (whole([("a", _array(0, 1 << 40))]), "an array that fits"),
    "array-of-texts": (
        whole([("a", _array(8, 4, text("b") * 2 + text(bytes(99))[:30]))]),
        "texts, got a file that ends",
    ),
    "array-text-length": (whole([("a", _array(8, 2, struct.pack("<Q", _FAR) + bytes(64)))]), "texts, got"),
    "array-of-arrays": (whole([("a", _array(9, 1, value([1])))]), "array of numbers, flags or texts"),
    "array-type": (whole([("a", _array(99, 1))]), "array of numbers, flags or texts"),
    "alignment-0": (whole([("general.alignment", 0)]), "power of 2"),
    "alignment-48": (whole([("general.alignment", 48)]), "power of 2"),
    "alignment-text": (whole([("general.alignment", "32")]), "power of 2"),
    "alignment-huge": (whole([("general.alignment", 1 << 31)]), "power of 2"),
    "rank-0": (whole(_ONE, [tensor("w", [], F32, 0)], bytes(64)), "1 to 4 axes, got 0"),
    "rank-huge": (whole(_ONE, [text("w") + struct.pack("<I", 0xFFFFFFFF)], bytes(64)), "1 to 4 axes"),
    "extent-0": (whole(_ONE, [tensor("w", [0, 4], F32, 0)], bytes(64)), "extents from 1"),
    "extent-huge": (whole(_ONE, [tensor("w", [_FAR], F32, 0)], bytes(64)), "extents from 1"),
    "product": (whole(_ONE, [tensor("w", [1 << 40, 1 << 40], F32, 0)], bytes(64)), "inside the file"),
    "wraps": (whole(_ONE, [tensor("w", [1 << 32, 1 << 32], F32, 0)], bytes(64)), "inside the file"),
    "type": (whole(_ONE, [tensor("w", [4], 999, 0)], bytes(64)), "type 999"),
    "type-by-name": (whole(_ONE, [tensor("w", [256], 16, 0)], bytes(99)), "got IQ2_XXS, at 'w'"),
    "half-a-block": (whole(_ONE, [tensor("w", [33], Q4_0, 0)], bytes(64)), "whole blocks of 32"),
    "offset": (whole(_ONE, [tensor("w", [4], F32, _FAR & ~31)], bytes(64)), "inside the file"),
    "offset-unaligned": (whole(_ONE, [tensor("w", [4], F32, 4)], bytes(64)), "multiple of 32"),
    "cut-off": (whole(_ONE, [tensor("w", [32], F32, 0)], bytes(127)), "inside the file"),
    "tensor-twice": (whole(_ONE, [tensor("w", [4], F32, 0), tensor("w", [4], F32, 32)], bytes(64)), "tensor once"),
    "overlap": (whole(_ONE, [tensor("v", [16], F32, 0), tensor("w", [4], F32, 32)], bytes(64)), "do not overlap"),
    "name-length": (whole(_ONE, [struct.pack("<Q", _FAR) + bytes(24)], bytes(64)), "at most 65536 bytes"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_told_with_its_place(name: str) -> None:
    data, told = LIES[name]
    with pytest.raises(ModelError, match=told) as error:
        File(data)
    assert str(error.value).startswith("[gguf] expected ") and "in 'the bytes'" in str(error.value)


def test_a_file_that_ends_early_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    data = small_decoder()
    File(data)
    for end in [*range(4, 400), *range(400, len(data), 97), len(data) - 1]:
        with pytest.raises(ModelError):
            File(data[:end])
    path = tmp_path / "short.gguf"
    path.write_bytes(data[:-1])
    with pytest.raises(ModelError, match=r"inside the file.*'short\.gguf'"):
        File(path)


def test_an_empty_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    for path in (tmp_path / "empty.gguf", tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(ModelError):
            File(path)
