"""Experts of which the device holds only some: results are those of a device that holds all, bit for bit, and only the
matrices that are missing move."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.wgpu.device import Device as WgpuDevice
from rlx.backends.wgpu.device import open_device
from rlx.errors import InputError, OptionError, OutOfMemory
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.passes.held_experts import held_weights
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.expert_slots import Slots
from rlx.runtime.stages import StagedExecutable
from support import skip_absent

WIDTH, INNER, EXPERTS, K = 16, 32, 8, 2
MATRIX = WIDTH * INNER * 4
KINDS = ["vulkan", "opengl"]


@pytest.fixture(autouse=True)
def present(request: pytest.FixtureRequest) -> None:
    skip_absent(request)


def weights() -> dict[str, Array]:
    random = np.random.default_rng(0)
    shapes = {"gate": (EXPERTS, WIDTH, INNER), "up": (EXPERTS, WIDTH, INNER), "down": (EXPERTS, INNER, WIDTH)}
    each = {f"{name}{i}": random.standard_normal(shape, np.float32) / 4 for i in "01" for name, shape in shapes.items()}
    return each | {f"router{i}": random.standard_normal((WIDTH, EXPERTS), np.float32) for i in "01"}


def net(rows: Any = "tokens") -> Graph:
    """Two layers of experts, and how often it has run."""
    graph = Graph("mixture")
    x = graph.input("x", (rows, WIDTH), "f32")
    params = {name: graph.param(name, array.shape, "f32", data=array) for name, array in weights().items()}
    for i in "01":
        shares, chosen = rlx.route(x @ params[f"router{i}"], K)
        x = x + rlx.mixture(x, shares, chosen, *(params[f"{name}{i}"] for name in ("gate", "up", "down")))
    graph.output(x, name="y")
    return graph


def by_choice(rows: Any = "rows", dtype: str = "f32", weight: Array | None = None) -> Graph:
    """One product, whose rows and experts are inputs."""
    matrices = np.random.default_rng(1).standard_normal((EXPERTS, 6, 4)) if weight is None else weight
    graph = Graph("product")
    x, experts = graph.input("x", (rows, 6), dtype), graph.input("experts", (rows,), "i64")
    param = graph.param("w", matrices.shape, dtype, data=matrices.astype(dtypes.parse(dtype).numpy))
    graph.output(rlx.grouped_matmul(x, param, experts), name="y")
    return graph


def compiled(graph: Graph, budget: int | None, kind: str = "vulkan") -> CompiledGraph:
    return rlx.Session(kind, expert_budget=budget).compile(graph)


def tokens(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, WIDTH), np.float32)


def held(program: CompiledGraph) -> dict[str, Any]:
    return dict(program.describe()["held_experts"])


@contextmanager
def written(kind: str = "vulkan") -> Iterator[list[int]]:
    """The bytes that the device's library is given to write, without the small records of dispatches."""
    queue = type(open_device("Vulkan" if kind == "vulkan" else "OpenGL", 0, False).raw.queue)
    write, sizes = queue.write_buffer, []

    def write_buffer(self: object, buffer: object, offset: int, data: Any) -> None:
        sizes.append(memoryview(data).nbytes)
        write(self, buffer, offset, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "write_buffer", write_buffer)
        yield sizes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 3, 7])
def test_results_are_those_of_a_device_with_all_experts(budget: int, kind: str) -> None:
    """Of few and of many rows, of more chosen experts than have room, and when they were there or not."""
    whole, part = compiled(net(), None, kind), compiled(net(), budget, kind)
    for count, seed in ((1, 0), (1, 0), (3, 1), (8, 2), (9, 3), (60, 4), (0, 5), (2, 6)):
        np.testing.assert_array_equal(part.run([tokens(count, seed)])[0], whole.run([tokens(count, seed)])[0])
    slots = held(part)
    assert slots.keys() == weights().keys() - {"router0", "router1"}
    assert all(each["slots"] == budget and each["experts"] == EXPERTS for each in slots.values())
    matrices = 6 * budget * MATRIX
    assert matrices <= part.executable.weight_bytes < matrices + 3000 < whole.executable.weight_bytes


@pytest.mark.parametrize("rows", [3, 40])
def test_known_numbers_of_rows(rows: int) -> None:
    whole, part = compiled(net(rows), None), compiled(net(rows), 2)
    for seed in range(3):
        np.testing.assert_array_equal(part.run([tokens(rows, seed)])[0], whole.run([tokens(rows, seed)])[0])


