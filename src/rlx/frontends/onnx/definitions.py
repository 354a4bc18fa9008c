"""Ops without an importer function, imported by the body that the ONNX standard defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlx.frontends.onnx.messages import FunctionProto, NodeProto
from rlx.frontends.onnx.operand import Operand


def standard_body(
    proto: Any, domain: str, opset: int, attributes: Mapping[str, Any], inputs: Callable[[], Sequence[Operand | None]]
) -> Any:
    """The function that the standard defines a node's op by, or None. `inputs` are asked for where it depends on their
    types."""
    import onnx

    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    types = [b"" if operand is None else _type_bytes(operand) for operand in inputs()]
    resolved = NodeProto()
    resolved.CopyFrom(proto)
    del resolved.attribute[:]
    for name, attribute in attributes.items():
        resolved.attribute.add().CopyFrom(attribute)
        resolved.attribute[-1].name = name
    text = schema.get_context_dependent_function(resolved.SerializeToString(), types)
    return FunctionProto.FromString(text) if text else None


def _type_bytes(operand: Operand) -> bytes:
    import onnx

    code = onnx.helper.np_dtype_to_tensor_dtype(operand.dtype.numpy)
    shape = [d if isinstance(d, int) else str(d) for d in operand.shape]
    serialised: bytes = onnx.helper.make_tensor_type_proto(code, shape).SerializeToString()
    return serialised


def default_attributes(proto: Any, domain: str, opset: int) -> dict[str, Any]:
    """Values that the standard gives attributes which a node leaves out."""
    import onnx

    declared = onnx.defs.get_schema(proto.op_type, opset, domain).attributes
    return {name: a.default_value for name, a in declared.items() if a.default_value.type}
