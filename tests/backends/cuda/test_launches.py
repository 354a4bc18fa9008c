"""What kernels ask for on behalf of later ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda import launches
from rlx.backends.cuda.bound import CudaBound
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.cuda.launches import LINE_BYTES, MOST_LATER_BYTES, Launch
from rlx.backends.cuda.moving import Sizes
from rlx.codegen.simt.code import WIDE, WORKGROUP
from rlx.errors import UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction

from .emulated_driver import ROOM_OF_ONE, EmulatedDriver
from .graphs import compiled
from .test_tiles import SMALL, force

PLACE = 1 << 20
FEW = 1 << 10


def launch(blocks: int, plain: Launch) -> Launch:
    """A launch of so many blocks, with room for what it asks for."""
    return dataclasses.replace(plain, blocks=blocks, held=(np.zeros(4, np.int64), np.zeros(4, np.int64)))


def asked(given: Launch) -> tuple[int, int, int]:
    """Where it asks, for how many bytes, and the share of a block."""
    place, sizes = (int(number) for number in given.held[0][-2:])
    return place, sizes & 0xFFFFFFFF, sizes >> 32


def test_kernels_that_make_weights_do_not_overlap(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of them reads what the first writes, which is the same in every run, before it waits."""
    graph = Graph("weights")
    first, second = (graph.param(name, (64, 64), "f16", data=np.eye(64, dtype=np.float16)) for name in "ab")
    made = (first * 2.0) @ second
    graph.output((graph.input("x", (1, 64), "f16") @ made) @ second, name="y")
    overlaps: list[bool] = []
    launch_of = EmulatedDriver.launch

    def launched(self: EmulatedDriver, *args: Any) -> None:
        overlaps.append(args[5])
        launch_of(self, *args)

    monkeypatch.setattr(EmulatedDriver, "launch", launched)
    model = rlx.Session("cuda").compile(graph)
    y = np.asarray(model.run({"x": np.ones((1, 64), np.float16)})[0])
    np.testing.assert_array_equal(y, np.full((1, 64), 2, np.float16))
    described = model.program.executable.describe()
    assert described["prepare_kernels"] >= 2
    assert not any(overlaps[: described["prepare_kernels"]]) and any(overlaps[described["prepare_kernels"] :])


def test_more_rows_or_keys_than_have_numbers_are_refused() -> None:
    work = cast(Any, SimpleNamespace(name="attention", sources=("y",)))
    shader = cast(Any, SimpleNamespace(fewer=(4, dims.symbol("keys"))))
    launches.check_fewer(work, shader, Sizes({"keys": (1 << 31) - 1}))
    with pytest.raises(UnsupportedOp, match=r"expected at most 2147483647 rows and keys, got 2147483648 .* at nodes y"):
        launches.check_fewer(work, shader, Sizes({"keys": 1 << 31}))


@pytest.fixture
def plain(driver: EmulatedDriver) -> Launch:
    graph = Graph("negated")
    graph.output(-graph.input("x", (4,)))
    bound = compiled(graph).bind({})
    assert isinstance(bound, CudaBound)
    bound([np.ones(4, "f4")])
    return bound._whole()[0]


def test_each_kernel_asks_for_the_next_weights_that_none_has_asked_for(plain: Launch) -> None:
    row = [launch(8, plain) for _ in range(5)]
    weights = [(PLACE, FEW), None, (2 * PLACE, 3 * FEW), None, (3 * PLACE, 5 * FEW)]
    launches.bring_later(row, [True, False, True, True, True], weights)
    assert [asked(each)[:2] for each in row] == [(2 * PLACE, 3 * FEW), (0, 0), (3 * PLACE, 5 * FEW), (0, 0), (0, 0)]


def test_blocks_share_what_is_asked_for_in_whole_lines(plain: Launch) -> None:
    for blocks, nbytes in ((1, FEW), (7, 1000 * FEW), (3, 80), (132, MOST_LATER_BYTES)):
        row = [launch(blocks, plain), launch(1, plain)]
        launches.bring_later(row, [True, True], [None, (PLACE, nbytes)])
        place, total, share = asked(row[0])
        assert (place, total) == (PLACE, nbytes)
        assert share % LINE_BYTES == 0 and (blocks - 1) * share - blocks * LINE_BYTES < nbytes <= blocks * share


