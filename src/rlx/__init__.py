"""rlx: an ML compiler and runtime. It compiles models to native code for the hardware that is available.

`import rlx` loads nothing: every name below is loaded when it is first used. `__init__.pyi` has their types.
"""

import os as _os
import typing as _typing
from importlib import import_module as _import_module

__version__ = "0.1.0"

_HOMES = {
    "BucketedCache": "rlx.runtime.buckets",
    "CancelToken": "rlx.interrupt",
    "CompiledGraph": "rlx.runtime.compiled",
    "Device": "rlx.device.device",
    "DevicePolicy": "rlx.device.policy",
    "Dispatch": "rlx.backends.claims",
    "Graph": "rlx.ir.graph",
    "GraphDevices": "rlx.runtime.graph_devices",
    "Model": "rlx.model",
    "Options": "rlx.backends.base",
    "Session": "rlx.runtime.session",
    "TensorType": "rlx.ir.type",
    "Typed": "rlx.runtime.typed",
    "Value": "rlx.ir.graph",
    "available_devices": "rlx.device.registry",
    "cond": "rlx.tracing.control",
    "dispatch_report": "rlx.device.support",
    "fastest_device": "rlx.runtime.fastest",
    "first_unsupported_op": "rlx.device.support",
    "jit": "rlx.tracing.jit",
    "legalize": "rlx.device.support",
    "load": "rlx.model",
    "load_compiled": "rlx.runtime.compiled",
    "scan": "rlx.tracing.control",
    "supports_graph": "rlx.device.support",
    "while_loop": "rlx.tracing.control",
    "why_unavailable": "rlx.device.registry",
}
_WITHOUT_OPS = ("CancelToken", "Device", "Model", "load")
"""Those that give no values, or import ops when they do."""
_DTYPES = (
    "bool_", "u4", "u8", "u16", "u32", "u64", "i4", "i8", "i16", "i32", "i64", "f4e2m1", "f8e4m3", "f8e5m2",
    "f8e4m3fnuz", "f8e5m2fnuz", "f16", "bf16", "f32", "f64", "c64", "c128",
)  # fmt: skip


def __getattr__(name: str) -> _typing.Any:
    """Classes, dtypes, errors and builders of ops (`rlx.gelu(x)`) by name."""
    if name == "__all__":  # for help, and for whoever imports everything
        return __dir__()
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _HOMES:
        if name not in _WITHOUT_OPS:
            _import_module("rlx.ops")  # methods of values call ops by name
        return getattr(_import_module(_HOMES[name]), name)
    if name in _DTYPES:
        return getattr(_import_module("rlx.ir.dtype"), name)
    if _is_module(name):
        return _import_module(f"rlx.{name}")
    if name in _errors():
        return getattr(_import_module("rlx.errors"), name)
    ops = _import_module("rlx.ops")
    if name in ops.names():
        return getattr(ops, name)
    raise AttributeError(_unknown(name))


def _is_module(name: str) -> bool:
    place = _os.path.join(_os.path.dirname(__file__), name)
    return _os.path.isfile(f"{place}.py") or _os.path.isfile(_os.path.join(place, "__init__.py"))


def _errors() -> tuple[str, ...]:
    errors = _import_module("rlx.errors")
    return tuple(n for n, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.RlxError))


def _public() -> set[str]:
    return {*_HOMES, *_DTYPES, *_errors(), *_import_module("rlx.ops").names(), "__version__"}


def _unknown(name: str) -> str:
    """What is said of a name that is not here, with those that look like it."""
    meant = _import_module("rlx.elsewhere").NAMES.get(name)
    near: str = f": {meant}" if meant else _import_module("rlx.errors").did_you_mean(name, _public(), 3)
    return f"rlx has no {name!r}{near}"


def __dir__() -> list[str]:
    return sorted(_public())
