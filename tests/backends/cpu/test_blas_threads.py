"""NumPy's BLAS takes few threads while another process compiles, and afterwards as many as before."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rlx.backends.cpu import blas_threads


def number() -> int:
    functions = blas_threads._functions()
    if functions is None:
        pytest.skip("another BLAS")
    return functions[0]()


def test_the_number_is_what_it_was_afterwards() -> None:
    before = number()
    with blas_threads.at_most(1):
        assert number() == 1
        np.testing.assert_array_equal(np.ones((200, 200)) @ np.ones((200, 200)), np.full((200, 200), 200.0))
    assert number() == before
    with pytest.raises(ZeroDivisionError), blas_threads.at_most(1):
        _ = 1 / 0
    assert number() == before
    with blas_threads.at_most(before + 1):
        assert number() == before, "never more"


def test_the_last_that_leaves_restores_it() -> None:
    before = number()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with blas_threads.at_most(1):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(60)
    with blas_threads.at_most(1):
        leave.set()
        thread.join()
        assert number() == 1
    assert number() == before
