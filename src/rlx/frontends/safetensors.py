"""Weights in safetensors files, mapped. The format: 8 bytes of header length, a JSON header, the arrays' bytes."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import ModelError
from rlx.frontends.files import map_file, read_json
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array

MAX_HEADER_BYTES = 100_000_000
MAX_INDEX_BYTES = 1 << 26
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES: dict[str, DType] = {
    "BOOL": dtypes.bool_, "U8": dtypes.u8, "I8": dtypes.i8, "U16": dtypes.u16, "I16": dtypes.i16, "U32": dtypes.u32,
    "I32": dtypes.i32, "U64": dtypes.u64, "I64": dtypes.i64, "F16": dtypes.f16, "BF16": dtypes.bf16,
    "F32": dtypes.f32, "F64": dtypes.f64, "F8_E4M3": dtypes.f8e4m3, "F8_E5M2": dtypes.f8e5m2, "C64": dtypes.c64,
}  # fmt: skip

_SHARD = re.compile(r"[\w.-]+\.safetensors")


def read_folder(folder: Path) -> dict[str, Array]:
    """The arrays of a checkpoint in one file, or in several that an index lists. Raises ModelError."""
    if (folder / WHOLE).is_file():
        return read(folder / WHOLE)
    if not (folder / INDEX).is_file():
        others = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pth", ".pt"))
        actual = f"{others[0]!r}, which rlx does not open" if others else "a folder without it"
        files = sorted(path.name for path in folder.iterdir() if path.suffix == ".gguf")
        actual = f"{files[0]!r}, which rlx.load takes itself" if files else actual
        raise ModelError(f"[safetensors] expected weights in {WHOLE!r} or {INDEX!r}, got {actual}: {str(folder)!r}")
    places = read_json(folder / INDEX, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise _wrong(folder / INDEX, "no weight_map")
    arrays: dict[str, Array] = {}
    for shard in dict.fromkeys(places.values()):
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise _wrong(folder / INDEX, f"{shard!r}, which is no file name in the folder")
        if not (folder / shard).is_file():
            raise _wrong(folder / INDEX, f"{shard!r}, which is not there")
        part = read(folder / shard)
        missing = [name for name, place in places.items() if place == shard and name not in part]
        if missing:
            raise _wrong(folder / shard, f"no tensor {missing[0]!r}, which {INDEX!r} places there")
        arrays |= {name: array for name, array in part.items() if places.get(name) == shard}
    return arrays


def read(path: Path) -> dict[str, Array]:
    """The arrays by name, as views of the mapped file. Raises ModelError."""
    return read_all(path)[0]


def read_all(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays by name, as views of the mapped file, and what is said of them. Raises ModelError."""
    data = map_file(path)
    size = int.from_bytes(data[:8].tobytes(), "little") if data.size >= 8 else -1
    if not 2 <= size <= min(MAX_HEADER_BYTES, data.size - 8):
        raise _wrong(path, f"a header of {size} bytes in a file of {data.size}")
    try:
        header = json.loads(data[8 : 8 + size].tobytes(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"a header that is no JSON object ({error})") from None
    if not isinstance(header, dict):
        raise _wrong(path, "a header that is no JSON object")
    about = header.pop("__metadata__", {})
    if not isinstance(about, dict) or not all(isinstance(text, str) for text in about.values()):
        raise _wrong(path, "metadata that are no texts")
    body = data[8 + size :]
    arrays = {name: _array(path, name, entry, body) for name, entry in header.items()}
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    ends = [0, *(end for _, end in spans)]
    if any(begin != end for (begin, _), end in zip(spans, ends)) or ends[-1] != body.size:
        raise _wrong(path, "tensors that overlap or leave gaps")
    return arrays, about


def write(path: Path, arrays: Mapping[str, Array], about: Mapping[str, str]) -> None:
    """Writes arrays, and what is said of them. The file appears whole or not at all. Raises OSError."""
    names = {dtype.numpy: name for name, dtype in _DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(about)}
    end = 0
    for name, array in arrays.items():
        span = [end, end + array.nbytes]
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": span}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name twice")
    return entries


def _array(path: Path, name: str, entry: Any, body: Array) -> Array:
    if not isinstance(entry, dict):
        raise _wrong(path, f"no description of the tensor {name!r}")
    dtype = _DTYPES.get(str(entry.get("dtype")))
    shape, span = _whole(entry.get("shape")), _whole(entry.get("data_offsets"))
    if dtype is None:
        raise _wrong(path, f"the dtype {entry.get('dtype')!r} of the tensor {name!r}")
    if shape is None or span is None or len(span) != 2:
        raise _wrong(path, f"the shape {entry.get('shape')} at {entry.get('data_offsets')} of the tensor {name!r}")
    begin, end = span
    if not begin <= end <= body.size or end - begin != math.prod(shape) * dtype.itemsize:
        raise _wrong(path, f"{dtype}{shape} in bytes {begin} to {end} of {body.size} for the tensor {name!r}")
    raw = body[begin:end]
    values = raw != 0 if dtype is dtypes.bool_ else raw.view(dtype.numpy.newbyteorder("<"))
    array: Array = values.reshape(shape)
    return array


def _whole(numbers: Any) -> list[int] | None:
    """The list, if it is one of integers that are not negative."""
    fine = isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)
    return numbers if fine else None


def _wrong(path: Path, actual: str) -> ModelError:
    return ModelError(f"[safetensors] expected a valid file, got {actual}, in {path.name!r}")
