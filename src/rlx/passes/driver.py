"""The one driver of all passes. A pass is a list of named rules, or a function of its own for what rules cannot say.

Every rewrite has a name, `pass/rewrite`, and is counted; any can be switched off (`RLX_DISABLE`, `Options.disable`);
`RLX_STOP_AT=n` applies only the first n of a run, which bisects a miscompile. Matches are sought on the old graph, so
that use counts are right; the new graph is built forward beside it.
"""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import ClassVar

from rlx import flags, logs
from rlx.errors import GraphError
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import LEAVES, Op
from rlx.ir.rewriting import Context, Report
from rlx.ir.verify import verify
from rlx.passes.pattern import Found, Pattern
from rlx.records import dataclass

__all__ = ["Context", "Pass", "Rebuild", "Report", "Rule", "Rules", "run_passes"]
KNOWN_KINDS = 1 << 12
"""Ops with the ops of their operands of which a pass remembers what rules they may match."""
MAX_SWEEPS = 64  # rounds of one pass over one graph; a pass that needs more has rules that undo each other


class Pass(ABC):
    """Graph to graph, same meaning."""

    name: str
    outermost: ClassVar[bool] = False
    """Whether it is given the outermost graph alone, when the passes before are done in all regions: it looks into them
    itself."""

    @abstractmethod
    def run(self, graph: Graph, context: Context) -> Graph:
        """The graph itself if there is nothing to do, else a new one."""


class Rebuild:
    """A graph growing beside an old one: `rebuild[old value]` is the new value. Leaves are there from the start."""

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.new = graph.like()
        self._made: dict[int, tuple[Value, ...]] = {}
        """New values by the id of the old node."""
        for node in graph.nodes:
            if isinstance(node.op, LEAVES):
                self.keep(node)

    def __getitem__(self, value: Value) -> Value:
        """The new value; brings over what it needs."""
        made = self._made.get(id(value.node))
        if made is None:
            self.keep(value.node)
            made = self._made[id(value.node)]
        return made[value.index]

    def keep(self, node: Node, regions: tuple[Graph, ...] | None = None) -> None:
        """Brings a node over as it is (but for its regions), after those that it needs; nothing if it is there."""
        made = self._made
        if id(node) in made:
            return
        try:
            inputs = tuple([made[id(v.node)][v.index] for v in node.inputs])
        except KeyError:
            self._keep_after(node, regions)
            return
        made[id(node)] = self.new.adopt(node, inputs, regions).outputs

    def _keep_after(self, node: Node, regions: tuple[Graph, ...] | None) -> None:
        """Brings a node over after nodes that it needs, which are not all there yet."""
        stack = [node]
        while stack:
            missing = [v.node for v in stack[-1].inputs if id(v.node) not in self._made]
            if missing:
                stack.extend(missing)
                continue
            top = stack.pop()
            self.keep(top, regions if top is node else None)

    @property
    def values(self) -> list[Value]:
        """The new values that stand for old ones."""
        return [value for made in self._made.values() for value in made]

    def put(self, value: Value, new: Value) -> None:
        """A value of the new graph takes the place of one old value."""
        made = list(self._made[id(value.node)])
        made[value.index] = new
        self._made[id(value.node)] = tuple(made)

    def replace(self, node: Node, *values: Value, first: int) -> None:
        """Values of the new graph take the place of the node's results. New nodes from index `first` on get the node's
        provenance, the one that makes the first result its name. So do nodes of their regions, if the node had none."""
        for new_node in self.new.nodes[first:]:
            _inherit(new_node, node.source or node.name, within=not node.regions)
            if new_node is values[0].node:
                new_node.name = node.name
        self._made[id(node)] = values

    def finish(self) -> Graph:
        """The new graph with the old one's outputs, without dead nodes."""
        for node in self.old.nodes:
            self.keep(node)
        self.new.outputs = {name: self[value] for name, value in self.old.outputs.items()}
        self.new.prune()
        return self.new


def _inherit(node: Node, source: str, within: bool) -> None:
    """Says what a node that has no source came from; `within` also the nodes of its regions."""
    if node.source is not None:
        return
    node.source = source
    for inner in (inner for region in node.regions for inner in region.nodes if within):
        _inherit(inner, source, within)


@dataclass(frozen=True)
class Rule:
    """What to look for, on what condition, and what comes in its place.

    `when` and `rewrite` are called with the captures that they name: `when` with values of the old graph, `rewrite`
    with those of the new one; both may ask for `root`, the old value that matched, `rewrite` for the new `graph` too.
    `rewrite` returns the replacement, or None to leave things as they are.
    """

    name: str
    pattern: Pattern
    rewrite: Callable[..., Value | None]
    when: Callable[..., bool] | None = None
    takes: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()

    def match(self, root: Value) -> Found | None:
        """The first match that the condition admits."""
        for match in self.pattern.find(root, {}):
            match["root"] = root
            if self.when is None or self.when(**{name: match[name] for name in self.asks}):
                return match
        return None


