"""What a language must say for the SIMT generator: types, literals, statements, one instruction, memory, barriers.

Everything else is shared: which lane does what, the order of passes over a row, what is hoisted, how lanes join what
they have. A kernel's text is lines between braces; `position` (of an invocation or a workgroup) and `lane` are there
from the start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    def index_variable(self, name: str, value: str) -> str:
        """A statement that declares a variable of the index type."""

    @abstractmethod
    def copy_variable(self, name: str, value: Reg) -> str:
        """A statement that declares a variable of a register's type and value."""

    @abstractmethod
    def array_variable(self, name: str, element: str, count: int) -> str:
        """A statement that declares an array of an invocation's own."""

    @abstractmethod
    def loop(self, name: str, low: str, high: str, step: int = 1) -> str:
        """The head of a loop over indices."""

    @abstractmethod
    def select(self, condition: str, yes: str, no: str) -> str:
        """One of two values."""

    @abstractmethod
    def opaque(self, reg: Reg) -> str:
        """A float that compilers cannot know anything of."""

    @abstractmethod
    def write(self, code: Code, node: Expr, args: Sequence[Reg], fits: bool) -> Reg:
        """Writes an instruction; `fits` tells that a 64-bit result fits in 32 bits."""

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
    def shared_array(self, code: Code, dtype: DType, wide: bool) -> str:
        """Declares an array in workgroup memory with a place for every lane, once for each type; its name."""

    @abstractmethod
    def shared_places(self, code: Code) -> str:
        """Declares an array of indices in workgroup memory with a place for every lane; its name."""

    @abstractmethod
    def shared_value(self, reg: Reg) -> str:
        """A register as it lies in workgroup memory."""

    @abstractmethod
    def from_shared(self, place: str, like: Reg) -> str:
        """A place of workgroup memory as a register."""

    @abstractmethod
    def barrier(self) -> str:
        """A statement that waits for all lanes of the workgroup and makes their writes seen."""

    # the whole

    @abstractmethod
    def assemble(
        self, code: Code, record: Record, bindings: Sequence[Binding], name: str, positions_a_group: int
    ) -> str:
        """The whole text around a kernel's lines."""
