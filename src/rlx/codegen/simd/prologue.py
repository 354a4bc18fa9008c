"""How the function of a kernel begins: its parameters, the pointers of its buffers, the loop over its positions."""

from __future__ import annotations

from collections.abc import Callable

from rlx.codegen.simd.body import Body
from rlx.codegen.simd.function import Function
from rlx.ir.dim import Shape

PARAMETERS = "ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch"


def buffer_pointers(f: Function, slots: int) -> list[str]:
    """Reads the slots' pointers from `%args`, in the entry block. Before them stand the program's dims, behind them the
    table of those that the kernel is given."""
    f.given_dims(slots)
    places = [f.at_entry(f"getelementptr ptr, ptr %args, i64 {slot + 1}") for slot in range(slots)]
    return [f.at_entry(f"load ptr, ptr {place}, align 8", "b") for place in places]


def over_positions(f: Function, body: Body, outer: Shape, visit: Callable[[], None]) -> None:
    """Calls `visit` for each of the positions begin … end-1, with positions of the outer axes set. Without such axes
    there is one position, and no loop."""
    if not outer:
        f.when(f.value("icmp slt i64 %begin, %end"), visit)
        return

    def one(position: str, _: list[str]) -> list[str]:
        body.push()
        rest = position
        for number in reversed(range(len(outer))):
            extent = f.dim(outer[number])
            body.axes[number] = rest if number == 0 else f.remainder(rest, extent)
            rest = f.divide(rest, extent) if number else rest
        visit()
        body.pop()
        return []

    f.loop("%begin", "%end", 1, [], one)
