"""What the CPU thread pool costs: calls hot in a row, and calls after the workers fell asleep.

    python benchmarks/pool.py [threads]

`empty` is the time of a call whose chunks do nothing, which the caller mostly takes all itself. `fork/join` is the time
of a call with one chunk of a few microseconds per thread, less the time of one such chunk: what is lost because the
workers start late and the caller waits for the last one. Calls are made from machine code, without interpreter time.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time

from rlx.backends.cpu import isa, pool

HOT_CALLS = 500
IDLE_MS = 3
STEPS = 5000

KERNELS = """
define void @rlx_bench_work(ptr %frame, i64 %chunk, i64 %thread) {
entry:
  %steps = ptrtoint ptr %frame to i64
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]
  %i.next = add i64 %i, 1
  call void asm sideeffect "", ""()
  %more = icmp ult i64 %i.next, %steps
  br i1 %more, label %loop, label %leave
leave:
  ret void
}
define void @rlx_bench_calls(ptr %parallel, i64 %chunks, i64 %calls, ptr %frame) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]
  call void %parallel(ptr @rlx_bench_work, ptr %frame, i64 %chunks, i64 64)
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %calls
  br i1 %more, label %loop, label %leave
leave:
  ret void
}
"""


def main() -> None:
    shared = pool.ThreadPool.shared()
    if len(sys.argv) > 1:
        shared.set_threads(int(sys.argv[1]))
    address = pool.load_forever(KERNELS)["rlx_bench_calls"]
    calls = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)

    def us(chunks: int, count: int, steps: int) -> float:
        start = time.perf_counter_ns()
        calls(shared.parallel_address, chunks, count, steps)
        return (time.perf_counter_ns() - start) / count / 1000

    def hot_us(chunks: int, steps: int) -> float:
        return statistics.median(us(chunks, HOT_CALLS, steps) for _ in range(51))

    def idle_us(chunks: int, steps: int) -> float:
        times = []
        for _ in range(201):
            time.sleep(IDLE_MS / 1000)
            times.append(us(chunks, 1, steps))
        return statistics.median(times)

    threads = shared.threads
    print(f"{isa.describe()}, {threads} threads{'; ' + shared.why_serial if shared.why_serial else ''}; medians in µs")
    print(f"empty, {threads} chunks:   {hot_us(threads, 1):6.2f} hot")
    print(f"empty, {8 * threads} chunks:  {hot_us(8 * threads, 1):6.2f} hot")
    work, work_idle = hot_us(1, STEPS), idle_us(1, STEPS)
    print(f"one chunk of work:  {work:6.2f} hot, {work_idle:6.2f} after {IDLE_MS} ms idle (serial)")
    join, join_idle = hot_us(threads, STEPS) - work, idle_us(threads, STEPS) - work_idle
    print(f"fork/join:          {join:6.2f} hot, {join_idle:6.2f} after {IDLE_MS} ms idle")


if __name__ == "__main__":
    main()
