"""Prices amounts of work in nanoseconds: the rates of this machine, how they are fitted, and predictions for graphs.

Work and memory overlap: the longer of the two counts, and a part of the shorter. Threads share what is worth it, as the
dispatcher in the generated code decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlx.backends import processor
from rlx.backends.base import Options
from rlx.backends.cpu import topology
from rlx.backends.cpu.cost import level_of, work_of
from rlx.backends.cpu.isa import detect, forced
from rlx.backends.cpu.work import KernelWork
from rlx.codegen.simd.entry_points import CHUNKS_A_THREAD
from rlx.codegen.simd.isa import Isa
from rlx.codegen.simd.module import schedule_of
from rlx.cost.compiles import Compiler, Weights
from rlx.cost.counts import Binding, made_by_runs, placed
from rlx.cost.estimate import Estimate, Estimator, KernelEstimate, Rates
from rlx.cost.fit import OVERLAP, overlapped
from rlx.ir import dim as dims
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.kernel.ir.program import leaves
from rlx.kernel.passes.memory import plan_memory

RIDGE = 0.05
"""Pull of every rate towards what a machine of this kind would have; it decides where nothing was measured."""
LEAST = 0.2
"""Of what a machine of this kind would have, the least that a rate is taken for: nothing is free."""
NOISE_NS = 100.0
"""By which times of short kernels are off whatever they do: what was run before has the caches. They count less."""
EXPLAINED = 1.2
"""A kernel that takes so much longer than its memory is not bound by it, whatever its instructions should take."""
SWEEPS = 8
"""Fits with what memory bounds left out anew."""
FITTED = ("plain", "slow")
CALLED = ("library", "divided")
"""What has no vector instructions: calls of library functions, and divisions of integers."""
ARITHMETIC = (*FITTED, *CALLED)
NEAR = ("contiguous", "stored")
OF_BODIES = (*ARITHMETIC, *NEAR)
"""Amounts of bodies, which overlap, and go on while their chains wait."""
CYCLE_NS = 0.3
DIVIDED, PLAIN = 0.25, 0.6
"""A cycle, a division as a part of a call, and an instruction as a part of a multiply-add of products, of a core on
which these were not measured."""


def complete(rates: Rates, isa: Isa) -> Rates:
    """Rates with what older calibrations did not measure: cycles, stores apart from loads, divisions from calls, and
    instructions apart from the rest."""
    if "cycle_ns" in rates:
        return rates
    multiplied_ns = rates[f"gemm_{isa.gemm_rows}x{isa.gemm_vectors}_ns"] / (isa.gemm_rows * isa.gemm_vectors)
    return rates | {
        "cycle_ns": CYCLE_NS, "stored_ns": rates["contiguous_ns"], "divided_ns": DIVIDED * rates["library_ns"],
        "plain_ns": max(rates["plain_ns"], PLAIN * multiplied_ns),
    }  # fmt: skip


BAND = 0.15
"""How far off predictions may be."""
COMPILE_NS = 2e7
"""A cold compile of hardly anything."""
COMPILE_MAP_NS = 1.2e7
"""What LLVM takes for a map."""
WEIGHTS = Weights(map=1.0, reduction=1.3, product=1.3, narrow=1.3, attention=14.0, composite=1.3, other=2.0)
"""What it takes for others, in that of a map; products call cores for tiles of each height, which all of them share."""
CORES = 14
LOWERED, WRITTEN = 0.12, 0.15
"""What Python takes for each kernel, with LLVM's part of its calls, and for each function."""
PART = 20.0
"""What a text for LLVM holds: long programs are several (`codegen.simd.function`), compiled side by side."""


def isa_of(options: Options) -> Isa:
    return detect() if options.isa is None else forced(options.isa)


def works(graph: Graph, options: Options, binding: Binding) -> list[KernelWork]:
    """The work of every kernel of `main`, in order."""
    from rlx.backends.cpu.build import program_of

    isa = isa_of(options)
    program, _ = program_of(graph, isa, options)
    runs = made_by_runs(program)
    return [
        work_of(program, p.kernel, schedule_of(p.kernel, isa), isa, binding, runs)
        for p in placed(program.main, binding)
    ]


