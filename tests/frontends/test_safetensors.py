"""The safetensors reader: what the format's own package writes, and files that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.errors import ModelError
from rlx.frontends import safetensors


def write(path: Path, header: Any, body: bytes = b"", size: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if size is None else size).to_bytes(8, "little") + text + body)
    return path


def entry(begin: int, end: int, dtype: str = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_reads_what_the_package_writes(tmp_path: Path) -> None:
    writer = pytest.importorskip("safetensors.numpy")
    arrays = {
        "a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.array([1, -2]), "c": np.zeros((0, 3), "f2"),
        "d": np.array(True), "e": np.array([1.5, 2], ml_dtypes.bfloat16),
    }  # fmt: skip
    writer.save_file(arrays, tmp_path / "w.safetensors", {"made": "by a test"})
    arrays_read = safetensors.read(tmp_path / "w.safetensors")
    assert arrays_read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert arrays_read[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays_read[name], array)
    assert not arrays_read["a"].flags.owndata


@pytest.mark.parametrize(
    "header, body, size",
    [
        ({"a": entry(0, 8)}, b"\0" * 8, 1 << 40),
        ({"a": entry(0, 8)}, b"\0" * 8, 1),
        (b"not json", b"", None),
        (b"[]", b"", None),
        (b"[" * 100000, b"", None),
        (b'{"a": 1, "a": 2}', b"", None),
        ({"a": 3}, b"", None),
        ({"a": entry(0, 8, "Q7")}, b"\0" * 8, None),
        ({"a": entry(0, 8, shape=[1 << 40, 1 << 40])}, b"\0" * 8, None),
        ({"a": entry(0, 8, shape=[-2])}, b"\0" * 8, None),
        ({"a": entry(0, 8, shape=[2.0])}, b"\0" * 8, None),
        ({"a": entry(0, 8, shape=[True, 2])}, b"\0" * 8, None),
        ({"a": entry(8, 16)}, b"\0" * 8, None),
        ({"a": entry(-8, 0)}, b"\0" * 8, None),
        ({"a": entry(0, 8), "b": entry(4, 12)}, b"\0" * 12, None),
        ({"a": entry(0, 8)}, b"\0" * 9, None),
        ({"a": entry(0, 8), "b": entry(9, 17)}, b"\0" * 17, None),
    ],
)
def test_files_that_lie(tmp_path: Path, header: Any, body: bytes, size: int | None) -> None:
    with pytest.raises(ModelError, match=r"safetensors"):
        safetensors.read(write(tmp_path / "w.safetensors", header, body, size))


def test_no_files(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"\1\2\3")
    (tmp_path / "empty").touch()
    for name in ("short", "empty", "nothing", "."):
        with pytest.raises(ModelError):
            safetensors.read(tmp_path / name)
