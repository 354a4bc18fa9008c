"""Walks the nodes of an ONNX model and builds a graph. One error names all nodes that cannot be imported."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlx import flags
from rlx.errors import GraphError, ModelError, RlxError, UnsupportedOp
from rlx.frontends.onnx.definitions import default_attributes, standard_body
from rlx.frontends.onnx.inputs import Inputs
from rlx.frontends.onnx.known import is_known, op_text, standard, why_unknown
from rlx.frontends.onnx.model import LaterFile, ModelFile, check_names, dtype_of, opsets_of
from rlx.frontends.onnx.needed import MAX_INLINE_DEPTH, needed
from rlx.frontends.onnx.operand import Alike, Many, Nothing, Operand
from rlx.frontends.onnx.scope import Scope
from rlx.frontends.onnx.sequence_values import unstacked
from rlx.frontends.onnx.subgraphs import Formal, Frame, Region
from rlx.frontends.onnx.table import SYMBOLIC, OnnxNode, arguments_of, find
from rlx.frontends.onnx.weights import Leaves
from rlx.frontends.registry import Imported
from rlx.ir import dtype as dtypes
from rlx.ir.expect import Equality
from rlx.ir.graph import Graph, Value
from rlx.ir.literal import Array
from rlx.ir.op import RANDOM_STATE
from rlx.records import dataclass

OLDEST_OPSET = 1
SURE_OPSET = 22
"""That of the oldest version of the package `onnx` that rlx runs with: newer ones have all up to it."""
NUMPY_OPSET = 7  # the first with NumPy's broadcasting
REGION_NODES = 8  # that a body counts as, beside its own
# What code meets in a file that breaks the format in ways that no check foresaw.
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
FAMILIES = (
    "control",
    "elementwise",
    "index",
    "legacy_opsets",
    "linalg",
    "microsoft",
    "nn",
    "order",
    "quantised",
    "quantised_microsoft",
    "random",
    "recurrent",
    "reduce",
    "resize",
    "sampling",
    "sequences",
    "shape",
    "signal",
    "symbolics",
    "training",
    "windows",
)

for _family in FAMILIES:
    importlib.import_module(f"rlx.frontends.onnx.{_family}")


@dataclass(frozen=True)
class Failure:
    """A node that could not be imported, and why."""

    node: str
    op: str
    reason: str


class _Unknown(Exception):
    """An input was made by a node that could not be imported."""


def import_model(
    file: ModelFile,
    shapes: Mapping[str, Sequence[Any] | None] | None = None,
    values: Mapping[str, Array] | None = None,
    keep_subnormals: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Imported:
    """The program of a model file; `sizes` are those of dims that are known. Raises ModelError, UnsupportedOp."""
    try:
        imported = _ModelImporter(file, shapes or {}, values or {}, keep_subnormals, sizes or {}).run()
        if any(equality.spreads for equality in imported.graph.equalities_within()):
            imported.graph.anew = _Again(file, shapes, values, keep_subnormals)
        return imported
    except RlxError:
        raise
    except _DAMAGE as error:  # such as a name that is no text
        raise ModelError(
            f"[onnx] expected a valid model, got {type(error).__name__}: {error}, in {file.label}"
        ) from error


@dataclass(frozen=True)
class _Again:
    """The graph of the same model where some dims are known."""

    file: ModelFile | LaterFile
    shapes: Mapping[str, Sequence[Any] | None] | None
    values: Mapping[str, Array] | None
    keep_subnormals: bool

    def __call__(self, sizes: Mapping[str, int]) -> Graph:
        return import_model(self.file.open(), self.shapes, self.values, self.keep_subnormals, sizes).graph


class _ModelImporter:
    def __init__(
        self,
        file: ModelFile,
        shapes: Mapping[str, Sequence[Any] | None],
        values: Mapping[str, Array],
        keep_subnormals: bool,
        sizes: Mapping[str, int],
    ) -> None:
        self.file = file
        self.shapes = shapes
        self.values = values
        self.graph = Graph(file.proto.graph.name or "model", assumes_equal=True)
        self.frame = Frame(self.graph)
        self.leaves = Leaves(self.graph, keep_subnormals)
        self.failures: list[Failure] = []
        self.will_fail = False
        self.state: Value | None = None  # of random numbers
        self.streams = 0
        self.looked_at: dict[int, Any] = {}  # functions and bodies whose names are defined once
        self.most = flags.max_nodes()
        self.count = 0  # of nodes, each as often as it is imported
        self.sequences: dict[str, tuple[str, ...]] = {}  # inputs and outputs that are sequences → names of elements
        self.inputs = Inputs(self.graph, self.leaves, shapes, values, self.sequences, file.label, sizes)

    def run(self) -> Imported:
        proto = self.file.proto.graph
        self._check_opset()
        check_names(proto, self.file.label)
        scope = Scope(self.file.opsets, tensors={t.name: t for t in proto.initializer})
        for declared in proto.input:
            if declared.name not in scope.tensors:
                scope.items[declared.name] = self._input(declared)
        unknown = [name for name in (*self.shapes, *self.values) if name not in scope.items]
        if unknown:
            raise GraphError(f"[onnx] expected shapes and values of inputs among {list(scope.items)}, got {unknown}")
        for sparse in proto.sparse_initializer:
            self._fail(sparse.values.name, "sparse_initializer", "sparse tensors are not supported")
        self._all_nodes(proto.node, scope, [o.name for o in proto.output])
        if self.failures:
            raise UnsupportedOp(self._report())
        self._outputs(proto.output, scope)
        _prune(self.graph)
        self.leaves.finish()
        outputs = [o.name for o in proto.output]
        return Imported(self.graph, "onnx", self._notes(), self.sequences, outputs, self.file.files)

    def _check_opset(self) -> None:
        opset = self.file.opsets.get("")
        if opset is not None and OLDEST_OPSET <= opset <= SURE_OPSET:
            return
        import onnx

        newest = onnx.defs.onnx_opset_version()
        if opset is not None and not OLDEST_OPSET <= opset <= newest:
            raise UnsupportedOp(
                f"[onnx] expected an opset of ai.onnx from {OLDEST_OPSET} to {newest}, got {opset} in {self.file.label}"
            )

    def _notes(self) -> dict[str, str]:
        proto = self.file.proto
        notes = {"file": self.file.label, "producer": f"{proto.producer_name} {proto.producer_version}".strip()}
        notes |= {f"opset {domain or 'ai.onnx'}": str(version) for domain, version in self.file.opsets.items()}
        notes |= {f"dim {name!r}": identifier for name, identifier in self.inputs.dims.items() if name != identifier}
        return notes | {f"metadata {entry.key}": entry.value for entry in proto.metadata_props}

    # inputs and outputs

    def _input(self, declared: Any) -> Operand | None:
        try:
            return self.inputs.item(declared.name, declared.type)
        except UnsupportedOp as error:
            self._fail(declared.name, "input", str(error))
            return None

    def _outputs(self, declared: Iterable[Any], scope: Scope) -> None:
        for output in declared:
            item = self._lookup(output.name, scope)
            if item is None:
                raise ModelError(f"[onnx] expected the output {output.name!r} to be made by a node, got none that does")
            if isinstance(item, Alike):
                item = unstacked(item)
            if isinstance(item, Many):
                self._output_sequence(output.name, item)
                continue
            if isinstance(item, Nothing):
                raise UnsupportedOp(f"[onnx] expected outputs that are there, got the optional {output.name!r} without")
            value = item.value
            code = output.type.tensor_type.elem_type
            if code and dtype_of(code) is not value.dtype:
                raise ModelError(f"[onnx] expected the output {output.name!r} of {dtype_of(code)}, got {value.type}")
            self.graph.output(value, name=output.name)

    def _output_sequence(self, name: str, sequence: Many) -> None:
        parts = [f"{name}.{i}" for i in range(len(sequence.items))]
        self.sequences[name] = tuple(parts)
        for part, item in zip(parts, sequence.items):
            self.graph.output(item.value, name=part)

    # nodes

    def _nodes(self, nodes: Sequence[Any], scope: Scope, outputs: Sequence[str]) -> None:
        """Imports the nodes that the outputs depend on."""
        for index in needed(nodes, outputs):
            node = nodes[index]
            name = scope.prefix + (node.name or f"{node.op_type}_{index}")
            self._node(node, name, scope)

    def _all_nodes(self, nodes: Sequence[Any], scope: Scope, outputs: Sequence[str]) -> None:
        """As `_nodes`. Where there are ops that nothing imports, big weights are not looked at, and whatever else is
        wrong with the model is not told."""
        unknown = [
            self._unknown(nodes[i], nodes[i].name or f"{nodes[i].op_type}_{i}", scope)
            for i in needed(nodes, outputs)
            if not self._is_known(nodes[i], scope)
        ]
        self.will_fail = bool(unknown)
        try:
            self._nodes(nodes, scope, outputs)
        except RlxError:
            if not unknown:
                raise
            self.failures = unknown

    def _is_known(self, node: Any, scope: Scope) -> bool:
        if (node.domain, node.op_type, node.overload) in self.file.functions:
            return True
        domain = standard(node.domain)
        return is_known(domain, node.op_type, scope.opsets.get(domain, 1))

    def _unknown(self, node: Any, name: str, scope: Scope) -> Failure:
        domain = standard(node.domain)
        return Failure(name, op_text(domain, node.op_type, scope.opsets), why_unknown(domain, node.op_type))

    def _node(self, proto: Any, name: str, scope: Scope) -> None:
        self.count += 1
        if self.count > self.most:
            bound = f"{self.most} nodes (RLX_MAX_NODES), those of functions and unrolled loops among them"
            raise ModelError(f"[onnx] expected at most {bound}, got more at node {name!r}")
        domain = standard(proto.domain)
        opset = scope.opsets.get(domain, 1)
        graph = self.frame.graph
        start, noted = len(graph.nodes), len(graph.equalities)
        try:
            function = self.file.functions.get((proto.domain, proto.op_type, proto.overload))
            if function is not None:
                results: Sequence[Any] = self._inline(function, proto, name, scope)
            else:
                results = self._apply(proto, domain, opset, name, scope)
        except _Unknown:
            if not self._is_known(proto, scope):
                self.failures.append(self._unknown(proto, name, scope))
            results = [None] * len(proto.output)
        except UnsupportedOp as error:
            self._fail(name, op_text(domain, proto.op_type, scope.opsets), str(error))
            results = [None] * len(proto.output)
        except RlxError as error:
            if self.count > self.most:
                raise
            raise type(error)(f"{error}, at node {name!r} ({proto.op_type}) of {self.file.label}") from None
        except _DAMAGE as error:
            message = f"{type(error).__name__}: {error}"
            raise ModelError(
                f"[{proto.op_type}] expected a valid node, got {message}, at node {name!r} of {self.file.label}"
            ) from error
        for added in graph.nodes[start:]:
            added.source = added.source or name
        graph.equalities[noted:] = [_named(equality, name) for equality in graph.equalities[noted:]]
        for output, item in zip(proto.output, results):
            if output:
                scope.items[output] = item

    def _apply(self, proto: Any, domain: str, opset: int, name: str, scope: Scope) -> Sequence[Operand]:
        importer = find(domain, proto.op_type, opset)
        if importer is None:
            return self._by_definition(proto, domain, opset, name, scope)
        attributes = self._attributes(proto, scope)
        subgraphs = _Subgraphs(self, name, scope)
        node = OnnxNode(self.frame.graph, self.leaves, subgraphs, proto, name, opset, attributes, self.file.array)
        node.may_measure = self.frame.parent is None
        node.inputs = self._inputs(proto, scope)
        shortcut = SYMBOLIC.get(proto.op_type) if domain == "" and opset >= NUMPY_OPSET else None
        if shortcut is not None and node.inputs and all(i is None or _countable(i) for i in node.inputs):
            shortcut_result = shortcut(node, *(None if i is None else i.known for i in node.inputs))
            if shortcut_result is not None:
                return [shortcut_result]
        result = importer.function(node, *arguments_of(node, importer))
        if result is NotImplemented:
            return self._by_definition(proto, domain, opset, name, scope, node.inputs)
        if node.ignored():
            raise node.unsupported(f"the attributes {node.ignored()} are not supported")
        several = result if isinstance(result, (tuple, list)) else [result]
        results = [r if isinstance(r, Operand) else Operand.of(r) for r in several]
        if len(results) < len([o for o in proto.output if o]):
            raise node.unsupported(f"output {proto.output[len(results)]!r} is not supported")
        return results

    def _attributes(self, proto: Any, scope: Scope) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                attributes[attribute.name] = attribute
            elif attribute.ref_attr_name in scope.attributes:
                attributes[attribute.name] = scope.attributes[attribute.ref_attr_name]
        return attributes

    # names

    def _lookup(self, name: str, scope: Scope | None) -> Operand | None:
        while scope is not None:
            if name in scope.items:
                return scope.items[name]
            if name in scope.tensors:
                tensor = scope.tensors[name]
                array = self.file.stand_in(tensor) if self.will_fail else self.file.array(tensor)
                scope.items[name] = self.leaves.make(scope.prefix + name, array)
                return scope.items[name]
            scope = scope.outer
        return None

    def _inputs(self, proto: Any, scope: Scope) -> list[Operand | None]:
        """Inputs of a node; None for those that it leaves out, or that a function around it was called without."""
        return [self._required(i, scope) if i and not scope.is_absent(i) else None for i in proto.input]

    def _required(self, name: str, scope: Scope) -> Operand:
        item = self._lookup(name, scope)
        if item is None:
            if scope.has(name):
                raise _Unknown
            raise ModelError(f"[onnx] expected inputs that earlier nodes make, got {name!r}, which none makes")
        return self.frame.here(item)

    # bodies

    def _inline(
        self, function: Any, proto: Any, name: str, scope: Scope, defaults: Mapping[str, Any] | None = None,
        inputs: Sequence[Operand | None] | None = None,
    ) -> Sequence[Operand | None]:  # fmt: skip
        """A model's own function, with its body in place of the call; `inputs` in place of what the call names."""
        self._check_depth(scope, function.name)
        attributes = (
            dict(defaults or {}) | {a.name: a for a in function.attribute_proto} | self._attributes(proto, scope)
        )
        inputs = self._inputs(proto, scope) if inputs is None else inputs
        opsets = {**scope.opsets, **opsets_of(function.opset_import)}
        if id(function) not in self.looked_at:
            check_names(function, f"the function {function.name!r}")
            self.looked_at[id(function)] = function
        inner = Scope(opsets, f"{name}/", attributes=attributes, depth=scope.depth + 1)
        inner.items = {formal: item for formal, item in zip(function.input, inputs) if item is not None}
        inner.absent = frozenset(function.input) - inner.items.keys()
        names = [formal if used else "" for formal, used in zip(function.output, proto.output)]
        self._nodes(function.node, inner, [formal for formal in names if formal])
        return [self._result(formal, inner) if formal else None for formal in names]

    def _result(self, name: str, scope: Scope) -> Operand | None:
        item = self._lookup(name, scope)
        if item is None and not scope.has(name):
            raise ModelError(f"[onnx] expected a body that makes {name!r}, got none that does")
        return None if item is None else self.frame.here(item)

    def branch(self, body: Any, name: str, scope: Scope, inputs: Sequence[Operand]) -> list[Operand]:
        """A sub-graph in place: what it computes where it stands."""
        self._check_depth(scope, name)
        if len(body.input) != len(inputs):
            raise ModelError(f"[onnx] expected a body of {len(inputs)} inputs, got {len(body.input)}")
        if id(body) not in self.looked_at:
            check_names(body, f"a body of {name!r}")
            self.looked_at[id(body)] = body
        tensors = {t.name: t for t in body.initializer}
        inner = Scope(scope.opsets, f"{name}/", tensors=tensors, attributes=scope.attributes, outer=scope)
        inner.depth = scope.depth + 1
        inner.items = {declared.name: item for declared, item in zip(body.input, inputs)}
        self._nodes(body.node, inner, [o.name for o in body.output])
        results = [self._result(o.name, inner) for o in body.output]
        if any(r is None for r in results):
            raise _Unknown
        return [r for r in results if r is not None]

    def region(self, body: Any, name: str, scope: Scope, formals: Sequence[Formal]) -> Region:
        """A sub-graph as a graph of its own."""
        self.count += REGION_NODES
        around = self.frame
        self.frame = Frame(Graph(body.name or "body", assumes_equal=True), around)
        try:
            values = {i: self.frame.input(f) for i, f in enumerate(formals) if not isinstance(f, Operand)}
            items = [
                self.frame.here(f) if isinstance(f, Operand) else Operand.of(values[i]) for i, f in enumerate(formals)
            ]
            inner = Region(self.frame, list(values.values()))
            inner.results = self.branch(body, name, scope, items)
            return inner
        finally:
            self.frame = around

    def random_state(self) -> tuple[Value, int]:
        """The input that the runtime feeds, made when the first node asks for it, and the next stream."""
        if self.frame.parent is not None:
            raise UnsupportedOp("random numbers in a loop or a conditional are not supported")
        if self.state is None:
            self.state = self.graph.input(RANDOM_STATE, (4,), dtypes.u32)
        self.streams += 1
        return self.state, self.streams

    def _check_depth(self, scope: Scope, name: str) -> None:
        if scope.depth >= MAX_INLINE_DEPTH:
            raise ModelError(f"[onnx] expected bodies nested at most {MAX_INLINE_DEPTH} deep, got more at {name!r}")

    def _by_definition(
        self,
        proto: Any,
        domain: str,
        opset: int,
        name: str,
        scope: Scope,
        inputs: Sequence[Operand | None] | None = None,
    ) -> Sequence[Any]:
        """An op without an importer function, or with one that only looks at its inputs: by the body that the standard
        itself gives it, if it does."""
        body = standard_body(proto, domain, opset, self._attributes(proto, scope), lambda: self._inputs(proto, scope))
        if body is None:
            self._inputs(proto, scope)
            raise UnsupportedOp(why_unknown(domain, proto.op_type))
        return self._inline(body, proto, name, scope, default_attributes(proto, domain, opset), inputs)

    # failures

    def _fail(self, node: str, op: str, reason: str) -> None:
        self.failures.append(Failure(node, op, reason))

    def _report(self) -> str:
        lines = [f"node {f.node!r} ({f.op}): {f.reason}" for f in self.failures]
        count = len(self.file.proto.graph.node)
        summary = f"{len(lines)} of {count} that it cannot in {self.file.label}"
        return "\n  ".join([f"[onnx] expected nodes that rlx can import, got {summary}:", *lines])


