"""An ONNX file, read with care: limits, mapped weights, contained external data. The importer handles its nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rlx import flags, mapped
from rlx.errors import ModelError, UnsupportedOp
from rlx.frontends.files import map_file
from rlx.frontends.onnx.external import Folder
from rlx.frontends.onnx.messages import ModelProto, TensorProto
from rlx.frontends.onnx.wire import Lifted, lift
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array
from rlx.records import dataclass

MAX_SKELETON_BYTES = 1 << 30
MOST_READ = 1 << 10
"""Elements of tensors whose numbers may be shapes, axes and the like."""

# TensorProto.DataType → dtype
DTYPES: dict[int, DType] = {
    1: dtypes.f32, 2: dtypes.u8, 3: dtypes.i8, 4: dtypes.u16, 5: dtypes.i16, 6: dtypes.i32, 7: dtypes.i64,
    9: dtypes.bool_, 10: dtypes.f16, 11: dtypes.f64, 12: dtypes.u32, 13: dtypes.u64, 14: dtypes.c64, 15: dtypes.c128,
    16: dtypes.bf16, 17: dtypes.f8e4m3, 18: dtypes.f8e4m3fnuz, 19: dtypes.f8e5m2, 20: dtypes.f8e5m2fnuz,
    21: dtypes.u4, 22: dtypes.i4, 23: dtypes.f4e2m1, 24: dtypes.f8e8m0, 25: dtypes.u2, 26: dtypes.i2,
}  # fmt: skip
# Which field holds the elements of a tensor without raw data; all others hold them as int32_data.
_FIELDS = {1: "float_data", 14: "float_data", 11: "double_data", 15: "double_data", 7: "int64_data",
           12: "uint64_data", 13: "uint64_data"}  # fmt: skip


def dtype_of(code: int) -> DType:
    """The dtype of a TensorProto code. Raises UnsupportedOp."""
    dtype = DTYPES.get(code)
    if dtype is None:
        known = code in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(code).lower() if known else str(code)
        raise UnsupportedOp(f"the dtype {name} is not supported")
    return dtype


class ModelFile:
    """A parsed model. Its weights stay in the mapped file: `array` gives views of them."""

    def __init__(self, source: Path | bytes) -> None:
        self.folder: Folder | None = None
        self.label = f"{len(source)} bytes" if isinstance(source, bytes) else source.name
        if isinstance(source, bytes):
            self.data: Array = np.frombuffer(source, np.uint8)
        else:
            self.folder = Folder(source.parent)
            self.data = map_file(source)
        try:
            self.lifted = lift(self.data.data) if self.data.size else Lifted()
        except ModelError as error:
            raise ModelError(f"{error}, in {self.label}") from None
        self.proto = _parse(self.lifted.skeleton, self.label)
        self.lifted.skeleton = b""
        self.opsets = opsets_of(self.proto.opset_import)
        self.functions = {(f.domain, f.name, f.overload): f for f in self.proto.functions}
        if len(self.functions) < len(self.proto.functions):
            twice = _first_twice(f"{f.domain}.{f.name}" for f in self.proto.functions)
            raise ModelError(f"[onnx] expected functions of names of their own, got {twice!r} twice")

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the file is opened again when it is looked into, and must be the same."""
        if self.folder is None:
            return ModelFile, (self.data.tobytes(),)
        return LaterFile, (self.folder.root / self.label, mapped.state_of(self.data))

    @property
    def files(self) -> tuple[Array, ...]:
        """The file, and those of external data that were asked for so far; none of bytes."""
        return () if self.folder is None else (self.data, *self.folder.opened)

    def open(self) -> ModelFile:
        """The file. Raises ModelError if it was written to since it was opened."""
        self.check()
        return self

    def check(self) -> None:
        """Raises ModelError if the files were written to since they were opened."""
        mapped.check([self.data, *(self.folder.opened if self.folder else ())])

    def stand_in(self, tensor: TensorProto) -> Array:
        """An array of the tensor's type, of zeros if it is big: for who will not use its numbers."""
        dtype, shape = _type_of(tensor)
        if math.prod(shape) <= MOST_READ:
            return self.array(tensor)
        return np.broadcast_to(np.zeros((), dtype.numpy), shape)

    def array(self, tensor: TensorProto) -> Array:
        """The tensor as an array, a view of the file where that is possible. Raises ModelError, UnsupportedOp."""
        dtype, shape = _type_of(tensor)
        count = math.prod(shape)
        raw = self._raw(tensor)
        if raw is None:
            return self._typed(tensor, dtype, shape, count)
        expected = (count * dtype.bits + 7) // 8
        if raw.size != expected:
            actual = f"{raw.size}, at tensor {tensor.name!r}"
            raise ModelError(f"[onnx] expected {expected} bytes for {dtype}{list(shape)}, got {actual}")
        return _decode(raw, dtype, count).reshape(shape)

    def _raw(self, tensor: TensorProto) -> Array | None:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if self.lifted.key in entries:
            offset, length = self.lifted.extents[int(entries[self.lifted.key])]
            return self.data[offset : offset + length]
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._external(tensor.name, entries)
        return np.frombuffer(tensor.raw_data, np.uint8) if tensor.HasField("raw_data") else None

    def _external(self, name: str, entries: dict[str, str]) -> Array:
        if self.folder is None:
            raise ModelError(f"[onnx] expected weights in the model, got external data at tensor {name!r}: load a path")
        if "location" not in entries:
            raise ModelError(f"[onnx] expected a location of external data, got none, at tensor {name!r}")
        length = entries.get("length")
        offset = _whole(name, entries.get("offset") or "0")
        return self.folder.bytes_at(entries["location"], offset, _whole(name, length) if length else None)

    def _typed(self, tensor: TensorProto, dtype: DType, shape: tuple[int, ...], count: int) -> Array:
        values = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
        per_element = 2 if dtype.is_complex else 1
        packed = 8 // dtype.bits if dtype.bits < 8 else 1
        expected = -(-count // packed) * per_element
        if len(values) != expected:
            actual = f"{len(values)}, at tensor {tensor.name!r}"
            raise ModelError(f"[onnx] expected {expected} numbers for {dtype}{list(shape)}, got {actual}")
        if dtype.is_complex:
            return np.array(values, np.float32 if dtype is dtypes.c64 else np.float64).view(dtype.numpy).reshape(shape)
        if dtype.is_integer and dtype.bits >= 8:
            return np.array(values, np.uint64 if dtype.kind == "uint" else np.int64).astype(dtype.numpy).reshape(shape)
        if dtype.bits in (32, 64):
            return np.array(values, dtype.numpy).reshape(shape)
        width = np.uint16 if dtype.bits == 16 else np.uint8  # int32_data holds the bits of narrow floats
        bits = (np.array(values, np.int64) & (0xFFFF if dtype.bits == 16 else 0xFF)).astype(width)
        return _decode(bits.view(np.uint8), dtype, count).reshape(shape)


def _type_of(tensor: TensorProto) -> tuple[DType, tuple[int, ...]]:
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape) or len(shape) > 64:
        raise ModelError(f"[onnx] expected dims that are not negative, got {shape}, at tensor {tensor.name!r}")
    return dtype_of(tensor.data_type), shape