def memory_ns(work: KernelWork, rates: Rates, home: str, looped: bool = False) -> float:
    """What the bytes of a kernel take, if nothing else took time.

    Weights, inputs and results come from `home`, the level that all of the program's memory stays in from run to run;
    what a run makes itself is about as near as it is small. Inside a loop everything is: `home` is then the level of
    what the kernel touches.
    """
    if not work.total_bytes:
        return 0.0
    if looped:
        return work.slowness * work.total_bytes * rates[f"read_{home}_ns"]
    cold = work.total_bytes - work.warm_bytes
    streamed = cold * rates[f"read_{home}_ns"] + work.warm_bytes * _stream_ns("warm", work.total_bytes, rates)
    return work.slowness * streamed


def _stream_ns(kind: str, nbytes: float, rates: Rates) -> float:
    """ns a byte where so many are streamed."""
    known = sorted((float(n[len(kind) + 1 : -len("_ns")]), ns) for n, ns in rates.items() if n.startswith(f"{kind}_"))
    sizes, costs = zip(*known)
    return float(np.interp(math.log(nbytes), np.log(sizes), costs))


def compute_ns(work: KernelWork, rates: Rates) -> float:
    """What the instructions of a kernel take."""
    others = sum(rates[f"{name}_ns"] * amount for name, amount in work.amounts.items() if name not in OF_BODIES)
    return others + bodies_ns(work, rates)


def bodies_ns(work: KernelWork, rates: Rates) -> float:
    """What the bodies of loops take: arithmetic beside loads and stores, or, if that is longer, what each instruction
    waits for the one before."""
    arithmetic = sum(rates[f"{name}_ns"] * work.amounts.get(name, 0.0) for name in ARITHMETIC)
    near = sum(rates[f"{name}_ns"] * work.amounts.get(name, 0.0) for name in NEAR)
    return max(overlapped(arithmetic, near), work.waits * rates["cycle_ns"])


def kernel_ns(
    work: KernelWork, rates: Rates, threads: int, home: str, looped: bool = False
) -> tuple[float, float, float]:
    """(all, work, memory) of one call on so many threads; `home` and `looped` as in `memory_ns`."""
    compute, memory = compute_ns(work, rates), memory_ns(work, rates, home, looped)
    chunks = min(work.pieces, CHUNKS_A_THREAD * threads)
    if threads <= 1 or chunks <= 1:
        return overlapped(compute, memory), compute, memory
    # the last round of chunks leaves some threads idle
    busy = chunks / math.ceil(chunks / threads)
    share = (busy - 1) / max(rates.get("threads_count", threads) - 1, 1.0)
    compute /= 1 + (rates.get("threads_compute_gain", threads) - 1) * share
    memory /= 1 + (rates.get("threads_memory_gain", 1.0) - 1) * share
    return overlapped(compute, memory) + rates.get("fork_ns", 0.0), compute, memory


def compiler() -> Compiler:
    """LLVM, in what a map takes."""
    threads = topology.usable()
    return Compiler(WEIGHTS, again=0.0, cores=CORES, at_once=threads, least=PART, lowered=LOWERED, written=WRITTEN)


class CpuEstimator(Estimator):
    """A graph, lowered and scheduled as for a compile."""

    def __init__(self, graph: Graph, options: Options, rates: Rates) -> None:
        from rlx.backends.cpu.build import program_of

        self.isa = isa_of(options)
        self.graph, self.rates = graph, complete(rates, self.isa)
        self.threads = min(options.threads or topology.usable(), topology.usable())
        self.program, bounds = program_of(graph, self.isa, options)
        self.runs = made_by_runs(self.program)
        self.scheduled = [schedule_of(kernel, self.isa) for kernel in leaves(self.program.main)]
        temps = {b.number for b in self.program.buffers if b.kind == "temp"}
        self.memory = plan_memory(self.program, self.program.main, temps, bounds, reuse=True)
        self.compile_ns = COMPILE_NS + COMPILE_MAP_NS * compiler().amount(self.program)

    def __call__(self, binding: Mapping[str, int]) -> Estimate:
        program, rates = self.program, self.rates
        estimates = []
        home = level_of(self._resident(binding), self.isa)
        for item in placed(program.main, binding, self.threads):
            work = work_of(program, item.kernel, self.scheduled[item.number], self.isa, binding, self.runs)
            times = item.times * item.chance
            looped = item.times > 1
            where = level_of(work.total_bytes, self.isa) if looped else home
            all_ns, compute, memory = kernel_ns(work, rates, self.threads, where, looped)
            estimates.append(
                KernelEstimate(
                    item.kernel.name, item.kernel.sources, all_ns * times, compute * times, memory * times,
                    work.flops * times, work.total_bytes * times, times, "loop" if looped else work.kind,
                )
            )  # fmt: skip
        return Estimate(
            kernels=tuple(estimates),
            launch_ns=rates["launch_ns"],
            copy_ns=0.0,
            band=BAND,
            arena_bytes=dims.evaluate(self.memory.total, binding),
            weight_bytes=sum(dims.evaluate(program.buffers[n].nbytes, binding) for n in program.params),
            free_bytes=processor.free_bytes(),
            compile_ns=self.compile_ns,
        )

    def _resident(self, binding: Mapping[str, int]) -> int:
        """Bytes that a run touches: weights as they lie for runs, inputs, results, and what it makes."""
        program = self.program
        read = {n for kernel in leaves(program.main) for n in kernel.slots} - self.runs
        weight_bytes = sum(dims.evaluate(program.buffers[n].nbytes, binding) for n in read)
        return weight_bytes + dims.evaluate(self.memory.total, binding)


