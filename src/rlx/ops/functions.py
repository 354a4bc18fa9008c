"""Ops as functions: each has a name, a docstring and a signature, and takes its attributes by position or by name.

They are made when they are asked for, since few programs need more than some of the ops.
"""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from rlx import arguments as arguments_of
from rlx.errors import GraphError, RlxError, did_you_mean
from rlx.ir import dim as dims
from rlx.ir import indexing
from rlx.ir.dim import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Value, call
from rlx.ir.literal import Array
from rlx.ir.op import ANY_NUMBER, Elementwise, Op, lookup
from rlx.ir.spelling import respelled

ValueLike = Value | Array | np.generic | bool | int | float | complex | Dim
"""An operand: arrays become constants, Python's numbers and dims take the dtype of the other operands."""
DimLike = Dim | str
DTypeLike = DType | str | type[Any] | np.dtype[Any]

Function = Callable[..., Any]
Ease = Callable[[list[Any], dict[str, Any]], None]
"""Changes operands and attributes of a call from what people write to what the op wants."""


def function_name(op_name: str) -> str:
    """What the function of an op is called: the op's name, with an underscore where Python has that word."""
    return f"{op_name}_" if keyword.iskeyword(op_name) else op_name


@cache
def function(op_name: str, name: str | None = None) -> Function:
    """The function that builds nodes of this op: one Value, or a tuple of them if the op has several results. With a
    `name` it is the same under another one. Raises GraphError."""
    cls = lookup(op_name)
    own = function_name(op_name)

    def build(*arguments: Any, **keywords: Any) -> Value | tuple[Value, ...]:
        return _call(cls, arguments, keywords)

    build.__name__ = build.__qualname__ = name or own
    build.__module__ = "rlx.ops"
    build.__doc__ = inspect.getdoc(cls) if name is None else f"The same as `{own}`. {inspect.getdoc(cls)}"
    build.__signature__ = signature(cls)  # type: ignore[attr-defined]  # functions may have one
    return build


@cache
def lenient(plain: Function) -> Function:
    """A function that is no op of its own, which takes other names of its arguments too, and whose errors of calls are
    those of rlx."""
    accepted = inspect.signature(plain).parameters
    annotations = {each: str(parameter.annotation) for each, parameter in accepted.items()}
    values = [each for each, annotation in annotations.items() if annotation == "Value"]
    name = plain.__name__

    @functools.wraps(plain)
    def build(*arguments: Any, **keywords: Any) -> Any:
        own = respelled(name, accepted, keywords)
        for each, argument in (*zip(accepted, arguments), *own.items()):
            if each in values and not isinstance(argument, Value):
                raise GraphError(f"[{name}] expected a value of a graph as {each}, got {type(argument).__name__}")
            if annotations.get(each) == "Graph":
                _check_graph(name, plain, argument, arguments, own)
            elif each in accepted and not arguments_of.kind(annotations[each])(argument):
                got = arguments_of.shown(argument)
                raise GraphError(f"[{name}] expected {each!r} to be {annotations[each]}, got {got}")
        own = {each: arguments_of.whole(annotations.get(each, ""), value) for each, value in own.items()}
        positional = [arguments_of.whole(annotations[each], value) for each, value in zip(accepted, arguments)]
        try:
            return plain(*positional, *arguments[len(positional) :], **own)
        except RlxError:
            raise
        except TypeError:
            for unknown in own.keys() - accepted.keys():
                near = did_you_mean(unknown, accepted)
                message = f"[{name}] expected the arguments {', '.join(accepted)}, got {unknown!r}{near}"
                raise GraphError(message) from None
            try:
                inspect.signature(plain).bind(*arguments, **own)
            except TypeError as error:
                raise GraphError(f"[{name}] expected the arguments {', '.join(accepted)}: {error}") from None
            raise

    return build


