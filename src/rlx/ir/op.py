"""The base of every op, and the registry. An op is one frozen dataclass of its attributes with its rules as methods."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

from rlx.errors import GraphError, InputError, ShapeError, did_you_mean
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.attribute import Convert, convert, converter
from rlx.ir.dim import Dim
from rlx.ir.expr import Expr
from rlx.ir.literal import Array, Literal
from rlx.ir.names import RANDOM_STATE as RANDOM_STATE
from rlx.ir.type import TensorType
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.ir.padding import Padded, Padding

Types = TensorType | tuple[TensorType, ...]


@dataclass(frozen=True)
class Tolerance:
    """How far a compiled result may be from the reference: |a - b| ≤ ulps · eps · (|b| + scale), of the dtype that is
    computed in. Floats below 32 bits are computed in f32, and what is stored may be `stored` steps of theirs beside.

    `scale` is 1 where cancellation makes relative error meaningless (sums), else 0. Integers, bools and ops without any
    ulps are exact.
    """

    ulps: float
    scale: float = 0.0
    stored: int = 1


EXACT = Tolerance(0)


@dataclass(frozen=True)
class Range:
    """What the integers of an operand must lie in: low ≤ n < high; `what` names them. A `component` is one place along
    the operand's last axis, if it is for these alone."""

    operand: int
    low: Dim
    high: Dim
    what: str = "indices"
    component: int | None = None

    @staticmethod
    def of_index(operand: int, extent: Dim, component: int | None = None) -> Range:
        """An index into an axis of this extent, which may count from the back."""
        return Range(operand, dims.mul(extent, -1), extent, "indices", component)


@dataclass(frozen=True)
class Cost:
    """Work of one op: floating or integer operations, transcendental calls, and bytes read plus written."""

    flops: Dim = 0
    transcendentals: Dim = 0
    bytes: Dim = 0


class Op:
    """The base class of ops. Subclasses are made by `@op` and add attributes as dataclass fields. Ops are values: equal
    where class and attributes are, and never changed.

    Slots that an op may leave open (`tests/ops/test_coverage.py` lists which): `vjp`, `jvp`, `batch`, `padded`.
    `padded` builds the op in a graph whose arrays are larger than what a run uses (`ir.padding`); composites without it
    are taken apart there, other ops refuse.
    """

    name: ClassVar[str]
    arity: ClassVar[tuple[int, int]]
    operand_names: ClassVar[tuple[str, ...]]
    fields: ClassVar[tuple[tuple[str, str, Convert], ...]] = ()
    """Name, kind (`ir/attribute.py`) and conversion of every attribute."""
    attribute_names: ClassVar[frozenset[str]] = frozenset()
    tolerance: ClassVar[Tolerance] = EXACT
    is_composite: ClassVar[bool] = False
    regions: ClassVar[int] = 0
    may_skip_regions: ClassVar[bool] = False
    """Whether a region may never run: its equalities of dims are then checked only when it does."""

    infer: ClassVar[Callable[..., Types]]
    reference: ClassVar[Callable[..., Any]]
    vjp: ClassVar[Callable[..., Any] | None] = None
    jvp: ClassVar[Callable[..., Any] | None] = None
    batch: ClassVar[Callable[..., Any] | None] = None
    padded: ClassVar[Callable[..., Any] | None] = None

    # these once for all ops: a dataclass makes them for each class, which is most of the time to import the ops

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or name not in self.attribute_names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self.__class__ is other.__class__ and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((self.name, *self.__dict__.values()))

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def __post_init__(self) -> None:
        for field, annotation, how in self.fields:
            self.__dict__[field] = convert(self.name, field, annotation, how, self.__dict__[field])

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        """Default: one operation per output element, every operand read and every result written once."""
        nbytes = sum((dims.mul(t.size, t.dtype.itemsize) for t in (*inputs, *outputs)), start=0)
        return Cost(flops=sum((t.size for t in outputs), start=0), bytes=nbytes)

    def ranges(self, *inputs: TensorType) -> tuple[Range, ...]:
        """The ranges in which data of a run must lie for the op to be defined; `passes.checks` enforces them."""
        return ()

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The attributes that may be left out, with their default values."""
        known = dataclasses.fields(cls)  # type: ignore[arg-type]  # every op is a dataclass
        return {f.name: f.default for f in known if f.default is not dataclasses.MISSING}

    def attributes(self) -> dict[str, Any]:
        """Field names and values, in order."""
        return {field: getattr(self, field) for field, _, _ in self.fields}


dataclass(init=False, eq=False, repr=False)(
    Op
)  # not for type checkers: ops are frozen, and a base that is not may not be


class Primitive(Op):
    """An op that backends implement."""


class Composite(Op):
    """An op that is defined by simpler ones: `decompose` builds them. It costs what these do (`ir.cost`), unless it
    counts for itself."""

    is_composite = True
    decompose: ClassVar[Callable[..., Any]]


class Elementwise(Primitive):
    """One element of every operand gives one element of the result; operands broadcast as in NumPy.

    `scalar` says it in the expression language; `kinds` are the dtype kinds admitted.
    """

    kinds: ClassVar[tuple[str, ...]] = ("int", "uint", "float")
    result: ClassVar[str] = "same"
    scalar: ClassVar[Callable[..., Expr]]

    def infer(self, *types: TensorType) -> TensorType:
        from rlx.ir import expect

        for position, of in enumerate(types):
            expect.kind(of, *self.kinds, name=f"operand {position}")
        expect.same_dtype(*types)
        shape = expect.broadcast(*(t.shape for t in types))
        return TensorType(shape, dtypes.bool_ if self.result == "bool" else types[0].dtype)

    def padded(self, padding: Padding, *operands: Padded) -> Padded:
        return padding.elementwise(self, *operands)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        from rlx.ir.expr import INSTRUCTIONS, walk

        plain = super().cost(inputs, outputs)
        nodes = walk([self.scalar(*(Expr("operand", t.dtype, (), i) for i, t in enumerate(inputs)))])
        hard = sum(1 for n in nodes if n.kind in INSTRUCTIONS and INSTRUCTIONS[n.kind].transcendental)
        easy = sum(1 for n in nodes if n.kind in INSTRUCTIONS) - hard
        size = outputs[0].size
        return Cost(dims.mul(size, easy), dims.mul(size, hard), plain.bytes)


REGISTRY: dict[str, type[Op]] = {}
ANY_NUMBER = 1 << 30
"""The greatest number of operands of ops that take any number."""

T = TypeVar("T", bound=Op)


def snake(name: str) -> str:
    """CamelCase to snake_case: RmsNorm → rms_norm."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _operands(rule: Callable[..., Any]) -> tuple[tuple[int, int], tuple[str, ...]]:
    """Least and greatest number of operands, and their names (none for a rule that takes any number)."""
    code = rule.__code__
    names = code.co_varnames[1 : code.co_argcount]
    least = len(names) - len(rule.__defaults__ or ())
    if code.co_flags & inspect.CO_VARARGS:
        return (least, ANY_NUMBER), ()
    return (least, len(names)), names


