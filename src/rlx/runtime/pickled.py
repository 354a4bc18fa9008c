"""Programs in other processes. A pickle contains the graph with its present weights, the device and options, and the
values that stay between runs. Code is compiled again there, or read from the cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlx import mapped
from rlx.backends.base import Options
from rlx.device import registry
from rlx.errors import CapabilityError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.records import dataclass
from rlx.runtime.compiler import Compiler
from rlx.runtime.mode import Mode
from rlx.runtime.program import Program

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph


@dataclass(frozen=True)
class Pickled:
    """A program, taken down. Every field is what the property of the program by this name gives."""

    graph: Graph
    device: str
    options: Options
    params: Mapping[str, Array]
    attempts: Mapping[str, str]
    handles: Mapping[str, Array]
    feeds: Mapping[str, str]
    extents: Mapping[str, int]
    random: tuple[int, int] | None

    @staticmethod
    def of(program: Program, mode: Mode, handles: Mapping[str, Array], attempts: Mapping[str, str]) -> Pickled:
        """Raises CapabilityError for a program that no compiler is known of, ModelError where weights lie in a file
        that was written to."""
        if program.compiler is None:
            raise CapabilityError("[pickle] expected a program that a session compiled, got one made by hand")
        mapped.check(program.params.values())
        random = program.signature.random
        return Pickled(
            program.graph,
            program.device,
            program.compiler.options,
            {name: array for name, array in program.params.items() if program.graph.data.get(name) is not array},
            dict(attempts),
            dict(handles),
            dict(mode.feeds),
            dict(mode.extents),
            None if random is None else random.place,
        )

    def open(self, make: Callable[[Program], CompiledGraph]) -> CompiledGraph:
        """The program again. Raises DeviceUnavailable where its device is not, and what a compile raises."""
        backend, ordinal = registry.backend(self.device)
        compiler = Compiler(self.device, backend, self.options, ordinal)
        params: dict[str, Any] = {**self.graph.data, **self.params}
        compiled = make(Program(self.graph, self.device, compiler.compile(self.graph), compiler, params))
        compiled.attempts = self.attempts
        for name, array in self.handles.items():
            compiled.bind_handle(name, array)
        compiled.set_feeds(self.feeds)
        for dim, extent in self.extents.items():
            compiled.set_active_extent(dim, extent)
        state = compiled.program.signature.random
        if state is not None:
            state.place = self.random
        return compiled
