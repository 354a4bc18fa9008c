"""What Python and NumPy ask of arrays, and what a value of a graph says, whose numbers are known only when it runs.

NumPy's functions of values become ops by name (`ops/numpy_calls.py` answers). All else that needs the numbers is an
error that names the caller's line and what to write instead.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from rlx.errors import TracerError

HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""The folder of rlx, and of no caller."""
MOST_SHOWN = 100
"""Characters of a line that messages quote."""
NUMPY_CALLS: list[Callable[[Any, str, tuple[Any, ...], dict[str, Any]], Any]] = []
"""What answers NumPy: a function of NumPy, the method of a ufunc, arguments. `rlx.ops` enters it."""


def asked_by_rlx(depth: int = 2) -> bool:
    """Whether code of rlx called the function that asks this, and not a user's."""
    return sys._getframe(depth).f_code.co_filename.startswith(HERE)


def callers_line() -> str:
    """File, number and text of the line of the innermost caller outside of rlx and NumPy, if there is one."""
    frame = sys._getframe(1)
    numpy = os.path.join(os.path.dirname(sys.modules["numpy"].__file__ or ""), "")
    while frame.f_code.co_filename.startswith((HERE, numpy)):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    file = frame.f_code.co_filename
    text = linecache.getline(file, frame.f_lineno, frame.f_globals).strip()
    return f"{file}:{frame.f_lineno}" + (f": {text[:MOST_SHOWN]}" if text else "")


def refuse(wanted: str, got: str, room: str = "value") -> NoReturn:
    """Raises TracerError for what only a run knows: `wanted` is what to write instead."""
    line = callers_line()
    place = f", at {line}" if line else ""
    raise TracerError(f"[{room}] expected {wanted}, got {got}, known only when the graph runs{place}")


class Concrete:
    """The questions of Python and NumPy that only numbers can answer."""

    __slots__ = ()

    def __bool__(self) -> bool:
        refuse(
            "select(…) or rlx.where(…) of elements, rlx.cond(…) for an if, rlx.while_loop(…) for a while, or & | ~ for "
            "and, or, not",
            f"the truth of {self!r}",
        )

    def __int__(self) -> int:
        refuse("x.astype('i64')", f"int() of {self!r}")

    def __index__(self) -> int:
        refuse("rlx.take(…) for an index, rlx.scan(…) or rlx.while_loop(…) for a range", f"the number {self!r}")

    def __float__(self) -> float:
        refuse("x.astype('f64')", f"float() of {self!r}")

    def __complex__(self) -> complex:
        refuse("x.astype('c128')", f"complex() of {self!r}")

    def __len__(self) -> int:
        refuse("x.shape[0], which may be a symbol", f"the len of {self!r}")

    def __iter__(self) -> Any:
        refuse("an index such as x[0], rlx.split(…), or rlx.scan(…) for a loop", f"iteration over {self!r}")

    def __contains__(self, item: object) -> bool:
        refuse("rlx.any(rlx.equal(x, item))", f"{item!r} in {self!r}")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        refuse(
            "a function of rlx, which takes values, or rlx.stack(…) for a list of them", f"a NumPy array of {self!r}"
        )

    def item(self) -> Any:
        """Refused: only a run knows the number."""
        refuse("x.reshape(())", f"the item of {self!r}")

    def tolist(self) -> Any:
        """Refused: only a run knows the numbers."""
        refuse("the value itself", f"a list of {self!r}")

    def __setitem__(self, key: Any, value: Any) -> None:
        refuse(
            "x = rlx.update_slice(x, rows, start), rlx.where(mask, new, x), rlx.scatter_nd(…) or "
            "rlx.scatter_elements(…), for values never change",
            f"x[{key!r}] = … of {self!r}",
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        return NUMPY_CALLS[0](ufunc, method, arguments, keywords)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return NUMPY_CALLS[0](function, "__call__", tuple(arguments), dict(keywords))