class Rules(Pass):
    """A pass that applies rules until none applies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rules: list[Rule] = []
        self._rules_for = lru_cache(KNOWN_KINDS)(self._find_rules)

    def add(
        self,
        name: str,
        pattern: Pattern,
        rewrite: Callable[..., Value | None],
        when: Callable[..., bool] | None = None,
    ) -> None:
        """One more rule; the first that matches wins. Raises GraphError if the name is taken."""
        if any(rule.name == name for rule in self.rules):
            raise GraphError(f"the pass {self.name!r} has two rewrites called {name!r}")
        takes = tuple(inspect.signature(rewrite).parameters)
        asks = tuple(inspect.signature(when).parameters) if when else ()
        self.rules.append(Rule(name, pattern, rewrite, when, takes, asks))
        self._rules_for.cache_clear()

    def rule(
        self, name: str, pattern: Pattern, when: Callable[..., bool] | None = None
    ) -> Callable[[Callable[..., Value | None]], Callable[..., Value | None]]:
        """`add` as a decorator of the rewrite."""

        def register(rewrite: Callable[..., Value | None]) -> Callable[..., Value | None]:
            self.add(name, pattern, rewrite, when)
            return rewrite

        return register

    def rules_for(self, node: Node) -> tuple[Rule, ...]:
        """The rules that a node may match, as far as its op and those of its operands tell."""
        if len(node.types) != 1:
            return ()
        kinds: list[type] = [type(node.op), *[type(value.node.op) for value in node.inputs]]
        return self._rules_for(*kinds)

    def _find_rules(self, root: type[Op], *operands: type[Op]) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.pattern.admits(root, operands))

    def run(self, graph: Graph, context: Context) -> Graph:
        for _ in range(MAX_SWEEPS):
            swept = None if context.settled.get(self.name) is graph else self._sweep(graph, context)
            if swept is None:
                context.settled[self.name] = graph
                return graph
            graph = swept
        context.report.unfinished.append(self.name)
        return graph

    def _sweep(self, graph: Graph, context: Context) -> Graph | None:
        """One walk over the graph; None if no rewrite was applied. Nothing is copied before the first match."""
        live = frozenset(rule.name for rule in self.rules if context.enabled(self.name, rule.name))
        rebuild: Rebuild | None = None
        applied = 0
        for i, node in enumerate(graph.nodes):
            replaced = False
            for rule in self.rules_for(node):
                match = rule.match(Value(node, 0)) if rule.name in live and context.left > 0 else None
                if match is None:
                    continue
                if rebuild is None:
                    rebuild = Rebuild(graph)
                    for earlier in graph.nodes[:i]:
                        rebuild.keep(earlier)
                if self._apply(rule, node, match, rebuild, context):
                    applied += 1
                    replaced = True
                    break
            if rebuild is not None and not replaced:
                rebuild.keep(node)
        return rebuild.finish() if rebuild is not None and applied else None

    def _apply(self, rule: Rule, node: Node, match: Found, rebuild: Rebuild, context: Context) -> bool:
        match["graph"] = rebuild.new
        if not all(
            _as_matched(match[name], rebuild) for name in rule.pattern.named & set(rule.takes) if name != "root"
        ):
            return False  # the next sweep sees what is there now
        captures = {name: match[name] for name in rule.takes}
        mapped = {k: v if k == "root" else _mapped(v, rebuild) for k, v in captures.items()}
        first = len(rebuild.new.nodes)
        result = rule.rewrite(**mapped)
        if result is None:
            return False
        expected = node.types[0]
        if result.dtype is not expected.dtype or result.rank != expected.rank:
            raise GraphError(f"[{self.name}/{rule.name}] expected {expected}, got {result.type}, at node {node.name!r}")
        # Dims that are equal only under an equality of the graph would change the types of all that follows.
        if result.shape != expected.shape or not context.spend(self.name, rule.name, node):
            return False
        rebuild.replace(node, result, first=first)
        return True


def _as_matched(value: Value, rebuild: Rebuild) -> bool:
    """Whether a node that a pattern looked into is still that node: this sweep may have put another in its place, whose
    attributes and operands do not go with what else was captured."""
    rebuilt, matched = rebuild[value].node, value.node
    return rebuilt.op is matched.op and rebuilt.inputs == tuple(rebuild[v] for v in matched.inputs)


def _mapped(what: object, rebuild: Rebuild) -> object:
    """A capture for the new graph: values, and tuples of values, are looked up."""
    if isinstance(what, Value):
        return rebuild[what] if what.graph is rebuild.old else what
    if isinstance(what, tuple) and what and all(isinstance(part, Value) for part in what):
        return tuple(rebuild[part] for part in what)
    return what


def run_passes(graph: Graph, passes: Iterable[Pass], context: Context) -> Graph:
    """Runs passes in order, those that are switched on; verifies after each under `RLX_CHECK=1`."""
    check = flags.check()
    logged = logs.wanted(logs.PASSES, "passes")
    for each in passes:
        if not context.enabled(each.name):
            continue
        before = context.report.total
        start_ns = time.perf_counter_ns()
        graph = each.run(graph, context)
        report = context.report
        report.pass_ns[each.name] = report.pass_ns.get(each.name, 0) + time.perf_counter_ns() - start_ns
        report.nodes[each.name] = len(graph.nodes)
        if logged:
            count = report.total - before
            logs.tell(logs.PASSES, "passes", f"pass {each.name}: {count} rewrites, {len(graph.nodes)} nodes")
        if check:
            verify(graph)
    return graph
