"""The search for schedules: what wins, what noise and wrong results do, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.codegen.simd import winograd
from rlx.errors import InputError, OptionError
from rlx.ir.graph import Graph
from rlx.ir.serial import write_graph
from rlx.kernel.schedule import search, tuned
from rlx.runtime import tuning
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.compiler import CODE
from rlx.runtime.session import Session
from rlx.runtime.tuning import Key, Search, are_close

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((1, 24, 24, 32), np.float32)
Times = Callable[[CompiledGraph, Any], list[tuple[Key, float]]]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache folder of the test's own."""
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RLX_CACHE", "1")
    CODE.clear()
    yield tmp_path
    CODE.clear()


def net(name: str = "net") -> Graph:
    """A product and a softmax."""
    graph = Graph(name)
    x = graph.input(f"{name}_x", (1, 24, 24, 32), "f32").reshape((576, 32))
    w = graph.param(f"{name}_w", (32, 96), "f32", data=np.random.default_rng(1).standard_normal((32, 96), np.float32))
    graph.output(rlx.softmax(rlx.relu(x @ w)), name="y")
    return graph


def by_tiles(fast: Callable[[str, dict[str, int]], bool], ns: float = 1000.0) -> Times:
    """Kernels take `ns`, those whose kind and tiles are `fast` half of it."""

    def times(compiled: CompiledGraph, inputs: Any) -> list[tuple[Key, float]]:
        report = compiled.describe()
        return [
            (tuple(nodes), ns / 2 if chosen and fast(chosen[0], chosen[2]) else ns)
            for nodes, chosen in zip(report["sources"], report["schedules"])
        ]

    return times


def searched(graph: Graph, times: Times, **named: Any) -> tuning.Tuning:
    ticks = iter(range(1_000_000))
    session = Session("cpu")
    return Search(
        lambda options: session.with_options(options).compile(graph),
        [X],
        session.options,
        seconds=named.pop("seconds", 1e9),
        clock=lambda: float(next(ticks)),
        times=times,
        **named,
    ).run()


def is_low(kind: str, tiles: dict[str, int]) -> bool:
    return kind == "contraction" and tiles["register.m"] == 4


def test_what_is_faster_is_kept_for_every_program_with_the_kernel(cache: Path) -> None:
    usual = Session("cpu").compile(net()).run([X])[0]
    found = searched(net(), by_tiles(is_low))
    (kernel,) = found.kernels
    assert kernel.kind == "contraction" and kernel.tiles["register.m"] == 4
    assert (kernel.before_us, kernel.after_us) == (1.0, 0.5) and found.before_us - found.after_us == 0.5
    assert found.tried > 4 and found.looked_at >= 2 and not found.refused
    for name in ("net", "another"):
        CODE.clear()
        compiled = Session("cpu").compile(net(name))
        changed = compiled.describe()["tuned"]
        assert len(changed) == 1 and "register.m=4" in next(iter(changed.values()))
        np.testing.assert_allclose(compiled.run([X])[0], usual, rtol=1e-4)
    assert tuned.forget() == 1
    CODE.clear()
    assert "tuned" not in Session("cpu").compile(net()).describe()


def test_a_search_begins_with_what_was_found() -> None:
    searched(net(), by_tiles(is_low))
    assert searched(net(), by_tiles(is_low)).kernels == ()
    (kernel,) = searched(net(), by_tiles(lambda kind, tiles: is_low(kind, tiles) and tiles["cache.m"] == 64)).kernels
    assert dict(kernel.tiles) == {"cache.m": 64}
    (found,) = tuned.kept(next(iter(tuned._entries()))).values()
    assert found.tiles["register.m"] == 4 and found.tiles["cache.m"] == 64


def test_programs_in_memory_do_not_outlive_a_search() -> None:
    before = Session("cpu").compile(net())
    searched(net(), by_tiles(is_low))
    assert "tuned" not in before.describe()
    assert Session("cpu").compile(net()).describe()["tuned"]


