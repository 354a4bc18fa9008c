"""Dims as tables of what they are made of. Reading one is a hundred times as fast as parsing texts, in which the same
function of dims stands again wherever it is an argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlx.errors import ShapeError
from rlx.ir.dim import Call, Dim, Poly

Table = list[Any]
"""Nodes, each behind those that it names: `[function, dim, dim]`, or for a polynomial a list of terms,
`[coefficient, factor, …]`. A dim is a number or `[number of a polynomial]`, a factor a name or `[number of a call]`."""


def written(dims: Iterable[Dim]) -> tuple[Table, dict[str, int]]:
    """A table of dims, and in it the numbers of those that are no integers, by their texts."""
    nodes: Table = []
    numbers: dict[Poly | Call, int] = {}

    def number(of: Poly | Call) -> int:
        if of not in numbers:
            node: list[Any]
            if isinstance(of, Call):
                node = [of.function, dim(of.left), dim(of.right)]
            else:
                node = [[n, *(f if isinstance(f, str) else [number(f)] for f in factors)] for factors, n in of.terms]
            numbers[of] = len(nodes)
            nodes.append(node)
        return numbers[of]

    def dim(of: Dim) -> int | list[int]:
        return of if isinstance(of, int) else [number(of)]

    texts = {str(of): number(of) for of in dims if isinstance(of, Poly)}
    return nodes, texts


def read(table: Table, texts: dict[str, int]) -> dict[str, Dim]:
    """The dims of a table by their texts. Raises ShapeError for what `written` did not write."""
    made: list[Any] = []

    def dim(entry: Any) -> Dim:
        return entry if isinstance(entry, int) else made[entry[0]]

    try:
        for node in table:
            if isinstance(node[0], str):
                made.append(Call(node[0], dim(node[1]), dim(node[2])))
            else:
                terms = [(tuple([f if isinstance(f, str) else made[f[0]] for f in fs]), n) for n, *fs in node]
                made.append(Poly(tuple(terms)))
        return {text: made[number] for text, number in texts.items()}
    except (TypeError, ValueError, IndexError) as error:
        raise ShapeError(f"expected a table of dims, got {error}") from None
