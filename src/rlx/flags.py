"""Every `RLX_*` environment variable, in one table with its help text. Nothing else reads the environment.

Unknown names are reported once per process, when the first variable is read: a misspelt switch would otherwise silently
do nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rlx.errors import FlagError, did_you_mean
from rlx.records import dataclass

T = TypeVar("T")


@dataclass(frozen=True)
class Flag(Generic[T]):
    """One variable: `flag()` reads it, `FlagError` if its value does not parse.

    `decides_code` marks those on which it depends what code is made: caches of programs have them in their keys.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    help: str
    decides_code: bool = False

    def __call__(self) -> T:
        if not _looked:
            _tell_unknown()
        text = os.environ.get(self.name)
        if text is None or text == "":
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise FlagError(f"{self.name}={text!r}: {error}; {self.help}") from None


FLAGS: dict[str, Flag[object]] = {}


PREFIX = "RLX_"
OTHERS = ("RLX_VENV", "RLX_NODE")
"""Names that belong to scripts around rlx."""


_looked = False


def _tell_unknown() -> None:
    """Warns of variables whose names begin like ours and are none."""
    global _looked
    _looked = True  # whoever is told may ask for flags
    unknown = [name for name in os.environ if name.startswith(PREFIX) and name not in FLAGS and name not in OTHERS]
    if not unknown:
        return
    import logging
    import warnings

    logger = logging.getLogger("rlx")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())  # programs without logging see only the warning
    for name in unknown:
        message = f"[flags] expected RLX_* variables that rlx reads, got {name}{did_you_mean(name, FLAGS)}"
        warnings.warn(message, RuntimeWarning, stacklevel=4)
        logger.getChild("flags").warning(message)


def _flag(name: str, default: T, parse: Callable[[str], T], help: str, decides_code: bool = False) -> Flag[T]:
    flag = Flag(name, default, parse, help, decides_code)
    FLAGS[name] = flag  # type: ignore[assignment]  # the table forgets the value's type, the variable keeps it
    return flag


def _switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("expected 0 or 1")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def _count(text: str) -> int:
    value = _whole(text)
    if value < 0:
        raise ValueError("expected a number that is not negative")
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return text.lower()

    return parse


def _optional_count(text: str) -> int | None:
    return _count(text)


def _text(text: str) -> str | None:
    return text


def _unless_auto(text: str) -> str | None:
    return None if text.strip().lower() == "auto" else text


