"""What `rlx` hands out: its own names and nothing that happens to be imported somewhere."""

from __future__ import annotations

import pytest

import rlx
from rlx.errors import RlxError
from rlx.ir.op import REGISTRY


def test_every_public_name_is_there() -> None:
    for name in dir(rlx):
        assert getattr(rlx, name) is not None
    assert set(REGISTRY) <= set(dir(rlx))
    assert {"Graph", "load", "Session", "f32", "gelu", "where", "non_max_suppression", "ShapeError"} <= set(dir(rlx))


@pytest.mark.parametrize("name", ["Callable", "partial", "Any", "annotations", "REGISTRY", "BUILDERS", "call", "np"])
def test_what_modules_import_is_no_name_of_rlx(name: str) -> None:
    assert name not in dir(rlx)
    with pytest.raises(AttributeError, match=f"rlx has no '{name}'"):
        getattr(rlx, name)


def test_a_wrong_name_is_told_what_it_may_mean() -> None:
    with pytest.raises(AttributeError, match=r"rlx has no 'sofmax'; did you mean .*'softmax'"):
        _ = rlx.sofmax
    with pytest.raises(AttributeError, match=r"rlx\.ops has no op 'relu7'; did you mean .*'relu'"):
        _ = rlx.ops.relu7
    with pytest.raises(AttributeError, match=r"rlx has no 'qqqqqqqq'$"):
        _ = rlx.qqqqqqqq


def test_errors_and_trailing_underscores() -> None:
    assert issubclass(rlx.InputError, RlxError)
    assert rlx.if_ is not None and rlx.while_ is not None
