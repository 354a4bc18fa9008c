"""Files that lie about what is in them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from hostile.case import FAR, MOST, F, Refused, case, gives, graph

ONE = [np.ones(2, "f4")]


def _tensor(tensor: TensorProto) -> Callable[[], bytes]:
    def build() -> bytes:
        proto = onnx.ModelProto.FromString(
            graph([helper.make_node("Add", ["x", "w"], ["y"], "hostile")], {"x": (F, [2])}, {"y": F})
        )
        proto.graph.initializer.append(tensor)
        return proto.SerializeToString()

    return build


RAW = b"\0" * 8
for word, tensor in {
    "huge": TensorProto(name="w", data_type=1, dims=[FAR], raw_data=RAW),
    "product": TensorProto(name="w", data_type=1, dims=[1 << 62, 1 << 62], raw_data=RAW),
    "negative": TensorProto(name="w", data_type=1, dims=[-2], raw_data=RAW),
    "two-negatives": TensorProto(name="w", data_type=1, dims=[-1, -2], raw_data=RAW),
    "rank": TensorProto(name="w", data_type=1, dims=[1] * 1000, raw_data=b"\0" * 4),
    "dtype": TensorProto(name="w", data_type=77, dims=[2], raw_data=RAW),
    "no-dtype": TensorProto(name="w", dims=[2], raw_data=RAW),
    "text": TensorProto(name="w", data_type=8, dims=[1], string_data=[b"a"]),
    "short": TensorProto(name="w", data_type=1, dims=[2], raw_data=RAW[:7]),
    "long": TensorProto(name="w", data_type=1, dims=[2], raw_data=RAW + RAW),
    "other-field": TensorProto(name="w", data_type=1, dims=[2], int64_data=[1, 2]),
    "zero-by-huge": TensorProto(name="w", data_type=1, dims=[0, MOST], raw_data=b""),
    "outside": TensorProto(name="w", data_type=1, dims=[2], data_location=1,
                           external_data=[onnx.StringStringEntryProto(key="location", value="../../etc/passwd")]),
    "offset": TensorProto(name="w", data_type=1, dims=[2], data_location=1,
                          external_data=[onnx.StringStringEntryProto(key="offset", value="-8")]),
}.items():  # fmt: skip
    case(f"tensor/{word}", _tensor(tensor), ONE, Refused(""))
case("tensor/numbers-out-of-range", _tensor(TensorProto(name="w", data_type=10, dims=[2], int32_data=[1 << 20, -1])),
     ONE, Refused(""))  # fmt: skip


def _relu() -> bytes:
    return graph([helper.make_node("Relu", ["x"], ["y"], "hostile")], {"x": (F, [2])}, {"y": F})


def _changed(change: Callable[[onnx.ModelProto], None]) -> Callable[[], bytes]:
    def build() -> bytes:
        proto = onnx.ModelProto.FromString(_relu())
        change(proto)
        return proto.SerializeToString()

    return build


def _output_dtype(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].type.tensor_type.elem_type = 7


def _input_dtype(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = 99


def _same_input(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(proto.graph.input[0])


def _same_output(proto: onnx.ModelProto) -> None:
    proto.graph.output.append(proto.graph.output[0])


def _opset_twice(proto: onnx.ModelProto) -> None:
    proto.opset_import.append(helper.make_opsetid("", 7))


def _attribute_twice(proto: onnx.ModelProto) -> None:
    node = proto.graph.node[0]
    node.op_type = "Softmax"
    node.attribute.extend([helper.make_attribute("axis", 0), helper.make_attribute("axis", 5)])


def _weight_twice(proto: onnx.ModelProto) -> None:
    for _ in range(2):
        proto.graph.initializer.append(helper.make_tensor("w", 1, [2], [1, 2]))


def _function_twice(proto: onnx.ModelProto) -> None:
    for _ in range(2):
        function = helper.make_function("local", "F", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])],
                                    [helper.make_opsetid("", 18)])  # fmt: skip
        proto.functions.append(function)


case("file/nothing", lambda: b"", (), Refused(""))
case("file/zeros", lambda: bytes(1000), (), Refused(""))
case("file/endless-varint", lambda: b"\xff" * 1000, (), Refused(""))
case("file/length-beyond", lambda: b"\x08\x08\x3a\xff\xff\xff\xff\x0f" + b"a" * 50, (), Refused(""))
case("file/cut", lambda: _relu()[:-7], ONE, Refused(""))
case("file/twice", lambda: _relu() * 2, ONE, Refused("twice"))
case("file/zip", lambda: b"PK\3\4" + bytes(100), (), Refused(""))
case("file/pickle", lambda: b"\x80\x04cos\nsystem\n.", (), Refused(""))
case("file/output-dtype", _changed(_output_dtype), ONE, Refused("y"))
case("file/input-dtype", _changed(_input_dtype), ONE, Refused("x"))
case("file/input-twice", _changed(_same_input), ONE, Refused("'x'"))
case("file/output-twice", _changed(_same_output), ONE, gives([1, 1], [1, 1]))
case("file/opset-twice", _changed(_opset_twice), ONE, Refused(""))
case("file/attribute-twice", _changed(_attribute_twice), ONE, Refused("hostile"))
case("file/weight-twice", _changed(_weight_twice), ONE, Refused("'w'"))
case("file/function-twice", _changed(_function_twice), ONE, Refused("F"))
case("file/right", _relu, ONE, gives([1, 1]))
