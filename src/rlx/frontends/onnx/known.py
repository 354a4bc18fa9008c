"""Which ops rlx can import. A model is refused for all that it cannot before a weight of it is looked at."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.errors import did_you_mean
from rlx.frontends.onnx.table import TABLE, find


def standard(domain: str) -> str:
    """The domain as opsets name it: the standard's is called `` (empty)."""
    return "" if domain == "ai.onnx" else domain


def is_known(domain: str, op_type: str, opset: int) -> bool:
    """Whether there is an importer function for an op, or the standard defines it by others."""
    if find(domain, op_type, opset) is not None:
        return True
    import onnx

    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def op_text(domain: str, op_type: str, opsets: Mapping[str, int]) -> str:
    """An op for people."""
    return f"{domain or 'ai.onnx'}.{op_type}, opset {opsets.get(domain, 1)}"


def why_unknown(domain: str, op_type: str) -> str:
    """What is said of an op that nothing imports."""
    near = did_you_mean(op_type, [name for of, name in TABLE if of == domain])
    return f"rlx has no importer function for it{near}"


__all__ = ["is_known", "op_text", "standard", "why_unknown"]
