"""The table of lowering: for each op class that has a kernel of its own, how it becomes one, and what it demands.

A file of `kernel/lower/` is one kind of kernel. It registers the function that lowers a group whose anchor op has that
class, and the function that says which operands must lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from rlx.ir.op import Op

if TYPE_CHECKING:
    from rlx.ir.graph import Node
    from rlx.kernel.lower.context import LoweringContext
    from rlx.kernel.lower.group import Group
    from rlx.kernel.lower.materialise import Materialised

Lower = Callable[["LoweringContext", "Group"], None]
Demand = Callable[["Node", "Materialised"], None]
Function = TypeVar("Function", bound=Callable[..., None])


@dataclass(frozen=True)
class Kind:
    """How ops of a class become kernels.

    grows      what joins the kernel: "epilogue", the elementwise nodes behind it; "row", reductions over the same axes
               and the elementwise nodes between and behind; or nothing
    irregular  whether the work is of a kind that not every code generator has
    """

    lower: Lower
    grows: str = ""
    irregular: bool = False


KINDS: dict[type[Op], Kind] = {}
DEMANDS: dict[type[Op], Demand] = {}


def lowers(*ops: type[Op], grows: str = "", irregular: bool = False) -> Callable[[Function], Function]:
    """Registers a function that adds the kernels of a group to the program."""

    def register(function: Function) -> Function:
        KINDS.update((op, Kind(function, grows, irregular)) for op in ops)
        _kind_of.cache_clear()
        return function

    return register


def demands(*ops: type[Op]) -> Callable[[Function], Function]:
    """Registers a function that gives memory to the operands of a node that need it."""

    def register(function: Function) -> Function:
        DEMANDS.update((op, function) for op in ops)
        _demand_of.cache_clear()
        return function

    return register


def kind_of(op: Op) -> Kind | None:
    """How an op becomes a kernel of its own; None for those that are computed where they are used."""
    cls: type = type(op)
    return _kind_of(cls)


def demand_of(op: Op) -> Demand | None:
    """What an op demands of its operands."""
    cls: type = type(op)
    return _demand_of(cls)


@cache
def _kind_of(cls: type) -> Kind | None:
    return next((KINDS[base] for base in cls.__mro__ if base in KINDS), None)


@cache
def _demand_of(cls: type) -> Demand | None:
    return next((DEMANDS[base] for base in cls.__mro__ if base in DEMANDS), None)


def irregular_ops() -> tuple[type[Op], ...]:
    """Op classes whose work is of a kind that not every code generator has."""
    return tuple(op for op, kind in KINDS.items() if kind.irregular)
