"""What the fuzzer draws from must be there: a switch that nothing has switches nothing off, and what it is asked for is
in its programs."""

from __future__ import annotations

import pytest

from rlx.backends.cuda.build import NVIDIAS, program_of
from rlx.codegen.simt import fma_tile, piped_contraction, tile_contraction
from rlx.codegen.simt.module import cpp_module
from rlx.device import switches
from rlx.ir.graph import Graph
from tools.fuzz import asked, check, generate, isolated, tiles


def test_every_switch_is_one() -> None:
    switches.check(generate.DISABLE)


def test_an_asked_family_is_in_every_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(asked.VARIABLE, "control")
    for seed in range(20):
        names = {node.op.name for node in generate.generate(seed).graph.nodes}
        assert names & {"if", "scan", "while"}, seed


def test_a_family_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(asked.VARIABLE, "branches")
    with pytest.raises(ValueError, match="branches"):
        generate.generate(0)


def test_forced_tiles_are_of_small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every kind, of those that a GPU with clusters may have."""
    forced = ((fma_tile, "fma_layout_of"), (tile_contraction, "tile_of"), (piped_contraction, "layout_of"))
    for module, name in forced:
        monkeypatch.setattr(module, name, getattr(module, name))  # so that they come back
    tiles.force()
    found = brought = 0
    for dtype in ("f16", "f32"):
        for rows in range(8, 24):
            graph = Graph("product")
            graph.output(graph.input("x", (rows, 32), dtype) @ graph.param("w", (32, 64), dtype))
            target = NVIDIAS.on("sm_90a")
            texts = cpp_module([program_of(graph, target)], target=target.target).kernels.values()
            copied = any("copy_ahead" in text for text in texts)
            brought += any("bring_tile" in text for text in texts)
            found += copied or any("bring_tile" in text for text in texts)
    assert 20 <= found < 32  # some have none
    assert brought > 0


def test_a_lost_device_is_no_device_for_later_programs() -> None:
    lost = check.Failure("error", "DeviceLost: [run] expected H200 to go on, got launch gave 700")
    assert isolated.spoils(lost) and isolated.spoils(check.Failure("crash", "exit -11"))
    assert not isolated.spoils(check.Failure("wrong", "2 of 4 elements differ"))
