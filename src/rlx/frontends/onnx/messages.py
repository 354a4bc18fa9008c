"""The messages of ONNX files: `ModelProto` and the like, as protobuf makes them.

They are one module of the package `onnx`. The others (schemas of ops, helpers, checks) take four times as long to
import, and most models are read without them: they are imported where they are used.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = "onnx.onnx_ml_pb2"


def _module() -> ModuleType:
    """The module of messages. The package, which is imported later if at all, finds it loaded. Raises ImportError."""
    spec = None if "onnx" in sys.modules or _NAME in sys.modules else importlib.util.find_spec("onnx")
    place = None if spec is None or spec.origin is None else Path(spec.origin).with_name("onnx_ml_pb2.py")
    if place is None or not place.is_file():
        return sys.modules.get(_NAME) or import_module(_NAME)
    alone = importlib.util.spec_from_file_location(_NAME, place)
    assert alone is not None and alone.loader is not None  # of a file of Python
    module = importlib.util.module_from_spec(alone)
    sys.modules[_NAME] = module
    try:
        alone.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module


_messages: Any = _module()
ModelProto = _messages.ModelProto
NodeProto = _messages.NodeProto
FunctionProto = _messages.FunctionProto
TensorProto = _messages.TensorProto
AttributeProto = _messages.AttributeProto
