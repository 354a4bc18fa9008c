"""A program that goes on with the next device of a chain when its device fails in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rlx import locks, logs
from rlx.device import registry
from rlx.errors import OF_CALLERS, FallbackError, RlxError, StateLost
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.graph_devices import GraphDevices

T = TypeVar("T")


class DeviceChain:
    """The first device of the policy's chain that compiles the graph, until a run fails there; then the next one, with
    the same weights and the state as it was. A device that failed is left for good: what it lost or has no room for
    would fail again. If none is left, the next run begins with the first device again.

    Its methods may be called from many threads.
    """

    def __init__(self, devices: GraphDevices, continued: CompiledGraph | None = None) -> None:
        """`continued` is a program of the graph that was alone until now: the chain begins with its device, its weights
        and what it keeps between runs."""
        self.devices = devices
        self._current: CompiledGraph | None = None
        self._failed: list[tuple[str, Exception]] = []
        self._lock = locks.rlock()
        if continued is not None:
            devices.continue_from(continued)
            self._current = devices.compile(continued.device)
            self._current.attempts = continued.attempts

    @property
    def current(self) -> CompiledGraph | None:
        """The program that the next run uses, once it is compiled."""
        return self._current

    @property
    def compiled(self) -> CompiledGraph:
        """The program that the next run uses. Raises FallbackError if no device compiles it."""
        with self._lock:
            if self._current is None:
                self._current = self.devices.compile_chain()
            return self._current

    def run(self, attempt: Callable[[CompiledGraph], T]) -> T:
        """The attempt's result on the device of the chain that succeeds, tried at most once on each.

        Errors of the caller are raised at once, and so is StateLost. Raises FallbackError, which reports every attempt.
        """
        attempts: dict[str, Exception] = {}
        while True:
            program = self.compiled
            if program.device in attempts:
                raise FallbackError(program.program.name, list(attempts.items()))
            try:
                return attempt(program)
            except (*OF_CALLERS, StateLost):  # what another device would not have either
                raise
            except (RlxError, MemoryError) as error:
                attempts[program.device] = error
                self._leave(program, error)

    def _leave(self, failed: CompiledGraph, error: Exception) -> None:
        """Compiles for the next device, unless another thread did. Raises FallbackError."""
        with self._lock:
            if self._current is not failed:
                return
            name = failed.program.name
            device = registry.parse(failed.device)
            chain = self.devices.policy.chain
            self._failed.append((failed.device, error))
            self.devices.leave(device)
            self.devices.set_params(failed.params)
            try:
                following = self.devices.compile_chain(chain[chain.index(device) + 1 :])
            except FallbackError as none:
                attempts = [*self._failed, *none.attempts]
                self._failed, self._current = [], None
                raise FallbackError(name, attempts) from error
            following.attempts = {tried: str(why) for tried, why in self._failed} | dict(following.attempts)
            logs.warn("devices", f"{name}: {failed.device} failed in a run, {following.device} goes on: {error}")
            self._current = following


__all__ = ["DeviceChain"]
