"""Compiles every op of the registry, and MiniLM, with the real compiler of TPUs. No TPU is needed, nothing is run.

    pip install libtpu; python tools/check_tpu.py [--topology v5e:2x2] [--only SUBSTRING] [--every]

Prints what does not compile and why, and ends with `tpu: P/N`. Without libtpu it says so and ends well.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no server to ask which TPU this is


def compiled(graph: Any, binding: dict[str, int], sharding: Any) -> Any:
    """A graph at these dims, compiled for the device of a sharding."""
    import jax

    from rlx.backends.base import Options
    from rlx.backends.xla import TpuBackend
    from rlx.backends.xla.executable import traced
    from rlx.codegen.scalar import emulation as emulation
    from rlx.ir import dim as dims

    def struct(value: Any) -> Any:
        shape = tuple(dims.evaluate(d, binding) for d in value.shape)
        return jax.ShapeDtypeStruct(shape, emulation.stored(value.dtype).numpy, sharding=sharding)

    ready = TpuBackend().legalise(graph, Options())
    arguments = [struct(value) for value in (*ready.params, *ready.inputs)]
    with jax.enable_x64(True):
        return jax.jit(traced(ready, binding), out_shardings=sharding).lower(*arguments).compile()


def graphs(only: str, every: bool) -> Any:
    """(name, graph, dims): a case of each op, or all of them, and MiniLM."""
    from ops.cases import cases_of
    from rlx.backends.xla import TpuBackend
    from rlx.ir.op import REGISTRY

    for name, op in sorted(REGISTRY.items()):
        if only not in name:
            continue
        supported = [case for case in cases_of(op) if not TpuBackend().unsupported(case.graph())]
        for case in supported if every else supported[:1]:
            yield str(case), case.graph(), {}
    if only in "MiniLM":
        from benchmarks.device_choice import sentences

        for case in sentences():
            axes = {str(d): n for v in case.graph.inputs for d, n in zip(v.shape, case.inputs[v.name].shape)}
            yield case.name, case.graph, {name: size for name, size in axes.items() if not name.isdigit()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--only", default="")
    parser.add_argument("--every", action="store_true", help="every case of each op, not one")
    chosen = parser.parse_args()
    if importlib.util.find_spec("libtpu") is None:
        print("tpu: not checked, libtpu is not installed: pip install libtpu")
        return 0
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    topology = topologies.get_topology_desc(chosen.topology, platform="tpu")
    sharding = SingleDeviceSharding(topology.devices[0])
    right = total = 0
    for name, graph, binding in graphs(chosen.only, chosen.every):
        total += 1
        try:
            compiled(graph, binding, sharding)
            right += 1
        except Exception as error:  # the compiler raises whatever it likes
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
    print(f"tpu: {right}/{total} on {topology.devices[0].device_kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
