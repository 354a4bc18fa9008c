"""Files that are written to, cut off or replaced while a model lives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx import mapped
from rlx.ir.serial import save_graph
from rlx.model import read

SOURCE = Path(__file__).parents[2] / "src"
TABLE = np.arange(40000, dtype=np.float32).reshape(10000, 4)


def saved(path: Path, table: np.ndarray = TABLE) -> Path:
    """A file with a table of which a run reads rows."""
    graph = rlx.Graph("rows")
    rows = graph.param("table", table.shape, "f32", data=table)
    graph.output(rlx.gather(rows, graph.input("at", ("n",), "i64")), name="y")
    save_graph(graph, path)
    return path


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(-TABLE.nbytes, os.SEEK_END)
        file.write(b"\x00" * TABLE.nbytes)


def cut(path: Path) -> None:
    os.truncate(path, 4096)


AT = np.array([9999, 1])


@pytest.mark.parametrize("change", [overwrite, cut])
def test_a_program_keeps_the_weights_that_it_was_given(tmp_path: Path, change: Callable[[Path], None]) -> None:
    model = rlx.load(saved(tmp_path / "m.rlx"), device="cpu")
    assert np.array_equal(model.run([AT])[0], TABLE[AT])
    change(tmp_path / "m.rlx")
    assert np.array_equal(model.run([AT])[0], TABLE[AT])


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("change", [overwrite, cut])
def test_a_file_that_was_written_to_before_it_is_used(
    tmp_path: Path, change: Callable[[Path], None], mmap: bool
) -> None:
    model = rlx.load(saved(tmp_path / "m.rlx"), device="cpu", mmap=mmap)
    change(tmp_path / "m.rlx")
    with pytest.raises(rlx.ModelError, match=r"written to since: load it again"):
        model.run([AT])


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_file_of_another_name_or_none_stays_as_it_was(tmp_path: Path, how: str) -> None:
    path = saved(tmp_path / "m.rlx")
    model = rlx.load(path, device="cpu")
    if how == "replaced":
        os.replace(saved(tmp_path / "other.rlx", TABLE + 1), path)
    else:
        path.unlink()
    assert np.array_equal(model.run([AT])[0], TABLE[AT])


def test_whoever_reads_the_same_part_of_a_file_shares_it(tmp_path: Path) -> None:
    (table,) = read(saved(tmp_path / "m.rlx")).graph.data.values()
    first, second = mapped.private(table), mapped.private(table)
    assert np.shares_memory(first, second) and not np.shares_memory(first, table)
    assert mapped.private(first) is first


def test_onnx_weights_and_constants_are_private(tmp_path: Path) -> None:
    """In a process of its own: where something still read the file, it would be ended by a signal."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    weights = {"w": TABLE[:4], "table": TABLE, "shape": np.array([-1, 4])}
    nodes = [
        helper.make_node("Gather", ["table", "at"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["made"]),
        helper.make_node("Reshape", ["made", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("at", 7, ["n"])], [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(a, name) for name, a in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    script = """
import os, sys
import numpy as np, rlx
model = rlx.load(sys.argv[1], device=sys.argv[2])
before = model.run([np.array([9999, 1])])[0]
os.truncate(sys.argv[1], 0)
assert np.array_equal(model.run([np.array([9999, 1])])[0], before)
print("done")
"""
    for device in ("cpu", "reference"):
        copy = tmp_path / f"{device}.onnx"
        copy.write_bytes((tmp_path / "m.onnx").read_bytes())
        completed = subprocess.run(
            [sys.executable, "-c", script, str(copy), device],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )  # fmt: skip
        assert completed.stdout == "done\n", completed.stderr