def test_only_missing_matrices_move() -> None:
    program = compiled(by_choice(), 2)
    x = np.ones((3, 6), "f4")
    matrix = 6 * 4 * 4

    def matrices(experts: Sequence[int]) -> int:
        with written() as sizes:
            program.run([x, np.array(experts)])
        return sizes.count(matrix)

    program.run([x[:, ::-1], np.array([0, 0, 0])])
    assert matrices([0, 0, 0]) == 0
    assert matrices([0, 1, 0]) == 1
    assert matrices([1, 1, 0]) == 0
    assert matrices([1, 2, 1]) == 1, "it takes the place of the one that was not chosen"
    assert matrices([2, 1, -7]) == 0
    assert matrices([0, 3, 4]) == 3
    assert held(program)["w"]["fetched"] == 1 + 1 + 1 + 3


def test_a_mixture_moves_what_its_rows_choose() -> None:
    program, x = compiled(net(), 4), tokens(1)
    program.experts.capture(1)
    program.run([x])
    (chosen,) = program.experts.taken()
    with written() as sizes:
        program.run([x])
    assert not [size for size in sizes if size >= MATRIX], "all of them are there"
    other = next(seed for seed in range(1, 50) if len(_new(program, chosen, tokens(1, seed))) == 1)
    missing = _new(program, chosen, tokens(1, other))
    program.run([x])
    with written() as sizes:
        program.run([tokens(1, other)])
    assert len([size for size in sizes if size >= MATRIX]) <= 3 * 2 * len(missing)


def _new(program: CompiledGraph, chosen: Sequence[Array], x: Array) -> set[int]:
    """Experts of the first layer that were not chosen before."""
    program.run([x])
    (now,) = program.experts.taken()
    return set(now[0].tolist()) - set(chosen[0].tolist())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("rows", [5, 30])
def test_narrow_weights(dtype: str, rows: int) -> None:
    random = np.random.default_rng(rows)
    numpy = dtypes.parse(dtype).numpy
    x, experts = random.standard_normal((rows, 6)).astype(numpy), random.integers(0, EXPERTS, rows)
    whole, part = compiled(by_choice(dtype=dtype), None), compiled(by_choice(dtype=dtype), 3)
    np.testing.assert_array_equal(part.run([x, experts])[0], whole.run([x, experts])[0])
    assert held(part)["w"]["slots"] == 3


