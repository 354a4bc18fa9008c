"""The long run of benchmarks/soak.py, short."""

from __future__ import annotations

import sys

import pytest

from benchmarks.soak import MOST_GROWTH, growth, soak


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat() -> None:
    samples = list(soak(runs=1500, shapes=100, samples=10))
    assert len(samples) == 10
    assert growth(samples) <= MOST_GROWTH, samples
