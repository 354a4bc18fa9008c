"""A graph with its weights as one file, laid out like safetensors.

    8 bytes   length of the header, little-endian
    header    JSON: format, version, graph, tensors (dtype, shape, begin and end counted from the start of the data)
    data      arrays in native layout (little-endian, row-major), each on a multiple of 64 bytes

Arrays are mapped, not read: a weight costs memory when it is first touched. Nothing is unpickled or evaluated, and
every number in the header is checked before it is used: a file may come from anywhere.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rlx import disk
from rlx.errors import ModelError, RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.expect import SPREADS, Equality
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literal import Array, Literal
from rlx.ir.op import Op, lookup
from rlx.ir.type import TensorType
from rlx.ir.verify import check_states
from rlx.mapped import Mapping, private

VERSION = 1
ALIGN = 64
MAX_HEADER = 1 << 28
MAX_NODES = 1 << 20
MAX_TENSORS = 1 << 20
MAX_DEPTH = 32

Json = dict[str, Any]


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Writes graph, constants and data of params. The file appears whole or not at all. Raises OSError."""
    with disk.written_whole(path) as file:
        write_graph(graph, file)


def write_graph(graph: Graph, file: BinaryIO, with_data: bool = True) -> None:
    """What `save_graph` writes, at a place in an open file that is a multiple of 64 bytes. Raises OSError."""
    tensors = _Tensors()
    body = {"format": "rlx", "version": VERSION, "graph": _write_graph(graph, tensors)}
    body["data"] = {name: tensors.add(array) for name, array in graph.data.items() if with_data}
    body["tensors"] = tensors.entries
    header = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % ALIGN)
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for array in tensors.arrays:
        file.write(np.ascontiguousarray(private(array)).reshape(-1).view(np.uint8).data)
        file.write(b"\0" * (-array.nbytes % ALIGN))


class _Tensors:
    """Arrays of a file on their way out, each with its place. Equal objects are written once."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.entries: list[Json] = []
        self.end = 0
        self._index: dict[int, int] = {}

    def add(self, array: Array) -> int:
        known = self._index.get(id(array))
        if known is not None:
            return known
        entry = {"dtype": dtypes.of(array.dtype).name, "shape": list(array.shape)}
        self.entries.append({**entry, "begin": self.end, "end": self.end + array.nbytes})
        self.arrays.append(array)
        self.end += array.nbytes + (-array.nbytes % ALIGN)
        self._index[id(array)] = len(self.arrays) - 1
        return len(self.arrays) - 1


def _write_graph(graph: Graph, tensors: _Tensors) -> Json:
    at = {id(node): i for i, node in enumerate(graph.nodes)}
    return {
        "name": graph.name,
        "bounds": {name: list(pair) for name, pair in graph.bounds.items()},
        "states": graph.states,
        "given": list(graph.given),
        "equalities": [[_write_dim(e.left), _write_dim(e.right), e.reason, e.spreads] for e in graph.equalities],
        "assumes_equal": graph.assumes_equal,
        "nodes": [_write_node(node, at, tensors) for node in graph.nodes],
        "outputs": {name: [at[id(value.node)], value.index] for name, value in graph.outputs.items()},
    }


def _write_node(node: Node, at: dict[int, int], tensors: _Tensors) -> Json:
    written: Json = {"op": node.op.name, "name": node.name}
    if node.inputs:
        written["inputs"] = [[at[id(v.node)], v.index] for v in node.inputs]
    values = node.op.attributes()
    if values:
        written["attributes"] = {name: _write_attribute(value, tensors) for name, value in values.items()}
    if node.source is not None:
        written["source"] = node.source
    if node.regions:
        written["regions"] = [_write_graph(region, tensors) for region in node.regions]
    return written


def _write_dim(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _write_attribute(value: Any, tensors: _Tensors) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case tuple():
            return [_write_attribute(part, tensors) for part in value]
        case DType():
            return value.name
        case TensorType():
            return [value.dtype.name, [_write_dim(d) for d in value.shape]]
        case Literal():
            return tensors.add(value.array)
    return str(value)


def load_graph(path: str | os.PathLike[str]) -> Graph:
    """Reads a graph; its data lie in the mapped file, read-only (`rlx.mapped`), its constants in memory.

    Raises ModelError for a file that is no such graph, is damaged or hostile; OSError.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise ModelError(f"[load] expected a saved graph, got a file of {size} bytes: {path}")
        mapping = Mapping.of(file.fileno(), Path(path))
    return read_graph(memoryview(mapping), str(path))


