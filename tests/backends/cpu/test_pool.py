"""Every chunk runs exactly once, whatever calls, forks or falls asleep at the same time."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import rlx
from rlx.backends.cpu import pool, topology
from rlx.backends.cpu.pool import ThreadPool, ir_for
from rlx.errors import RlxError

linux = pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux futexes")

# frame: array of i64. count: frame[64 + chunk] += 1; frame[thread] must be 0 meanwhile, else frame[63] += 1.
# meet: waits, with an end, until two chunks run at once; frame[0] counts them. nest: every chunk is a whole call.
KERNELS = """
define void @count(ptr %frame, i64 %chunk, i64 %thread) {
  %mine = getelementptr i64, ptr %frame, i64 %thread
  %busy = atomicrmw add ptr %mine, i64 1 seq_cst
  %error = getelementptr i64, ptr %frame, i64 63
  %bad = atomicrmw add ptr %error, i64 %busy seq_cst
  %index = add i64 %chunk, 64
  %cell = getelementptr i64, ptr %frame, i64 %index
  %old = atomicrmw add ptr %cell, i64 1 seq_cst
  %idle = atomicrmw sub ptr %mine, i64 1 seq_cst
  ret void
}
define void @meet(ptr %frame, i64 %chunk, i64 %thread) {
entry:
  %one = atomicrmw add ptr %frame, i64 1 seq_cst
  br label %wait
wait:
  %spun = phi i64 [ 0, %entry ], [ %spun.next, %on ]
  %here = load atomic i64, ptr %frame seq_cst, align 8
  %both = icmp uge i64 %here, 2
  br i1 %both, label %leave, label %on
on:
  %spun.next = add i64 %spun, 1
  %late = icmp ugt i64 %spun.next, 3000000000
  br i1 %late, label %leave, label %wait
leave:
  %index = add i64 %thread, 1
  %cell = getelementptr i64, ptr %frame, i64 %index
  %old = atomicrmw add ptr %cell, i64 1 seq_cst
  ret void
}
define void @nest(ptr %frame, i64 %chunk, i64 %thread) {
  %parallel = load ptr, ptr %frame
  %inner.at = getelementptr i64, ptr %frame, i64 1
  %inner = load ptr, ptr %inner.at
  %function.at = getelementptr i64, ptr %frame, i64 2
  %function = load ptr, ptr %function.at
  call void %parallel(ptr %function, ptr %inner, i64 5, i64 64)
  ret void
}
define void @who(ptr %frame, i64 %chunk, i64 %thread) {
  %cell = getelementptr i64, ptr %frame, i64 %thread
  %old = atomicrmw add ptr %cell, i64 1 seq_cst
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %i.next, %loop ]
  %ignored = load atomic i64, ptr %cell seq_cst, align 8
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, 300
  br i1 %more, label %loop, label %leave
leave:
  ret void
}
define void @add(ptr %frame, i64 %chunk, i64 %thread) {
  %cell = getelementptr i64, ptr %frame, i64 %chunk
  %old = atomicrmw add ptr %cell, i64 1 seq_cst
  ret void
}
"""


@pytest.fixture(scope="module")
def kernels() -> dict[str, int]:
    return pool.load_forever(KERNELS.replace("@", "@rlx_test_"))


@pytest.fixture
def shared() -> Iterator[ThreadPool]:
    """The pool with at least two threads."""
    pool = ThreadPool.shared()
    before = pool.threads
    pool.set_threads(max(2, before))
    yield pool
    pool.set_threads(before)


PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def call(pool: ThreadPool, function: int, frame: Any, chunks: int, most: int = 64) -> None:
    PARALLEL(pool.parallel_address)(function, frame.ctypes.data, chunks, most)


def count(pool: ThreadPool, kernels: dict[str, int], chunks: int, rounds: int) -> None:
    frame = np.zeros(64 + max(chunks, 0), np.int64)
    for _ in range(rounds):
        call(pool, kernels["rlx_test_count"], frame, chunks)
    assert not frame[:64].any(), "a thread number was used twice at once"
    assert (frame[64:] == rounds).all()


@linux
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("chunks", [-1, 0, 1, 2, 3, 7, 64, 1000])
def test_every_chunk_runs_once(shared: ThreadPool, kernels: dict[str, int], threads: int, chunks: int) -> None:
    shared.set_threads(threads)
    assert shared.threads == threads
    count(shared, kernels, chunks, 3000 if chunks < 100 else 300)


@linux
@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_threads_take_part_than_a_call_has_room_for(
    shared: ThreadPool, kernels: dict[str, int], most: int
) -> None:
    """Others' calls, which may have all threads, do not change that."""
    shared.set_threads(7)
    few, all_of_them = np.zeros(64, np.int64), np.zeros(64, np.int64)
    for _ in range(400):
        call(shared, kernels["rlx_test_who"], all_of_them, 30)
        call(shared, kernels["rlx_test_who"], few, 30, most)
    assert few[:most].sum() == 400 * 30 and not few[most:].any()
    assert all_of_them[:7].sum() == 400 * 30


