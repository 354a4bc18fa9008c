"""Models are worked out by NumPy, in the precision that references have."""

from __future__ import annotations

import pytest

from backends.coreml import values
from support import why_absent


@pytest.fixture(autouse=True)
def told_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_COREML_RUN", "fold")
    monkeypatch.setenv("RLX_COREML_PRECISION", "f32")
    if not why_absent("ane"):
        values.install()