def _check_graph(
    name: str, plain: Function, argument: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """Raises GraphError for something else than a graph; where arguments are missing, the call says so instead."""
    if isinstance(argument, Graph):
        return
    try:
        inspect.signature(plain).bind(*arguments, **keywords)
    except TypeError:
        return
    got = arguments_of.shown(argument)
    raise GraphError(f"[{name}] expected the graph that it belongs to as the first argument, got {got}")


def _call(cls: type[Op], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Value | tuple[Value, ...]:
    regions = keywords.pop("regions", ()) if cls.regions else ()
    if not arguments_of.kind("Sequence[Graph]")(regions):
        raise GraphError(f"[{cls.name}] expected 'regions' to be Sequence[Graph], got {arguments_of.shown(regions)}")
    operands, attributes = _bound(cls, arguments, respelled(cls.name, cls.attribute_names, keywords))
    for name in ("axis", "axes"):
        if name in attributes and name in cls.attribute_names:
            attributes[name] = _axis_or_axes(cls, name, attributes[name])
    if cls.name in _EASED:
        try:
            _EASED[cls.name](operands, attributes)
        except (TypeError, ValueError) as error:
            if isinstance(error, RlxError):
                raise
            wanted = ", ".join(f"{name}: {kind}" for name, kind, _ in cls.fields if name in attributes)
            got = ", ".join(f"{name}={arguments_of.shown(value)}" for name, value in attributes.items())
            raise GraphError(f"[{cls.name}] expected {wanted}, got {got}") from error
    return call(cls.name, *operands, regions=regions, **attributes)


def _axis_or_axes(cls: type[Op], name: str, value: Any) -> Any:
    """An int for axes is a tuple of one; several axes are no axis."""
    if name == "axis" and isinstance(value, (tuple, list)):
        raise GraphError(f"[{cls.name}] expected one int as the axis, got {value!r}")
    return (value,) if name == "axes" and hasattr(value, "__index__") else value


def _bound(cls: type[Op], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Operands and attributes of a call. Raises GraphError for what comes twice or is too much."""
    fields = [name for name, _, _ in cls.fields]
    operands, rest = _split(cls, arguments, keywords)
    if len(rest) > len(fields):
        accepted = ", ".join((*_leading(cls), *fields))
        raise GraphError(
            f"[{cls.name}] expected at most {len(arguments) - len(rest) + len(fields)} arguments ({accepted}), "
            f"got {len(arguments)}"
        )
    for name, value in zip(fields, rest):
        if name in keywords:
            raise GraphError(f"[{cls.name}] expected {name} once, got it by position and by name")
        keywords[name] = value
    known = cls.operand_names
    for name, operand in list(zip(known, operands))[cls.arity[0] :]:
        if isinstance(operand, (int, tuple)) and not isinstance(operand, bool):  # meant as an axis: layer_norm(x, -1)
            wanted = f": attributes such as {fields[0]} come by name, or behind it" if fields else ""
            raise GraphError(f"[{cls.name}] expected a value or None as {name}, got {operand!r}{wanted}")
    while len(operands) < len(known) and known[len(operands)] in keywords:  # so that all see the same operands
        operands.append(keywords.pop(known[len(operands)]))
    return operands, keywords


def _split(cls: type[Op], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Any], Sequence[Any]]:
    """Operands, and what follows them by position."""
    if cls.arity[1] < ANY_NUMBER:
        leading = len(_leading(cls))
        if not cls.operand_names and "graph" in keywords and not arguments:
            arguments = (keywords.pop("graph"),)
        if not cls.operand_names and not (arguments and isinstance(arguments[0], Graph)):
            got = f"{arguments[0]!r}" if arguments else "none"
            raise GraphError(f"[{cls.name}] expected the graph that it belongs to as the first argument, got {got}")
        return list(arguments[:leading]), arguments[leading:]
    if arguments and isinstance(arguments[0], str) and "equation" in cls.attribute_names:  # as einsum has it
        keywords["equation"], *arguments = arguments  # type: ignore[assignment]
    if arguments and isinstance(arguments[0], (list, tuple)):
        return list(arguments[0]), arguments[1:]
    return list(arguments), ()


def _leading(cls: type[Op]) -> tuple[str, ...]:
    return cls.operand_names or ("graph",)


# what people leave out, or write shorter


def _rank(value: Any) -> int:
    return value.rank if isinstance(value, Value) else np.ndim(value)


def _each(count: Callable[[list[Any], dict[str, Any]], int], **defaults: int) -> Ease:
    """One entry for each axis of `count`, from one int for all or from nothing."""

    def ease(operands: list[Any], attributes: dict[str, Any]) -> None:
        for name, default in defaults.items():
            value = attributes.get(name, default)
            if isinstance(value, (int, Dim, str)) and not isinstance(value, bool) and operands:
                attributes[name] = (value,) * max(count(operands, attributes), 0)

    ease.__dict__["defaults"] = defaults
    return ease


def _behind_channels(operands: list[Any], attributes: dict[str, Any]) -> int:
    return _rank(operands[0]) - 2


def _of_window(operands: list[Any], attributes: dict[str, Any]) -> int:
    """An int as the window is for all axes behind batch and channels."""
    window = attributes.get("window", ())
    if isinstance(window, int):
        attributes["window"] = window = (window,) * max(_behind_channels(operands, attributes), 0)
    return len(window)


def _of_image(operands: list[Any], attributes: dict[str, Any]) -> int:
    return len(attributes.get("image", ()))


def _all_axes(operands: list[Any], attributes: dict[str, Any]) -> int:
    return _rank(operands[0])


def _resolved(operands: list[Any], attributes: dict[str, Any]) -> None:
    """One entry of the shape may be -1, and an int is a shape of one axis."""
    if operands and isinstance(operands[0], Value) and "shape" in attributes:
        shape = attributes["shape"]
        entries = shape if isinstance(shape, (tuple, list)) else (shape,)
        attributes["shape"] = indexing.resolve_reshape(operands[0].shape, tuple(dims.of(d) for d in entries))


def _reversed(operands: list[Any], attributes: dict[str, Any]) -> None:
    """Without a permutation the axes go backwards; negative ones count from the back."""
    if operands:
        rank = _rank(operands[0])
        given = attributes.get("permutation")
        order = tuple(reversed(range(rank))) if given is None else given
        attributes["permutation"] = tuple(a + rank if isinstance(a, int) and -rank <= a < 0 else a for a in order)


def _flat(operands: list[Any], attributes: dict[str, Any]) -> None:
    """Without an axis it goes over all elements, as in NumPy."""
    if attributes.get("axis") is None and operands and isinstance(operands[0], Value):
        x = operands[0]
        ones = (1,) * (x.rank - 1) if attributes.get("keepdims") else ()
        operands[0] = x.reshape((x.type.size, *ones))
        attributes["axis"] = 0


_SPACE = {"strides": 1, "dilations": 1, "low": 0, "high": 0}
_EASED: dict[str, Ease] = {
    **dict.fromkeys(("conv", "conv_transpose", "integer_conv"), _each(_behind_channels, **_SPACE)),
    **dict.fromkeys(("average_pool", "reduce_window"), _each(_of_window, **_SPACE)),
    "col2im": _each(_of_image, **_SPACE),
    "pad": _each(_all_axes, low=0, high=0),
    "slice": _each(_all_axes, steps=1),
    "reshape": _resolved,
    "transpose": _reversed,
    **dict.fromkeys(("argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum"), _flat),
}
_MAY_BE_LEFT_OUT: dict[Ease, str] = {_reversed: "permutation", _flat: "axis"}


# signatures

_ANNOTATIONS = {
    "Dim": "DimLike",
    "DType": "DTypeLike",
    "Shape": "Sequence[DimLike]",
    "tuple[Dim, ...]": "Sequence[DimLike]",
    "tuple[int, ...]": "Sequence[int]",
    "tuple[str, ...]": "Sequence[str]",
    "tuple[float, ...]": "Sequence[float]",
}


def signature(cls: type[Op]) -> inspect.Signature:
    """Operands by name, then attributes with their defaults."""
    either, alone = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = []
    variadic = cls.arity[1] >= ANY_NUMBER
    if variadic:
        several = "ValueLike | Sequence[ValueLike]"
        if "equation" in cls.attribute_names:
            parameters.append(inspect.Parameter("equation", either, annotation="str"))
        parameters.append(inspect.Parameter("operands", inspect.Parameter.VAR_POSITIONAL, annotation=several))
    elif not cls.operand_names:
        parameters.append(inspect.Parameter("graph", either, annotation="Graph"))
    for i, name in enumerate(() if variadic else cls.operand_names):
        optional = i >= cls.arity[0]
        annotation, default = ("ValueLike | None", None) if optional else ("ValueLike", inspect.Parameter.empty)
        parameters.append(inspect.Parameter(name, either, annotation=annotation, default=default))
    for parameter in _of_attributes(cls):
        if variadic and parameter.name == "equation":
            continue
        by_name = variadic or (parameter.default is parameter.empty and parameters[-1].default is not parameter.empty)
        kind = alone if by_name or parameters[-1].kind is alone else either
        parameters.append(parameter.replace(kind=kind))
    if cls.regions:
        parameters.append(inspect.Parameter("regions", alone, annotation="Sequence[Graph]"))
    return inspect.Signature(parameters, return_annotation=_result(cls))


def _of_attributes(cls: type[Op]) -> list[inspect.Parameter]:
    """Attributes, with what a call may leave out."""
    ease = _EASED.get(cls.name)
    numbers = getattr(ease, "defaults", {})
    defaults = {**cls.defaults(), **numbers}
    left_out = None if ease is None else _MAY_BE_LEFT_OUT.get(ease)
    parameters = []
    for name, kind, _ in cls.fields:
        base, optional = kind.removesuffix(" | None"), kind.endswith(" | None") or name == left_out
        annotation = _ANNOTATIONS.get(base, base)
        if name in numbers or name == "axes" or (cls.name, name) == ("reshape", "shape"):
            annotation = f"{'DimLike' if 'DimLike' in annotation else 'int'} | {annotation}"
        default = None if name == left_out else defaults.get(name, inspect.Parameter.empty)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                annotation=annotation + (" | None" if optional else ""),
                default=default,
            )
        )
    return parameters


def _result(cls: type[Op]) -> str:
    """The annotation of the result: the type rule's, of values."""
    if issubclass(cls, Elementwise):
        return "Value"
    returned = str(inspect.get_annotations(cls.infer).get("return", "TensorType"))
    if returned == "Types":
        return "Value | tuple[Value, ...]"
    return returned.replace("TensorType", "Value")