def read_graph(data: memoryview, name: str) -> Graph:
    """As `load_graph`, of the bytes of a file; `name` is what messages call it. Raises ModelError."""
    try:
        return _load(data)
    except ModelError:
        raise
    except (RlxError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ModelError(f"[load] expected a saved graph in {name}: {type(error).__name__}: {error}") from None


def _load(data: memoryview) -> Graph:
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER, len(data) - 8):
        raise ModelError(f"[load] expected a header of at most {min(MAX_HEADER, len(data) - 8)} bytes, got {length}")
    body = json.loads(bytes(data[8 : 8 + length]))
    if not isinstance(body, dict) or body.get("format") != "rlx":
        raise ModelError("[load] expected a file of the format rlx")
    if body.get("version") != VERSION:
        raise ModelError(f"[load] expected version {VERSION}, got {body.get('version')!r}; save the graph anew")
    reader = _Reader(_read_tensors(_list(body["tensors"], MAX_TENSORS), data[8 + length :]))
    graph = reader.graph(body["graph"], 0)
    check_states(graph)
    for name, index in _dict(body["data"]).items():
        param = next((n for n in graph.nodes if n.name == name and n.op.name == "param"), None)
        array = reader.tensors[_index(index, len(reader.tensors))]
        if param is None or TensorType.of(array.shape, array.dtype) != param.types[0]:
            raise ModelError(f"[load] expected data of a param, got {name!r}")
        graph.data[name] = array
    return graph


def _read_tensors(entries: list[Any], data: memoryview) -> list[Array]:
    arrays: list[Array] = []
    end = 0
    for entry in entries:
        dtype = dtypes.parse(entry["dtype"])
        shape = tuple(_index(d, 1 << 48) for d in _list(entry["shape"], 64))
        first, last = _index(entry["begin"], 1 << 62), _index(entry["end"], 1 << 62)
        # In file order without overlap: no byte belongs to two arrays.
        if first < end or first % ALIGN or last - first != math.prod(shape) * dtype.itemsize or last > len(data):
            raise ModelError(f"[load] expected {dtype}{list(shape)} inside the file, got bytes {first} to {last}")
        flat = np.frombuffer(data[first:last], np.uint8) if last > first else np.empty(0, np.uint8)
        arrays.append(flat.view(dtype.numpy).reshape(shape))
        end = last
    return arrays


def _dict(value: Any) -> Json:
    if not isinstance(value, dict):
        raise ModelError(f"[load] expected an object, got {type(value).__name__}")
    return value


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ModelError(f"[load] expected a list of at most {most}, got {type(value).__name__}")
    return value


