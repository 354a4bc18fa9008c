"""The long run of benchmarks/soak.py, short."""

from __future__ import annotations

import sys

import pytest

from benchmarks.soak import MOST_GROWTH, growth, soak


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat() -> None:
    found = list(soak(runs=1500, shapes=100, samples=10))
    assert len(found) == 10
    assert growth(found) <= MOST_GROWTH, found
