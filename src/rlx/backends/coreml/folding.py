"""Runs a MIL program with coremltools' own NumPy functions, without Core ML.

coremltools folds constants while it converts, and has a NumPy function for most ops (`value_inference`). This module
runs the whole program with them, after all passes of the conversion. The result shows whether the program expresses the
graph. It does not show how Core ML rounds, or where it runs an op: only a Mac does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.coreml.library import at_work, mil_types
from rlx.errors import UnsupportedOp
from rlx.ir.literal import Array

Values = dict[Any, Any]
MISSING: dict[str, Callable[..., Any]] = {}
"""Functions for ops that coremltools has none for, by name; of their inputs as keywords. rlx has none: tests do."""


def run(program: Any, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
    """The outputs of a program by name. Raises UnsupportedOp where an op has no function."""
    main = program.functions["main"]
    values: Values = {var: inputs[name] for name, var in main.inputs.items()}
    with at_work(), np.errstate(all="ignore"):
        result_of = dict(zip((var.name for var in main.outputs), _block(main, values)))
    return [np.asarray(result_of[name]) for name in outputs]


def _block(block: Any, values: Values) -> list[Any]:
    for op in block.operations:
        if op.op_type == "cond":
            branch = op.blocks[0 if _value(op.pred, values) else 1]
            results: Sequence[Any] = _block(branch, values)
        elif op.op_type == "while_loop":
            results = _loop(op, values)
        elif op.op_type != "const":
            results = _results(op, values)
        else:
            continue
        values.update(zip(op.outputs, results))
    return [_value(var, values) for var in block.outputs]


def _loop(op: Any, values: Values) -> list[Any]:
    test, body = op.blocks
    state = [_value(var, values) for var in op.loop_vars]
    while True:
        values.update(zip(test.inputs, state))
        if not _block(test, values)[0]:
            return state
        values.update(zip(body.inputs, state))
        state = _block(body, values)


def _value(var: Any, values: Values) -> Any:
    return values.get(var, var.val)


def _results(op: Any, values: Values) -> list[Any]:
    """One op's values, in the dtypes that it declares."""
    function = MISSING.get(op.op_type)
    if function is None:
        value = _inferred(op, values)
    else:
        value = function(**{name: _argument(argument, values) for name, argument in op.inputs.items()})
    if value is None:
        raise UnsupportedOp(f"[run] expected ops that coremltools has values for, got {op.op_type}")
    results = list(value) if len(op.outputs) > 1 else [value]
    return [_typed(result, var) for result, var in zip(results, op.outputs)]


def _argument(argument: Any, values: Values) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_value(var, values) for var in argument]
    return None if argument is None else _value(argument, values)


def _inferred(op: Any, values: Values) -> Any:
    """What coremltools says, with values in place of the variables that have none."""
    flat = [v for item in op.inputs.values() for v in (item if isinstance(item, (list, tuple)) else [item])]
    open_ = [var for var in flat if var is not None and var in values]
    before = [var._sym_val for var in open_]
    try:
        for var in open_:
            var._sym_val = _boxed(values[var])
        compressed = op.op_type.startswith("constexpr_")
        return op.materialized_val_inference() if compressed else op.value_inference()
    except NotImplementedError:
        return None
    finally:
        for var, old in zip(open_, before):
            var._sym_val = old


def _boxed(value: Any) -> Any:
    """A value as coremltools keeps it."""
    types = mil_types()
    return types.type_mapping.numpy_val_to_builtin_val(value)[0]


def _typed(value: Any, var: Any) -> Any:
    """In the dtype and shape of the variable; scalars as NumPy's scalars."""
    dtype = mil_types().nptype_from_builtin(var.dtype)
    typed = np.asarray(value).astype(dtype)
    shape = tuple(int(n) for n in var.shape)
    return typed.reshape(shape) if shape else typed.reshape(())[()]
