"""Writes `src/rlx/__init__.pyi`, which tells type checkers and editors what `rlx` hands out.

`rlx` loads its names when they are asked for, so its source does not show them. After a change of an op or a function:

    python -m tools.write_stub

`--check` says whether the file is current and changes nothing.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rlx
from rlx import ops
from rlx.errors import RlxError

STUB = Path(rlx.__file__).with_suffix(".pyi")
WIDTH = 120
HEAD = '''# ruff: noqa
# fmt: off
"""What `rlx` hands out. `python -m tools.write_stub` writes this file."""

from collections.abc import Iterable, Sequence
from typing import Any

'''
OF_ANNOTATIONS = {
    "rlx.ir.dim": ("Dim",),
    "rlx.ir.graph": ("Scalar",),
    "rlx.ir.literal": ("Literal",),
    "rlx.ir.methods": ("Axes",),
    "rlx.ops.functions": ("DimLike", "DTypeLike", "ValueLike"),
    "rlx.ops.nms": ("Number",),
}
"""Types that signatures name, by the module that has them."""


def text() -> str:
    """The whole stub."""
    lines = [f"from {module} import {name} as _{name}" for module, names in OF_ANNOTATIONS.items() for name in names]
    errors = [name for name, kind in vars(rlx.errors).items() if _is_error(kind)]
    lines += [f"from rlx.errors import {name} as {name}" for name in errors]
    lines += [f"from {module} import {name} as {name}" for name, module in rlx._HOMES.items()]
    lines += [f"from rlx.ir.dtype import {name} as {name}" for name in rlx._DTYPES]
    functions = "".join(_function(name) for name in sorted(ops.names() - rlx._HOMES.keys()))
    return f"{HEAD}{chr(10).join(sorted(lines))}\n\n__version__: str\n\n{functions}"


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, RlxError)


def _function(name: str) -> str:
    build: Callable[..., Any] = getattr(ops, name)
    signature = inspect.signature(build)
    parameters = [_parameter(p) for p in signature.parameters.values()]
    alone = [i for i, p in enumerate(signature.parameters.values()) if p.kind is p.KEYWORD_ONLY]
    if alone and not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        parameters.insert(alone[0], "*")
    result = _private(str(signature.return_annotation))
    line = f"def {name}({', '.join(parameters)}) -> {result}: ...\n"
    if len(line) <= WIDTH:
        return line
    inside = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"def {name}(\n{inside}) -> {result}: ...\n"


def _parameter(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    default = ""
    if parameter.default is not parameter.empty:
        simple = isinstance(parameter.default, (bool, int, float, str, tuple, type(None)))
        shown = repr(parameter.default) if simple and parameter.default != float("-inf") else "..."
        default = f" = {shown}"
    return f"{star}{parameter.name}: {_private(str(parameter.annotation))}{default}"


def _private(annotation: str) -> str:
    """Names of types that are no names of `rlx` get an underscore, so that nobody imports them from there."""
    hidden = {name for names in OF_ANNOTATIONS.values() for name in names}
    return re.sub(r"\w+", lambda word: f"_{word[0]}" if word[0] in hidden else word[0], annotation)


def main() -> None:
    if "--check" in sys.argv[1:]:
        if STUB.read_text(encoding="utf-8") != text():
            sys.exit(f"{STUB} is old: python -m tools.write_stub")
        return
    STUB.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
