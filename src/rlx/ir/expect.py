"""Checks that type rules share. Each raises ShapeError or DTypeError; `Graph.add` adds op and node to the message.

Dims that are not provably equal are assumed to be equal, and recorded as an equality, which the runtime checks when the
dims get their values. If one of two dims that broadcast may be 1, the equality says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar

from rlx.errors import DTypeError, InputError, ShapeError
from rlx.ir import dim as dims
from rlx.ir.dim import Bounds, Dim, Shape
from rlx.ir.dtype import DType
from rlx.ir.type import TensorType
from rlx.records import dataclass


@dataclass(frozen=True)
class Equality:
    """Two dims that a type rule took to be equal, and why.

    spreads   the side that may be 1 instead, as it broadcasts: `left`, `either`, or neither
    """

    left: Dim
    right: Dim
    reason: str
    spreads: str = ""

    @property
    def symbols(self) -> set[str]:
        return dims.symbols(self.left) | dims.symbols(self.right)

    def holds(self, binding: Mapping[str, int]) -> bool:
        return dims.evaluate(self.left, binding) == dims.evaluate(self.right, binding)

    def one(self, binding: Mapping[str, int]) -> Dim | None:
        """The side that is 1 and spreads along the other; None where the sides are equal, or neither may do that."""
        if not self.spreads or self.holds(binding):
            return None
        sides = (self.left, self.right) if self.spreads == "either" else (self.left,)
        return next((side for side in sides if dims.evaluate(side, binding) == 1), None)

    def told(self, binding: Mapping[str, int]) -> str:
        """Both sides with their values, for messages. Formulas of more than a few characters are left out."""
        return f"{self.reason_at(binding)}: {self.sides(binding)}"

    def sides(self, binding: Mapping[str, int]) -> str:
        """`n = 3 against m = 4`; of long dims the numbers alone."""
        return " against ".join(_valued(side, binding) for side in (self.left, self.right))

    def reason_at(self, binding: Mapping[str, int]) -> str:
        """The reason, with numbers where it has long dims."""
        return _BRACKETS.sub(lambda found: _numbers(found[1], binding), self.reason)

    def __str__(self) -> str:
        return f"{self.reason}: {self.left} against {self.right}"


def unequal(text: str, binding: Mapping[str, int]) -> ShapeError | InputError:
    """The error of an equality that does not hold, of which `str` printed the text."""
    reason, _, sides = text.rpartition(": ")
    left, _, right = sides.partition(" against ")
    try:
        return UnequalDims(Equality(dims.parse(left), dims.parse(right), reason), binding)
    except ShapeError:  # a dim that is too long to be read
        return InputError(f"[run] {Equality(1, 1, reason).reason_at(binding)}")


_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
MOST_CHARACTERS = 24
"""Of a dim in a message: of what is longer, only the number is of interest."""


def _valued(dim: Dim, binding: Mapping[str, int]) -> str:
    number = str(dims.evaluate(dim, binding))
    return number if isinstance(dim, int) or len(str(dim)) > MOST_CHARACTERS else f"{dim} = {number}"


def _numbers(listed: str, binding: Mapping[str, int]) -> str:
    """Dims by comma, in brackets, with the numbers of long ones."""
    return f"[{', '.join(_short(part, binding) for part in _parts(listed))}]"


def _short(text: str, binding: Mapping[str, int]) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    try:
        return str(dims.evaluate(dims.parse(text), binding))
    except ShapeError:
        return "…"  # no dim, one that nobody reads, or one that only a run measures


def _parts(listed: str) -> list[str]:
    """Pieces between the commas that are in no parentheses."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(listed):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(listed[start:at].strip())
            start = at + 1
    return [*parts, listed[start:].strip()]


SPREADS = ("", "left", "either")


def within_bounds(bounds: Bounds, binding: Mapping[str, int]) -> None:
    """Raises ShapeError for a dim out of its bounds."""
    for name, (low, high) in bounds.items():
        if name in binding and (binding[name] < low or (high is not None and binding[name] > high)):
            limits = f"[{low}, {high if high is not None else 'inf'}]"
            raise ShapeError(f"expected the dim {name!r} in {limits}, got {binding[name]}")


class UnequalDims(ShapeError):
    """Dims that an equality wants to be equal, and are not."""

    def __init__(self, equality: Equality, binding: Mapping[str, int]) -> None:
        super().__init__(equality.told(binding))
        self.equality = equality

    def __reduce__(self) -> tuple[type[ShapeError], tuple[str]]:
        return ShapeError, (str(self),)


def equal(equalities: Iterable[Equality], measured: Iterable[str], binding: Mapping[str, int]) -> None:
    """Checks equalities but for those of dims that only a run measures, and has not yet. Raises ShapeError that names
    both sides."""
    unknown = set(measured) - binding.keys()
    for equality in equalities:
        if not (unknown and equality.symbols & unknown) and not equality.holds(binding):
            raise UnequalDims(equality, binding)


@dataclass
class _Notes:
    equalities: list[Equality]
    assume_equal: bool


_notes: ContextVar[_Notes | None] = ContextVar("notes", default=None)