def test_a_net_runs_whose_experts_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer of the device has room for three of sixteen matrices."""
    weight = np.random.default_rng(2).standard_normal((16, 64, 64)).astype("f4")
    graph = Graph("large")
    x, experts = graph.input("x", ("rows", 64)), graph.input("experts", ("rows",), "i64")
    graph.output(rlx.grouped_matmul(x, graph.param("w", weight.shape, data=weight), experts), name="y")
    rows = np.random.default_rng(3).standard_normal((4, 64)).astype("f4")
    chosen = np.array([3, 15, 7, 7])
    monkeypatch.setattr(open_device("Vulkan", 0, False), "max_binding", 3 * 64 * 64 * 4)
    with pytest.raises(OutOfMemory):
        compiled(graph, None).run([rows, chosen])
    (y,) = compiled(graph, 3).run([rows, chosen])
    np.testing.assert_allclose(y, np.einsum("rk,rkn->rn", rows, weight[chosen]), rtol=1e-5, atol=1e-5)


def test_an_expert_that_there_is_not_is_refused_and_changes_nothing() -> None:
    graph = by_choice()
    count = graph.state("count", (), "i64")
    graph.set_next(count, count + 1)
    graph.output(count + 0, name="before")
    whole, part = compiled(graph, None), compiled(graph, 2)
    x = np.ones((2, 6), "f4")
    messages = []
    for program in (whole, part):
        for wrong in (EXPERTS, -EXPERTS - 1):
            with pytest.raises(InputError, match=rf"\[grouped_matmul\] expected indices .*got {wrong}, at") as caught:
                program.run([x, np.array([0, wrong])])
            messages.append(str(caught.value))
        assert program.read_handle("count") == 0
        y, before = program.run([x, np.array([-1, 0])])
        assert before == 0 and program.read_handle("count") == 1
        messages.append(y.tobytes().hex())
    assert messages[:3] == messages[3:]
    lax = rlx.Session("vulkan", expert_budget=2, check_indices=False).compile(by_choice())
    np.testing.assert_array_equal(lax.run([x, np.array([99, 0])])[0][0], lax.run([x, np.array([7, 0])])[0][0])


def test_new_weights_clones_parts_and_results_on_the_device() -> None:
    graph = net()
    graph.output(graph.outputs["y"] * 2, name="twice")
    whole, part = compiled(graph, None), compiled(graph, 2)
    x = tokens(6)
    clone = part.clone()
    new = {"down0": weights()["down0"] * 3}
    part.set_params(new)
    before = whole.run([x])
    whole.set_params(new)
    for program, expected in ((clone, before), (part, whole.run([x])), (clone, before)):
        for mine, theirs in zip(program.run([x]), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(part.select(["twice"]).run([x])[0], whole.run([x])[1])
    on_device = part.run([x], outputs="device")
    assert isinstance(on_device[0].place, WgpuDevice)
    np.testing.assert_array_equal(np.asarray(on_device[0]), whole.run([x])[0])
    np.testing.assert_array_equal(part.read_output_row("y", 2, [x]), whole.run([x])[0][2])


def test_residency_places_weights_on_the_device() -> None:
    whole, program = compiled(net(), None), compiled(net(), None)
    plain = [whole.run([tokens(5, seed)])[0] for seed in range(6)]
    np.testing.assert_array_equal(program.run([tokens(5, 0)])[0], plain[0])
    all_bytes = program.executable.weight_bytes
    program.experts.manage(3, refresh=2)
    assert program.executable.weight_bytes == 0, "what was there is given back"
    with written() as sizes:
        for seed in range(6):
            np.testing.assert_array_equal(program.run([tokens(5, seed)])[0], plain[seed])
    assert max(sizes) == MATRIX
    assert program.executable.weight_bytes == 0 < all_bytes
    mask = np.arange(EXPERTS) < 2
    program.experts.set_resident([mask, ~mask])
    for seed in range(3):
        np.testing.assert_array_equal(program.run([tokens(5, seed)])[0], plain[seed])
    program.experts.set_resident(None)
    np.testing.assert_array_equal(program.run([tokens(5, 1)])[0], plain[1])
    assert program.executable.weight_bytes == all_bytes


def test_buffers_of_all_products_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the sizes that ran last are kept, and results are the same without."""
    whole, kept = compiled(net(), None), []
    for limit in (1 << 30, 1):
        monkeypatch.setenv("RLX_PLAN_BYTES", str(limit))
        part = compiled(net(), 2)
        for count in (3, 40, 3):
            np.testing.assert_array_equal(part.run([tokens(count)])[0], whole.run([tokens(count)])[0])
        executable = part.executable
        assert isinstance(executable, StagedExecutable)
        (shared,) = {id(product._shared): product._shared for product in executable.products.values()}.values()
        kept.append(len(shared.plans))
    assert kept == [12, 1]


def test_budgets_follow_the_choices() -> None:
    program = compiled(net(), None)
    with pytest.raises(InputError, match="total from 2 to 16"):
        program.experts.budgets(1)
    program.experts.capture(100)
    for seed in range(4):
        program.run([tokens(3, seed)])
    budgets = program.experts.budgets(7)
    assert sum(budgets) == 7 and min(budgets) >= 1
    rows = [np.zeros(EXPERTS, int), np.zeros(EXPERTS, int)]
    for run in program.experts.taken():
        for count, chosen in zip(rows, run):
            count += np.bincount(chosen, minlength=EXPERTS)
    best = max(range(1, 7), key=lambda n: np.sort(rows[0])[::-1][:n].sum() + np.sort(rows[1])[::-1][: 7 - n].sum())
    kept = [np.sort(r)[::-1][:n].sum() for r, n in zip(rows, budgets)]
    assert sum(kept) == np.sort(rows[0])[::-1][:best].sum() + np.sort(rows[1])[::-1][: 7 - best].sum()
    program.experts.manage(budgets)
    resident = program.experts.resident
    assert resident is not None and [int(mask.sum()) for mask in resident] == budgets
    with pytest.raises(InputError, match="one for each of 2 layers"):
        program.experts.manage([1, 2, 3])