@dataclass_transform(frozen_default=True)
def op(cls: type[T]) -> type[T]:
    """Makes the frozen dataclass and registers it under its snake_case name.

    The arity comes from `infer`, or for an elementwise op from `scalar`. The type rule of an op with regions takes
    the keyword `regions`: the node's sub-graphs.
    """
    # what has no attributes of its own inherits all that a dataclass has
    decorated = dataclass(eq=False, repr=False)(cls) if "__annotations__" in cls.__dict__ else cls
    decorated.name = snake(cls.__name__).rstrip("_")
    known = dataclasses.fields(decorated)  # type: ignore[arg-type]  # `decorated` is a dataclass now
    decorated.attribute_names = frozenset(f.name for f in known)
    decorated.fields = tuple((f.name, str(f.type), converter(str(f.type))) for f in known)
    rule = decorated.scalar if issubclass(decorated, Elementwise) else decorated.infer
    decorated.arity, decorated.operand_names = _operands(rule)
    if decorated.name in REGISTRY:
        raise GraphError(f"two ops are called {decorated.name!r}")
    REGISTRY[decorated.name] = decorated
    return decorated


def lookup(name: str) -> type[Op]:
    """The op class of this name. Raises GraphError."""
    cls = REGISTRY.get(name) if isinstance(name, str) else None
    if cls is None:
        raise GraphError(f"expected the name of an op, got {name!r}{did_you_mean(name, REGISTRY)}")
    return cls


class Leaf(Primitive):
    """An array that is there before the program starts."""

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost()


@op
class Input(Leaf):
    """An array that every run brings. Its name is the node's."""

    type: TensorType

    def infer(self) -> TensorType:
        return self.type


@op
class State(Input):
    """An array that stays from run to run: a run gets it as the run before left it. Its name is the node's.

    `Graph.set_next` says what it becomes. To all that need not tell them apart it is an input.
    """


@op
class Param(Leaf):
    """An array that is set once and kept: a weight. Its name is the node's."""

    type: TensorType

    def infer(self) -> TensorType:
        return self.type


@op
class Constant(Leaf):
    """An array that is part of the program."""

    value: Literal

    def infer(self) -> TensorType:
        return self.value.type

    def reference(self) -> Array:
        return self.value.array


LEAVES: tuple[type[Op], ...] = (Input, Param, Constant)


@op
class Measured(Primitive):
    """Gives a dim its value while the graph runs: from here on `symbol` is the number that the operand holds.

    value    i64 []
    result   i64 [], the same number
    symbol   a name that no other dim of the graph has; only later nodes may speak of it
    lower, upper   what the number must lie between, both included; an upper of None admits any

    A number out of bounds ends the run before anything that depends on it starts (`runtime.stages`).
    """

    symbol: str
    lower: Dim = 0
    upper: Dim | None = None

    def infer(self, value: TensorType) -> TensorType:
        if not self.symbol.isidentifier():
            raise GraphError(f"expected an identifier as the name of a dim, got {self.symbol!r}")
        if value != TensorType((), dtypes.i64):
            raise ShapeError(f"expected the number of i64[], got {value}")
        return value

    def reference(self, value: Array) -> Array:
        return value

    def check(self, number: int, binding: Mapping[str, int], source: str) -> None:
        """Raises InputError for a number out of bounds."""
        low = max(dims.evaluate(self.lower, binding), 0)
        high = MOST if self.upper is None else dims.evaluate(self.upper, binding)
        if not low <= number <= high:
            raise InputError(f"[measured] expected a number in [{low}, {high}], got {number}, at node {source!r}")


MOST = (1 << 31) - 1
"""The greatest number that a dim without an upper bound may be found to be: products of two then fit into i64."""
