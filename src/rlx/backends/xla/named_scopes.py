"""Which nodes a kernel of XLA came from: marks in the names of its instructions, written while jax traces.

The marks are places in the graph and not names of nodes: programs on disk go by a fingerprint that knows no names, so
one of them serves graphs whose nodes are called differently. They change nothing in the program, but jax takes a tenth
longer to make it, so only programs that are to be timed have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from rlx.ir.graph import Graph, Node

_marking: ContextVar[bool] = ContextVar("_marking", default=False)
"""Whether marks are written."""
_MARK = re.compile(r"(?:^|/)(node|region)(\d+)(?=/|$)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_KIND = re.compile(r" ([a-z][a-z\-]*)\(")
_IDLE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


@contextmanager
def marking(wanted: bool) -> Iterator[None]:
    """Whether what is traced in here is marked."""
    token = _marking.set(wanted)
    try:
        yield
    finally:
        _marking.reset(token)


def node_scope(number: int) -> AbstractContextManager[Any]:
    """What is traced in here comes from the node of this number in its graph."""
    return _scope(f"node{number}")


def region_scope(number: int) -> AbstractContextManager[Any]:
    """What is traced in here is of this region of the node around it."""
    return _scope(f"region{number}")


def _scope(name: str) -> AbstractContextManager[Any]:
    if not _marking.get():
        return nullcontext()
    import jax

    made: AbstractContextManager[Any] = jax.named_scope(name)
    return made


def node_at(graph: Graph, name: str) -> Node | None:
    """The innermost node that the name of an instruction tells; None if it tells none of this graph."""
    found: Node | None = None
    for kind, digits in _MARK.findall(name):
        number = int(digits)
        if kind == "node":
            if number >= len(graph.nodes):
                return None
            found = graph.nodes[number]
        else:
            if found is None or number >= len(found.regions):
                return None
            graph = found.regions[number]
    return found


class Instructions:
    """The instructions of a compiled program by its text: their own names, and the instructions that each calls.

    working   whether any of them does something
    """

    def __init__(self, text: str) -> None:
        self._names: dict[str, str] = {}
        self._calls: dict[str, list[str]] = {}
        self._members: dict[str, list[str]] = {}
        self.working = False
        members: list[str] = []
        for line in text.splitlines():
            head, instruction = _COMPUTATION.match(line), _INSTRUCTION.match(line)
            if head:
                members = self._members.setdefault(head[1], [])
            elif instruction:
                members.append(instruction[1])
                kind = _KIND.search(line, instruction.end())
                self.working = self.working or kind is None or kind[1] not in _IDLE
                named, branches = _NAME.search(line), _BRANCHES.search(line)
                self._names[instruction[1]] = named[1] if named else ""
                sides = branches[1].replace("%", "").replace(" ", "").split(",") if branches else []
                self._calls[instruction[1]] = [*_CALLED.findall(line), *sides]

    def within(self, instruction: str) -> Iterator[str]:
        """The instructions that one runs as its own parts, at any depth."""
        for computation in self._calls.get(instruction, ()):
            for member in self._members.get(computation, ()):
                yield member
                yield from self.within(member)

    def sources(self, graph: Graph, instructions: list[str]) -> tuple[str, ...]:
        """The nodes of the graph that these instructions came from."""
        nodes = (node_at(graph, self._names.get(name, "")) for name in instructions)
        return tuple(dict.fromkeys(node.source or node.name for node in nodes if node is not None))
