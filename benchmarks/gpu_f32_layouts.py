"""What each layout of tiles of a product of f32 takes on a GPU, beside what it should: microseconds of the kernel.

    python -m benchmarks.gpu_f32_layouts [--precision f32] [--most 12] [4096x1024x1024 200704x64x64x9 ...]

A shape is m x k x n, and with a fourth number a convolution of pictures with m positions, k channels in and n out,
whose window has so many places (9 is 3 by 3). Layouts that should be fastest are measured first; the best of three runs
counts. `predicted` is `clocks` of the layout at 1.75 GHz.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import numpy as np

import rlx
from rlx import ops
from rlx.backends.cuda.build import NVIDIAS, program_of
from rlx.codegen.simt import fma_layouts, fma_tile, tile_contraction, tile_layouts
from rlx.codegen.simt.tile_layouts import TileLayout
from rlx.ir.graph import Graph
from rlx.kernel.ir.contraction import Contraction
from rlx.kernel.ir.program import leaves
from rlx.runtime.session import Precision

CLOCKS_A_US = 1750
SHAPES = (
    "4096x1024x1024", "8192x4096x4096", "200704x64x64x9", "50176x128x128x9", "12544x256x256x9", "200704x64x256",
    "12544x1024x256", "3136x64x64x9", "784x128x128x9", "196x256x256x9", "49x512x512x9", "49x512x2048", "128x384x1152",
)  # fmt: skip


def graph_of(shape: str) -> Graph:
    m, k, n, *window = (int(extent) for extent in shape.split("x"))
    graph = Graph(shape)
    if not window:
        graph.output(graph.input("x", (m, k)) @ graph.param("w", (k, n)), name="y")
        return graph
    side = math.isqrt(window[0])
    rows = next(rows for rows in range(math.isqrt(m), 0, -1) if m % rows == 0)
    x, w = graph.input("x", (1, rows, m // rows, k)), graph.param("w", (n, k, side, side))
    pads = (side // 2,) * 2
    y = ops.conv(x.transpose(0, 3, 1, 2), w, strides=(1, 1), dilations=(1, 1), low=pads, high=pads)
    graph.output(y.transpose(0, 2, 3, 1), name="y")
    return graph


def work_of(graph: Graph, precision: str) -> Contraction:
    works = [kernel.work for kernel in leaves(program_of(graph, NVIDIAS.at(precision)).main)]
    return next(work for work in works if isinstance(work, Contraction))


def layouts_of(work: Contraction) -> list[tuple[float, TileLayout]]:
    """Those that a product can have, with the clocks that they should take, the least first."""
    if work.float_parts:
        priced = [(tile_layouts.clocks(work, each), each) for each in (*tile_layouts.PARTS, *tile_layouts.SPLIT_PARTS)]
    else:
        priced = [(fma_layouts.clocks(work, each), each) for each in (*fma_layouts.ALONE, *fma_layouts.SPLIT)]
    return sorted((each for each in priced if math.isfinite(each[0])), key=lambda each: each[0])


def microseconds(graph: Graph, layout: TileLayout, precision: Precision) -> float:
    """Of the product alone, with this layout."""
    fma_tile.fma_layout_of = lambda work, rows, clusters: layout
    tile_contraction.tile_of = lambda work, rows, warpgroups=False: layout
    session = rlx.Session("cuda", precision=precision, cache=False)
    session = session.with_options(replace(session.options, profile=True))
    draw = np.random.default_rng(0).standard_normal
    model = session.compile(graph)
    model.set_params({value.name: draw(tuple(map(int, value.shape)), np.float32) for value in graph.params})
    given = [draw(tuple(map(int, value.shape)), np.float32) for value in graph.inputs]
    runs = [model.kernel_times(given) for _ in range(3)]
    return min(sum(each.total_ns for each in run if "conv" in each.name or "dot" in each.name) for run in runs) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--precision", default="f32", choices=("f32", "f32_fast"))
    parser.add_argument("--most", type=int, default=12, help="layouts of each shape")
    chosen = parser.parse_args()
    for shape in chosen.shapes:
        graph = graph_of(shape)
        work = work_of(graph, chosen.precision)
        products = math.prod(int(str(extent)) for extent in work.extents())
        print(f"{shape} {chosen.precision}", flush=True)
        for clocks, layout in layouts_of(work)[: chosen.most]:
            us = microseconds(graph, layout, chosen.precision)
            print(
                f"  {us:9.1f} us, predicted {clocks / CLOCKS_A_US:9.1f}, {2 * products / us / 1e6:5.1f} TFLOP/s: "
                f"warps of {layout.rows}x{layout.columns}, {layout.warps}, {layout.depth} deep, "
                f"{layout.stages} stages, {layout.splits} parts", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
