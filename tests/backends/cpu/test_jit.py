"""Code and its constants lie near each other, however full the address space is."""

from __future__ import annotations

import subprocess
import sys

import pytest

CROWDED = """
import ctypes, mmap
import numpy as np
import rlx
from rlx.backends.cpu import jit

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
HOW = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # and nothing is set aside for it


def reserve(size):
    return libc.mmap(None, size, 0, HOW, -1, 0)


def crowd():
    '''Leaves gaps of one page, and six gigabytes between them and all other free memory.'''
    for bits in (24, 21, 18, 16, 14, 13):
        for _ in range(400):
            reserve(1 << bits)
    pages = [reserve(4096) for _ in range(200)]
    reserve(6 << 30)
    for page in pages[::2]:
        libc.munmap(page, 4096)


load = jit.Loaded.__init__


def crowded(self, *rest):
    crowd()
    load(self, *rest)


jit.Loaded.__init__ = crowded
graph = rlx.Graph()
x = graph.input("x", (64, 64))
graph.output(rlx.softmax((x * 1.37 + 0.5) @ x, axis=1) @ (x + 0.7))
print(rlx.Session("cpu").compile(graph).run([np.ones((64, 64), "f4")])[0].mean())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for memory")
def test_a_crowded_address_space() -> None:
    completed = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    assert float(completed.stdout) == pytest.approx(1.7, rel=1e-6)


LEAVING = """
import os, threading, time
from rlx.backends.cpu import jit

begun = threading.Event()


def write():
    with jit._writers:
        begun.set()
        time.sleep(0.3)
        os.write(1, b"written")


threading.Thread(target=write, daemon=True).start()
begun.wait()
"""


def test_a_process_ends_when_no_thread_writes_code_any_more() -> None:
    """LLVM's tables are torn down at its end, under threads that go on until then."""
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "written"