def usual(isa: Isa) -> Rates:
    """Rates of a machine of this kind, roughly: where a fit begins. One vector instruction takes a third of 1 ns."""
    rates = {
        "cycle_ns": CYCLE_NS, "calls_ns": 60.0, "plain_ns": 0.17, "slow_ns": 2.0, "library_ns": 10.0, "divided_ns": 2.5,
        "contiguous_ns": 0.15, "stored_ns": 0.4, "strided_ns": 0.5, "joins_ns": 4.0, "rows_ns": 2.0, "turned_ns": 1.0,
        "packed_ns": 0.1, "winograd_in_ns": 60.0, "winograd_out_ns": 40.0, "attention_scores_ns": 12.0,
        "attention_rows_ns": 20.0, "ranked_ns": 1.5,
        "updated_ns": 1.5, "running_ns": 1.0, "transformed_ns": 3.0, "transforms_ns": 15.0, "panel_l3_ns": 0.001,
        "panel_dram_ns": 0.03, "gemm_again_ns": 0.6,
    }  # fmt: skip
    return rates | cores_ns({rows: 0.3 * max(3 * rows, 5) for rows in range(1, isa.gemm_rows + 1)}, 8.0, 1.0, isa)


NARROW = {1: 1.3, 2: 1.08}
"""How much more a product costs in panels of one and two vectors, for its width."""


OTHER_FORMS = {"gemm_bytes": 1.0, "gemm_bf16": 1.0, "gemm_f16": 1.36}
"""How many times as long as those of f32 steps of other cores of the same shape take: bytes are four products a lane,
and turning f16 into f32 keeps the units busy that multiply."""


def cores_ns(step_ns: Mapping[int, float], tile_ns: float, cell_ns: float, isa: Isa) -> Rates:
    """Rates of all cores: from what a step of k takes by the height of a tile of full width in f32, and what each tile,
    and each vector of one, takes beside."""
    rates: Rates = {"gemm_tiles_ns": tile_ns, "gemm_cells_ns": cell_ns}
    for rows, ns in step_ns.items():
        for vectors in range(1, isa.gemm_vectors + 1):
            part = vectors / isa.gemm_vectors * NARROW.get(vectors, 1.0) if vectors < isa.gemm_vectors else 1.0
            rates[f"gemm_{rows}x{vectors}_ns"] = ns * part
            for stem, times in OTHER_FORMS.items():
                rates[f"{stem}_{rows}x{vectors}_ns"] = ns * part * times
            if vectors % 2 == 0:  # f64 fills two
                rates[f"gemm_f64_{rows}x{vectors // 2}_ns"] = ns * part
    return rates


def fit(measured: Sequence[KernelWork], times_ns: Array, known: Rates) -> Rates:
    """Rates that make the works take these times: by least squares in proportion to the times, no rate 0.

    `known` rates were measured alone and stay. Others begin as `usual` has them, scaled by how fast the machine is at
    products.
    """
    return _fitted(measured, times_ns, _begin(known), frozenset(known))


