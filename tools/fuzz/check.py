"""A program on a device: compile, run at all sizes, compare; and what is asked beside the results.

again      the first run once more, after all others: bit for bit what it was
weights    other weights in the same program
saved      written to a file and loaded: bit for bit the same
cached     compiled with the cache on disk, and once more from it
fewer      one output without the others: within the same bounds
slots      results in arrays that the caller gives
clone      a clone that takes other weights changes nothing here
padded     in larger arrays, with garbage behind what counts: a mode of its own, `--device padded`
numpy      by the kernels of runs before there is code: a mode of its own, `--device numpy`
rows       where rows of a batch have nothing to do with each other: a batch in another order gives its results in that
           order, single rows give theirs, bit for bit or within the bounds
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import rlx
from rlx.backends.claims import Dispatch
from rlx.backends.cpu import isa as isas
from rlx.backends.cpu import jit
from rlx.backends.cpu.numpy_kernels import KERNELS
from rlx.errors import DeviceUnavailable, InputError, RlxError, ShapeError, UnsupportedOp
from rlx.ir import dim as dims
from rlx.ir.graph import Value
from rlx.ir.interpreter import evaluate
from rlx.ir.literal import Array
from rlx.passes.cut import ending_at
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.session import Session
from tools.fuzz import oracle, padded, rows, tiles
from tools.fuzz.asked import EMULATED
from tools.fuzz.data import Recipe
from tools.fuzz.program import EVERY, Binding, Program

LEAST_ULPS = {"vulkan": 4.0, "opengl": 4.0, "webgpu": 4.0, "gpu": 4.0, "xla": 4.0, "mlx": 4.0}
"""What a device's own elementary functions, quotients and roots are off at most."""
BUCKETS = ("xla", "mlx")
"""Devices on which it hangs on the sizes before which program a size has, and so how its results are rounded."""
AROUND = 256
"""Bytes that are looked at on both sides of a result."""
OTHER_BITS = ("mlx",)
"""Devices whose library may round otherwise for an array that lies elsewhere in memory."""
FLUSHES = ("vulkan", "opengl", "webgpu", "gpu", "xla", "mlx")
"""Devices whose floats below the normal range may become zeros."""


@dataclass(frozen=True)
class Failure:
    """`kind` is `wrong`, `error`, `crash` or `hang`; `output` and `binding` tell where, for a wrong result."""

    kind: str
    message: str
    output: str = ""
    binding: tuple[tuple[str, int], ...] = ()
    stage: str = "run"


class Refused(Exception):
    """The device does not take the program, for a reason that it names."""


def check(program: Program, device: str = "cpu") -> Failure | None:
    """What is wrong with the program on the device. Raises Refused."""
    try:
        return _check(program, device)
    except (UnsupportedOp, DeviceUnavailable) as error:
        raise Refused(str(error)) from None
    except Refused:
        raise
    except InputError as error:
        if "expected indices in" not in str(error) or program.how.clamps:
            return _told(error)
        # other weights, or what a run fed to the next one, made indices that are out of range: now they are clamped
        return check(replace(program, how=replace(program.how, clamps=True)), device)
    except Exception as error:
        return _told(error)


def _told(error: Exception) -> Failure:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return Failure("error", f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.name})")


def _session(program: Program, device: str, cache: bool = False) -> Session:
    how = program.how
    if device == EMULATED:
        from tools.fuzz import emulated  # of tests, which need not be there

        device = emulated.install()
    else:
        tiles.force_if_asked()
    jit.OPTIMISATION_LEVEL = how.level
    isa = how.isa if device == "cpu" and how.isa in _isas() else None
    session = Session(
        device,
        isa=isa,
        threads=how.threads,
        disable=how.disable,
        cache=cache,
        check_indices=not how.clamps,
        compile="before",
        precision=how.precision,
    )
    return session.with_options(replace(session.options, dispatch=_dispatch(how.common)))


def _dispatch(common: tuple[str, ...]) -> Dispatch:
    """Options that decompose these composites."""
    if EVERY in common:
        return Dispatch("force-common")
    return Dispatch(overrides=tuple((name, "force-common") for name in common))


