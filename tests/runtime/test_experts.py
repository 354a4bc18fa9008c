"""Experts at run time: choices are told, residency is kept and counted, and no result ever changes."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.errors import InputError
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.experts import ExpertPool
from support import skip_absent

WIDTH, INNER, EXPERTS, K = 16, 32, 8, 2


@pytest.fixture(autouse=True)
def present(request: pytest.FixtureRequest) -> None:
    skip_absent(request)


def weights() -> dict[str, Array]:
    random = np.random.default_rng(0)
    shapes = {"gate": (EXPERTS, WIDTH, INNER), "up": (EXPERTS, WIDTH, INNER), "down": (EXPERTS, INNER, WIDTH)}
    params = {f"{name}{layer}": random.standard_normal(shape, np.float32) / 4 for layer in (0, 1)
            for name, shape in shapes.items()}  # fmt: skip
    return params | {f"router{layer}": random.standard_normal((WIDTH, EXPERTS), np.float32) for layer in (0, 1)}


def net() -> Graph:
    """Two layers of experts, for any number of tokens."""
    graph = Graph("mixture")
    x = graph.input("x", ("tokens", WIDTH), "f32")
    params_of_net = {name: graph.param(name, array.shape, "f32") for name, array in weights().items()}
    for layer in ("0", "1"):
        shares, chosen = rlx.route(x @ params_of_net["router" + layer], K)
        x = x + rlx.mixture(
            x, shares, chosen, params_of_net["gate" + layer], params_of_net["up" + layer], params_of_net["down" + layer]
        )
    graph.output(x, name="y")
    return graph


def compiled(device: str = "cpu", params: dict[str, Array] | None = None) -> CompiledGraph:
    program = rlx.Session(device).compile(net())
    program.set_params(params or weights())
    return program


def tokens(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, WIDTH), np.float32)


def by_hand(x: Array) -> tuple[Array, list[Array]]:
    """The net in NumPy, token by token, and what it chose."""
    params, choices = weights(), []
    for layer in ("0", "1"):
        logits = x @ params["router" + layer]
        scores = np.exp(logits - logits.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, :K]
        out = x.copy()
        for token, experts in enumerate(chosen):
            shares = scores[token, experts] / scores[token, experts].sum()
            for share, e in zip(shares, experts):
                gated = x[token] @ params["gate" + layer][e]
                inner = gated / (1 + np.exp(-gated)) * (x[token] @ params["up" + layer][e])
                out[token] += share * (inner @ params["down" + layer][e])
        choices.append(chosen.reshape(-1))
        x = out
    return x, choices


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("count", [1, 5, 8, 9, 60])
def test_a_mixture_is_what_it_is_by_hand(count: int, device: str) -> None:
    expected, _ = by_hand(tokens(count))
    np.testing.assert_allclose(compiled(device).run([tokens(count)])[0], expected, rtol=1e-4, atol=1e-4)


def test_choices_are_captured_and_taken_once() -> None:
    program = compiled()
    assert [layer.experts for layer in program.experts.layers] == [EXPERTS, EXPERTS]
    assert program.experts.layers[0].params == ("gate0", "up0", "down0")
    program.experts.capture(3)
    for count in (4, 7, 2, 20):
        np.testing.assert_allclose(program.run([tokens(count)])[0], by_hand(tokens(count))[0], rtol=1e-4, atol=1e-4)
    captures = program.experts.taken()
    assert [len(run[0]) for run in captures] == [14, 4, 40], "the last three runs"
    for actual, count in zip(captures, (7, 2, 20)):
        for mine, expected in zip(actual, by_hand(tokens(count))[1]):
            np.testing.assert_array_equal(mine, expected)
    assert program.experts.taken() == []
    program.experts.capture(None)
    program.run([tokens(3)])
    assert program.experts.taken() == []


def test_residency_counts_and_changes_no_result() -> None:
    program = compiled()
    plain = program.run([tokens(30)])[0]
    mask = np.zeros(EXPERTS, np.bool_)
    mask[[1, 4]] = True
    program.experts.set_resident(mask)
    np.testing.assert_array_equal(program.run([tokens(30)])[0], plain)
    for statistics, chosen in zip(program.experts.statistics(), by_hand(tokens(30))[1]):
        np.testing.assert_array_equal(statistics.rows, np.bincount(chosen, minlength=EXPERTS))
        assert statistics.hits == int(np.isin(chosen, [1, 4]).sum()) and statistics.hits + statistics.misses == 60
        assert statistics.released == EXPERTS - 2 and statistics.fetched == 0
    program.experts.set_resident([mask, ~mask])
    now = program.experts.resident
    assert now is not None and (now[1] == ~mask).all()
    program.experts.set_resident(None)
    assert program.experts.resident is None and program.experts.statistics() == []
    np.testing.assert_array_equal(program.run([tokens(30)])[0], plain)


def test_a_pool_keeps_those_that_are_chosen_most() -> None:
    program = compiled()
    plain = [program.run([tokens(25, seed)])[0] for seed in range(4)]
    program.experts.manage(3, refresh=2)
    chosen = []
    for seed in range(4):
        np.testing.assert_array_equal(program.run([tokens(25, seed)])[0], plain[seed])
        chosen.append(by_hand(tokens(25, seed))[1][0])
    rows = np.bincount(np.concatenate(chosen[2:]), minlength=EXPERTS)
    now = program.experts.resident
    assert now is not None
    assert sorted(np.flatnonzero(now[0])) == sorted(np.argsort(-rows, kind="stable")[:3])


def test_pools_break_ties_by_number_and_refuse_nonsense() -> None:
    pool = ExpertPool(4, 2)
    pool.see(np.array([0, 1, 1, 1]))
    assert pool.resident.tolist() == [False, True, True, False]
    for budget, refresh in ((0, 1), (5, 1), (2, 0)):
        with pytest.raises(InputError, match="budget from 1 to 4"):
            ExpertPool(4, budget, refresh)


def test_weights_in_files_are_given_back_and_read_again(tmp_path: Path) -> None:
    save = pytest.importorskip("safetensors.numpy").save_file
    from rlx.frontends.safetensors import read

    save(weights(), tmp_path / "w.safetensors")
    program = compiled(params=read(tmp_path / "w.safetensors"))
    expected = program.run([tokens(40)])[0]
    program.experts.set_resident(np.zeros(EXPERTS, np.bool_))
    np.testing.assert_array_equal(program.run([tokens(40)])[0], expected)
    program.experts.set_resident(np.ones(EXPERTS, np.bool_))
    np.testing.assert_array_equal(program.run([tokens(40)])[0], expected)


@pytest.mark.parametrize(
    "masks", [np.ones(3, np.bool_), [True] * EXPERTS + [False], np.ones(EXPERTS), [np.ones(EXPERTS, np.bool_)] * 3, "x"]
)
def test_masks_that_do_not_fit_are_refused(masks: object) -> None:
    program = compiled()
    with pytest.raises(InputError, match=r"\[experts\] expected one mask or masks \['bool\[8\]', 'bool\[8\]'\]"):
        program.experts.set_resident(masks)
    assert program.experts.resident is None
    program.run([tokens(2)])


def test_graphs_without_experts_and_wrong_numbers_are_refused() -> None:
    graph = Graph("plain")
    graph.output(graph.input("x", (2,), "f32") + 1.0, name="y")
    with pytest.raises(InputError, match="grouped_matmul at its top"):
        rlx.Session("cpu").compile(graph).experts.capture(1)
    for runs in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="number of runs"):
            compiled().experts.capture(runs)  # type: ignore[arg-type]


def test_handles_slots_rows_and_new_weights_go_with_watching() -> None:
    program = compiled()
    program.experts.capture(10)
    out = np.empty((5, WIDTH), np.float32)
    program.run_slots([tokens(5)], [out])
    np.testing.assert_allclose(out, by_hand(tokens(5))[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(program.read_output_row("y", 1, [tokens(5)]), out[1])
    program.bind_handle("x", tokens(3))
    assert program.run()[0].shape == (3, WIDTH)
    program.set_param("down1", np.zeros((EXPERTS, INNER, WIDTH), np.float32))
    assert not np.allclose(program.run([tokens(5)])[0], out)
    assert len(program.experts.taken()) == 3


def test_many_threads_lose_no_run() -> None:
    program = compiled()
    program.experts.capture(1000)
    program.experts.manage(4)

    def work(seed: int) -> None:
        for _ in range(20):
            program.run([tokens(3, seed)])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(program.experts.taken()) == 160
    assert all(statistics.hits + statistics.misses == 160 * 3 * K for statistics in program.experts.statistics())


def test_a_part_that_is_watched_has_the_weights_of_its_whole() -> None:
    graph = net()
    graph.output(graph.outputs["y"] + 1.0, name="more")
    whole = rlx.Session("reference").compile(graph)
    whole.set_params(weights())
    part = whole.select(["y"])
    part.experts.capture(1)
    before = part.run([tokens(5)])[0]
    whole.set_params({name: array * 2 for name, array in weights().items()})
    after = part.run([tokens(5)])[0]
    np.testing.assert_array_equal(after, whole.run([tokens(5)], outputs=["y"])[0])
    assert (after != before).any()


@pytest.mark.parametrize("device", ["xla", "mlx", "vulkan"])
def test_a_device_holds_experts_in_part(device: str) -> None:
    """As many as its budget says, others in their place while rows need them. Each library may round in its way."""
    whole, part = compiled(device), rlx.Session(device, expert_budget=2).compile(net())
    part.set_params(weights())
    for count, seed in ((1, 0), (1, 0), (4, 1), (20, 2), (0, 4)):
        mine, theirs = part.run([tokens(count, seed)])[0], whole.run([tokens(count, seed)])[0]
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    for name, each in part.describe()["held_experts"].items():
        assert name.rstrip("01") in ("gate", "up", "down") and (each["slots"], each["experts"]) == (2, EXPERTS)
        assert 2 <= each["fetched"] <= 5 * EXPERTS
    before = part.describe()["held_experts"]
    part.run([tokens(1, 5)])
    part.run([tokens(1, 5)])
    fetched = {name: each["fetched"] for name, each in part.describe()["held_experts"].items()}
    assert all(fetched[name] <= before[name]["fetched"] + K for name in fetched), "the second run found them there"
    clone = part.clone()
    part.set_param("up1", weights()["up1"] * 2)
    whole.set_param("up1", weights()["up1"] * 2)
    np.testing.assert_allclose(part.run([tokens(4)])[0], whole.run([tokens(4)])[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(clone.run([tokens(4)])[0], by_hand(tokens(4))[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["xla", "mlx", "vulkan"])
def test_residency_goes_to_devices_that_hold_experts_in_part(device: str) -> None:
    program = compiled(device)
    plain = [program.run([tokens(6, seed)])[0] for seed in range(4)]
    program.experts.manage(2, refresh=2)
    for seed in range(4):
        np.testing.assert_allclose(program.run([tokens(6, seed)])[0], plain[seed], rtol=1e-5, atol=1e-5)
    assert all(int(mask.sum()) == 2 for mask in program.experts.resident or ())
    assert sum(statistics.misses for statistics in program.experts.statistics()) > 0
    mask = np.arange(EXPERTS) % 2 == 0
    program.experts.set_resident([mask, np.ones(EXPERTS, np.bool_)])
    np.testing.assert_allclose(program.run([tokens(6, 1)])[0], plain[1], rtol=1e-5, atol=1e-5)
    program.experts.set_resident(None)
    np.testing.assert_allclose(program.run([tokens(6, 1)])[0], plain[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("device", ["xla", "mlx"])
def test_experts_of_other_floats_are_the_same_in_part(device: str, dtype: str) -> None:
    random = np.random.default_rng(0)
    numpy = dtypes.parse(dtype).numpy
    matrices = random.standard_normal((EXPERTS, 6, 4)).astype(numpy)
    graph = Graph("product")
    x, experts = graph.input("x", ("rows", 6), dtype), graph.input("experts", ("rows",), "i64")
    graph.output(rlx.grouped_matmul(x, graph.param("w", matrices.shape, dtype, data=matrices), experts), name="y")
    program = rlx.Session(device, expert_budget=3).compile(graph)
    for rows in (4, 30):
        x, chosen = random.standard_normal((rows, 6)).astype(numpy), random.integers(-EXPERTS, EXPERTS, rows)
        expected = np.einsum("rk,rkn->rn", x.astype("f8"), matrices[chosen].astype("f8"))
        y = program.run([x, chosen])[0].astype("f8")
        np.testing.assert_allclose(y, expected, rtol=1e-2, atol=2e-2 if dtype != "f64" else 1e-9)
    with pytest.raises(InputError, match=r"\[grouped_matmul\] expected indices"):
        program.run([x[:1], np.array([EXPERTS])])
