"""Machine code of kernels in the cache on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlx.backends.base import Options
from rlx.backends.cuda import cubins

from .emulated_driver import EmulatedDriver
from .graphs import BIAS, W, compiled, dense, expected, x_of


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))


def test_kernels_are_compiled_once(driver: EmulatedDriver) -> None:
    for times in (3, 0):  # one packs
        with driver.counted() as calls:
            executable = compiled(dense(), {"w": W, "bias": BIAS}, Options())
        assert calls.count("compile") == times
        np.testing.assert_array_equal(executable.bind({"n": 2})([x_of(2)])[0], expected(x_of(2))[0])
    with driver.counted() as calls:
        compiled(dense(), {"w": W, "bias": BIAS}, Options(cache=False))
    assert calls.count("compile") == 3


def test_keys_tell_compilers_and_architectures_apart(driver: EmulatedDriver) -> None:
    keys = {cubins.key_of(driver, architecture, "text") for architecture in ("sm_80", "sm_90a")}
    driver.compiler = "another"
    keys |= {cubins.key_of(driver, "sm_80", text) for text in ("text", "other text")}
    assert len(keys) == 4