debug = _flag(
    "RLX_DEBUG",
    0,
    _count,
    "0 silent, 1 compiles, 2 passes and kernels, 3 generated code, 4 every rewrite: level of the loggers `rlx.*`",
)
check = _flag("RLX_CHECK", False, _switch, "1 runs the IR verifier after every pass")
stop_at = _flag(
    "RLX_STOP_AT", -1, _whole, "apply only the first n rewrites (bisects a miscompile); -1 applies all", True
)
disable: Flag[tuple[str, ...]] = _flag(
    "RLX_DISABLE", (), _names, "comma list of passes or rewrites (`pass` or `pass/rewrite`) to switch off", True
)
schedule = _flag(
    "RLX_SCHEDULE",
    "",
    str,
    "tiles of kernels set by hand, for experiments: `contraction:register.m=4,cache.m=64`",
    decides_code=True,
)
cpu_isa = _flag(
    "RLX_CPU_ISA",
    "auto",
    _choice("auto", "avx512", "avx2", "sse", "neon"),
    "instruction set that the CPU code uses",
    decides_code=True,
)
num_threads = _flag("RLX_NUM_THREADS", 0, _count, "threads of the CPU backend; 0 takes what affinity and quota allow")
cache_dir = _flag("RLX_CACHE_DIR", "", str, "folder of the compile cache; empty takes the user's cache folder")
cache = _flag("RLX_CACHE", True, _switch, "0 neither reads nor writes the compile cache on disk")
tiers = _flag(
    "RLX_TIERS", True, _switch, "0 has the CPU backend write its best code before the first run, not meanwhile"
)
cache_bytes = _flag("RLX_CACHE_BYTES", 1 << 32, _count, "bytes that the compile cache on disk may take")
plan_bytes = _flag(
    "RLX_PLAN_BYTES", 1 << 30, _count, "bytes of buffers that a compiled graph keeps for the input shapes it has seen"
)
code_bytes = _flag(
    "RLX_CODE_BYTES", 1 << 28, _count, "bytes of code that a process keeps, so that equal graphs are compiled once"
)
value_bytes = _flag(
    "RLX_VALUE_BYTES", 0, _count, "bytes that a value may take whose size a run tells; 0 takes the machine's memory"
)
max_nodes = _flag(
    "RLX_MAX_NODES", 1 << 15, _count, "nodes that a model file may come to, those of functions and unrolled loops too"
)
loop_trips = _flag(
    "RLX_LOOP_TRIPS",
    0,
    _count,
    "trips that loops which data end may take in a run, all together; 0 takes what a device does in some seconds: "
    "2**25 on cpu and xla, 2**13 by WebGPU, 2**16 elsewhere",
    decides_code=True,
)
size_buckets = _flag(
    "RLX_SIZE_BUCKETS",
    True,
    _switch,
    "0 has devices that compile each size do so, where arrays are padded up to one of few sizes otherwise",
    decides_code=True,
)
check_indices = _flag(
    "RLX_CHECK_INDICES", True, _switch, "0 clamps indices that are out of range, which are an error otherwise"
)
wgpu_halves = _flag(
    "RLX_WGPU_HALVES",
    "auto",
    _choice("auto", "0", "1"),
    "1 lets WebGPU shaders use f16 where the driver has it and rounds as it should, auto on GPUs alone, 0 nowhere",
    decides_code=True,
)
wgpu_subgroups = _flag(
    "RLX_WGPU_SUBGROUPS",
    True,
    _switch,
    "0 keeps WebGPU shaders from subgroups, in which lanes exchange values where the driver has them",
    decides_code=True,
)
cuda_blas = _flag(
    "RLX_CUDA_BLAS",
    "auto",
    _choice("auto", "off", "always"),
    "which products cuBLASLt makes on NVIDIA's GPUs: off none, auto those that it makes faster, by measurement, "
    "always all that it can",
)
cuda_conditional = _flag(
    "RLX_CUDA_CONDITIONAL",
    "auto",
    _choice("auto", "off", "always"),
    "who decides what data decide in a run on NVIDIA's GPUs: off the host, auto the device where it can, from a size's "
    "second run on, always from the first on",
)
mlx_compile = _flag(
    "RLX_MLX_COMPILE",
    "auto",
    _choice("auto", "0", "1"),
    "1 lets mlx fuse kernels, 0 does not; auto does on GPUs, as processors wait seconds for a C++ compiler",
    decides_code=True,
)
coreml_precision = _flag(
    "RLX_COREML_PRECISION",
    "f16",
    _choice("f16", "f32"),
    "dtype that Core ML computes floats in: f16 is the Neural Engine's only one; f32 runs on processor and GPU",
    decides_code=True,
)
coreml_run = _flag(
    "RLX_COREML_RUN",
    "device",
    _choice("device", "fold"),
    "who runs a Core ML model: `device` is Core ML, `fold` coremltools' NumPy, slowly, to test conversions anywhere",
    decides_code=True,
)


def code_state() -> tuple[tuple[str, object], ...]:
    """Names and values of all flags on which it depends what code is made."""
    return tuple((flag.name, flag()) for flag in FLAGS.values() if flag.decides_code)


# Which devices may run a graph (`device.policy`). Programs that build on rlx may have a prefix of their own.
_DEVICE_FLAGS: dict[str, tuple[Any, Callable[[str], Any], str]] = {
    "DEVICE": (None, _unless_auto, "device to use, if the graph runs on it; an error if not; auto chooses"),
    "FORCE_DEVICE": (None, _unless_auto, "device to use, whatever the policy says; auto forces none"),
    "DEVICES": (None, _text, "comma list of devices that may be used"),
    "DENY_DEVICES": (None, _text, "comma list of devices that may not be used"),
    "PREFER_DEVICES": (None, _text, "comma list of devices to take first where the times are about the same"),
    "DEVICE_CHAIN": (None, _text, "comma list of devices to try in this order"),
    "BENCHMARK_PICK": (
        None,
        _optional_count,
        "measure each device with this many runs instead of predicting; 0 predicts",
    ),
}


def device_flags(prefix: str = "RLX") -> dict[str, Flag[Any]]:
    """The flags of device choice under a prefix: `MYAPP_DEVICE` and so on for `MYAPP`."""
    return {
        name: Flag(f"{prefix}_{name}", default, parse, help) for name, (default, parse, help) in _DEVICE_FLAGS.items()
    }


FLAGS.update({flag.name: flag for flag in device_flags().values()})
