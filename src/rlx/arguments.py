"""What arguments of functions must be, by their annotations: a wrong one is told before it goes anywhere."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from types import FunctionType
from typing import Any, SupportsIndex, TypeGuard, TypeVar, cast

from rlx.errors import ArgumentError, OptionError, did_you_mean

MOST_SHOWN = 60
"""Characters of an argument in a message."""
VARIABLE, KEYWORDS = 0x04, 0x08
"""Flags of code: it takes any number of arguments by position, by name."""

Fits = Callable[[Any], bool]
Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


def is_a(argument: Any, *names: str) -> bool:
    """Whether it is of a class of one of these names, which need not be imported for that."""
    return any(kind.__name__ in names for kind in type(argument).__mro__)


def is_index(argument: object) -> TypeGuard[SupportsIndex]:
    """Whether it counts as an int: NumPy's too, bools and arrays of several do not."""
    if type(argument) is int:
        return True
    if isinstance(argument, bool) or is_a(argument, "bool", "bool_"):
        return False
    try:
        operator.index(cast(SupportsIndex, argument))
    except TypeError:
        return False
    return True


def _is_number(argument: Any) -> bool:
    return (isinstance(argument, numbers.Number) or is_a(argument, "generic")) and not is_a(argument, "bool", "str_")


def _is_scalar(argument: Any) -> bool:
    return isinstance(argument, (bool, numbers.Number)) or is_a(argument, "generic", "ndarray", "Poly")


def _is_truth(argument: Any) -> bool:
    return is_a(argument, "bool", "bool_") or (is_index(argument) and operator.index(argument) in (0, 1))


def _is_array(argument: Any) -> bool:
    return hasattr(argument, "shape") and hasattr(argument, "dtype")


def _are_operands(arguments: Any) -> bool:
    """Values, and arrays or numbers among them."""
    if not isinstance(arguments, (list, tuple)):
        return isinstance(arguments, Iterable) and not is_a(arguments, "str", "bytes", "dict", "ndarray")
    one = any(is_a(argument, "Value") for argument in arguments)
    return (one or not arguments) and all(is_a(argument, "Value") or _is_scalar(argument) for argument in arguments)


_CLASSES = (
    "CancelToken", "CompiledGraph", "Device", "DevicePolicy", "Graph", "Node", "Op", "Options", "Session", "TensorType",
    "Value",
)  # fmt: skip
_KINDS: dict[str, Fits] = {
    **{name: lambda argument, name=name: is_a(argument, name) for name in _CLASSES},  # type: ignore[misc]
    "None": lambda argument: argument is None,
    **dict.fromkeys(("str", "Precision", "Strategy"), lambda argument: isinstance(argument, str)),
    "int": is_index,
    "bool": _is_truth,
    "float": _is_number,
    "Array": _is_array,
    "Number": lambda argument: is_a(argument, "Value") or _is_number(argument),
    "Scalar": _is_scalar,
    "Dim": lambda argument: is_a(argument, "Poly") or is_index(argument),
    "Sequence[Value]": _are_operands,
}


def _all(arguments: Any, fits: Fits) -> bool:
    """Of what can be looked at more than once; iterators are taken as they are."""
    if isinstance(arguments, (str, bytes)):
        return False
    lasting = isinstance(arguments, (Sequence, dict, set, frozenset)) or is_a(arguments, "ndarray")
    return not lasting or all(map(fits, arguments))


def _container(annotation: str) -> Fits | None:
    name, _, inner = annotation.removesuffix("]").partition("[")
    if name == "tuple" and inner.endswith(", ..."):
        name, inner = "Sequence", inner.removesuffix(", ...")
    if name in ("Sequence", "Iterable"):
        each, keys = kind(inner), name == "Iterable"
        return lambda argument: (
            is_iterable(argument) and (keys or not isinstance(argument, dict)) and _all(argument, each)
        )
    if name == "Mapping":
        key, value = inner.split(", ", 1)
        of_keys, of_values = kind(key), kind(value.partition("[")[0])  # what is in values their function looks at
        return lambda argument: (
            isinstance(argument, Mapping) and all(of_keys(key) and of_values(argument[key]) for key in argument)
        )
    if name == "Literal":  # which one it must be its function says
        return lambda argument: isinstance(argument, str)
    if name == "Callable":
        return callable
    if name == "os.PathLike":
        return lambda argument: hasattr(type(argument), "__fspath__")
    return None


