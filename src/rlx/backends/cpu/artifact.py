"""What a compiled program is besides its weights, and its form on disk: a JSON header, then code and constants."""

from __future__ import annotations

import json
from dataclasses import field
from typing import Any

import numpy as np

from rlx.errors import ModelError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.records import dataclass

VERSION = 4


@dataclass(frozen=True)
class Slot:
    """A buffer that is not in the arena: its number, type, and name."""

    number: int
    type: TensorType
    name: str


@dataclass
class Artifact:
    """Everything of a compiled program but its weights.

    `kept` are the buffers that `rlx_prepare` writes and `rlx_main` reads; `main_params` the params and constants that
    `rlx_main` reads. `checks` are what to say if a run leaves their number, from 1, behind the table of buffers;
    `loops` whether the code has loops that ask whether to go on. `in_place` are the outputs that lie in the memory of
    an input, by their numbers: states that the code writes to.
    """

    code: list[bytes]
    symbols: tuple[str, ...]
    buffers: int
    inputs: list[Slot]
    params: list[Slot]
    outputs: list[Slot]
    kept: list[Slot]
    constants: dict[int, Array]
    main_params: list[int]
    report: dict[str, Any] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    loops: bool = False
    in_place: dict[int, int] = field(default_factory=dict)


def to_bytes(artifact: Artifact) -> bytes:
    """The artifact as one string of bytes."""
    blobs = [*artifact.code, *(np.ascontiguousarray(a).tobytes() for a in artifact.constants.values())]
    header = {
        "version": VERSION,
        "code_bytes": [len(part) for part in artifact.code],
        "symbols": artifact.symbols,
        "buffers": artifact.buffers,
        **{name: [_from_slot(s) for s in getattr(artifact, name)] for name in ("inputs", "params", "outputs", "kept")},
        "constants": [[n, dtypes.of(a.dtype).name, list(a.shape)] for n, a in artifact.constants.items()],
        "main_params": artifact.main_params,
        "report": artifact.report,
        "checks": artifact.checks,
        "loops": artifact.loops,
        "in_place": list(artifact.in_place.items()),
    }
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *blobs])


def from_bytes(data: bytes) -> Artifact:
    """Reads what `to_bytes` wrote. Raises ModelError if it is anything else."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        if header["version"] != VERSION:
            raise ValueError(f"version {header['version']}")
        position = 8 + length
        code = []
        for length in header["code_bytes"]:
            code.append(data[position : position + length])
            position += length
        constants: dict[int, Array] = {}
        for number, name, shape in header["constants"]:
            dtype = dtypes.parse(name).numpy
            count = int(np.prod(shape, dtype=np.int64))
            constants[number] = np.frombuffer(data, dtype, count, position).reshape(shape)
            position += count * dtype.itemsize
        slots = {name: [_to_slot(s) for s in header[name]] for name in ("inputs", "params", "outputs", "kept")}
        return Artifact(
            code, tuple(header["symbols"]), header["buffers"], slots["inputs"], slots["params"], slots["outputs"],
            slots["kept"], constants, header["main_params"], header["report"], header["checks"],
            header["loops"], dict(header["in_place"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"[cache] expected a compiled program, got {error}") from None


def _from_slot(slot: Slot) -> list[Any]:
    return [slot.number, slot.type.dtype.name, [str(d) for d in slot.type.shape], slot.name]


def _to_slot(entry: list[Any]) -> Slot:
    number, dtype, shape, name = entry
    return Slot(number, TensorType(tuple(dims.parse(d) for d in shape), dtypes.parse(dtype)), name)
