"""What tests of Core ML share."""

from __future__ import annotations

from typing import Any

import pytest

import rlx
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from support import why_absent

here = pytest.mark.skipif(bool(why_absent("ane")), reason=why_absent("ane"))


def compiled(graph: Graph, **params: Array) -> rlx.CompiledGraph:
    program = rlx.Session("ane").compile(graph)
    program.set_params(params)
    return program


def entry(name: str) -> Any:
    """What a specification says of an input or output, by how the test writes it: `fp32[2,4]`."""
    of, _, shape = name.partition("[")
    return of, tuple(int(n) for n in shape.removesuffix("]").split(","))
