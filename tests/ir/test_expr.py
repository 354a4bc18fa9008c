"""Scalar expressions: there is one of each."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from rlx.ir import dtype as dtypes
from rlx.ir.expr import Expr


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads that leave each other little time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_make_the_same_get_one(impatient: None) -> None:
    """Kernels are written by several threads, with the same names for what they hold."""
    apart = 0
    for number in range(60):
        made = made_by_threads(number)
        apart += sum(len({id(each) for each in same}) > 1 for same in zip(*made, strict=True))
    assert apart == 0


def made_by_threads(number: int) -> list[list[Expr]]:
    """Expressions that no one had before, as four threads make them at once."""
    begin = threading.Barrier(4)
    made: list[list[Expr]] = [[] for _ in range(4)]

    def make(mine: list[Expr]) -> None:
        begin.wait()
        mine += [Expr("register", dtypes.f32, (), f"at{number}_{k}") for k in range(200)]

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made
