"""What a step of a decoder takes and moves, against the length of its cache.

    python -m benchmarks.state [--devices cpu,vulkan,xla,mlx] [--lengths 1024,16384] [--steps 100]

The cache is [length, 8, 64] of f32. Three programs write a row of it in each step:

    append   a state that is written in place, of which a row is read back
    attend   two of them, for keys and values, and attention of one token over the first 128 positions
    feed     an input with a handle, which an output feeds: a new array of the whole cache in each step

Times are microseconds a step, the median and the least of rounds of ten steps; `moved` are bytes between the caller's
arrays and the device, in both directions. They are counted where arrays go to the device's library and come from it;
on the processor they are those of inputs and of new arrays for results, which nobody copies.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

import rlx
from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.runtime.compiled import CompiledGraph

HEADS, WIDTH, SEEN = 8, 64, 128
ROUND = 10


def append(length: int) -> Graph:
    graph = Graph("append")
    row, at = graph.input("row", (1, HEADS, WIDTH)), graph.input("at", (), "i64")
    cache = graph.state("cache", (length, HEADS, WIDTH))
    written = rlx.update_slice(cache, row, at)
    graph.set_next(cache, written)
    graph.output(written[0], name="first")
    return graph


def attend(length: int) -> Graph:
    graph = Graph("attend")
    row, at = graph.input("row", (1, HEADS, WIDTH)), graph.input("at", (), "i64")
    whole = []
    for name in ("keys", "values"):
        cache = graph.state(name, (length, HEADS, WIDTH))
        written = rlx.update_slice(cache, row, at)
        graph.set_next(cache, written)
        prefix = rlx.transpose(written[:SEEN], permutation=(1, 0, 2))
        whole.append(prefix.reshape(1, HEADS, SEEN, WIDTH))
    query = row.reshape(1, HEADS, 1, WIDTH)
    graph.output(rlx.attention(query, *whole), name="out")
    return graph


def feed(length: int) -> Graph:
    graph = Graph("feed")
    row, at = graph.input("row", (1, HEADS, WIDTH)), graph.input("at", (), "i64")
    cache = graph.input("cache", (length, HEADS, WIDTH))
    written = rlx.update_slice(cache, row, at)
    graph.output(written, name="next")
    graph.output(written[0], name="first")
    return graph


PROGRAMS: dict[str, tuple[Callable[[int], Graph], str]] = {
    "append": (append, "first"), "attend": (attend, "out"), "feed": (feed, "first"),
}  # fmt: skip


class Moved:
    """Bytes so far."""

    def __init__(self) -> None:
        self.nbytes = 0

    def counting(self, plain: Callable[..., Any], of: Callable[..., Any]) -> Callable[..., Any]:
        """`plain`, with the bytes counted of what `of` gives of its result and its arguments."""

        def counted(*args: Any, **options: Any) -> Any:
            result = plain(*args, **options)
            self.nbytes += memoryview(np.ascontiguousarray(of(result, args))).nbytes
            return result

        return counted


@contextmanager
def replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    plain = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, plain)


@contextmanager
def counted(device: str, compiled: CompiledGraph) -> Iterator[Moved]:
    """Counts what moves while programs run on a device."""
    traffic = Moved()
    with ExitStack() as hooks:
        for owner, name, of in _borders(device, compiled):
            hooks.enter_context(replaced(owner, name, traffic.counting(getattr(owner, name), of)))
        yield traffic


Border = tuple[Any, str, Callable[..., Any]]


def _borders(device: str, compiled: CompiledGraph) -> list[Border]:
    """Where arrays pass: an owner, the name of its function, and what passes, of the result and the arguments."""
    if device == "xla":
        from rlx.backends.xla import executable as xla

        return [
            (xla.emulation, "to_stored", lambda result, args: result),
            (xla.emulation, "from_stored", lambda result, args: result),
        ]
    if device == "mlx":
        from rlx.backends.mlx import executable as mlx

        return [(mlx, "put", lambda result, args: args[0]), (mlx, "take", lambda result, args: result)]
    if device in ("cpu", "reference"):
        return []
    from rlx.backends.wgpu.executable import WgpuExecutable

    inner = getattr(compiled.executable, "inner", compiled.executable)
    assert isinstance(inner, WgpuExecutable)  # all others are above
    queue, buffer = type(inner.device.raw.queue), type(inner.device.buffer(16, "probe", "MAP_READ"))
    return [
        (queue, "write_buffer", lambda result, args: np.frombuffer(args[3], np.uint8)),
        (buffer, "read_mapped", lambda result, args: np.frombuffer(result, np.uint8)),
    ]


def measure(device: str, name: str, length: int, steps: int) -> str:
    """A line of the table."""
    build, output = PROGRAMS[name]
    compiled = rlx.Session(device).compile(build(length))
    if name == "feed":
        compiled.bind_handle("cache", np.zeros((length, HEADS, WIDTH), "f4"))
        compiled.set_feeds({"next": "cache"})
    row = np.ones((1, HEADS, WIDTH), "f4")
    places: list[Array] = [np.array(i * 7 % SEEN) for i in range(ROUND)]

    def step(at: Array) -> list[Array]:
        return compiled.run([row, at], outputs=[output])

    for at in places:
        step(at)
    with counted(device, compiled) as traffic:
        (result,) = step(places[0])
    if device in ("cpu", "reference"):
        fresh = length * HEADS * WIDTH * 4 if name == "feed" else 0
        traffic.nbytes = row.nbytes + places[0].nbytes + result.nbytes + fresh
    times = []
    for _ in range(max(steps // ROUND, 3)):
        start = time.perf_counter_ns()
        for at in places:
            step(at)
        times.append((time.perf_counter_ns() - start) / ROUND / 1e3)
    return f"{name:>8}{length:>9}{statistics.median(times):>12.1f}{min(times):>12.1f}{traffic.nbytes:>12}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu,vulkan,xla,mlx")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    load = " ".join(f"{n:.2f}" for n in os.getloadavg())
    print(f"python -m benchmarks.state --steps {args.steps}; load {load} on {os.cpu_count()} processors")
    print(f"Python {platform.python_version()} on {platform.platform()}; rlx {rlx.__version__}, numpy {np.__version__}")
    for device in args.devices.split(","):
        print(f"\n{device}\n program   length        step       least       moved")
        for name in PROGRAMS:
            for length in map(int, args.lengths.split(",")):
                try:
                    print(measure(device, name, length, args.steps), flush=True)
                except RlxError as error:
                    print(f"{name:>8}{length:>9}  {error}", flush=True)


if __name__ == "__main__":
    main()
