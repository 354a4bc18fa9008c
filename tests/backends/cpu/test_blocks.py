"""Products with weights of few bits, unpacked by the cores that read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Options
from rlx.backends.cpu import isa
from rlx.backends.cpu.build import program_of
from rlx.ir.graph import Graph, Value
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import Program
from rlx.kernel.ir.verify import verify
from rlx.ops.packed import PackedMatmul
from support import assert_close


def product(
    graph: Graph, x: Value, columns: int, bits: int = 4, block: int = 32, zeros: str = "", name: str = "w"
) -> Value:
    """x times a weight of few bits: its zeros are half of what these say, whole numbers, or added."""
    depth = x.shape[-1]
    assert isinstance(depth, int)
    random = np.random.default_rng(columns + bits + block)
    count = -(-depth // block)
    w = random.integers(0, 256, (columns, count * block * bits // 8), np.uint8)
    step = (random.uniform(0.5, 1.5, (columns, count)) / (1 << bits)).astype("f4")
    parameters = [graph.param(f"{name}.w", w.shape, "u8", data=w)]
    parameters.append(graph.param(f"{name}.scale", step.shape, "f32", data=step))
    if zeros == "whole":
        whole = random.integers(0, 1 << bits, step.shape, np.uint8)
        parameters.append(graph.param(f"{name}.zero", whole.shape, "u8", data=whole).cast("f32"))
    elif zeros == "added":
        zero = random.uniform(-1, 1, step.shape).astype("f4")
        parameters.append(graph.param(f"{name}.zero", zero.shape, "f32", data=zero))
    made: Value = ops.packed_matmul(x, *parameters, depth=depth, bits=bits, block=block, added=zeros == "added")
    return made


def products_of(graph: Graph) -> tuple[Program, list[Contraction]]:
    program, _ = program_of(graph, isa.detect(), Options())
    verify(program)
    return program, [kernel.work for kernel in program.main if isinstance(kernel.work, Contraction)]


def check(graph: Graph, *given: Any, **options: Any) -> None:
    expected = rlx.Session("reference").compile(graph).run(list(given))
    made = rlx.Session("cpu", **options).compile(graph).run(list(given))
    for ours, exact in zip(made, expected):
        assert_close(np.asarray(ours), np.asarray(exact), PackedMatmul.tolerance)


def rows(count: int, depth: int) -> Any:
    return np.random.default_rng(count).standard_normal((count, depth)).astype("f4")


@pytest.mark.parametrize("zeros", ["", "whole", "added"])
@pytest.mark.parametrize(("bits", "block"), [(2, 16), (2, 256), (4, 2), (4, 32), (8, 16), (8, 32)])
def test_few_rows_and_many(bits: int, block: int, zeros: str) -> None:
    """Up to four rows are multiplied as bytes are read; of more, panels are unpacked first. Rows are in blocks."""
    graph = Graph("blocks")
    depth = max(96, block)
    x = graph.input("x", ("n", depth))
    graph.output(product(graph, x, 100, bits, block, zeros), name="y")
    _, (work,) = products_of(graph)
    assert work.blocks is not None and work.packed and work.b_dtype.name == "u8"
    for count in (0, 1, 2, 4, 5, 131):
        check(graph, rows(count, depth))


@pytest.mark.parametrize("name", ["avx2", "sse"])
@pytest.mark.parametrize("columns", [1, 7, 64, 65])
def test_other_instructions(name: str, columns: int) -> None:
    graph = Graph("blocks")
    x = graph.input("x", ("n", 64))
    graph.output(product(graph, x, columns, 4, 32, "added"), name="y")
    for count in (1, 6):
        check(graph, rows(count, 64), isa=name)


def test_products_of_one_input_are_one_with_what_follows_them() -> None:
    """Queries, keys and values have one weight; sums and activations are parts of the kernel."""
    graph = Graph("joined")
    x = graph.input("x", (2, "n", 64))
    a, b = product(graph, x, 40, name="a"), product(graph, x, 24, name="b")
    graph.output(ops.silu(a)[:, :, :24] * b, name="y")
    graph.output(x + product(graph, x, 64, name="c"), name="z")
    _, works = products_of(graph)
    assert [work.blocks is not None for work in works] == [True] or len(works) == 2
    for count in (1, 9):
        check(graph, np.random.default_rng(count).standard_normal((2, count, 64)).astype("f4"))


def test_weights_that_no_core_unpacks_become_floats() -> None:
    """Padding behind the last block, and products of other dtypes."""
    graph = Graph("others")
    x = graph.input("x", (3, 40))
    graph.output(product(graph, x, 9, block=32), name="y")
    assert all(work.blocks is None for work in products_of(graph)[1])
    check(graph, rows(3, 40))


def test_a_weight_has_the_bytes_that_it_has_in_the_model() -> None:
    graph = Graph("bytes")
    x = graph.input("x", (1, 1024))
    graph.output(product(graph, x, 1024, 4, 32), name="y")
    program, (work,) = products_of(graph)
    held = {slot for kernel in program.main for slot in kernel.slots[kernel.writes :]}
    sizes = [program.buffers[n].size * program.buffers[n].dtype.itemsize for n in held]
    assert work.blocks is not None
    assert sum(size for size in sizes if isinstance(size, int)) < 1024 * 1024 * (4 + 1.5) / 8


def test_code_without_panels_reads_weights_where_they_lie() -> None:
    graph = Graph("plain")
    x = graph.input("x", ("n", 64))
    graph.output(product(graph, x, 33, 4, 32, "added"), name="y")
    for count in (1, 6):
        check(graph, rows(count, 64), disable=["pack-blocks"])


@pytest.mark.parametrize("added", [False, True])
def test_constants_of_one_element_are_in_memory_too(added: bool) -> None:
    """Scales and zeros of a single block: cores read them by address."""
    graph = Graph()
    w = np.random.default_rng(0).integers(0, 256, (1, 32), np.uint8)
    scale, zero = (graph.constant(np.array([[number]], "f4")) for number in (0.0625, 3.0))
    x = graph.input("x", ("n", 64))
    graph.output(
        ops.packed_matmul(x, graph.constant(w), scale, zero, depth=64, bits=4, block=64, added=added), name="y"
    )
    graph.output(ops.packed_matmul(x, graph.constant(w), scale, depth=64, bits=4, block=64), name="z")
    for count in (1, 9):
        check(graph, rows(count, 64))