@linux
@pytest.mark.parametrize("idle_ms", [0, 3, 30])
def test_those_that_may_take_part_are_woken(shared: ThreadPool, kernels: dict[str, int], idle_ms: int) -> None:
    """Of many that sleep: two chunks that wait for each other need the one worker that a call has room for."""
    shared.set_threads(7)
    for _ in range(5):
        time.sleep(idle_ms / 1000)
        frame = np.zeros(8, np.int64)
        call(shared, kernels["rlx_test_meet"], frame, 2, 2)
        assert frame[:3].tolist() == [2, 1, 1]


@linux
def test_programs_of_few_threads_on_a_pool_of_many(shared: ThreadPool) -> None:
    """Their scratch memory has room for their own threads alone."""
    graph = rlx.Graph("rows")
    graph.output(rlx.softmax(graph.input("x", (400, 500)), axis=-1), name="y")
    data = np.random.default_rng(0).normal(size=(400, 500)).astype(np.float32)
    expected = np.exp(data - data.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    shared.set_threads(7)
    for threads in (7, 2, 3, 1):
        program = rlx.Session("cpu", threads=threads, cache=False).compile(graph)
        for _ in range(50):
            np.testing.assert_allclose(program.run([data])[0], expected, rtol=1e-5)


def test_more_chunks_than_the_counter_holds(shared: ThreadPool, kernels: dict[str, int]) -> None:
    frame = np.zeros((1 << 20) + 12345, np.int64)
    call(shared, kernels["rlx_test_add"], frame, len(frame))
    assert (frame == 1).all()


def test_many_callers_at_once(shared: ThreadPool, kernels: dict[str, int]) -> None:
    failures: list[BaseException] = []

    def work(chunks: int) -> None:
        try:
            count(shared, kernels, chunks, 2000)
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 5, 8, 13, 21, 34)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


def test_a_call_from_a_chunk(shared: ThreadPool, kernels: dict[str, int]) -> None:
    inner = np.zeros(5, np.int64)
    outer = np.array([shared.parallel_address, inner.ctypes.data, kernels["rlx_test_add"]], np.int64)
    for _ in range(500):
        call(shared, kernels["rlx_test_nest"], outer, 7)
    assert (inner == 3500).all()


@linux
@pytest.mark.parametrize("idle_ms", [0, 3, 30])
def test_a_worker_takes_part_after_idling(shared: ThreadPool, kernels: dict[str, int], idle_ms: int) -> None:
    shared.set_threads(2)
    for _ in range(5):
        time.sleep(idle_ms / 1000)
        frame = np.zeros(8, np.int64)
        call(shared, kernels["rlx_test_meet"], frame, 2)
        assert frame[:3].tolist() == [2, 1, 1]


@linux
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_its_own_workers(shared: ThreadPool, kernels: dict[str, int]) -> None:
    shared.set_threads(2)
    count(shared, kernels, 8, 100)
    for taken in (False, True):  # taken: as if another thread of the parent had been inside a call
        if taken:
            assert shared._acquire()
        child = os.fork()
        if child == 0:
            frame = np.zeros(8, np.int64)
            call(shared, kernels["rlx_test_meet"], frame, 2)
            count(shared, kernels, 16, 200)
            os._exit(0 if frame[:3].tolist() == [2, 1, 1] and ThreadPool.shared() is shared else 1)
        if taken:
            shared._release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    count(shared, kernels, 8, 100)


@linux
def test_threads_change_while_others_call(shared: ThreadPool, kernels: dict[str, int]) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                count(shared, kernels, 6, 20)
        except BaseException as error:
            failures.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    for round_ in range(60):
        shared.set_threads(1 + round_ % 4)
    stop.set()
    caller.join()
    assert not failures


