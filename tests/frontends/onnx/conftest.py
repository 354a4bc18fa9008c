"""Skips the whole folder where onnx is not installed, and finds `build`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
sys.path.insert(0, str(Path(__file__).parent))
