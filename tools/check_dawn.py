"""Gives the kernels of every op case and of small real nets to Dawn, a strict WebGPU, and runs them if it has a driver.

    pip install wgpudawn; python tools/check_dawn.py [--only SUBSTRING] [--no-nets] [--compile-only] [--extensions]

Keeps to the limits that every WebGPU device has; `--extensions` takes f16 and subgroups beside, where the driver has
them. Prints what Dawn refuses or computes otherwise, and ends with `dawn: P/N`. Without a driver that Dawn takes, its
backend without a device checks shaders and pipelines alone. Without wgpudawn it says so and ends well.
docs/backends/wgpu.md tells of drivers.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


@dataclass(frozen=True)
class Comparison:
    """A graph that the check compiles, arrays to run it on, and how exact each result has to be."""

    name: str
    graph: Any
    inputs: Mapping[str, Any]
    wanted: Any
    tolerance: Any


def cases(only: str) -> Iterator[Comparison]:
    """Cases of ops that WGSL takes."""
    from ops.cases import cases_of_every_op
    from rlx.backends.wgpu import WebGpuBackend

    for case in cases_of_every_op():
        if only in str(case) and not WebGpuBackend().unsupported(case.graph()):
            yield Comparison(str(case), case.graph(), case.inputs(), case.reference, case.op.tolerance)


def small_nets(only: str) -> Iterator[Comparison]:
    """Small real nets that are installed, compared with the CPU."""
    from benchmarks.zoo import Absent, nets
    from rlx import frontends
    from rlx.backends.cpu import CpuBackend
    from rlx.ir.op import Tolerance

    for net in nets().values():
        if not net.small or only not in net.name:
            continue
        try:
            graph = frontends.read(net.path()).graph
        except Absent:
            continue
        inputs = net.inputs()
        expected = partial(results, CpuBackend(), graph, inputs)
        yield Comparison(net.name, graph, inputs, expected, Tolerance(512, scale=1))


def results(backend: Any, graph: Any, inputs: Mapping[str, Any], run: bool = True) -> list[Any]:
    """What a graph with its own weights gives on a backend; nothing if it is only to be compiled."""
    from rlx.backends.base import Options
    from rlx.runtime.stages import compile_graph
    from support import binding_of

    executable = compile_graph(graph, backend, Options(cache=False), 0)
    if not run:
        return []
    executable.set_params(graph.data)
    arrays = [np.ascontiguousarray(inputs[v.name]).reshape(inputs[v.name].shape) for v in graph.inputs]
    return executable.bind(binding_of(graph, inputs))(arrays)


def adapter(compile_only: bool) -> Any:
    """Dawn's first adapter, or its backend that has no device."""
    from rlx.backends.wgpu import device

    adapters = [] if compile_only else device.adapters(None)
    if adapters:
        return adapters[0]
    os.environ["WGPU_BACKEND_TYPE"] = "Null"
    return device.library().gpu.request_adapter_sync()


def check(item: Comparison, run: bool) -> str:
    """What is wrong with it, in a line; empty if nothing."""
    from rlx.backends.wgpu import WebGpuBackend
    from rlx.errors import UnsupportedOp
    from support import assert_close_on

    try:
        outputs = results(WebGpuBackend(), item.graph, item.inputs, run)
        for actual, expected in zip(outputs, item.wanted() if run else ()):
            assert_close_on("webgpu", actual, expected, item.tolerance)
    except UnsupportedOp:
        return ""
    except Exception as error:  # a backend that is broken raises whatever it likes
        return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of cases and nets with this in them")
    parser.add_argument("--no-nets", action="store_true", help="op cases alone")
    parser.add_argument("--compile-only", action="store_true", help="do not look for a driver")
    parser.add_argument("--extensions", action="store_true", help="let shaders use f16 and subgroups")
    chosen = parser.parse_args()
    for name in ("RLX_WGPU_HALVES", "RLX_WGPU_SUBGROUPS"):
        os.environ[name] = "1" if chosen.extensions else "0"
    if importlib.util.find_spec("wgpudawn") is None:
        print("dawn: not checked, wgpudawn is not installed: pip install wgpudawn")
        return 0
    import wgpudawn

    wgpudawn.install_as_wgpu()
    from rlx.backends.wgpu import device

    opened_adapter = adapter(chosen.compile_only)
    runs = opened_adapter.info["backend_type"] != "Null"
    opened = device.Device(
        opened_adapter, portable=True, extensions=chosen.extensions
    )  # an adapter of Dawn's opens once
    device.open_device = lambda *arguments: opened  # type: ignore[assignment]
    right = total = 0
    for source in (cases, *(() if chosen.no_nets else (small_nets,))):
        for item in source(chosen.only):
            total += 1
            wrong = check(item, runs)
            right += not wrong
            if wrong:
                print(f"{item.name}: {wrong}", flush=True)
    how = "compiled and run" if runs else "compiled, not run,"
    used = [name for name, has in dataclasses.asdict(opened.target()).items() if has]
    beside = f" with {' and '.join(used)}" if used else ""
    print(f"dawn: {right}/{total} {how} on {opened.name}{beside}")
    return int(right < total)


if __name__ == "__main__":
    sys.exit(main())
