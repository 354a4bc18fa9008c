"""In which order groups run: each behind those whose results it reads, else as their last members stand."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.kernel.lower.facts import Facts
from rlx.kernel.lower.group import Group


def order(facts: Facts, owner: Mapping[int, Group]) -> list[Group]:
    """The groups, sorted so that each runs behind those whose results it reads."""
    seen: dict[int, Group] = {}
    for node in facts.nodes:
        group = owner.get(id(node))
        if group is not None:
            seen.pop(id(group), None)
            seen[id(group)] = group  # a group stands where its last member stands
    ordered: list[Group] = []
    state: dict[int, int] = {}
    for start in seen.values():
        stack = [(start, False)]
        while stack:
            group, ready = stack.pop()
            if ready:
                state[id(group)] = 2
                ordered.append(group)
            elif state.get(id(group), 0) == 0:
                state[id(group)] = 1
                stack.append((group, True))
                stack.extend((g, False) for g in _reads(group, owner) if state.get(id(g), 0) == 0)
    return ordered


def _reads(group: Group, owner: Mapping[int, Group]) -> list[Group]:
    """Groups whose results this one reads, through inlined nodes."""
    writers: dict[int, Group] = {}
    inside = {id(n) for n in group.members}
    stack = [v for n in group.members for v in n.inputs if id(v.node) not in inside]
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if id(value.node) in seen or id(value.node) in inside:
            continue
        seen.add(id(value.node))
        writer = owner.get(id(value.node))
        if writer is not None:
            writers[id(writer)] = writer
        else:
            stack.extend(value.node.inputs)
    return list(writers.values())
