"""Small ONNX models for tests, and the two peers that say what they should give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import rlx

F, I64, I32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
Shape = Sequence[int | str | None]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Shape]],
    outputs: Mapping[str, int],
    initializers: Mapping[str, Any] | None = None,
    opset: int = 18,
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model of these nodes; inputs by name with dtype and shape, outputs by name with dtype."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, code, shape) for name, (code, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, code, None) for name, code in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (initializers or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def run(proto: onnx.ModelProto, *arrays: Any, **options: Any) -> list[Any]:
    """What rlx gives, on the reference backend."""
    return rlx.load(proto.SerializeToString(), device="reference", **options).run(list(arrays))


def one(op: str, *arrays: Any, opset: int = 18, outputs: int = 1, fixed: Sequence[int] = (), **attributes: Any) -> Any:
    """The first output of one node; inputs at the positions in `fixed` become initialisers, None ones are left out."""
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    inputs = {n: np.asarray(a) for n, a in zip(names, arrays) if n}
    frozen = {f"x{i}" for i in fixed}
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    kinds = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items() if n not in frozen}
    proto = model([node], kinds, {"y0": 0}, {n: inputs[n] for n in sorted(frozen)}, opset)
    return run(proto, *(a for n, a in inputs.items() if n not in frozen))[0]