def _isas() -> list[str]:
    features = isas.host_features()
    return [name for name, level in isas.LEVELS.items() if not isas._lacks(level, features)]


NUMPY = "numpy"
"""In place of a device."""


def _check_padded(program: Program) -> Failure | None:
    """Raises Refused where no dim of the program may be padded."""
    count = 0
    for binding in program.bindings:
        wanted = _expected(program, binding, padded.NAME)
        for got in padded.runs(program, binding) if wanted is not None else ():
            assert wanted is not None  # of those there are runs
            failure = _compare(program, binding, [got[name] for name in wanted], wanted, padded.NAME, "padded")
            if failure is not None:
                return failure
            count += 1
    if not count:
        raise Refused("; ".join(padded.refusals(program).values()))
    return None


def _check_numpy(program: Program) -> Failure | None:
    """The kernels of runs before there is code."""
    for binding in program.bindings:
        wanted = _expected(program, binding, NUMPY)
        if wanted is not None:
            actual = evaluate(program.graph, *program.arrays(binding), binding, None, KERNELS)
            failure = _compare(program, binding, actual, wanted, NUMPY)
            if failure is not None:
                return failure
    return None


def _check(program: Program, device: str) -> Failure | None:
    if device == padded.NAME:
        return _check_padded(program)
    if device == NUMPY:
        return _check_numpy(program)
    compiled = _session(program, device).compile(program.graph)
    compiled.set_params(_params(program))
    results: list[tuple[Binding, list[Array]]] = []
    for binding in program.bindings:
        expected = _expected(program, binding, device)
        if expected is None:
            continue
        actual = compiled.run(program.arrays(binding)[0])
        results.append((binding, [np.array(a) for a in actual]))
        failure = _compare(program, binding, actual, expected, device)
        if failure is not None:
            return failure
    for binding, before in results[:1]:
        for stage, actual in _beside(program, compiled, device, binding):
            failure = _equal(program, binding, before, actual, stage)
            if failure is not None:
                return failure
        return (
            _state(program, compiled, device, binding)
            or _rows(program, compiled, device, binding)
            or _looser(program, compiled, device, binding)
        )
    return None


def _params(program: Program, change: int = 0) -> dict[str, Array]:
    return program.arrays(program.bindings[0], change)[1]


def _expected(program: Program, binding: Binding, device: str, change: int = 0) -> dict[str, oracle.Expected] | None:
    """None at sizes that the program does not admit."""
    try:
        program.graph.bind(binding)
        return _wanted(program, binding, device, change)
    except (RlxError, ValueError, IndexError):
        if binding is program.bindings[0]:
            raise
        return None


def _wanted(
    program: Program, binding: Binding, device: str, change: int, runs: int = 3, scale: float = 1.0
) -> dict[str, oracle.Expected]:
    least = LEAST_ULPS.get(device, 0)
    parts = device.startswith("cuda") and program.how.precision == "f32_fast"  # which have no numbers below 2**-136
    flushes = device in FLUSHES or parts
    return oracle.expect(program, binding, runs, scale, change, least, flushes)


def _compare(
    program: Program,
    binding: Binding,
    actual: list[Array],
    tolerated: dict[str, oracle.Expected],
    device: str,
    stage: str = "run",
    change: int = 0,
) -> Failure | None:
    surer: dict[str, oracle.Expected] | None = None
    for array, (name, expected) in zip(actual, tolerated.items()):
        if expected.mismatch(array) is None:
            continue
        if surer is None:
            surer = _wanted(program, binding, device, change, runs=24, scale=2.0)
        wrong = surer[name].mismatch(array)
        if wrong is not None:
            return Failure("wrong", wrong, name, tuple(binding.items()), stage)
    return None


def _equal(program: Program, binding: Binding, before: list[Array], actual: list[Array], stage: str) -> Failure | None:
    for name, a, b in zip(program.graph.outputs, before, actual):
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != np.ascontiguousarray(b).tobytes():
            return Failure("wrong", f"{stage} gives other bits than the first run", name, tuple(binding.items()), stage)
    return None


