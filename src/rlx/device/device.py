"""Names of devices: a kind and an ordinal, and the aliases of kinds."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rlx.arguments import methods_checked
from rlx.errors import DeviceUnavailable, did_you_mean
from rlx.records import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of device: its token, what people call it, and other tokens that mean it."""

    name: str
    label: str
    aliases: tuple[str, ...] = ()


_KINDS = (
    Kind("tpu", "TPU"),
    Kind("cuda", "NVIDIA GPU (CUDA)", ("nvidia",)),
    Kind("rocm", "AMD GPU (ROCm)", ("hip", "amd")),
    Kind("mlx", "Apple GPU (MLX)"),
    Kind("metal", "Apple GPU (Metal)", ("mtl",)),
    Kind("apple-gpu", "Apple GPU (Metal's own language)", ("apple",)),
    Kind("ane", "Apple Neural Engine", ("neural-engine", "coreml")),
    Kind("gpu", "GPU (wgpu)", ("wgpu",)),
    Kind("vulkan", "GPU (Vulkan)", ("vk",)),
    Kind("directx", "GPU (DirectX 12)", ("dx12", "d3d12")),
    Kind("opengl", "GPU (OpenGL)", ("gl",)),
    Kind("webgpu", "GPU (WebGPU)"),
    Kind("cpu", "CPU"),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
"""The kinds of real devices, the strongest first: the order where nothing else tells two apart."""

HELPERS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("xla", "CPU (XLA)"), Kind("reference", "NumPy, for comparison", ("numpy",)),
        Kind("null", "recorded profiles, nothing runs"),
    )
}  # fmt: skip
"""Kinds beside them: other ways to use the processor, and none."""

_TOKENS = {alias: kind.name for kind in (*KINDS.values(), *HELPERS.values()) for alias in (kind.name, *kind.aliases)}
_ELSEWHERE = {
    "cpuexecutionprovider": "cpu", "cudaexecutionprovider": "cuda", "tensorrtexecutionprovider": "cuda",
    "rocmexecutionprovider": "rocm", "migraphxexecutionprovider": "rocm", "dmlexecutionprovider": "directx",
    "coremlexecutionprovider": "ane", "webgpuexecutionprovider": "webgpu", "mps": "metal",
}  # fmt: skip
"""What onnxruntime and torch call kinds of devices. They are told, not taken: there they mean whole lists of rules."""
_FORM = re.compile(r"([a-z][a-z0-9_.-]*)(?::(\d{1,4}))?")


@methods_checked()
@dataclass(frozen=True)
class Device:
    """The `ordinal`-th device of a kind. Prints as `cpu`, or `cuda:1`."""

    kind: str
    ordinal: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.ordinal}" if self.ordinal else self.kind

    @property
    def label(self) -> str:
        """The kind for people."""
        known = KINDS.get(self.kind) or HELPERS.get(self.kind)
        name = known.label if known else self.kind
        return f"{name} {self.ordinal}" if self.ordinal else name

    @property
    def rank(self) -> int:
        """The place in the order of kinds; those that it does not know come last."""
        order = list(KINDS)
        return order.index(self.kind) if self.kind in order else len(order)

    @staticmethod
    def parse(text: str | Device, more: Iterable[str] = ()) -> Device:
        """`cuda:1`, in any case, by any of the usual names; `more` are kinds of other packages.

        Raises DeviceUnavailable, which names the text.
        """
        if isinstance(text, Device):
            return text
        match = _FORM.fullmatch(str(text).strip().lower())
        others = {name.lower(): name for name in more}
        kind = match and (_TOKENS.get(match[1]) or others.get(match[1]))
        if not match or not kind:
            known = list(dict.fromkeys(["auto", *KINDS, *HELPERS, *others.values()]))
            kind_name = str(text).strip().lower().partition(":")[0]
            near = "" if not match or kind_name in _TOKENS else did_you_mean(kind_name, [*known, *_TOKENS])
            if kind_name in _ELSEWHERE:
                near = f"; here it is called {_ELSEWHERE[kind_name]!r}"
            among = "a device" if near else f"a device among {', '.join(known)}, or such as cuda:1"
            raise DeviceUnavailable(f"[device] expected {among}, got {text!r}{near}")
        return Device(kind, int(match[2] or 0))

    @staticmethod
    def parse_list(text: str, more: Iterable[str] = ()) -> tuple[Device, ...]:
        """Devices by comma, semicolon or space, each once, in order. One wrong name, or none at all, is an error."""
        tokens = [token for token in re.split(r"[,;\s]+", text) if token]
        if not tokens:
            raise DeviceUnavailable(f"[device] expected at least one device, got {text!r}")
        return tuple(dict.fromkeys(Device.parse(token, more) for token in tokens))
