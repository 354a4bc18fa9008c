"""XLA's programs on disk: found again, told apart by what decides them, and compiled anew where they are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.backends.xla import TpuBackend
from rlx.ir.graph import Graph
from rlx.runtime.compiled import CompiledGraph

pytest.importorskip("jax", reason="jax is not installed: pip install 'rlx[xla]'")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))


def program(factor: float = 2.0) -> CompiledGraph:
    graph = Graph("net")
    x = graph.input("x", ("n", 4), "f32")
    graph.output((x @ graph.param("w", (4, 3), "f32")) * factor, name="y")
    made = rlx.Session("xla").compile(graph)
    made.set_param("w", np.ones((4, 3), np.float32))
    return made


def entries(folder: Path) -> list[Path]:
    return list(folder.glob("*.rlxc"))


def run(made: CompiledGraph, rows: int) -> float:
    return float(made.run([np.ones((rows, 4), np.float32)])[0][0, 0])


def test_programs_are_found_again_by_graph_and_size(tmp_path: Path) -> None:
    assert run(program(), 2) == 8.0 and len(entries(tmp_path)) == 1
    again = program()
    assert run(again, 2) == 8.0 and again.compile_count == 0
    assert run(again, 3) == 8.0 and again.compile_count == 1 and len(entries(tmp_path)) == 2
    other = program(3.0)
    assert run(other, 2) == 12.0 and other.compile_count == 1
    other.set_param("w", np.zeros((4, 3), np.float32))
    assert run(other, 2) == 0.0, "weights are arguments"


@pytest.mark.parametrize("damage", [b"", b"x" * 3000])
def test_damaged_programs_are_compiled_anew(tmp_path: Path, damage: bytes) -> None:
    run(program(), 2)
    (entry,) = entries(tmp_path)
    entry.write_bytes(damage)
    made = program()
    assert run(made, 2) == 8.0 and made.compile_count == 1


def test_entries_that_are_no_programs_are_compiled_anew(tmp_path: Path) -> None:
    from rlx import disk

    run(program(), 2)
    (entry,) = entries(tmp_path)
    disk.write(entry.stem, b"not a program")
    made = program()
    assert run(made, 2) == 8.0 and made.compile_count == 1


def test_a_tpu_says_why_it_is_not_here() -> None:
    assert "not installed" in TpuBackend().probe().reason or "no TPU" in TpuBackend().probe().reason
    with pytest.raises(rlx.DeviceUnavailable, match="tpu"):
        rlx.Session("tpu").compile(program().graph)


def test_programs_of_measured_dims_are_told_apart() -> None:
    """As many inputs of the same shapes, but other counts, which the run measures."""
    graph = Graph("net")
    x = graph.input("x", (4,), "i64")
    places = rlx.nonzero(x)
    graph.output(rlx.gather_nd(x, rlx.transpose(places, permutation=(1, 0))), name="y")
    made = rlx.Session("xla").compile(graph)
    for _ in range(2):  # the second time from disk
        for numbers in ([1, 0, 2, 0], [1, 2, 3, 4], [0, 0, 0, 7]):
            (found,) = made.run([np.array(numbers)])
            assert found.tolist() == [n for n in numbers if n]
        made = rlx.Session("xla").compile(graph)