def _beside(
    program: Program, compiled: CompiledGraph, device: str, binding: Binding
) -> Iterator[tuple[str, list[Array]]]:
    """Results that must be those of the first run, bit for bit."""
    inputs, extras = program.arrays(binding)[0], program.how.extras
    yield "again", compiled.run(inputs)
    if "clone" in extras and compiled.capabilities.shared_code:
        clone = compiled.clone()
        clone.set_params(_params(program, 1))
        clone.run(inputs)
        yield "clone", compiled.run(inputs)
    if "slots" in extras and program.graph.outputs:
        first = compiled.run(inputs)
        memory = [np.full(a.nbytes + 2 * AROUND, 0x5A, np.uint8) for a in first]
        slots = [m[AROUND : m.size - AROUND].view(a.dtype).reshape(a.shape) for m, a in zip(memory, first)]
        yield "slots", compiled.run_slots([inputs[n] for n in compiled.input_names], slots)
        if any((edge != 0x5A).any() for m in memory for edge in (m[:AROUND], m[m.size - AROUND :])):
            raise AssertionError("the program wrote beyond its results")
    if compiled.program.place is not None:  # by copies at first, then by graphs that read them where they lie
        there = {name: compiled.executable.put(name, array) for name, array in inputs.items()}
        for _ in range(4):
            results = compiled.run(there, outputs="device")
            yield "on the device", [np.asarray(result) for result in results]
    if "saved" in extras and compiled.capabilities.saved_code:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.rlx"
            compiled.save(path)
            yield "saved", rlx.load_compiled(path).run(inputs)
    if "cached" in extras and device == "cpu":
        for _ in range(2):
            other = _session(program, device, cache=True).compile(program.graph)
            other.set_params(_params(program))
            yield "cached", other.run(inputs)


def _state(program: Program, compiled: CompiledGraph, device: str, binding: Binding) -> Failure | None:
    """What stays between runs, against runs that are brought the same."""
    inputs, extras, graph = program.arrays(binding)[0], program.how.extras, program.graph
    pairs = [
        (o, i.name) for o, v in graph.outputs.items() for i in graph.inputs if i.type == v.type and v.type.is_static
    ]
    if "feed" in extras and pairs:
        output, fed = pairs[0]
        at, brought, expected = list(graph.outputs).index(output), dict(inputs), []
        for _ in range(3):
            expected.append([np.array(a) for a in compiled.run(brought)])
            brought[fed] = expected[-1][at]
        brought[fed] = inputs[fed]
        state = compiled.clone() if compiled.capabilities.shared_code else compiled
        state.bind_handle(fed, inputs[fed])
        state.set_feeds({output: fed})
        rest = {name: array for name, array in inputs.items() if name != fed}
        for before in expected:
            actual = [np.array(a) for a in state.run(rest)]
            failure = _equal(program, binding, before, actual, "feed")
            if failure is not None and device in OTHER_BITS:
                fed_program = _given(program, {**inputs, fed: brought[fed]})
                failure = _compare(
                    fed_program, binding, actual, _wanted(fed_program, binding, device, 0), device, "feed"
                )
            if failure is not None:
                return failure
            brought[fed] = before[at]
        state.set_feeds({})
        state.unbind_handle(fed)
    if "active" in extras and compiled.capabilities.active_extent:
        return _active(program, compiled, binding, device)
    return None