def test_noise_wins_nothing() -> None:
    """Times that jump about by a third, and medians that favour candidates by less than the noise."""
    random = np.random.default_rng(3)

    def times(compiled: CompiledGraph, inputs: Any) -> list[tuple[Key, float]]:
        return [(tuple(nodes), 1000 * random.uniform(0.7, 1.3)) for nodes in compiled.describe()["sources"]]

    found = searched(net(), times)
    assert found.kernels == () and found.tried > 4 and tuned.forget() == 0


def test_a_winner_must_win_twice() -> None:
    """What was lucky in its round is as slow as the usual schedule in the confirmation."""
    low: list[CompiledGraph] = []

    def times(compiled: CompiledGraph, inputs: Any) -> list[tuple[Key, float]]:
        if any(each and is_low(each[0], each[2]) for each in compiled.describe()["schedules"]):
            low.append(compiled)
        return by_tiles(lambda kind, tiles: is_low(kind, tiles) and compiled is low[0])(compiled, inputs)

    found = searched(net(), times)
    assert low[0] is not low[-1]
    assert found.kernels == () and tuned.forget() == 0


def test_an_interrupt_keeps_what_was_found() -> None:
    called = []

    def interrupt() -> None:
        called.append(1)
        if len(called) == 8:
            raise KeyboardInterrupt

    def fast(kind: str, tiles: dict[str, int]) -> bool:
        return kind == "contraction" and tiles["register.m"] != usual["register.m"]

    usual = search_base()
    found = searched(net(), by_tiles(fast), step=interrupt)
    assert len(found.kernels) == 1 and tuned.forget() == 1


def search_base() -> dict[str, int]:
    """Tiles that the product has of itself."""
    with tuned.trying({}):
        report = Session("cpu").compile(net()).describe()
    tiles: dict[str, int] = next(each[2] for each in report["schedules"] if each and each[0] == "contraction")
    return tiles


def test_a_search_ends_in_time() -> None:
    steps: list[int] = []
    searched(net(), by_tiles(is_low), step=lambda: steps.append(1), seconds=1)
    assert len(steps) == 0  # the clock had gone on while the program was compiled
    few = searched(net(), by_tiles(lambda *_: False), seconds=30)
    all_of_them = searched(net(), by_tiles(lambda *_: False))
    assert 0 < few.tried < all_of_them.tried


def test_schedules_with_other_results_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "are_close", lambda actual, expected: False)
    found = searched(net(), by_tiles(is_low))
    assert found.kernels == () and found.refused == ("[tune] expected the same results, got others for y",)
    assert tuned.forget() == 0


def test_schedules_that_no_kernel_has_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "IN_FLIGHT", (64,))
    found = searched(net(), by_tiles(is_low))
    assert len(found.refused) == 1 and "of at most" in found.refused[0]


def test_other_devices_have_nothing_to_search() -> None:
    with pytest.raises(OptionError, match="expected device cpu, whose kernels are searched, got 'reference'"):
        Session("reference").tune(net(), [X])


def test_wrong_inputs_are_told_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_compile_for", lambda *_: pytest.fail("compiled"))
    unnamed, wide = ({"x": X}, "missing 'net_x' and unknown 'x'"), ([X.astype("f8")], "got float64")
    for inputs, told in (unnamed, wide, (3, "got int")):
        with pytest.raises(InputError, match=told):
            Session("cpu").tune(net(), inputs)  # type: ignore[arg-type]


def test_a_model_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_kernel_ns", by_tiles(is_low))
    path = tmp_path / "net.rlx"
    with path.open("wb") as file:
        write_graph(net(), file)
    (kernel,) = rlx.load(path, device="cpu").tune([X], seconds=1e6).kernels
    assert kernel.tiles["register.m"] == 4
    assert rlx.load(path, device="cpu").describe()["tuned"]


