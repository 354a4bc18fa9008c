"""Copies of weights as a library of products reads them: rows where ours has panels, and biases rounded to the dtype of
results. They are made on the device, from what the weights have there."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cuda.build import NVIDIAS, Plan
from rlx.backends.cuda.device import Device, Function, Memory
from rlx.backends.cuda.launches import give_apart, launches
from rlx.backends.cuda.moving import Sizes
from rlx.backends.cuda.products import Bias, Panels
from rlx.backends.simt_unroll import Unroller
from rlx.codegen.simt.module import cpp_module
from rlx.ir import dim as dims
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.kernel.ir.index import Linear, axis, contiguous, dim_value, load
from rlx.kernel.ir.loops import LoopNest, Store
from rlx.kernel.ir.program import Kernel, Program
from rlx.kernel.passes.memory import MemoryPlan


@dataclass(frozen=True)
class Form:
    """How a copy is made: a nest that writes slot 0 and reads slot 1, and their dtypes."""

    nest: LoopNest
    target: DType
    source: DType


def of_panels(panels: Panels, dtype: DType) -> Form:
    """[count, columns, depth] of a weight in panels."""
    extents = (panels.count, panels.columns, panels.depth)
    column, k = axis(1), axis(2)
    width, group = dim_value(panels.width), dim_value(panels.group)
    depth = -(-panels.depth // panels.group)
    parts: tuple[tuple[Expr, int], ...] = (
        (column / width, depth * panels.width * panels.group),
        (k / group, panels.width * panels.group),
        (ex.apply("rem", column, width), panels.group),
        (ex.apply("rem", k, group), 1),
    )
    body = load(1, Linear(0, ((0, panels.size),), parts), dtype)
    target = Linear(0, tuple(enumerate(contiguous(extents))))
    return Form(LoopNest(extents, (), (Store(0, target, body, False),)), dtype, dtype)


def rounded(columns: int, bias: Bias, dtype: DType) -> Form:
    """[columns] of a bias in another dtype."""
    body = ex.cast(load(1, Linear(bias.first, ((0, 1),)), bias.dtype), dtype)
    nest = LoopNest((columns,), (), (Store(0, Linear(0, ((0, 1),)), body, False),))
    return Form(nest, dtype, bias.dtype)


def program_of(form: Form) -> Program:
    """What makes a copy, its output, of its input."""
    program = Program(())
    target = program.new_buffer("output", form.target, dims.product(form.nest.extents()), "copy")
    origin = program.new_buffer("input", form.source, 0, "weight")
    program.inputs, program.outputs = [origin.number], [target.number]
    program.main = [Kernel("copy", form.nest, (target.number, origin.number), 1)]
    return program


class Copier:
    """Makes copies on a device, with a kernel for each form."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._ready: dict[Form, tuple[Plan, dict[str, Function]]] = {}

    def made(self, form: Form, source: int, cache: bool) -> Memory:
        """A copy of what begins at `source`. Call it within `Device.work`. Raises OutOfMemory, CompileError.

        cache   whether the kernel's code is kept on disk
        """
        if form not in self._ready:
            self._ready[form] = compiled(self.device, program_of(form), cache)
        plan, functions = self._ready[form]
        program, device = plan.program, self.device
        (target,), (origin,) = program.outputs, program.inputs
        nbytes = dims.evaluate(program.buffers[target].nbytes, {})
        memory = device.allocate(nbytes, "a weight as a library of products reads it")
        unroller = Unroller(program, {target: memory.pointer, origin: source}, {}, lambda dtype: dtype.itemsize)
        give_apart(device.driver, launches(plan, functions, unroller.go(program.main), Sizes({})), device.stream)
        return memory


def compiled(device: Device, program: Program, cache: bool) -> tuple[Plan, dict[str, Function]]:
    """A program of kernels that depend on no memory plan, on a device. Call it within `Device.work`. Raises
    CompileError.

    cache   whether the kernels' code is kept on disk
    """
    module = cpp_module([program], target=NVIDIAS.on(device.architecture).target)
    plan = Plan((), program, module, MemoryPlan())
    texts = list(plan.texts.items())
    codes = list(zip(plan.texts, device.compiled(texts, cache)))
    return plan, dict(zip(plan.texts, device.functions(codes)))
