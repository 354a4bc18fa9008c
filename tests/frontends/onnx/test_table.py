"""The table of importer functions refuses functions that do not say what they take."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rlx.frontends.onnx.table import TABLE, onnx_op


@pytest.mark.parametrize("annotation, actual", [(None, "none"), ("int", "int"), ("Value | Known", "Value | Known")])
def test_an_input_needs_an_annotation(annotation: str | None, actual: str) -> None:
    def importer(node: Any, x):  # type: ignore[no-untyped-def]
        return x

    if annotation:
        importer.__annotations__["x"] = annotation
    pattern = rf"\[onnx_op\] expected an annotation among .* of the input 'x', got {re.escape(actual)}, at .*importer"
    with pytest.raises(TypeError, match=pattern):
        onnx_op("Nothing")(importer)
    assert ("", "Nothing") not in TABLE