def test_no_more_is_on_its_way_than_a_cache_holds(plain: Launch) -> None:
    half = MOST_LATER_BYTES // 2
    row = [launch(8, plain) for _ in range(5)]
    launches.bring_later(row, [True] * 5, [None, None, None, (PLACE, half), (2 * PLACE, half + 256)])
    assert [asked(each)[0] for each in row] == [PLACE, 0, 0, 2 * PLACE, 0]  # the second when the first is used
    launches.bring_later(row[:2], [True] * 2, [None, (PLACE, MOST_LATER_BYTES + 1)])
    assert asked(row[1]) == (0, 0, 0)


def test_a_chain_of_products_asks_for_its_packed_weights(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, SMALL)
    graph = Graph("chain")
    value = graph.input("x", ("n", 64), "f16")
    random = np.random.default_rng(0)
    weights = [random.integers(-1, 2, (64, 64)).astype(np.float16) for _ in range(3)]
    for number, array in enumerate(weights):
        value = ops.maximum(value @ graph.param(f"w{number}", (64, 64), "f16", data=array), np.float16(0))
    graph.output(value, name="y")
    executable = compiled(graph)
    assert isinstance(executable, CudaExecutable)
    bound = executable.bind({"n": 40})
    assert isinstance(bound, CudaBound)
    x = random.integers(-1, 2, (40, 64)).astype(np.float16)
    expected = x.astype(np.float64)
    for array in weights:
        expected = np.maximum(expected @ array, 0)
    np.testing.assert_array_equal(bound([x])[0].astype(np.float64), expected)
    row = bound._whole()
    assert len(row) == 3
    places = [int(each.held[0][each.kernel.work.b_slot]) for each in row if isinstance(each.kernel.work, Contraction)]
    assert [asked(each)[:2] for each in row] == [(places[1], 64 * 64 * 2), (places[2], 64 * 64 * 2), (0, 0)]


def halves_turned(graph: Graph) -> None:
    x, angles = graph.input("x", ("n", 64), "f16"), graph.input("angles", ("n", 32), "f16")
    low, high = x[:, :32], x[:, 32:]
    cos, sin = ops.cos(angles), ops.sin(angles)
    graph.output(ops.concat(low * cos - high * sin, high * cos + low * sin, axis=-1), ops.softmax(x, axis=-1))


def a_map(graph: Graph) -> None:
    graph.output(ops.exp(graph.input("x", ("n", 64), "f16")))


@pytest.mark.parametrize(("rows", "alone"), [(640, True), (64 * 133, False)])
def test_blocks_of_many_rows_have_a_multiprocessor_each(
    rows: int, alone: bool, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are as many."""
    force(monkeypatch, SMALL)
    graph = Graph("product")
    graph.output(graph.input("x", ("m", 64), "f16") @ graph.param("w", (64, 64), "f16"))
    bound = compiled(graph, {"w": np.zeros((64, 64), np.float16)}).bind({"m": rows})
    assert isinstance(bound, CudaBound)
    bound([np.zeros((rows, 64), np.float16)])
    (only,) = bound._whole()
    assert isinstance(only, Launch)
    assert (only.shared_bytes == ROOM_OF_ONE) == alone


@pytest.mark.parametrize("make", [halves_turned, a_map])
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 100])
def test_many_blocks_are_fewer_wide_ones(
    make: Callable[[Graph], None], rows: int, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and side by side, with the same results."""
    graph = Graph("blocks")
    make(graph)
    random = np.random.default_rng(rows)
    given = [random.standard_normal((rows, int(str(v.shape[1])))).astype(np.float16) for v in graph.inputs]
    found = []
    for many in (1 << 20, 0):
        monkeypatch.setattr(launches, "MANY_BLOCKS", many)
        bound = compiled(graph).bind({"n": rows})
        assert isinstance(bound, CudaBound)
        results = bound(given)
        found.append(([np.array(result) for result in results], [(each.blocks, each.lanes) for each in bound._whole()]))
    (narrow, narrow_grids), (wide, wide_grids) = found
    for one, other in zip(narrow, wide, strict=True):
        np.testing.assert_array_equal(one, other)
    assert {lanes for _, lanes in narrow_grids} == {WORKGROUP} and {lanes for _, lanes in wide_grids} == {WIDE}
    assert all(few <= many for (few, _), (many, _) in zip(wide_grids, narrow_grids))