class noting:
    """Collects the equalities that type rules note while the block runs. A class, as each node of a graph has a block.

    assume_equal   what two open dims broadcast to is one of them; else it is `dims.broadcast` of both
    """

    __slots__ = ("_notes", "_token")

    def __init__(self, assume_equal: bool = True) -> None:
        self._notes = _Notes([], assume_equal)

    def __enter__(self) -> list[Equality]:
        self._token = _notes.set(self._notes)
        return self._notes.equalities

    def __exit__(self, *_: object) -> None:
        _notes.reset(self._token)


def same_dim(left: Dim, right: Dim, what: str, spreads: str = "") -> Dim:
    """The simpler of two equal dims; notes the equality where it cannot be proved."""
    if left == right:
        return left
    if isinstance(left, int) and isinstance(right, int):
        raise ShapeError(f"{what}: {left} against {right}")
    notes = _notes.get()
    if notes is not None:
        notes.equalities.append(Equality(left, right, what, spreads))
    return dims.simpler(left, right)


def at_most(left: Dim, right: Dim, what: str) -> None:
    """Notes that a dim is no greater than another, where that cannot be proved."""
    if isinstance(left, int) and isinstance(right, int):
        if left > right:
            raise ShapeError(f"{what}: {left} against {right}")
    else:
        same_dim(dims.minimum(left, right), left, what)


def not_empty(extent: Dim, result: Dim, what: str) -> None:
    """Notes that an axis has elements where there is a result to make of them, if that cannot be proved."""
    if not isinstance(extent, int) or extent == 0:
        at_most(result, dims.mul(extent, result), what)


def spread(left: Dim, right: Dim, what: str) -> Dim:
    """What two dims that are not known to be 1 broadcast to; notes that they are equal, or one of them is 1."""
    if left == right:
        return left
    dim = same_dim(left, right, what, "either")
    notes = _notes.get()
    return dim if notes is None or notes.assume_equal else dims.broadcast(left, right)


def broadcast(*shapes: Shape, what: str = "shapes do not broadcast") -> Shape:
    """NumPy's rule."""
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]  # as of most operands
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = []
    for position in range(rank):
        dim: Dim = 1
        for shape in shapes:
            index = position - rank + len(shape)
            if index < 0 or shape[index] == 1:
                continue
            try:
                dim = shape[index] if dim == 1 else spread(dim, shape[index], f"{what} along axis {position}")
            except ShapeError:
                shapes_text = " and ".join(str(list(s)) for s in shapes)
                clash = f"{dim} against {shape[index]}"
                raise ShapeError(f"expected shapes that broadcast, got {shapes_text} ({clash})") from None
        result.append(dim)
    return tuple(result)


def same_dtype(*types: TensorType) -> None:
    for other in types[1:]:
        if other.dtype is not types[0].dtype:
            raise DTypeError(f"expected operands of one dtype, got {' and '.join(str(t.dtype) for t in types)}")


def product_dtype(lhs: TensorType, rhs: TensorType, total: DType | None) -> DType:
    """The dtype of a sum of products: that of both operands, or the integer dtype `total` of integers no wider."""
    if total is None:
        same_dtype(lhs, rhs)
        return lhs.dtype
    fits = all(of.dtype.is_integer and of.dtype.bits <= total.bits for of in (lhs, rhs))
    if not total.is_integer or not fits:
        raise DTypeError(f"expected integers that fit into a sum of {total}, got {lhs.dtype} and {rhs.dtype}")
    return total


def kind(of: TensorType, *kinds: str, name: str = "x") -> None:
    """`of` must have a dtype of one of these kinds: bool, int, uint, float, complex."""
    if of.dtype.kind not in kinds:
        raise DTypeError(f"expected {name} to be of kind {' or '.join(kinds)}, got {of.dtype}")


def floating(of: TensorType, name: str = "x") -> None:
    kind(of, "float", name=name)


def integer(of: TensorType, name: str = "x") -> None:
    kind(of, "int", "uint", name=name)


def rank(of: TensorType, at_least: int, name: str = "x", at_most: int | None = None) -> None:
    if of.rank < at_least or (at_most is not None and of.rank > at_most):
        expected = f"{at_least}" if at_most == at_least else f"at least {at_least}"
        raise ShapeError(f"expected {name} of rank {expected}, got {of}")


def axis(index: int, rank: int, name: str = "axis") -> int:
    """A normalised axis, 0 ≤ axis < rank."""
    if not -rank <= index < rank:
        raise ShapeError(f"expected {name} in [{-rank}, {rank}), got {index}")
    return index % rank


def axes(indices: Sequence[int], rank: int, name: str = "axes") -> tuple[int, ...]:
    """Normalised axes, in the order given, without repeats."""
    read = tuple(axis(index, rank, name) for index in indices)
    if len(set(read)) != len(read):
        raise ShapeError(f"expected {name} without repeats, got {list(indices)}")
    return read


def broadcastable(of: TensorType, to: Shape, name: str) -> None:
    """`of` must broadcast to exactly `to`; notes which dims must be equal for that."""
    what = f"expected {name} to broadcast to {list(to)}, got {of}"
    if of.rank > len(to):
        raise ShapeError(what)
    for mine, target in zip(of.shape, to[len(to) - of.rank :]):
        spreads_to(mine, target, what)


def spreads_to(dim: Dim, target: Dim, what: str) -> None:
    """A dim must be 1 or `target`; notes which dims must be equal, or 1, for that."""
    if dim != 1:
        same_dim(dim, target, what, "left")