def test_many_threads_share_the_slots() -> None:
    whole, part = compiled(net(), None), compiled(net(), 2)
    expected = [whole.run([tokens(4, seed)])[0] for seed in range(4)]
    wrong = []

    def work(seed: int) -> None:
        for _ in range(6):
            if not np.array_equal(part.run([tokens(4, seed)])[0], expected[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_kernels_of_products_are_timed_too() -> None:
    """Those of each of their runs: three for five experts and two slots."""
    options = Options(profile=True, expert_budget=2)
    program = rlx.Session("vulkan").with_options(options).compile(by_choice(3))
    other = rlx.Session("vulkan").with_options(options).compile(by_choice(5))
    x = np.ones((5, 6), "f4")
    (once,) = {len(program.kernel_times([x[:3], np.array([0, 1, 0])])) for _ in range(2)}
    times = other.kernel_times([x, np.arange(5)])
    assert once > 0 and len(times) == 3 * once
    assert all(a.first_ns + a.total_ns <= b.first_ns for a, b in zip(times[::once], times[once::once]))


def test_what_is_predicted_counts_the_slots() -> None:
    def profile(budget: int | None) -> Any:
        devices = rlx.GraphDevices(net(), rlx.DevicePolicy().only("vulkan"), Options(expert_budget=budget))
        return devices.io_profile("vulkan", [tokens(5)])

    whole, part = profile(None), profile(2)
    assert part.device_traffic_bytes < whole.device_traffic_bytes
    assert part.sync_points == whole.sync_points + 2, "the host reads the choice of each layer"
    assert part.host_input_bytes == whole.host_input_bytes


def test_weights_that_others_read_are_held_whole() -> None:
    graph = by_choice()
    assert held_weights(graph, 2) == {"w": 2} == held_weights(graph, (("w", 2), ("other", 1)))
    assert held_weights(graph, None) == held_weights(graph, EXPERTS) == held_weights(graph, ()) == {}
    graph.output(rlx.reduce_sum(graph.params[0], axes=(0, 1, 2)), name="sum")
    assert held_weights(graph, 2) == {}
    odd = by_choice()
    odd.param("narrow", (EXPERTS, 3, 1), "f16")
    x, experts = odd.input("more", ("rows", 3), "f16"), odd.inputs[1]
    odd.output(rlx.grouped_matmul(x, odd.params[-1], experts), name="z")
    assert held_weights(odd, 2) == {"w": 2}, "matrices of six bytes do not begin at words"


@pytest.mark.parametrize("budget", [0, -1, 1.5, True, "3"])
def test_budgets_that_are_none_are_refused(budget: Any) -> None:
    with pytest.raises(OptionError, match=r"expert_budget( of at least 1|' to be int)"):
        rlx.Session("cpu", expert_budget=budget)


def test_a_budget_changes_nothing_where_memory_is_the_hosts() -> None:
    x = tokens(7)
    np.testing.assert_array_equal(
        rlx.Session("cpu", expert_budget=2).compile(net()).run([x])[0], rlx.Session("cpu").compile(net()).run([x])[0]
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_slots_serve_every_row_once(count: int) -> None:
    """In as few runs as there is room for, and those that were not chosen for longest leave first."""
    random = np.random.default_rng(count)
    slots, there = Slots(12, count), dict[int, int]()
    for _ in range(200):
        chosen = random.integers(0, 12, random.integers(0, 8))
        present, served = set(there.values()), np.zeros(len(chosen), int)
        runs = list(slots.passes(chosen, lambda expert, slot: there.update({slot: expert}) or None))
        distinct = set(chosen.tolist())
        assert len(runs) == max(1, -(-len(distinct) // count))
        for at in runs:
            served += at >= 0
        assert (served == 1).all()
        if len(distinct) <= count:
            assert {there[slot] for slot in runs[0].tolist()} == distinct
            assert distinct <= set(there.values())
            assert len(present & distinct) == len(distinct) - len(set(there.values()) - present)


def test_preferred_experts_leave_last() -> None:
    slots = Slots(6, 3)
    brought: list[int] = []

    def bring(expert: int, _: int) -> None:
        brought.append(expert)

    def choose(*experts: int) -> None:
        list(slots.passes(np.array(experts), bring))

    choose(0), choose(1), choose(2)
    slots.preferred = np.array([True, True, False, False, False, False])
    choose(3), choose(4), choose(0, 1)
    assert brought == [0, 1, 2, 3, 4]
    choose(3, 4)
    assert brought == [0, 1, 2, 3, 4, 3], "one of those that are preferred had to leave"
