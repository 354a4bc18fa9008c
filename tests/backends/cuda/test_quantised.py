"""`precision="int8"` on the emulated driver: the same integers as everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.runtime.session import Session
from runtime.test_quantised import NETS, compiled, normal

from .emulated_driver import EmulatedDriver


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_results_are_those_of_the_reference(driver: EmulatedDriver, name: str, calibrated: bool) -> None:
    make, shape = NETS[name]
    x = normal(*shape)
    calibration = [[x]] if calibrated else None
    expected = compiled(make(0), "reference", calibration=calibration).run([x])[0]
    actual = Session("cuda", precision="int8", calibration=calibration).compile(make(0)).run([x])[0]
    assert np.abs(actual - expected).max() <= 0.02 * np.abs(expected).max()  # a step where it meets a tie
    assert driver.calls