@pytest.mark.parametrize("usual", ["winograd", "contraction"])
def test_whether_a_convolution_is_one_of_winograds_is_searched(usual: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if usual == "contraction":
        monkeypatch.setattr(winograd, "LEAST_CHANNELS", 64)
    graph = Graph("window")
    graph.output(graphs()["window"](graph, graph.input("x", X.shape, "f32")), name="y")
    expected = Session("cpu").compile(graph).run([X])[0]
    other = {"winograd": "contraction", "contraction": "winograd"}[usual]
    found = searched(graph, by_tiles(lambda kind, tiles: kind == other))
    (kernel,) = (each for each in found.kernels if tuned.USE_WINOGRAD in each.tiles)
    assert kernel.kind == usual and kernel.tiles[tuned.USE_WINOGRAD] == int(other == "winograd")
    with tuned.trying({name: entry.tiles for name, entry in tuned.kept(next(iter(tuned._entries()))).items()}):
        compiled = Session("cpu").compile(graph)
        assert other in [each[0] for each in compiled.describe()["schedules"] if each]
    np.testing.assert_allclose(compiled.run([X])[0], expected, rtol=1e-3, atol=1e-4)


def test_results_are_close_or_not() -> None:
    a = np.array([1.0, -2.0, np.nan, np.inf], np.float32)
    assert are_close(a, a) and are_close(a * np.float32(1 + 1e-6), a)
    assert not are_close(a * np.float32(1.01), a) and not are_close(a[:2], a) and not are_close(a.astype("f8"), a)
    assert not are_close(np.array([1.0, -2.0, np.nan, -np.inf], np.float32), a)
    assert not are_close(np.array([1, 2]), np.array([1, 3])) and are_close(np.zeros((0, 3)), np.zeros((0, 3)))
    assert are_close(np.array([1.0, 2.001], np.float16), np.array([1.0, 2.0], np.float16))


def graphs() -> dict[str, Callable[[Graph, Any], Any]]:
    """What has each kind of schedule, of an image with channels last."""

    def weight(graph: Graph, *shape: int) -> Any:
        data = np.random.default_rng(2).standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
        return graph.param("w", shape, "f32", data=data)

    def first(graph: Graph, x: Any) -> Any:
        return x.transpose((0, 3, 1, 2))

    def attend(graph: Graph, x: Any) -> Any:
        rows = x.reshape((1, 4, 144, 32))
        return rlx.attention(rows, rows, rows)

    return {
        "product": lambda g, x: x.reshape((576, 32)) @ weight(g, 32, 80),
        "window": lambda g, x: rlx.conv(first(g, x), weight(g, 32, 32, 3, 3), low=1, high=1),
        "depthwise": lambda g, x: rlx.conv(first(g, x), weight(g, 32, 1, 3, 3), low=1, high=1, groups=32),
        "attention": attend,
        "rows": lambda g, x: rlx.softmax(x.reshape((576, 32))),
        "columns": lambda g, x: x.reshape((576, 32)).sum(0),
        "map": lambda g, x: rlx.gelu(x) + 1.0,
        "transpose": lambda g, x: x.reshape((576, 32)).transpose((1, 0)),
    }


@pytest.mark.parametrize("name", graphs())
def test_every_schedule_that_may_be_tried_gives_right_results(name: str) -> None:
    graph = Graph(name)
    graph.output(graphs()[name](graph, graph.input("x", X.shape, "f32")), name="y")
    seen: list[dict[str, int]] = []

    def times(compiled: CompiledGraph, inputs: Any) -> list[tuple[Key, float]]:
        report = compiled.describe()
        seen.extend(each[2] for each in report["schedules"] if each)
        return [(tuple(nodes), 1000.0) for nodes in report["sources"]]

    found = searched(graph, times)
    assert found.refused == () and found.tried >= 2
    assert len({tuple(sorted(tiles.items())) for tiles in seen}) > found.looked_at
