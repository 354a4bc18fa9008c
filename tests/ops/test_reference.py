"""References keep to the type rules, say what `scalar` says, and do not mind how arrays lie in memory."""

from __future__ import annotations

import numpy as np
import pytest

from ops.cases import Case, cases_of_every_op
from rlx.ir import dtype as dtypes
from rlx.ir import expr
from rlx.ir.expr import Expr
from rlx.ir.op import Elementwise, Tolerance
from support import assert_close, assert_close_on, run_on

CASES = cases_of_every_op()


@pytest.mark.devices("reference", "cpu", "cpu-*", "vulkan", "opengl", "xla", "mlx", "ane")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op_matches_reference(case: Case, device: str) -> None:
    got = run_on(device, case.graph(), case.inputs())
    for i, wanted in enumerate(case.reference()):
        assert_close_on(device, got[f"y{i}"], wanted, case.op.tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_keeps_to_the_type_rule(case: Case) -> None:
    types = case.graph().nodes[-1].types
    made = case.reference()
    assert [(a.dtype, a.shape) for a in made] == [(t.dtype.numpy, t.shape) for t in types]


@pytest.mark.parametrize("case", [c for c in CASES if isinstance(c.op, Elementwise)], ids=str)
def test_scalar_says_what_the_reference_says(case: Case) -> None:
    leaves = [Expr("operand", dtypes.of(a.dtype), (), i) for i, a in enumerate(case.arrays)]
    body = case.op.scalar(*leaves)
    got = np.asarray(expr.evaluate(body, lambda leaf: case.arrays[leaf.attr]))
    (wanted,) = case.reference()
    assert_close(np.broadcast_to(got, wanted.shape), wanted, case.op.tolerance)


@pytest.mark.parametrize("case", [c for c in CASES if any(a.ndim for a in c.arrays)], ids=str)
def test_reference_takes_any_strides(case: Case) -> None:
    strided = []
    for a in case.arrays:
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]) if a.ndim else (), a.dtype)
        view = wide[..., ::2] if a.ndim else wide
        view[...] = a
        strided.append(view)
    made = case.op.reference(*strided)
    for got, wanted in zip(made if isinstance(made, tuple) else (made,), case.reference()):
        assert_close(np.asarray(got), wanted, Tolerance(1, scale=1))
