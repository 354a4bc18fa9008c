"""`jit`: a Python function of arrays as a program. It is traced at its first call, compiled, and called as it was.

A call looks up its program by the types, dtypes and shapes of its arguments, in one dict. What is not there goes the
long way: arguments become leaves, and among the traces for their dtypes and ranks one is sought whose dims fit.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import rlx.ops  # noqa: F401  # methods of values call ops by name
from rlx import collector, locks, logs
from rlx.arguments import checked, methods_checked
from rlx.errors import InputError, OptionError, TracerError, did_you_mean
from rlx.ir.graph import Graph, Value
from rlx.passes.specialise import specialise
from rlx.records import dataclass
from rlx.runtime.session import Precision, Session
from rlx.tracing import tree
from rlx.tracing.arguments import NUMBERS, Kind, as_array, is_value
from rlx.tracing.control import open_graph
from rlx.tracing.dims import Answers
from rlx.tracing.graphs import TracedGraph
from rlx.tracing.lowered import Lowered, Run
from rlx.tracing.sizes import Shapes, Sizes, fits

MOST_QUICK = 4096
"""Calls that are found at once, by their shapes; there may be more shapes than programs."""
MOST_TRACES = 64
"""Programs that a function keeps; the oldest goes."""
MANY_TRACES = 16
"""After so many traces somebody should look at why."""


@dataclass(frozen=True)
class CacheInfo:
    """What a function has been traced for.

    traces    how often it was traced so far
    programs  signatures of the programs that it keeps
    reason    why it was traced last
    """

    traces: int
    programs: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class _Static:
    """A static argument in the key of a call: 1, 1.0 and True are three."""

    kind: type
    value: Any


class _Family:
    """Traces for arguments of one structure, one choice of dtypes and ranks, and one choice of static arguments."""

    def __init__(self, names: list[str], kinds: list[Kind], structure: tree.Structure, static: dict[Any, Any]) -> None:
        self.names = names
        self.kinds = kinds
        self.structure = structure
        self.static = static
        self.sizes = Sizes(names, [kind.rank for kind in kinds])
        self.traces: list[Lowered] = []

    def find(self, shapes: Shapes) -> Lowered | None:
        return next((trace for trace in reversed(self.traces) if trace.fits(shapes)), None)


@methods_checked()
class Jit:
    """A function that is traced and compiled at its first call, and once more where a call needs another program."""

    def __init__(self, function: Callable[..., Any], session: Session, static: Iterable[int | str]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._session = session
        self._name = getattr(function, "__name__", type(function).__name__)
        self._parameters, self._static = _static_of(function, static)
        self._quick: dict[Any, Run] = {}
        self._families: dict[Any, _Family] = {}
        self._traces = 0
        self._reason = ""
        self._seed: list[int | None] = []
        self._methods: dict[int, Jit] = {}
        self._lock = locks.rlock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            try:
                found = self._quick.get(tuple([part for a in args for part in (type(a), a.dtype, a.shape)]))
            except (AttributeError, TypeError):  # nested, numbers, or what has no such hash
                found = None
            if found is not None:
                return found(args)
        return self._called(args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for these arguments: `.graph`, `.text()`, `.compile()`. It is the one that a call runs."""
        leaves, structure, static, names = self._taken(args, kwargs)
        given = [as_array(name, leaf) for name, leaf in zip(names, leaves)]
        arrays, kinds = [array for array, _ in given], [kind for _, kind in given]
        return self._found(names, arrays, kinds, structure, static)

    def cache_info(self) -> CacheInfo:
        """How often it was traced, for what, and why the last time."""
        with self._lock:
            programs = [trace.signature for family in self._families.values() for trace in family.traces]
            return CacheInfo(self._traces, tuple(programs), self._reason)

    def cache_clear(self) -> None:
        """Forgets all programs, and what was learned of sizes."""
        with self._lock:
            self._quick.clear()
            self._families.clear()

    def seed(self, seed: int | None) -> None:
        """Makes the random numbers of the following calls depend on this seed, as `CompiledGraph.seed` does."""
        with self._lock:
            self._seed = [seed]
            for family in self._families.values():
                for trace in family.traces:
                    if trace.graph.outputs:
                        trace.compile().seed(seed)

    # a call that is not found at once

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with nested arguments, numbers or static ones, which is found by all of its leaves; or a new one."""
        leaves: list[Any] = []
        if self._static:
            key = self._key(*self._marked(args, kwargs), leaves)
        else:
            key = self._key(args, kwargs, leaves)
        try:
            run = self._quick.get(key)
        except TypeError:  # what does not hash is told of below
            run = None
        return self._new_call(args, kwargs, key) if run is None else run(leaves)

    def _marked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with static ones as leaves of their own kind."""
        static, name_of = self._static, self._name_of
        by_place = [
            _Static(type(a), a) if place in static or name_of(place) in static else a for place, a in enumerate(args)
        ]
        return tuple(by_place), {name: _Static(type(a), a) if name in static else a for name, a in kwargs.items()}

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        """All that a program depends on; leaves that are traced go to the end of a list."""
        every: list[Any] = []
        structure = tree.flatten(args, every), tree.flatten(kwargs, every)
        parts: list[Any] = []
        for leaf in every:
            kind = type(leaf)
            if kind is _Static:
                parts.append(leaf)
                continue
            leaves.append(leaf)
            parts.append(kind)
            if kind not in NUMBERS:
                parts += (getattr(leaf, "dtype", None), getattr(leaf, "shape", None))
        return structure, tuple(parts)

    def _new_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> Any:
        """A call whose program is looked for among traces, and known by the key from then on."""
        leaves, structure, static, names = self._taken(args, kwargs)
        if any(map(is_value, (*leaves, *static.values()))):
            return self._function(*args, **kwargs)
        given = [as_array(name, leaf) for name, leaf in zip(names, leaves)]
        arrays, kinds = [array for array, _ in given], [kind for _, kind in given]
        trace = self._found(names, arrays, kinds, structure, static)
        run = trace.runner(arrays, leaves)
        if len(self._quick) >= MOST_QUICK:
            self._quick.clear()
        self._quick[key] = run
        if not kwargs and not static and all(hasattr(a, "dtype") and hasattr(a, "shape") for a in args):
            self._quick[tuple([part for a in args for part in (type(a), a.dtype, a.shape)])] = run
        return run(leaves)

    def _taken(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], tree.Structure, dict[Any, Any], list[str]]:
        """Leaves of the arguments that are traced, their structure, the static ones, and names of the leaves."""
        leaves: list[Any] = []
        names: list[str] = []
        static: dict[Any, Any] = {}
        parts = []
        places: list[tuple[int | str, Any]] = [*enumerate(args), *sorted(kwargs.items())]
        for place, value in places:
            name = self._name_of(place)
            if place in self._static or name in self._static:
                static[place] = value
            else:
                parts.append((place, tree.flatten(value, leaves, names, name)))
        return leaves, tuple(parts), static, names

    def _name_of(self, place: int | str) -> str:
        if isinstance(place, str):
            return place
        return self._parameters[place] if place < len(self._parameters) else f"args_{place}"

    def _found(
        self,
        names: list[str],
        arrays: list[Any],
        kinds: list[Kind],
        structure: tree.Structure,
        static: dict[Any, Any],
    ) -> Lowered:
        """The trace for arguments, made if there is none."""
        try:
            fixed = tuple((place, type(value), value) for place, value in static.items())
            family = self._families.get((structure, tuple(kinds), fixed))
        except TypeError:
            wrong = next(place for place, value in static.items() if not _hashes(value))
            got = type(static[wrong]).__name__
            raise InputError(
                f"[jit] expected a static argument that hashes, got {got} as {self._name_of(wrong)!r}"
            ) from None
        shapes = tuple([tuple(array.shape) for array in arrays])
        trace = family.find(shapes) if family is not None else None
        if trace is not None:
            return trace
        with self._lock:
            if family is None:
                key = (structure, tuple(kinds), fixed)
                reason = self._reason_of_new(names, kinds, static)
                family = self._families.setdefault(key, _Family(names, kinds, structure, static))
            else:
                reason = ""
            return family.find(shapes) or self._new(family, shapes, reason)

    def _reason_of_new(self, names: list[str], kinds: list[Kind], static: dict[Any, Any]) -> str:
        if not self._families:
            return "the first call"
        of = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds))
        values = "".join(f", {self._name_of(place)} = {value!r}" for place, value in static.items())
        return f"the first call with {of or 'no arrays'}{values}"

    # tracing

    def _new(self, family: _Family, shapes: Shapes, reason: str) -> Lowered:
        """A trace for these shapes, in place of those that it makes needless."""
        refused = [str(answer) for trace in family.traces for answer in trace.refusals(shapes)]
        learned = family.sizes.learn(shapes)
        told = reason or learned or (f"no longer so: {refused[-1]}" if refused else _ones(family.names, shapes))
        with collector.paused():
            trace, fixed = self._traced(family, shapes)
            if fixed:  # asked for as numbers, so programs may know them
                family.sizes.fix(fixed, shapes)
                trace, _ = self._traced(family, shapes)
        if self._seed and trace.graph.outputs:
            trace.compile().seed(self._seed[0])
        self._traces += 1
        self._reason = told
        logs.tell(logs.COMPILES, "jit", f"{self._name} traced ({self._traces}): {told}; {trace.signature}")
        if self._traces == MANY_TRACES:
            logs.warn("jit", f"{self._name} was traced {MANY_TRACES} times, the last because of {told}")
        kept = [each for each in family.traces if not trace.covers(each)][-MOST_TRACES + 1 :]
        if len(kept) < len(family.traces):
            self._quick.clear()  # which may lead to those that go
        family.traces = [*kept, trace]
        return trace

    def _traced(self, family: _Family, shapes: Shapes) -> tuple[Lowered, set[str]]:
        declared = family.sizes.declared(shapes)
        sizes = fits(declared, shapes)
        assert sizes is not None  # they are declared for these shapes
        answers = Answers(sizes)
        graph = TracedGraph(self._name, answers)
        inputs: list[Value] = []
        for name, kind, shape in zip(family.names, family.kinds, declared):
            value = graph.input(_free(graph, name), shape, kind.dtype)
            inputs.append(value)
            if kind.is_number:
                graph.weak.add(id(value.node))
        args, kwargs = _arguments(family.structure, family.static, inputs)
        results: list[Any] = []
        paths: list[str] = []
        try:
            with open_graph(graph):
                structure = tree.flatten(self._function(*args, **kwargs), results, paths, "out")
        except RecursionError:
            raise TracerError(
                f"[jit] expected {self._name!r} to end, got calls of itself without end while it was traced: values "
                f"never decide an if of Python's, rlx.while_loop(…) and rlx.scan(…) repeat"
            ) from None
        for path, result in zip(paths, results):
            graph.output(self._result(graph, path, result), name=path)
        graph.is_open = False
        return Lowered(specialise(graph, {}), declared, answers, structure, self._session), answers.fixed

    def _result(self, graph: TracedGraph, path: str, result: Any) -> Value:
        if isinstance(result, Value):
            return result
        array, _ = as_array(path, result)
        return graph.constant(array)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Of an instance: a function of its own, whose `self` is part of the program."""
        if instance is None:
            return self
        known = self._methods.get(id(instance))
        if known is None:
            with self._lock:
                method = _Method(self._function, weakref.ref(instance, partial(_forget, self._methods, id(instance))))
                static = [place - 1 if isinstance(place, int) else place for place in self._static]
                known = self._methods.setdefault(id(instance), Jit(method, self._session, static))
        return known

    def __reduce__(self) -> str:
        """By its name, as functions are; programs are compiled anew."""
        return str(self._function.__qualname__)

    def __repr__(self) -> str:
        return f"<jit {self._name!r} on {self._session.device}, {self._traces} traces>"


class _Method:
    """A method of an instance, which lives on without it."""

    def __init__(self, function: Callable[..., Any], instance: weakref.ref[Any]) -> None:
        self._function = function
        self._instance = instance
        self.__name__ = getattr(function, "__name__", "method")
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__doc__ = function.__doc__
        self.__signature__ = inspect.signature(function.__get__(instance()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self._instance(), *args, **kwargs)


def _forget(methods: dict[int, Jit], key: int, _: object) -> None:
    methods.pop(key, None)


@checked
def jit(
    function: Callable[..., Any] | None = None,
    *,
    device: str = "auto",
    static: Iterable[int | str] | int | str = (),
    disable: str | Iterable[str] = (),
    threads: int | None = None,
    isa: str | None = None,
    cache: bool | None = None,
    check_indices: bool | None = None,
    compile: Literal["meanwhile", "before"] | None = None,
    precision: Precision = "f32",
) -> Any:
    """A function of arrays as a program: it is traced and compiled at its first call. Also a decorator, with or without
    options.

    Arguments and results are arrays (NumPy, or DLPack: of torch and jax a call gets their own back), numbers, and
    tuples, lists and dicts of them. The function gets values, which have the operators and methods of arrays and go to
    functions of `rlx` and NumPy. It runs once for each choice of dtypes and ranks; an axis that comes with a second
    size becomes a dim with a name, and every size runs from then on. `cache_info()` tells why it was traced, and
    `lower(…)` shows the program.

    static   names or positions of arguments that are part of the program, such as flags: values that hash

    The other options are those of `Session`. Raises DeviceUnavailable, OptionError; calls raise TracerError where
    Python asks a value for its numbers, InputError, and what `Session.compile` raises.
    """
    session = Session(
        device, disable=disable, threads=threads, isa=isa, cache=cache, check_indices=check_indices, compile=compile,
        precision=precision,
    )  # fmt: skip
    named = (static,) if isinstance(static, (int, str)) else tuple(static)
    if function is None:
        return lambda of: Jit(of, session, named)
    return Jit(function, session, named)


def _static_of(function: Callable[..., Any], static: Iterable[int | str]) -> tuple[list[str], frozenset[int | str]]:
    """Names of the parameters that come by position, and the static ones by all that they are called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of C, without one
        return [], frozenset(static)
    by_place = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named: set[int | str] = set()
    for each in static:
        open_names = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if isinstance(each, str) and each not in {p.name for p in parameters} and not open_names:
            known = [p.name for p in parameters]
            near = did_you_mean(each, known)
            raise OptionError(f"[jit] expected static arguments among {known}, got {each!r}{near}")
        named.add(by_place[each] if isinstance(each, int) and 0 <= each < len(by_place) else each)
    return by_place, frozenset(named)


def _hashes(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _ones(names: list[str], shapes: Shapes) -> str:
    """Which axes came with 1."""
    ones = [f"axis {i} of {name!r}" for name, shape in zip(names, shapes) for i, size in enumerate(shape) if size == 1]
    return f"{' and '.join(ones)} came with 1, which broadcasts" if ones else "sizes that no program is for"


def _free(graph: Graph, name: str) -> str:
    taken = {value.name for value in graph.inputs}
    while name in taken:
        name += "_"
    return name


def _arguments(
    structure: tree.Structure, static: Mapping[Any, Any], inputs: list[Value]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of the function, by position and by name."""
    leaves = iter(inputs)
    built = {place: tree.rebuild(part, leaves) for place, part in structure} | dict(static)
    by_place = sorted(place for place in built if isinstance(place, int))
    return [built[place] for place in by_place], {name: built[name] for name in built if isinstance(name, str)}
