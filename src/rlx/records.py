"""Dataclasses that cost little to make, as hundreds of them are made before a process has its first answer.

The standard decorator writes every method of every class as text and compiles it, half a millisecond a class. Here
`__init__` is compiled once for each *form* (how many fields there are, and which of them have factories), and its names
are replaced in the code. The other methods are the same function for all classes, or a closure over a getter. Fields
are those of `dataclasses`: `field`, `fields`, `replace`, `asdict` and `is_dataclass` work as ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, init=True, repr=True, eq=True, frozen=False):
        """As `dataclasses.dataclass`, for classes without `InitVar` and fields by keyword alone."""

        def made(cls):
            return _complete(cls, init, repr, eq, frozen)

        return made if cls is None else made(cls)


Form = tuple[str, ...]
_PLAIN, _MADE, _MADE_ALONE, _UNSET = "given", "given or made", "made", "unset"
"""What `__init__` does about a field: it is a parameter; one with a factory; only the factory's; or nothing at all."""


class _Factory:
    """The default of parameters that have a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_MISSING = _Factory()


def _complete(cls: type, init: bool, repr: bool, eq: bool, frozen: bool) -> type:
    """Adds the methods that the class does not define itself."""
    own = cls.__dict__
    if own.get("__doc__") is None:
        cls.__doc__ = cls.__name__  # for which a signature would be made
    has_hash = own.get("__hash__") is not None
    fields = dataclasses.fields(dataclasses.dataclass(init=False, repr=False, eq=False)(cls))
    if init and "__init__" not in own:
        _set(cls, "__init__", _init(cls, fields, frozen))
    if repr and "__repr__" not in own:
        _set(cls, "__repr__", _repr)
    if eq:
        values = _values(tuple(f.name for f in fields if f.compare))
        if "__eq__" not in own:
            _set(cls, "__eq__", _equality(values))
        if not has_hash:
            _set(cls, "__hash__", _hash(values) if frozen else None)
    if frozen:
        _set(cls, "__setattr__", _refuse_to_set)
        _set(cls, "__delattr__", _refuse_to_delete)
    return cls


def _set(cls: type, name: str, value: Any) -> None:
    setattr(cls, name, value)


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of these attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda self: (getattr(self, names[0]),)) if names else (lambda self: ())


def _equality(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _is_fixed(self: Any, name: str) -> bool:
    """Whether an attribute of a frozen class may not change; classes derived from it may have others of their own."""
    return "__dataclass_fields__" in type(self).__dict__ or name in self.__dataclass_fields__


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    if _is_fixed(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: Any, name: str) -> None:
    if _is_fixed(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _init(cls: type, fields: tuple[dataclasses.Field[Any], ...], frozen: bool) -> FunctionType:
    """`__init__` for these fields. Raises TypeError for a field without a default after one with."""
    form = tuple(_role(f) for f in fields)
    code = _compiled(form, frozen, hasattr(cls, "__post_init__"))
    names = {f"a{i}": f.name for i, f in enumerate(fields)}
    qualname = f"{cls.__qualname__}.__init__"
    named = code.replace(
        co_varnames=_renamed(code.co_varnames, names), co_names=_renamed(code.co_names, names),
        co_consts=_renamed(code.co_consts, names), co_qualname=qualname,
    )  # fmt: skip
    factories = {f"factory{i}": f.default_factory for i, f in enumerate(fields) if "made" in form[i]}
    parameters = [f for f, role in zip(fields, form) if role in (_PLAIN, _MADE)]
    defaults = tuple(_MISSING if f.default is dataclasses.MISSING else f.default for f in parameters if _has_default(f))
    if any(map(_has_default, parameters[: len(parameters) - len(defaults)])):
        raise TypeError(f"{qualname}: a field without a default follows one with")
    function = FunctionType(named, {**_GLOBALS, **factories} if factories else _GLOBALS, "__init__", defaults)
    function.__module__ = cls.__module__
    function.__annotations__ = {**{f.name: f.type for f in parameters}, "return": None}
    return function


_GLOBALS = {"assign": object.__setattr__, "missing": _MISSING}


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _role(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return _MADE if field.init else _MADE_ALONE
    return _PLAIN if field.init else _UNSET


@cache
def _compiled(form: Form, frozen: bool, has_post_init: bool) -> CodeType:
    """The code of an `__init__` whose fields are called a0, a1, …"""
    value = {_PLAIN: "a{0}", _MADE: "factory{0}() if a{0} is missing else a{0}", _MADE_ALONE: "factory{0}()"}
    body = []
    for number, role in enumerate(form):
        if role in value:
            what = value[role].format(number)
            body.append(f"assign(self, 'a{number}', {what})" if frozen else f"self.a{number} = {what}")
    if has_post_init:
        body.append("self.__post_init__()")
    parameters = [f"a{i}" for i, role in enumerate(form) if role in (_PLAIN, _MADE)]
    text = f"def __init__({', '.join(['self', *parameters])}):\n " + "\n ".join(body or ["pass"])
    module = compile(text, "<rlx.records>", "exec")
    return next(const for const in module.co_consts if isinstance(const, CodeType))


def _renamed(words: tuple[Any, ...], names: dict[str, str]) -> tuple[Any, ...]:
    return tuple(names.get(word, word) if isinstance(word, str) else word for word in words)