@dataclass(frozen=True)
class LaterFile:
    """A model file that another process had open."""

    path: Path
    state: tuple[int, ...] | None

    def open(self) -> ModelFile:
        """The file. Raises ModelError if it is another by now, or gone."""
        if mapped.state_at(self.path) != self.state:
            raise ModelError(
                f"[load] expected {str(self.path)!r} as it was when a program of it was pickled, got another file"
            )
        return ModelFile(self.path)


def _decode(raw: Array, dtype: DType, count: int) -> Array:
    """Little-endian bytes as elements. Those below 8 bits share a byte, the first in its lowest bits."""
    if dtype is dtypes.bool_:
        return np.asarray(raw != 0)
    if dtype.bits >= 8:
        return np.frombuffer(raw, dtype.numpy.newbyteorder("<"))
    parts = np.stack([raw >> shift for shift in range(0, 8, dtype.bits)], axis=-1).reshape(-1)[:count]
    return (parts & ((1 << dtype.bits) - 1)).view(dtype.numpy)


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ModelError(f"[onnx] expected offset and length of external data as numbers, got {text!r}, at {name!r}")
    return int(text)


def _parse(skeleton: bytes, label: str) -> Any:
    if len(skeleton) > MAX_SKELETON_BYTES:
        raise ModelError(f"[onnx] expected at most {MAX_SKELETON_BYTES} bytes beside weights, got {len(skeleton)}")
    try:
        proto = ModelProto.FromString(skeleton)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"[onnx] expected an ONNX model, got {label}, which is damaged or none: {error}") from None
    if not proto.ir_version or not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"[onnx] expected an ONNX model, got {label}, which holds no graph")
    most = flags.max_nodes()
    if len(proto.graph.node) > most:
        raise ModelError(f"[onnx] expected at most {most} nodes (RLX_MAX_NODES), got {len(proto.graph.node)}")
    return proto


def opsets_of(imports: Iterable[Any]) -> dict[str, int]:
    """Domain → version; the default domain is called `` (empty). Raises ModelError for two versions of one."""
    opsets: dict[str, int] = {}
    for each in imports:
        domain = "" if each.domain == "ai.onnx" else each.domain
        if opsets.setdefault(domain, each.version) != each.version:
            versions = f"{opsets[domain]} and {each.version} of {domain or 'ai.onnx'!r}"
            raise ModelError(f"[onnx] expected one opset of each domain, got {versions}")
    return opsets


def _first_twice(names: Iterable[str]) -> str:
    counted = Counter(names)
    return next(name for name, count in counted.items() if count > 1)


def check_names(graph: Any, label: str) -> None:
    """Raises ModelError for a name of a graph's or a function's values that is defined twice."""
    makers: dict[str, str] = {}
    for tensor in getattr(graph, "initializer", ()):
        if tensor.name in makers:
            raise ModelError(f"[onnx] expected names that are defined once, got the initializer {tensor.name!r} twice")
        makers[tensor.name] = "an initializer"
    inputs: set[str] = set()
    for declared in graph.input:
        name = declared if isinstance(declared, str) else declared.name
        if name in inputs:
            raise ModelError(f"[onnx] expected names that are defined once, got the input {name!r} twice, in {label}")
        inputs.add(name)
        makers.setdefault(name, "an input")
    for index, node in enumerate(graph.node):
        place = f"node {(node.name or f'{node.op_type}_{index}')!r}"
        for name in node.output:
            if name and name in makers:
                places = f"{name!r} from {makers[name]} and from {place}"
                raise ModelError(f"[onnx] expected names that are defined once, got {places}, in {label}")
            makers[name] = place