def _named(equality: Equality, name: str) -> Equality:
    """With the node that it comes from."""
    if ", at node" in equality.reason:
        return equality
    return replace(equality, reason=f"{equality.reason}, at node {name!r}")


@dataclass
class _Subgraphs:
    """`subgraphs.Subgraphs` for one node."""

    importer: _ModelImporter
    name: str
    scope: Scope

    def inline(self, body: Any, inputs: Sequence[Operand]) -> Sequence[Operand]:
        return self.importer.branch(body, self.name, self.scope, inputs)

    def region(self, body: Any, formals: Sequence[Formal]) -> Region:
        return self.importer.region(body, self.name, self.scope, formals)

    def random_state(self) -> tuple[Value, int]:
        return self.importer.random_state()

    def attempt(self) -> _Attempt:
        return _Attempt(self.importer, len(self.importer.failures))


@dataclass
class _Attempt:
    importer: _ModelImporter
    start: int

    @property
    def failed(self) -> bool:
        return len(self.importer.failures) > self.start

    def undo(self) -> None:
        del self.importer.failures[self.start :]


def _prune(graph: Graph) -> None:
    graph.prune()
    for node in graph.nodes:
        for region in node.regions:
            _prune(region)


def _countable(item: Operand) -> bool:
    return item.dtype.kind in ("int", "uint", "bool") and item.known is not None
