"""Which families a seed's program is of."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from tools.fuzz.generate import Maker

EMULATED = "cuda-emulated"
"""The device of `emulated.py`."""
OF_EMULATED = ("windows", "windows", "gates")
"""Families of which that has one each, beside encoders."""
ENCODERS = 0.03
"""Of programs are encoders in bytes, on devices that have any."""
VARIABLE = "RLX_FUZZ_FAMILY"


def kind_of(seed: int, device: str) -> str:
    """`encoders`, `windows` or `gates` for programs of nothing else, which all of the emulated device are; a module
    whose families the program has among others, where RLX_FUZZ_FAMILY names it; empty for any."""
    named = random.Random(f"family {seed}").choice(os.environ.get(VARIABLE, "").split(","))
    if named:
        return named
    emulated = device == EMULATED
    if random.Random(f"encoder {seed}").random() < (0.5 if emulated else ENCODERS):
        return "encoders"
    return random.Random(f"family {seed}").choice(OF_EMULATED) if emulated else ""


def grow(maker: Maker, nodes: int, module: str) -> list[Value]:
    """Nodes in front of one of the families of a module, and behind it; its last result."""
    from tools.fuzz.generate import FAMILIES

    families = [(weight, make) for weight, make in FAMILIES if make.__module__ == f"tools.fuzz.{module}"]
    if not families:
        raise ValueError(f"expected modules of tools.fuzz with families in {VARIABLE}, got {module!r}")
    maker.grow(nodes // 3)
    before = len(maker.made)
    maker.grow(before + 1, families)
    results = maker.made[before:][-1:]
    maker.grow(len(maker.made) + nodes // 2)
    return results
