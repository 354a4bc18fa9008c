"""What a language must say for the SIMT generator: types, literals, statements, one instruction, memory, barriers.

Everything else is shared: which lane does what, the order of passes over a row, what is hoisted, how lanes join what
they have. A kernel's text is lines between braces; `position` (of an invocation or a workgroup) and `lane` are there
from the start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.codegen.simt.code import WORKGROUP
from rlx.codegen.simt.registers import Reg
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr

if TYPE_CHECKING:
    from rlx.codegen.simt.body import Body
    from rlx.codegen.simt.code import Binding, Code, Record


def boolean(kind: str, names: Sequence[str]) -> str | None:
    """An instruction on truth values, as languages with C's operators say it; None for others."""
    a, b = names[0], names[-1]
    table = {
        "and": f"{a} && {b}", "or": f"{a} || {b}", "xor": f"{a} != {b}", "not": f"!{a}",
        "min": f"{a} && {b}", "max": f"{a} || {b}",
        "eq": f"{a} == {b}", "ne": f"{a} != {b}", "lt": f"!{a} && {b}", "le": f"!{a} || {b}",
    }  # fmt: skip
    return table.get(kind)


class Language(ABC):
    """One language. Integers of loops and indices are of its index type."""

    name: str
    group_size = ""
    """What names the lanes of a launch's workgroups, of languages whose kernels may have several sizes; else empty."""
    wait = ""
    """A statement that waits for earlier kernels, of languages whose kernels begin before these end; else empty."""
    unrolls = False
    """Whether compilers write out loops where they are asked to."""

    # types and literals

    @abstractmethod
    def is_wide(self, dtype: DType) -> bool:
        """Whether registers of the dtype are pairs of 32-bit words."""

    @abstractmethod
    def register_type(self, dtype: DType, wide: bool) -> str:
        """The type of a register."""

    @abstractmethod
    def index(self, value: int) -> str:
        """A literal of the index type."""

    @abstractmethod
    def constant(self, node: Expr) -> Reg:
        """A constant as a literal."""

    @abstractmethod
    def lane_index(self) -> str:
        """The lane's number as an index."""

    # statements and expressions

    @abstractmethod
    def let(self, name: str, text: str) -> str:
        """A statement that names a value."""

    @abstractmethod
    def variable(self, name: str, kind: str, value: str = "") -> str:
        """A statement that declares a variable of a type, with a first value if there is one."""

    @abstractmethod
    def mutable(self, name: str, value: str) -> str:
        """A statement that declares a variable of the type of its first value."""

    @abstractmethod
    def array_variable(self, name: str, element: str, count: int) -> str:
        """A statement that declares an array of an invocation's own."""

    @abstractmethod
    def array_of(self, name: str, element: str, values: Sequence[str]) -> str:
        """A statement that declares an array of an invocation's own that holds these."""

    def loop(self, name: str, low: str, high: str, step: int = 1) -> str:
        """The head of a loop over indices."""
        return self.loop_while(name, low, f"{name} < {high}", f"{name} + {self.index(step)}")

    def loop_while(self, name: str, first: str, condition: str, following: str) -> str:
        """The head of a loop whose variable goes from a first value to a following one while a condition holds."""
        return f"for ({self.mutable(name, first)} {condition}; {name} = {following})"

    def unroll(self, code: Code, count: int) -> None:  # noqa: B027  # most cannot
        """Asks for so many steps of the loop that comes next to be written out, where compilers may be asked."""

    @abstractmethod
    def select(self, condition: str, yes: str, no: str) -> str:
        """One of two values."""

    @abstractmethod
    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c of f32 registers, rounded once."""

    @abstractmethod
    def rounded(self, dtype: DType, text: str) -> str:
        """An f32 rounded to what a float dtype of 32 bits or less can hold."""

    @abstractmethod
    def float_bits(self, text: str) -> str:
        """The bits of an f32 as an unsigned integer."""

    @abstractmethod
    def opaque(self, reg: Reg) -> str:
        """A float that compilers cannot know anything of."""

    @abstractmethod
    def write(self, code: Code, node: Expr, args: Sequence[Reg], fits: bool) -> Reg:
        """Writes an instruction; `fits` tells that a 64-bit result fits in 32 bits."""

    # quads: four f32 in one register, with components x, y, z and w; + and * work on them, and `dot`

    @property
    @abstractmethod
    def quad_type(self) -> str:
        """The type of a quad."""

    @abstractmethod
    def quad(self, parts: Sequence[str] = ()) -> str:
        """A quad of four floats, or of zeros."""

    @abstractmethod
    def quad_component(self, quad: str, number: int) -> str:
        """A component of a quad by its number."""

    @abstractmethod
    def quad_fma(self, factor: str, quad: str, addend: str) -> str:
        """A quad by a float, and another quad added, rounded once."""

    def floats_of(self, quads: str) -> str:
        """An array of quads as one of floats, in languages that have another view of memory."""
        raise NotImplementedError

    # memory

    @abstractmethod
    def record(self, slots: int, rounds: int = 0) -> Record:
        """The numbers that a launch brings."""

    @abstractmethod
    def load(self, body: Body, slot: int, offset: str, guard: Reg | None = None) -> Reg:
        """The element of a slot at an offset; 0, and no access that could fail, where the guard is false."""

    @abstractmethod
    def store(self, body: Body, slot: int, offset: str, value: Reg) -> None:
        """Writes an element."""

    @abstractmethod
    def load_quad(self, body: Body, slot: int, offset: str) -> str:
        """The quad of a slot of packed f32 weights, which begins at a multiple of a quad, at an offset in quads."""

    @abstractmethod
    def has_atomic(self, combine: str, dtype: DType) -> bool:
        """Whether `join` can do this."""

    @abstractmethod
    def join(self, body: Body, slot: int, offset: str, combine: str, value: Reg) -> None:
        """Puts in an element's place what an instruction makes of it and a value, while other invocations do too."""

    def shared_variable(self, code: Code, name: str, element: str, count: int) -> None:
        """Declares an array in workgroup memory."""
        code.shared[name] = (element, count)

    @abstractmethod
    def shared_array(self, code: Code, dtype: DType, wide: bool, stem: str = "shared", count: int = WORKGROUP) -> str:
        """Declares an array in workgroup memory, with a place for every lane if nothing else is said, once for each
        stem and type; its name."""

    @abstractmethod
    def shared_places(self, code: Code) -> str:
        """Declares an array of indices in workgroup memory with a place for every lane; its name."""

    @abstractmethod
    def shared_value(self, reg: Reg) -> str:
        """A register as it lies in workgroup memory."""

    @abstractmethod
    def from_shared(self, place: str, like: Reg) -> str:
        """A place of workgroup memory as a register."""

    def put(self, kind: str, place: str, words: Sequence[str]) -> str:
        """Stores words side by side to the memory of a buffer, in C++."""
        raise NotImplementedError

    @abstractmethod
    def barrier(self) -> str:
        """A statement that waits for all lanes of the workgroup and makes their writes seen."""

    @abstractmethod
    def from_neighbour(self, reg: Reg, mask: str) -> str:
        """What the lane of the subgroup whose number differs in the bits of `mask` has. Texts that call it, and they
        alone, may name `subgroup_size`."""

    def small(self, text: str) -> str:
        """A number of workgroups, or of fewer things, in what is divided fastest."""
        return text

    def large(self, text: str) -> str:
        """The same as an index again."""
        return text

    # the whole

    @abstractmethod
    def assemble(
        self, code: Code, record: Record, bindings: Sequence[Binding], name: str, positions_a_group: int,
        lanes: int = WORKGROUP,
    ) -> str:  # fmt: skip
        """The whole text around a kernel's lines."""