def _active(program: Program, compiled: CompiledGraph, binding: Binding, device: str) -> Failure | None:
    graph, inputs = program.graph, program.arrays(binding)[0]
    for name, size in binding.items():
        part = {**binding, name: size // 2}
        try:
            graph.bind(part)
            compiled.set_active_extent(name, size // 2)
        except (InputError, ShapeError):
            continue  # it stands in a param or a product, or not at this size
        actual = [np.array(a) for a in compiled.run(inputs)]
        compiled.set_active_extent(name, None)
        cut = {v.name: inputs[v.name][_front(v, part)] for v in graph.inputs}
        few = compiled.run(cut)
        if device in BUCKETS:
            given = _given(program, cut)
            fronts = [np.array(a[_front(v, part)], order="C") for v, a in zip(graph.outputs.values(), actual)]
            failure = _compare(given, part, fronts, _wanted(given, part, device, 0), device, "active")
            if failure is not None:
                return failure
            few = fronts
        for (key, value), whole, short in zip(graph.outputs.items(), actual, few):
            filled = np.zeros_like(whole)
            filled[_front(value, part)] = short
            if filled.tobytes() != whole.tobytes():
                what = f"{size // 2} of {size} active along {name!r} give other bits than a run on these"
                return Failure("wrong", what, key, tuple(binding.items()), "active")
    return None


def _front(value: Value, binding: Binding) -> tuple[slice, ...]:
    return tuple(slice(0, dims.evaluate(d, binding)) for d in value.shape)


def _rows(program: Program, compiled: CompiledGraph, device: str, binding: Binding) -> Failure | None:
    if "rows" not in program.how.extras:
        return None
    inputs, params = program.arrays(binding)
    for symbol in (name for name, n in binding.items() if n > 1):
        try:
            with np.errstate(all="ignore"):
                axes = rows.of_program(program.graph, inputs, params, binding, symbol)
        except (RlxError, ValueError, IndexError):
            continue  # a single row is none of its sizes
        if not axes:
            continue
        whole = dict(zip(program.graph.outputs, [np.array(a) for a in compiled.run(inputs)]))
        sides = {v.name: rows.axis_of(v, symbol) for v in program.graph.inputs}
        for pick, at in rows.picks(binding, symbol):
            try:
                program.graph.bind(at)
            except RlxError:
                continue  # a single row is none of its sizes
            part = rows.picked(inputs, sides, pick)
            expected = {name: pick(whole[name], axis) for name, axis in axes.items()}
            actual = dict(zip(program.graph.outputs, compiled.run(part)))
            bounds = None
            for name, array in expected.items():
                if oracle.Expected(array, np.zeros(array.shape)).mismatch(actual[name]) is None:
                    continue
                # many runs: in few, all of an element's may give the simple number that it is near
                bounds = bounds or _wanted(_given(program, part), at, device, 0, runs=24, scale=2.0)
                # rows that have next to no part in others, by the data that they hold, are not quite apart
                batch = _wanted(program, binding, device, 0, runs=24, scale=2.0)[name]
                bound = bounds[name].bound + bounds[name].strays(pick(batch.array, axes[name]))
                bound = bound + pick(batch.bound, axes[name])
                wrong = oracle.Expected(array, bound).mismatch(actual[name])
                if wrong is not None:
                    what = "in another order" if at == binding else "alone"
                    return Failure("wrong", f"rows {what} give: {wrong}", name, tuple(binding.items()), "rows")
    return None


def _given(program: Program, inputs: dict[str, Array]) -> Program:
    """The program with these arrays in its inputs."""
    recipes = {name: Recipe("given", 0, array=array) for name, array in inputs.items()}
    return replace(program, recipes={**program.recipes, **recipes})


def _looser(program: Program, compiled: CompiledGraph, device: str, binding: Binding) -> Failure | None:
    """Results that need not be the same bits."""
    inputs, extras = program.arrays(binding)[0], program.how.extras
    if "fewer" in extras and len(program.graph.outputs) > 1:
        expected = _expected(program, binding, device)
        assert expected is not None
        for name in program.graph.outputs:
            actual = compiled.select([name]).run(inputs)
            failure = _compare(program, binding, actual, {name: expected[name]}, device, "fewer")
            if failure is not None:
                return failure
    inner = [v for node in program.graph.nodes if node.inputs for v in node.outputs]
    if "more" in extras and len(inner) > 1:
        graph = ending_at(program.graph, inner, [f"v{i}" for i in range(len(inner))])
        watched = replace(program, graph=graph)
        other = _session(watched, device).compile(graph)
        other.set_params(_params(program))
        failure = _compare(watched, binding, other.run(inputs), _wanted(watched, binding, device, 0), device, "more")
        if failure is not None:
            return failure
    if "weights" in extras and program.graph.params:
        try:
            expected = _expected(program, binding, device, change=1)
        except (RlxError, ValueError, IndexError):
            return None
        assert expected is not None
        compiled.set_params(_params(program, 1))
        return _compare(program, binding, compiled.run(inputs), expected, device, "weights", change=1)
    return None