@linux
def test_setting_threads_refuses_nonsense_and_a_busy_pool(shared: ThreadPool) -> None:
    with pytest.raises(RlxError, match="from 1 to 4095, got 0"):
        shared.set_threads(0)
    assert shared._acquire()
    try:
        with pytest.raises(RlxError, match="busy"):
            shared.set_threads(2, patience_s=0.01)
    finally:
        shared._release()


@linux
def test_why_serial(shared: ThreadPool) -> None:
    assert shared.why_serial == ""
    shared.set_threads(1)
    assert "one thread" in shared.why_serial


def in_new_process(code: str, **environment: str) -> str:
    """What Python prints for the code; a hang at its exit fails."""
    completed = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, timeout=60,
                          capture_output=True, text=True, check=True)  # fmt: skip
    return completed.stdout.strip()


SHOW = "from rlx.backends.cpu.pool import ThreadPool; print(ThreadPool.shared().threads)"


@linux
def test_affinity_and_flag_set_the_number_of_threads() -> None:
    assert in_new_process(f"import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); {SHOW}") == "1"
    assert in_new_process(SHOW, RLX_NUM_THREADS="3") == "3"


@linux
def test_the_interpreter_exits_while_workers_spin_or_sleep() -> None:
    code = f"""
import ctypes, time
from rlx.backends.cpu import pool
address = pool.load_forever({KERNELS.replace("@", "@rlx_test_")!r})["rlx_test_add"]
shared = pool.ThreadPool.shared()
frame = (ctypes.c_int64 * 64)()
kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
parallel = ctypes.CFUNCTYPE(None, *kinds)(shared.parallel_address)
time.sleep(SLEEP)
parallel(address, ctypes.addressof(frame), 64, 64)
time.sleep(SLEEP)
print(sum(frame))
"""
    for sleep in ("0", "0.05"):
        assert in_new_process(code.replace("SLEEP", sleep), RLX_NUM_THREADS="4") == "64"


def test_importing_the_module_does_not_import_llvmlite() -> None:
    code = "import sys, rlx.backends.cpu.pool, rlx.backends.cpu.isa; print('llvmlite' in sys.modules)"
    assert in_new_process(code) == "False"


@pytest.mark.parametrize(
    ("system", "machine", "triple"),
    [("Linux", "x86_64", "x86_64-linux-gnu"), ("Linux", "aarch64", "aarch64-linux-gnu"),
     ("Darwin", "arm64", "arm64-apple-darwin"), ("Windows", "AMD64", "x86_64-pc-windows-msvc")],
)  # fmt: skip
def test_code_for_other_machines_compiles(system: str, machine: str, triple: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(f'target triple = "{triple}"\n' + ir_for(system, machine))
    module.verify()
    assert len(llvm.Target.from_triple(triple).create_target_machine().emit_object(module)) > 500


def test_quota_is_the_least_of_the_cgroup_and_those_above(tmp_path: Path) -> None:
    process = tmp_path / "process"
    process.write_text("0::/a/b\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert topology.quota(tmp_path, process) == float("inf")
    (inner / "cpu.max").write_text("max 100000\n")
    assert topology.quota(tmp_path, process) == float("inf")
    (tmp_path / "a" / "cpu.max").write_text("250000 100000\n")
    assert topology.quota(tmp_path, process) == 2.5


def test_quota_of_cgroup_version_one(tmp_path: Path) -> None:
    process = tmp_path / "process"
    process.write_text("5:cpuset:/x\n4:cpu,cpuacct:/not/mounted/here\n")
    mount = tmp_path / "cpu,cpuacct"
    mount.mkdir()
    (mount / "cpu.cfs_period_us").write_text("100000\n")
    (mount / "cpu.cfs_quota_us").write_text("-1\n")
    assert topology.quota(tmp_path, process) == float("inf")
    (mount / "cpu.cfs_quota_us").write_text("150000\n")
    assert topology.quota(tmp_path, process) == 1.5


def test_a_quota_rounds_down_but_not_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "quota", lambda: 0.5)
    assert topology.usable() == 1
    monkeypatch.setattr(topology, "quota", lambda: float("inf"))
    assert topology.usable() >= 1
