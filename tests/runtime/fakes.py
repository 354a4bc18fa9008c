"""Backends that fail where a test wants it: each is the reference but for one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlx.backends.base import Options, Probe, Unsupported
from rlx.backends.executable import Bound, Executable
from rlx.backends.memory import DeviceArray, HostArray, Where, on_host
from rlx.backends.null import profiles
from rlx.backends.reference import ReferenceBackend, ReferenceExecutable
from rlx.cost.estimate import Estimator, Rates
from rlx.cost.generic import GenericEstimator
from rlx.errors import CompileError, DeviceLost, DeviceUnavailable, OutOfMemory
from rlx.ir.graph import Graph
from rlx.ir.literal import Array


class Fake(ReferenceBackend):
    """The reference, with rates of the third recorded device, so that nothing has to be measured."""

    name = "fake"
    prior_band = 0.0

    def on_processor(self, ordinal: int = 0) -> bool:
        return False

    def prior(self, ordinal: int = 0) -> Rates:
        return self.calibrate(ordinal)

    def calibrate(self, ordinal: int = 0, step: Callable[[str], None] = lambda name: None) -> Rates:
        return dict(profiles()[2]["rates"])


class NoDriver(Fake):
    def probe(self) -> Probe:
        raise DeviceUnavailable("the driver does not answer")


class NoOps(Fake):
    def unsupported(self, graph: Graph) -> list[Unsupported]:
        node = next(n for n in graph.nodes if n.inputs)
        return [Unsupported(node, "not today")]


class NoCompile(Fake):
    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        raise CompileError("[fake] the compiler gave up")


class _Failing(ReferenceExecutable):
    def __init__(self, graph: Graph, error: Exception, runs_before: int) -> None:
        super().__init__(graph)
        self.error, self.left = error, runs_before

    def bind(self, binding: Mapping[str, int]) -> Bound:
        if self.left < 0:
            raise self.error
        return _FailingBound(self, super().bind(binding))


class _FailingBound(Bound):
    def __init__(self, executable: _Failing, inner: Bound) -> None:
        self.executable, self.inner = executable, inner

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> list[Array]:
        if self.executable.left == 0:
            raise self.executable.error
        self.executable.left -= 1
        return self.inner(inputs, out)


def _failing(error: Exception, runs_before: int) -> Any:
    class Made(Fake):
        def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
            return _Failing(graph, error, runs_before)

    return Made


NoMemory = _failing(OutOfMemory("[run] no memory for 12 bytes"), -1)
Lost = _failing(DeviceLost("[run] the device went away"), 0)
LostLater = _failing(DeviceLost("[run] the device went away"), 4)


class Breaking(Fake):
    """Raises `error` at `step`, both of which a test sets."""

    step = ""
    error: Exception = RuntimeError()

    @classmethod
    def at(cls, step: str) -> None:
        if cls.step == step:
            raise cls.error

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        self.at("compile")
        return _Breaking(graph)


class _Breaking(ReferenceExecutable):
    def set_params(self, params: Mapping[str, Array]) -> None:
        Breaking.at("weights")
        super().set_params(params)

    def bind(self, binding: Mapping[str, int]) -> Bound:
        Breaking.at("bind")
        return _BreakingBound(super().bind(binding))


class _BreakingBound(Bound):
    def __init__(self, inner: Bound) -> None:
        self.inner, self.shapes = inner, inner.shapes

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> list[Array]:
        Breaking.at("run")
        return self.inner(inputs, out)


class TooSmall(Fake):
    """Has memory for next to nothing."""

    def estimator(self, graph: Graph, options: Options, rates: Rates, ordinal: int = 0) -> Estimator:
        return _Small(GenericEstimator(graph, rates, options.disable))


class _Small(Estimator):
    def __init__(self, inner: Estimator) -> None:
        self.inner = inner

    def __call__(self, binding: Mapping[str, int]) -> Any:
        from dataclasses import replace

        return replace(self.inner(binding), free_bytes=16)


class _Remote(HostArray):
    """An array in the memory of a device that may be lost."""

    device = "remote"

    def __init__(self, array: Array) -> None:
        super().__init__(array)
        self.place = Remote

    def numpy(self) -> Array:
        if Remote.lost:
            raise RuntimeError("the device was lost")
        return super().numpy()

    def copy(self) -> _Remote:
        return _Remote(self.numpy().copy())


class Remote(Fake):
    """A device with memory of its own. A test may lose it, with all that is there."""

    lost = False

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        return _OnRemote(graph)


class _OnRemote(ReferenceExecutable):
    @property
    def place(self) -> object:
        return Remote

    def put(self, name: str, array: Array) -> DeviceArray:
        if Remote.lost:
            raise RuntimeError("the device was lost")
        return _Remote(array.copy())

    def bind(self, binding: Mapping[str, int]) -> Bound:
        return _RemoteBound(super().bind(binding))


class _RemoteBound(Bound):
    def __init__(self, inner: Bound) -> None:
        self.inner, self.shapes = inner, inner.shapes

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        return self.inner(on_host(inputs), out)

    def deliver_to(
        self, where: Sequence[Where], inputs: Sequence[Any], out: Sequence[Array | None] | None = None
    ) -> list[Any]:
        results = self(inputs, out)
        return [_Remote(r) if place == "device" else r for r, place in zip(results, where)]