def is_iterable(argument: object) -> TypeGuard[Iterable[Any]]:
    """Arrays of no rank have `__iter__`, and cannot be iterated."""
    return isinstance(argument, Iterable) and getattr(argument, "shape", None) != ()


@cache
def kind(annotation: str) -> Fits:
    """Whether an argument is what an annotation says; what it does not know fits all."""
    parts = _alternatives(annotation)
    if len(parts) > 1:
        several = [kind(part) for part in parts]
        return lambda argument: any(fits(argument) for fits in several)
    return _KINDS.get(annotation) or _container(annotation) or (lambda argument: True)


@cache
def _wants_int(annotation: str) -> bool:
    parts = set(_alternatives(annotation))
    return bool(parts & {"int", "Dim", "Axes"}) and not parts & {"Value", "Scalar"}


def whole(annotation: str, argument: Any) -> Any:
    """NumPy's ints as Python's, where an int is meant and not an operand."""
    return operator.index(argument) if is_a(argument, "integer") and _wants_int(annotation) else argument


def _alternatives(annotation: str) -> list[str]:
    """The parts of a union, without looking into brackets."""
    parts, depth = [""], 0
    for token in annotation.split(" | "):
        parts[-1] = f"{parts[-1]} | {token}" if depth else parts[-1] + token
        depth += token.count("[") - token.count("]")
        if not depth:
            parts.append("")
    return parts[:-1]


_WORDS = {
    "str | os.PathLike[str]": "a path",
    "Callable[..., Any]": "a function",
    "Callable[..., Any] | None": "a function",
    "str | Device": "the name of a device",
    "str | Sequence[str | Device]": "the name of a device, or a list of names",
}
"""What annotations say, where that is plainer."""


def shown(argument: Any) -> str:
    """An argument in a message."""
    text = " ".join(repr(argument).split())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def checked(function: Function) -> Function:
    """A function whose arguments are looked at first, where its annotations say what they are.

    Calls raise ArgumentError for one of another kind, and OptionError for a keyword that there is not.
    """
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    by_position = known[: code.co_argcount]
    others = code.co_varnames[len(known)] if code.co_flags & VARIABLE else ""
    takes_any = bool(code.co_flags & KEYWORDS)
    label = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    fits: dict[str, Fits] = {}

    def looked_at(name: str, argument: Any) -> Any:
        annotation = str(function.__annotations__.get(name, ""))
        if name not in fits:
            fits[name] = kind(annotation)
        if not fits[name](argument):
            near = "; its .graph is one" if annotation == "Graph" and hasattr(argument, "graph") else ""
            words = _WORDS.get(annotation, annotation)
            raise ArgumentError(f"[{label}] expected {name!r} to be {words}, got {shown(argument)}{near}")
        return whole(annotation, argument)

    @wraps(function)
    def told(*arguments: Any, **keywords: Any) -> Any:
        taken = [looked_at(name, argument) for name, argument in zip(by_position, arguments)]
        rest = arguments[len(by_position) :]
        taken += [looked_at(others, argument) for argument in rest] if others else rest
        for name, argument in keywords.items():
            if name in known:
                keywords[name] = looked_at(name, argument)
            elif not takes_any:
                options = ", ".join(option for option in known if option != "self")
                near = did_you_mean(name, known)
                raise OptionError(f"[{label}] expected options among {options}, got {name!r}{near}")
        return function(*taken, **keywords)

    return cast(Function, told)


def methods_checked(but: tuple[str, ...] = ()) -> Callable[[Class], Class]:
    """A class whose public methods, and the one that makes instances, are `checked`; all `but` those that look
    themselves."""

    def decorate(cls: Class) -> Class:
        for name, member in list(vars(cls).items()):
            plain = member.__func__ if isinstance(member, staticmethod) else member
            if not isinstance(plain, FunctionType) or name in but or (name.startswith("_") and name != "__init__"):
                continue
            wrapped = checked(plain)
            setattr(cls, name, staticmethod(wrapped) if isinstance(member, staticmethod) else wrapped)
        return cls

    return decorate
