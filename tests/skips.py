"""What each device is known not to take or not to get right, and how exact it is: one table for the tests of all.

Nothing here is skipped unseen. A node that a backend refuses must be refused for a reason that stands here, and each of
these must be met by some case (`ops/test_devices.py`). A case that stands here as wrong must be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rlx.ir.literal import Array
from rlx.ir.op import Tolerance


@dataclass(frozen=True)
class Rules:
    """What tests allow a device.

    refused     reasons that it gives for nodes that it does not take
    wrong       names of cases, or of tests without any, whose results differ from what is wanted, and why
    least_ulps  what its elementary functions are allowed, even where an op's own tolerance is tighter
    flushes     f32s below the normal range may become zeros
    computes    False for a device that compiles and predicts only
    sample      the kind of cases that it runs if `--device` does not name it; empty for all
    every       it runs one case of so many if `--device` does not name it: those whose turn it is at this commit
    narrow      inputs that hold integers of more than 32 bits are refused when it runs
    nets        real models that it refuses, and why: all others run, and those that ran may not be refused again
    beyond      names of tests that ask for more than it takes, and what that is
    """

    refused: frozenset[str] = frozenset()
    wrong: Mapping[str, str] = field(default_factory=dict)
    least_ulps: float = 0.0
    flushes: bool = False
    computes: bool = True
    sample: str = ""
    every: int = 1
    narrow: bool = False
    nets: Mapping[str, str] = field(default_factory=dict)
    beyond: Mapping[str, str] = field(default_factory=dict)

    def tolerance(self, of: Tolerance) -> Tolerance:
        return replace(of, ulps=max(of.ulps, self.least_ulps))

    def prepared(self, array: Array) -> Array:
        """The array as it is compared."""
        if not self.flushes or array.dtype != np.float32:
            return array
        return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), array), array)


WGPU = Rules(
    refused=frozenset({"WGSL has no f64", "WGSL has no complex numbers"}),
    least_ulps=2.0,  # WGSL divides and takes roots within 2.5 ulp
    flushes=True,
)
XLA = Rules(
    least_ulps=4.0,  # XLA's own elementary functions are no more exact than that
    every=8,  # its compiler takes a tenth of a second for any program
)
MLX = Rules(
    refused=frozenset({"MLX computes erf of f64 as of f32"}),
    wrong={
        "packed_matmul-mixed-f16[3,64]-u8[4,32]-f32[4,2]": "its weights stay f32 where they are to be rounded to f16",
        "test_a_real_signals_spectrum_gives_no_imaginary_part": "mlx's transforms keep no symmetry to the last bit",
    },
    least_ulps=4.0,  # mlx's own elementary functions are no more exact than that
)
EIGHT_BITS = ("f4e2m1", "f8e4m3", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0")
ANE = Rules(
    refused=frozenset((
        *(f"Core ML has no {d}" for d in ("f64", "u32", "u64", "c64", *EIGHT_BITS)),
        *(f"Core ML has no bitcast of {name}" for name in ("f32", "i32")),
        *(f"Core ML has no {how}" for how in ("cummax of u8", "cummin of u8", "reduce_window of i8")),
        "Core ML has no arrays without elements", "Core ML's arrays have 5 axes at most",
    )),
    wrong={"cast-to-i64-f32[12]": "integers have 32 bits"},
    nets={"voice": "its sides for other rates do not fit at the size of one, and a model has both in it"},
    beyond={
        **dict.fromkeys(
            ("test_equalities_of_a_region_are_checked_when_it_runs", "test_sides_that_are_not_taken_need_no_elements"),
            "a model has both sides of a conditional in it",
        ),
        **dict.fromkeys(
            (
                "test_nonzero_is_numpys", "test_compress_is_numpys", "test_unique_is_numpys",
                "test_suppression_is_the_plain_algorithm",
            ),
            "arrays without elements",
        ),
    },
    least_ulps=4.0,  # its own elementary functions are no more exact than that
    narrow=True,
    every=8,  # the passes of its tools take a fifth of a second for any program
)  # fmt: skip
GPU_CPP = Rules(refused=frozenset({"kernels in C++ have no complex numbers"}))
RULES: dict[str, Rules] = {
    "mlx": MLX,
    "ane": ANE,
    "cuda": GPU_CPP,
    "rocm": GPU_CPP,
    "apple-gpu": Rules(refused=frozenset({"Metal has no f64", "kernels in MSL have no complex numbers"}), flushes=True),
    "cpu": Rules(refused=frozenset({"c64 does not compile to native code"})),
    "gpu": WGPU,
    "vulkan": WGPU,
    "webgpu": WGPU,
    # the kernels are the same as Vulkan's; what differs between drivers is how they treat NaN and rounding
    "opengl": Rules(WGPU.refused, WGPU.wrong, WGPU.least_ulps, WGPU.flushes, sample="special"),
    "xla": XLA,
    "null": Rules(computes=False),
}


def of(device: str) -> Rules:
    """The rules of a device; for one that is not in the table: everything, exactly."""
    kind = device.partition(":")[0]
    return RULES.get("cpu" if kind.startswith("cpu-") else kind, Rules())
