"""What calibration measures of the compiler, and predicted against real compiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlx.backends.cpu import topology
from rlx.backends.cuda import cost
from rlx.backends.cuda.build import NVIDIAS
from rlx.backends.cuda.device import open_device

from .emulated_driver import EmulatedDriver


@pytest.mark.parametrize(
    "ns_of, expected",
    [
        (lambda count: 1e9 * max(1.0, count / 4), 4.0),  # as many as there are processors
        (lambda count: 1e9 * count, 1.0),  # one after the other
        (lambda count: 1e9 * (count + 1) / 2, 12 / 6.5),
        (lambda count: 1e9 * count**2, 1.0),
        (lambda count: 1e9 / count, 4.0),
    ],
)
def test_compilers_that_work_side_by_side_are_counted(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, ns_of: Callable[[int], float], expected: float
) -> None:
    device, now, given = open_device(0), [0.0], list[int]()

    def compiled(kernels: list[tuple[str, str]], cache: bool) -> list[bytes]:
        assert not cache and len(set(kernels)) == 1 and "KERNEL" not in kernels[0][1]
        given.append(len(kernels))
        now[0] += ns_of(len(kernels))
        return [b""] * len(kernels)

    monkeypatch.setattr(device, "compiled", compiled)
    monkeypatch.setattr(topology, "usable", lambda: 4)
    monkeypatch.setattr(cost, "time", type("Clock", (), {"perf_counter_ns": staticmethod(lambda: now[0])}))
    assert cost.measure_compiler(device, NVIDIAS) == {"compilers_count": pytest.approx(expected)}
    assert given == [1, 1, 12]


def test_the_real_compiler_is_measured(driver: EmulatedDriver) -> None:
    (count,) = cost.measure_compiler(open_device(0), NVIDIAS).values()
    assert 1.0 <= count <= topology.usable()
