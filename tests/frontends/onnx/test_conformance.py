"""The ONNX standard's own node tests: what rlx imports must be right, and how much that is must not shrink."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rlx
from rlx.errors import UnsupportedOp

RIGHT_AT_LEAST = 1400  # with onnx 1.23; other versions bring other cases


@cache
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return [case for case in load_model_tests(kind="node") if case.model is not None]


def arrays(values: Any) -> list[Any]:
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for v in values]


def opened(case: Any) -> rlx.Model | None:
    """The model, with integer inputs fixed to their values if shapes hang on them; None if it is not supported."""
    data = case.model.SerializeToString()
    try:
        return rlx.load(data, device="reference")
    except UnsupportedOp as error:
        if "only when the graph runs" not in str(error):
            return None
    given = dict(zip((i.name for i in case.model.graph.input), arrays(case.data_sets[0][0])))
    fixed = {n: a for n, a in given.items() if (a.dtype.kind in "iub" and a.size <= 1024) or a.shape == ()}
    try:
        return rlx.load(data, device="reference", values=fixed)
    except UnsupportedOp:
        return None


def check(case: Any, model: rlx.Model) -> None:
    for inputs, outputs in case.data_sets:
        named = dict(zip((i.name for i in case.model.graph.input), arrays(inputs)))
        results = model.run({name: named[name] for name in model.input_names})
        for got, want in zip(results, arrays(outputs)):
            assert got.shape == want.shape and got.dtype == want.dtype, (
                f"{got.dtype}{got.shape} {want.dtype}{want.shape}"
            )
            if got.dtype.kind in "biu":
                np.testing.assert_array_equal(got, want)
            else:
                wide = np.complex128 if got.dtype.kind == "c" else np.float64
                atol = max(case.atol, 1e-6 if want.dtype.itemsize >= 4 else 1e-2)
                np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=max(case.rtol, 1e-3), atol=atol)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_standards_node_tests() -> None:
    right, wrong = 0, []
    for case in cases():
        try:
            model = opened(case)
            if model is not None:
                check(case, model)
                right += 1
        except Exception as error:
            wrong.append(f"{case.name}: {type(error).__name__} {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)
    if tuple(int(part) for part in onnx.__version__.split(".")[:2]) >= (1, 23):
        assert right >= RIGHT_AT_LEAST
