"""Small programs that have the kernels of the backend `cuda`, each run by the ordinary way and held against another
device: what `sanitize_cuda.py` runs under a sanitizer.

fused         small kernels that became parts of others
attention     of few queries, whose keys clusters share, and of many, by tiles
tiles         products whose operands come to workgroup memory, of every kind of layout, sums that clusters share too
rows          products of few rows
decoder       prompts and steps of two layers, weights of bf16 and of 4 bits
random        convolutions, encoders in bytes, and branches and loops of the fuzzer
kernels, ops  graphs of several blocks, and the cases of all ops
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import rlx
from backends.cuda import fused_graphs, test_bytes, test_float8, test_tile_attention
from codegen.simt.kernel_cases import KernelCase, kernel_cases
from ops.case import Case
from ops.cases import cases_of_every_op
from rlx import ops
from rlx.codegen.simt import fma_layouts, piped_contraction, tile_layouts
from rlx.codegen.simt.tile_layouts import TileLayout
from rlx.errors import InputError
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.runtime.session import Precision
from support import assert_close
from tools.fuzz import check, generate, tiles

GROUPS = ("pipes", "fused", "attention", "tiles", "rows", "decoder", "random", "kernels", "ops")
TOLERANCES = {"f16": 4e-3, "bf16": 3e-2, "f32": 1e-4}
"""Of results, as parts of the greatest of them."""


class LeftOut(Exception):
    """A trial that is not run, for a reason that it names."""


@dataclass(frozen=True)
class Trial:
    """Raises AssertionError for wrong results, and what running raises.

    run   takes how often a program runs: the second run is noted as a graph, and later ones replay it; and whether
          programs without workgroup memory are left out
    """

    name: str
    run: Callable[[int, bool], None]


def held(
    graph: Graph, given: Mapping[str, Array], times: int, only_shared: bool, tolerance: float,
    precision: Precision = "f32", against: str = "cpu",
) -> None:  # fmt: skip
    """Runs a graph and compares the first results; states begin with ones."""
    states = {v.name: np.ones(v.shape, v.dtype.numpy) for v in graph.inputs if v.name in graph.states}
    given = {name: array for name, array in given.items() if name not in states}
    results = []
    for device in ("cuda", against):
        program = rlx.Session(device, precision=precision if device == "cuda" else "f32", compile="before")
        compiled = program.compile(graph)
        if device == "cuda" and only_shared and not has_shared(compiled):
            raise LeftOut("no workgroup memory")
        for name, state in states.items():
            compiled.bind_handle(name, state.copy())
        results.append([np.array(result) for result in compiled.run(given)])
        for _ in range(times - 1 if device == "cuda" else 0):
            compiled.run(given)
    for made, expected in zip(*results, strict=True):
        assert made.dtype == expected.dtype
        wide = expected.astype(np.float64)
        scale = max(float(np.abs(wide).max(initial=0.0)), 1e-3)
        np.testing.assert_allclose(made.astype(np.float64), wide, rtol=0, atol=tolerance * scale)


def has_shared(compiled: Any) -> bool:
    """Whether kernels of a program have workgroup memory."""
    executable = compiled.program.executable
    plan = getattr(executable, "inner", executable).plan
    return any("shared" in text.lower() for text in plan.module.kernels.values())


def fused() -> Iterator[Trial]:
    graphs = fused_graphs
    makes: dict[str, tuple[Callable[..., None], str, Precision]] = {
        make.__name__: (make, "f16", graphs.PRECISIONS.get(name, "f32")) for name, make in graphs.GRAPHS.items()
    }
    makes["gated_product"] = graphs.gated_product, "bf16", "f32"
    makes["packed_product bf16"] = (lambda graph, n: graphs.packed_product(graph, n, "bf16")), "bf16", "f32"
    makes["normed_product bf16"] = (lambda graph, n: graphs.normed_product(graph, n, "bf16")), "bf16", "f32"
    makes["exact_product f32"] = graphs.exact_product, "f32", "f32"
    for name, (make, dtype, precision) in makes.items():
        for rows in (5, 16, 70) if "windows" not in name else (2,):
            most = min(rows, 16) if "written" in name else rows  # rows of a state of 24

            def run(times: int, shared: bool, make: Any = make, rows: int = most, dtype: str = dtype,
                    precision: Precision = precision) -> None:  # fmt: skip
                graph = graphs.graph_of(make, "n")
                held(graph, graphs.inputs_of(graph, rows), times, shared, TOLERANCES[dtype], precision)

            yield Trial(f"fused/{name} {rows}", run)


def attention() -> Iterator[Trial]:
    """Clusters share keys of up to 8 queries; f32 in parts too."""
    options: list[dict[str, Any]] = [{}, {"causal": True}, {"mask": "bool"}, {"window": 300, "softcap": 5.0}]
    kinds: list[tuple[str, Precision]] = [("f16", "f32"), ("bf16", "f32"), ("f32", "f32_fast"), ("f32", "f32")]
    for dtype, precision in kinds:
        for features, values in ((32, 32), (128, 128), (64, 48)):
            for number, (queries, keys) in enumerate(((1, 1000), (1, 64), (8, 1000), (70, 130), (5, 64), (130, 200))):
                more = options[number % 4 if queries > 1 else 0]
                keys = queries if more.get("causal") else keys

                def run(times: int, shared: bool, of: Any = (features, values, dtype), more: Any = more,
                        size: Any = (queries, keys), precision: Precision = precision) -> None:  # fmt: skip
                    graph = test_tile_attention.graph_of(*of, heads=4, **more)
                    given = test_tile_attention.inputs_of(graph, *size)
                    held(graph, given, times, shared, TOLERANCES[of[2]], precision)

                told = " ".join(more)
                yield Trial(f"attention/{dtype} {precision} {features}+{values} {queries}x{keys} {told}".strip(), run)


def picked(layouts: tuple[TileLayout, ...]) -> list[TileLayout]:
    """The first of each kind."""
    kinds: dict[Any, TileLayout] = {}
    for each in layouts:
        kinds.setdefault((each.together, each.splits, each.warps[2] > 1, each.parts > 1, each.bands > 1), each)
    return list(kinds.values())


def product(rows: int, depth: int, columns: int, dtype: str) -> Graph:
    """With a bias and a residual behind it."""
    graph = Graph("product")
    x, residual = graph.input("x", (rows, depth), dtype), graph.input("residual", (rows, columns), dtype)
    w, bias = (fused_graphs.weight(graph, name, *of, dtype=dtype) for name, of in
               (("w", (depth, columns)), ("bias", (columns,))))  # fmt: skip
    graph.output((ops.relu(x @ w + bias) + residual).cast("f32"), name="y")
    return graph


def of_bytes() -> Graph:
    graph = Graph("bytes")
    x, y = graph.input("x", (130, 512), "u8"), graph.input("y", (136, 512), "i8")
    zeros = graph.constant(np.uint8(113)), graph.constant(np.int8(0))
    graph.output(ops.integer_matmul(x, y.transpose(1, 0), *zeros), name="y")
    return graph


def in_pipes() -> Iterator[Trial]:
    """Large products by the copy engine, of more tiles than there are multiprocessors, and gates."""

    def gate() -> Graph:
        graph = Graph("gate")
        x = graph.input("x", (2100, 128), "bf16")
        sides = [x @ fused_graphs.weight(graph, name, 128, 1000, dtype="bf16") for name in ("gate", "up")]
        graph.output((ops.silu(sides[0]) * sides[1]).cast("f32"), name="y")
        return graph

    for layout in piped_contraction.LAYOUTS:
        for waits in (False, True)[: 1 + (layout.columns <= piped_contraction.MOST_WAITING)]:
            of = replace(layout, waits=waits)
            for kind, make in (("gate", gate), ("product", lambda: product(4100, 128, 1000, "bf16"))):

                def run(times: int, shared: bool, make: Any = make, of: TileLayout = of) -> None:
                    with tiles.forced(of):
                        graph = make()
                        drawn = {value.name: _drawn(value) for value in graph.inputs}
                        held(graph, drawn, times, shared, TOLERANCES["bf16"])

                yield Trial(f"pipes/{kind} {layout.columns}{' waits' * waits}", run)


def in_tiles() -> Iterator[Trial]:
    of = tile_layouts
    kinds: dict[str, tuple[Any, Precision, tuple[TileLayout, ...], str]] = {
        "f16": (lambda: product(130, 512, 136, "f16"), "f32", (*of.LAYOUTS, *of.SPLIT), "f16"),
        "bf16": (lambda: product(130, 512, 136, "bf16"), "f32", (*of.SPLIT, *of.LAYOUTS), "bf16"),
        "f32_fast": (lambda: product(130, 512, 136, "f32"), "f32_fast", (*of.PARTS, *of.SPLIT_PARTS), "f32"),
        "f32": (lambda: product(130, 512, 136, "f32"), "f32", (*fma_layouts.ALONE, *fma_layouts.SPLIT), "f32"),
        "bytes": (of_bytes, "f32", (*of.BYTES, *of.SPLIT_BYTES), "f32"),
        "float8": (lambda: test_float8.product(130, 512, 136), "f32", (*of.FLOAT8, *of.SPLIT_FLOAT8), "bf16"),
    }
    for kind, (make, precision, layouts, tolerance) in kinds.items():
        for layout in picked(layouts):
            told = f"{layout.tile[0]}x{layout.tile[1]}x{layout.depth} warps {layout.warps} splits {layout.splits}"

            def run(times: int, shared: bool, make: Any = make, precision: Precision = precision,
                    layout: Any = layout, tolerance: float = TOLERANCES[tolerance]) -> None:  # fmt: skip
                with tiles.forced(layout):
                    graph = make()
                    drawn = {value.name: _drawn(value) for value in graph.inputs}
                    held(graph, drawn, times, shared, tolerance, precision, "reference" if len(drawn) < 2 else "cpu")

            yield Trial(f"tiles/{kind} {told}{' together' * layout.together}", run)


def _drawn(value: Any) -> Array:
    if value.dtype.name in ("u8", "i8"):
        return test_bytes.drawn(3, value.shape, value.dtype.name)
    random = np.random.default_rng(len(value.name))
    return (random.standard_normal(value.shape) / 4).astype(value.dtype.numpy)


def few_rows() -> Iterator[Trial]:
    for dtype in ("f16", "bf16", "f32"):
        for rows in (1, 2, 7, 8, 9, 16, 17, 32, 40):

            def run(times: int, shared: bool, rows: int = rows, dtype: str = dtype) -> None:
                graph = product(rows, 1024, 136, dtype)
                drawn = {value.name: _drawn(value) for value in graph.inputs}
                held(graph, drawn, times, shared, TOLERANCES[dtype])

            yield Trial(f"rows/{dtype} {rows}", run)


def decoders() -> Iterator[Trial]:
    for bits in (16, 4):
        for prompt in (1, 40, 300):
            yield Trial(f"decoder/{bits} bits {prompt}", lambda times, shared, of=(bits, prompt): _decode(*of, times))


def _decode(bits: int, prompt: int, times: int) -> None:
    """A prompt, and steps behind it, which have a graph from the second on."""
    from benchmarks.few_bits import in_blocks
    from benchmarks.random_weights import QWEN3_06B, decoder_weights
    from rlx.models.context import Context
    from rlx.models.llama import decoder
    from rlx.models.llama_config import Config

    small = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}  # fmt: skip
    config = QWEN3_06B | small
    graph = decoder(Config.of(config), decoder_weights(config), caches=True)
    graph = graph if bits == 16 else in_blocks(graph, bits, 32)
    contexts = [Context(rlx.Session(device, compile="before").compile(graph), 512) for device in ("cuda", "cpu")]
    ids = np.random.default_rng(1).integers(0, 512, (1, prompt + times))
    for chunk in (ids[:, :prompt], *(ids[:, at : at + 1] for at in range(prompt, prompt + times))):
        made, expected = (context.feed(chunk).astype(np.float64) for context in contexts)
        np.testing.assert_allclose(made, expected, rtol=0, atol=5e-2 * np.abs(expected).max())


def at_random() -> Iterator[Trial]:
    """Programs of the fuzzer, as it compares them; with tiles forced on every other one."""
    for family, count in (("windows", 16), ("encoders", 10), ("control", 10)):
        for seed in range(count):

            def run(times: int, shared: bool, family: str = family, seed: int = seed) -> None:
                program = generate.generate(seed, kind=family)
                extras = ("slots",) if times > 1 else ()
                program = replace(program, how=replace(program.how, extras=extras), bindings=program.bindings[:2])
                with tiles.forced() if seed % 2 else tiles.unforced():
                    failure = check.check(program, "cuda")
                assert failure is None, str(failure)

            yield Trial(f"random/{family} {seed}", run)


def of_cases() -> Iterator[Trial]:
    for case in (*kernel_cases(), *cases_of_every_op()):
        group = "kernels" if isinstance(case, KernelCase) else "ops"
        yield Trial(f"{group}/{case}", lambda times, shared, case=case: _case(case, times, shared))


def _case(case: Case | KernelCase, times: int, only_shared: bool) -> None:
    compiled = rlx.Session("cuda", compile="before").compile(case.graph())
    if only_shared and not has_shared(compiled):
        raise LeftOut("no workgroup memory")
    for _ in range(times):
        try:
            results = [np.array(result) for result in compiled.run(list(case.arrays))]
        except InputError as error:  # of cases that have places outside, which kernels skip and runs refuse
            raise LeftOut(str(error)) from error
    tolerance = case.on_matrix_units if isinstance(case, KernelCase) else case.op.tolerance
    for made, expected in zip(results, case.reference(), strict=True):
        assert_close(made, expected, tolerance)


def trials() -> Iterator[Trial]:
    """All, those of the kernels that are the most intricate first."""
    for each in (in_pipes, fused, attention, in_tiles, few_rows, decoders, at_random, of_cases):
        yield from each()