def _index(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ModelError(f"[load] expected a number in [0, {limit}), got {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ModelError(f"[load] expected a string, got {type(value).__name__}")
    return value


class _Reader:
    """Builds graphs of the header, through the same type rules as any other graph."""

    def __init__(self, tensors: list[Array]) -> None:
        self.tensors = tensors
        self.nodes = 0
        self.read: dict[str, Callable[[Any], Any]] = {
            "int": lambda value: _int(value, MOST_ATTRIBUTE),
            "bool": _bool,
            "float": _float,
            "str": _text,
            "Dim": self.dim,
            "DType": lambda value: dtypes.parse(_text(value)),
            "TensorType": self.type,
            "Literal": lambda value: Literal(self.tensors[_index(value, len(self.tensors))]),
        }

    def graph(self, body: Any, depth: int) -> Graph:
        if depth > MAX_DEPTH:
            raise ModelError(f"[load] expected at most {MAX_DEPTH} regions in each other")
        body = _dict(body)
        graph = Graph(_text(body["name"]), _bool(body.get("assumes_equal", True)))
        for node in _list(body["nodes"], MAX_NODES):
            self.nodes += 1
            if self.nodes > MAX_NODES:
                raise ModelError(f"[load] expected at most {MAX_NODES} nodes")
            self.node(graph, _dict(node), depth)
        for name, place in _dict(body["outputs"]).items():
            graph.outputs[name] = self.value(graph, place)
        for name, (low, high) in _dict(body["bounds"]).items():
            graph.bounds[name] = (_index(low, 1 << 62), None if high is None else _index(high, 1 << 62))
        graph.states = {name: _text(output) for name, output in _dict(body.get("states", {})).items()}
        graph.given = tuple(_text(name) for name in _list(body.get("given", []), MAX_NODES))
        graph.equalities = self.equalities(graph, _list(body["equalities"], MAX_NODES))
        return graph

    def equalities(self, graph: Graph, entries: list[Any]) -> list[Equality]:
        """Those of the file, which say where they come from, and whatever else type rules noted."""
        noted = []
        for left, right, reason, *spreads in entries:
            kind = _text(*spreads) if spreads else ""
            if kind not in SPREADS:
                raise ModelError(f"[load] expected one of {SPREADS}, got {kind!r}")
            noted.append(Equality(self.dim(left), self.dim(right), _text(reason), kind))
        stated = {replace(equality, reason="") for equality in noted}
        return noted + [each for each in graph.equalities if replace(each, reason="") not in stated]

    def node(self, graph: Graph, body: Json, depth: int) -> None:
        cls = lookup(_text(body["op"]))
        inputs = [self.value(graph, place) for place in _list(body.get("inputs", []), MAX_NODES)]
        regions = [self.graph(region, depth + 1) for region in _list(body.get("regions", []), 2)]
        name = _text(body["name"])
        source = body.get("source")
        op = self.op(cls, _dict(body.get("attributes", {})))
        graph.add(op, *inputs, name=name, source=None if source is None else _text(source), regions=regions)
        if graph.nodes[-1].name != name:
            raise ModelError(f"[load] expected names of their own, got {name!r} twice")

    def value(self, graph: Graph, place: Any) -> Value:
        at, index = _list(place, 2)
        node = graph.nodes[_index(at, len(graph.nodes))]
        return Value(node, _index(index, len(node.types)))

    def dim(self, value: Any) -> Dim:
        return dims.parse(value) if isinstance(value, str) else _int(value)

    def op(self, cls: type[Op], attributes: Json) -> Op:
        kinds = {field: kind for field, kind, _ in cls.fields}
        if set(attributes) != set(kinds):
            raise ModelError(f"[load] expected the attributes {sorted(kinds)} of {cls.name}, got {sorted(attributes)}")
        return cls(**{field: self.attribute(kinds[field], value) for field, value in attributes.items()})

    def attribute(self, kind: str, value: Any) -> Any:
        if kind.endswith(" | None") and value is None:
            return None
        kind = kind.removesuffix(" | None")
        kind = "tuple[Dim, ...]" if kind == "Shape" else kind
        if kind.startswith("tuple["):
            inner = kind[len("tuple[") : -len(", ...]")]
            return tuple(self.attribute(inner, part) for part in _list(value, MAX_NODES))
        return self.read[kind](value)

    def type(self, value: Any) -> TensorType:
        name, shape = _list(value, 2)
        return TensorType.of((self.dim(d) for d in _list(shape, 64)), dtypes.parse(_text(name)))


MOST_ATTRIBUTE = 1 << 64
"""What an attribute may be: the end of a range of u64. Dims are i64."""


def _int(value: Any, most: int = (1 << 63) - 1) -> int:
    if type(value) is not int or abs(value) > most:
        raise ModelError(f"[load] expected an integer, got {value!r}")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ModelError(f"[load] expected true or false, got {value!r}")
    return value


def _float(value: Any) -> float:
    if type(value) in (int, float) or value in ("inf", "-inf", "nan"):
        return float(value)
    raise ModelError(f"[load] expected a number, got {value!r}")
