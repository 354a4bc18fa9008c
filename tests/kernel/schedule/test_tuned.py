"""Tables of found schedules: what kernels are told apart by, and what is kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import rlx
from rlx import disk
from rlx.backends.base import Options
from rlx.backends.cpu import build, isa
from rlx.codegen.simd.module import schedule_of
from rlx.ir.graph import Graph
from rlx.kernel.ir.program import leaves
from rlx.kernel.schedule import search, tuned
from rlx.kernel.schedule.tuned import Found

AVX2 = isa.forced("avx2", for_codegen_only=True)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RLX_CACHE", "1")
    return tmp_path


def chosen(name: str, rows: int = 64, activation: str = "relu") -> list[tuned.Chosen]:
    """Of the kernels of a product and a softmax."""
    graph = Graph(name)
    x, w = graph.input(f"{name}_x", (rows, 32), "f32"), graph.param(f"{name}_w", (32, 48), "f32")
    graph.output(rlx.softmax(getattr(rlx, activation)(x @ w)), name=f"{name}_y")
    program, _ = build.program_of(graph, AVX2, Options())
    with tuned.listening() as heard:
        for kernel in leaves(program.main):
            schedule_of(kernel, AVX2)
    return heard


def signatures(*arguments: object) -> list[str]:
    return [each.signature for each in chosen(*arguments)]  # type: ignore[arg-type]


def test_names_do_not_tell_kernels_apart_but_sizes_and_bodies_do() -> None:
    assert signatures("one") == signatures("two") and len(signatures("one")) == 2
    assert not set(signatures("one")) & set(signatures("one", 65))
    assert signatures("one", 64, "gelu")[0] != signatures("one")[0]


def test_a_table_changes_what_the_generator_chose() -> None:
    product, softmax = chosen("net")
    assert (product.kind, softmax.kind) == ("contraction", "rows")
    with tuned.using({product.signature: {"register.m": 3, "register.none": 5}, "contraction other": {"cache.m": 1}}):
        changed, same = chosen("net")
    assert changed.tiles() == {**product.tiles(), "register.m": 3} and same == softmax
    assert chosen("net")[0] == product


def test_what_is_set_by_hand_comes_after_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_SCHEDULE", "contraction:register.m=2")
    with tuned.using({chosen("net")[0].signature: {"register.m": 3, "cache.m": 64}}):
        tiles = chosen("net")[0].tiles()
    assert tiles["register.m"] == 2 and tiles["cache.m"] == 64


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("kind", ["contraction", "attention"])
def test_blocks_that_may_be_tried_fit_registers(kind: str, registers: int) -> None:
    tiles = {"register.m": 1, "register.n": 8, "register.queries": 1, "register.keys": 8, "cache.m": 128}
    heights = {"contraction": "register.m", "attention": "register.queries"}
    widths = {"contraction": "register.n", "attention": "register.keys"}
    blocks = [each for each in search.candidates(kind, tiles, 8, registers) if heights[kind] in each]
    assert len(blocks) > 3
    for each in blocks:
        vectors = each.get(widths[kind], 8) // 8
        assert each[heights[kind]] * vectors + vectors < registers


def test_kinds_without_candidates_have_none() -> None:
    assert search.candidates("fourier", {"register.radix": 4}, 8, 16) == []
    assert {"register.elements": 8} not in search.candidates("map", {"register.elements": 8}, 8, 16)


def test_what_is_found_is_kept_by_processor(cache: Path) -> None:
    found = Found({"register.m": 4}, "product", 2.0, 1.0)
    before = tuned.state()
    tuned.keep("one", {"a": found})
    after = tuned.state()
    tuned.keep("two", {"a": replace_us(found, 0.5)})
    assert len({before, after, tuned.state()}) == 3
    assert tuned.kept("one") == {"a": found} and tuned.kept("two")["a"].after_us == 0.5 and not tuned.kept("three")
    assert tuned.forget() == 2 and tuned.state() == before and not tuned.kept("one")


def replace_us(found: Found, after_us: float) -> Found:
    return Found(found.tiles, found.kernel, found.before_us, after_us)


def test_searches_at_once_keep_what_each_found() -> None:
    names = [f"kernel {number}" for number in range(8)]
    threads = [
        threading.Thread(target=tuned.keep, args=("here", {name: Found({"cache.m": 64}, name, 2.0, 1.0)}))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tuned.kept("here")) == names


@pytest.mark.parametrize("data", [b"", b"[1]", b"no JSON", b'{"here": {"a": {"other": 1}}}', b'{"here": [1]}'])
def test_entries_of_another_form_are_none(data: bytes) -> None:
    disk.write(disk.TUNED, data)
    assert tuned.kept("here") == {}
