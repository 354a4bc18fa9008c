"""Types of results: an op's rule on the types of its operands, and what this takes to be equal."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rlx.errors import GraphError, ShapeError
from rlx.ir import expect
from rlx.ir.expect import Equality
from rlx.ir.op import Op, Types
from rlx.ir.type import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

MOST_TYPES = 1 << 12
"""Of nodes, by op and operands, that are remembered: nets have the same few again and again."""


def types_of(
    op: Op, operands: tuple[TensorType, ...], assumes_equal: bool, regions: tuple[Graph, ...] = ()
) -> tuple[Types, tuple[Equality, ...]]:
    """The types of an op's results, and what these take to be equal. Raises ShapeError, DTypeError, GraphError."""
    with expect.noting(assumes_equal) as noted:
        types = infer(op, operands, regions)
        for each in types if isinstance(types, tuple) else (types,):
            each.check()
    return types, tuple(noted)


known_types = lru_cache(MOST_TYPES)(types_of)
"""The same of ops without regions, remembered."""


def infer(op: Op, types: tuple[TensorType, ...], regions: tuple[Graph, ...] = ()) -> Types:
    """The op's type rule on operand types. Raises ShapeError, DTypeError."""
    if len(regions) != op.regions:
        raise GraphError(f"expected {op.regions} regions, got {len(regions)}")
    types_of_results = type(op).infer(op, *types, regions=regions) if regions else type(op).infer(op, *types)
    for of in types_of_results if isinstance(types_of_results, tuple) else (types_of_results,):
        if any(isinstance(dim, int) and dim < 0 for dim in of.shape):
            raise ShapeError(f"expected attributes and operands that leave no dim below 0, got {of}")
    return types_of_results
