"""Names of devices: kinds, ordinals, aliases, lists, and what is wrong with other texts."""

from __future__ import annotations

import pytest

from rlx.device.device import KINDS, Device
from rlx.errors import DeviceUnavailable


def test_there_are_thirteen_kinds_of_real_devices() -> None:
    assert set(KINDS) == {
        "cpu", "apple-gpu", "metal", "mlx", "ane", "cuda", "rocm", "tpu", "gpu", "vulkan", "opengl", "directx",
        "webgpu",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "ordinal"),
    [
        ("cpu", "cpu", 0), (" CUDA:1 ", "cuda", 1), ("nvidia", "cuda", 0), ("hip:3", "rocm", 3), ("VK", "vulkan", 0),
        ("dx12", "directx", 0), ("wgpu:2", "gpu", 2), ("neural-engine", "ane", 0), ("gl:0", "opengl", 0),
        ("apple", "apple-gpu", 0), ("Apple-GPU:1", "apple-gpu", 1), ("metal", "metal", 0),
    ],
)  # fmt: skip
def test_a_name_is_read_with_its_aliases(text: str, kind: str, ordinal: int) -> None:
    assert Device.parse(text) == Device(kind, ordinal)


def test_a_device_prints_as_it_is_written() -> None:
    for text in ("cpu", "cuda:1"):
        assert str(Device.parse(text)) == text
    assert Device("cuda", 1).label == "NVIDIA GPU (CUDA) 1"


@pytest.mark.parametrize("text", ["", "cuda:", "cuda:x", "cuda:-1", "cpu,cuda", "cuda:99999"])
def test_what_is_no_device_is_named(text: str) -> None:
    with pytest.raises(DeviceUnavailable, match=r"\[device\] expected a device among auto, tpu, cuda.*got") as caught:
        Device.parse(text)
    assert repr(text) in str(caught.value)


def test_a_list_keeps_the_order_and_each_once() -> None:
    assert Device.parse_list("cuda, cpu;vulkan cuda:0") == (Device("cuda"), Device("cpu"), Device("vulkan"))
    with pytest.raises(DeviceUnavailable, match="'quux'"):
        Device.parse_list("cpu,quux")
    with pytest.raises(DeviceUnavailable, match="at least one device"):
        Device.parse_list(" , ")


def test_other_packages_add_kinds() -> None:
    assert Device.parse("Abacus:1", more=["abacus"]) == Device("abacus", 1)
    assert Device("abacus").rank == len(KINDS)
