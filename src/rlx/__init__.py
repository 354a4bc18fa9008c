"""rlx: an ML compiler and runtime. A model in, native code for whatever hardware there is.

`import rlx` loads nothing: every name below is fetched when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlx.device.device import Device as Device
    from rlx.device.policy import DevicePolicy as DevicePolicy
    from rlx.frontends import Model as Model
    from rlx.frontends import load as load
    from rlx.ir.graph import Graph as Graph
    from rlx.ir.graph import Value as Value
    from rlx.ir.type import TensorType as TensorType
    from rlx.runtime.buckets import BucketedCache as BucketedCache
    from rlx.runtime.compiled import CompiledGraph as CompiledGraph
    from rlx.runtime.graph_devices import GraphDevices as GraphDevices
    from rlx.runtime.saved import load_compiled as load_compiled
    from rlx.runtime.session import Session as Session

_HOMES = {
    "BucketedCache": "rlx.runtime.buckets",
    "CompiledGraph": "rlx.runtime.compiled",
    "Device": "rlx.device.device",
    "DevicePolicy": "rlx.device.policy",
    "Graph": "rlx.ir.graph",
    "GraphDevices": "rlx.runtime.graph_devices",
    "Model": "rlx.frontends",
    "Session": "rlx.runtime.session",
    "TensorType": "rlx.ir.type",
    "Value": "rlx.ir.graph",
    "load": "rlx.frontends",
    "load_compiled": "rlx.runtime.saved",
}
_DTYPES = (
    "bool_", "u4", "u8", "u16", "u32", "u64", "i4", "i8", "i16", "i32", "i64", "f4e2m1", "f8e4m3", "f8e5m2",
    "f8e4m3fnuz", "f8e5m2fnuz", "f16", "bf16", "f32", "f64", "c64", "c128",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Classes, dtypes and errors by name; everything else is an op's builder (`rlx.gelu(x)`)."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _HOMES:
        import_module("rlx.ops")  # methods of values call ops by name
        return getattr(import_module(_HOMES[name]), name)
    if name in _DTYPES:
        return getattr(import_module("rlx.ir.dtype"), name)
    for module in ("rlx.errors", "rlx.ops"):
        found = getattr(import_module(module), name, None)
        if found is not None:
            return found
    raise AttributeError(f"rlx has no {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_DTYPES, *dir(import_module("rlx.ops"))})