def fit_bodies(
    measured: Sequence[KernelWork], times_ns: Array, of: Mapping[str, tuple[KernelWork, float]], known: Rates
) -> Rates:
    """Rates of the bodies of loops whose elements lie in the nearest cache.

    measured, times_ns   loops that do much to an element: their arithmetic bounds them
    of                   loops and their times that do little but load ("contiguous"), load and store ("stored"), call
                         functions ("library"), or divide integers ("divided"), or whose instructions wait for one
                         another ("waits")
    """
    rates = _begin(known)
    calls = rates["calls_ns"]
    for name in (*NEAR, *CALLED):
        work, ns = of[name]
        before = sum(rates[f"{n}_ns"] * work.amounts.get(n, 0.0) for n in OF_BODIES if n != name)
        rates[f"{name}_ns"] = max(ns - calls - before, LEAST * ns) / work.amounts[name]
    prior = np.array([rates[f"{name}_ns"] for name in FITTED])
    beside = [calls + OVERLAP * sum(rates[f"{n}_ns"] * w.amounts.get(n, 0.0) for n in NEAR) for w in measured]
    shares = np.array([[work.amounts.get(name, 0.0) for name in FITTED] for work in measured]) / times_ns[:, None]
    matrix = np.vstack([shares * prior, RIDGE * np.eye(len(FITTED))])
    target = np.concatenate([1 - np.array(beside) / times_ns, np.full(len(FITTED), RIDGE)])
    solution = _bounded(matrix, target) * prior
    chain, chain_ns = of["waits"]
    return {
        **{f"{name}_ns": rates[f"{name}_ns"] for name in (*NEAR, *CALLED)},
        **{f"{name}_ns": float(ns) for name, ns in zip(FITTED, solution)},
        "cycle_ns": max(chain_ns - calls, LEAST * chain_ns) / chain.waits,
    }


def fit_rows(measured: Sequence[KernelWork], times_ns: Array, known: Rates) -> Rates:
    """What the start of a row takes, from loops in the nearest cache whose bodies are `known`: a fit of all kernels
    together hardly tells it from the joining of lanes, which is left to that fit, as it takes longer where more waits
    for it than in these loops."""
    names = ("rows", "joins")
    begin = _begin(known)
    prior = np.array([begin[f"{name}_ns"] for name in names])
    beside = [compute_ns(work, begin | {f"{name}_ns": 0.0 for name in names}) for work in measured]
    shares = np.array([[work.amounts.get(name, 0.0) for name in names] for work in measured]) / times_ns[:, None]
    matrix = np.vstack([shares * prior, RIDGE * np.eye(len(names))])
    target = np.concatenate([1 - np.array(beside) / times_ns, np.full(len(names), RIDGE)])
    return {"rows_ns": float(_bounded(matrix, target)[0] * prior[0])}


def _begin(known: Rates) -> Rates:
    """Rates as `usual` has them, scaled by how fast the machine is at products, and those that are known."""
    isa = detect()
    prior = usual(isa)
    full = f"gemm_{isa.gemm_rows}x{isa.gemm_vectors}_ns"
    speed = known.get(full, prior[full]) / prior[full]
    return {name: ns * speed for name, ns in prior.items()} | known


def _fitted(measured: Sequence[KernelWork], times_ns: Array, begin: Rates, fixed: frozenset[str]) -> Rates:
    """`begin` with the rates of all other amounts that occur fitted. What memory bounds tells nothing of them."""
    names = sorted({name for work in measured for name in work.amounts if f"{name}_ns" not in fixed})
    prior = np.array([max(begin[f"{name}_ns"], 1e-4) for name in names])
    rates = dict(begin)
    for _ in range(SWEEPS):
        rows, targets = [], []
        for work, ns in zip(measured, map(float, times_ns)):
            compute, memory = compute_ns(work, rates), memory_ns(work, rates, "dram")
            if compute < memory and ns < EXPLAINED * memory:
                continue
            pinned = compute - sum(rates[f"{name}_ns"] * work.amounts.get(name, 0.0) for name in names)
            counted = ns + NOISE_NS
            rows.append([work.amounts.get(name, 0.0) * p / counted for name, p in zip(names, prior)])
            targets.append(max(ns - OVERLAP * memory - pinned, 0.0) / counted)
        matrix = np.vstack([np.array(rows).reshape(len(rows), len(names)), RIDGE * np.eye(len(names))])
        target = np.concatenate([np.array(targets), np.full(len(names), RIDGE)])
        solution = _bounded(matrix, target) * prior
        rates |= {f"{name}_ns": float(ns) for name, ns in zip(names, solution)}
    return rates


def _bounded(matrix: Array, target: Array) -> Array:
    """The least squares solution with no number below LEAST, by coordinate descent."""
    square, linear = matrix.T @ matrix, matrix.T @ target
    solution = np.ones(len(linear))
    for _ in range(400):
        for i in range(len(linear)):
            solution[i] = max(LEAST, solution[i] + (linear[i] - square[i] @ solution) / max(square[i, i], 1e-12))
    return solution
