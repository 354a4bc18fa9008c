"""What of torch is read, for tests on machines where torch has no device."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from rlx.backends.cuda.arrays import CudaArray


class Tensor:
    """A tensor of torch on the device, with what of it is read."""

    layout = "strided"
    is_cuda = True

    def __init__(self, array: CudaArray, dtype: str, strides: tuple[int, ...]) -> None:
        self.array, self.dtype, self.shape, self._strides = array, dtype, array.shape, strides

    def get_device(self) -> int:
        return 0

    def is_neg(self) -> bool:
        return False

    def is_contiguous(self) -> bool:
        return self._strides[-1] == 1

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def data_ptr(self) -> int:
        return self.array.pointer


def torch_of(cuda: SimpleNamespace, made_for: str = "cuda") -> SimpleNamespace:
    """Torch as it is built for NVIDIA's GPUs or for AMD's (`hip`)."""
    version = SimpleNamespace(**{"cuda": None, "hip": None, made_for: "7.0"})
    return SimpleNamespace(Tensor=Tensor, strided="strided", cuda=cuda, version=version)


class Torch:
    """Torch in the place of what is installed, with the stream that is its current one, by its number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stream: int) -> None:
        self.stream = stream
        cuda = SimpleNamespace(current_stream=lambda ordinal: SimpleNamespace(cuda_stream=self.stream))
        monkeypatch.setitem(sys.modules, "torch", torch_of(cuda))
