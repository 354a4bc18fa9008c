"""What a decoder has seen: a program whose states are the keys and values of the tokens so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx import interrupt
from rlx.backends.memory import DeviceArray, Where
from rlx.errors import DriverError, InputError
from rlx.ir import dim as dims
from rlx.ir.literal import Array
from rlx.ir.type import TensorType
from rlx.models.llama import CACHED, TOKEN
from rlx.runtime.compiled import CompiledGraph

FIRST_CAPACITY = 256
CHUNK = 128
"""Tokens of a run. Runs that write to states are not interrupted, so long prompts come in several."""
LONG_CHUNK = 1024
"""The same on other devices than the processor, which want much work at once."""


class Context:
    """The tokens that a program has seen, of several rows at once.

    length    tokens so far; setting it to less forgets the last ones
    limit     tokens at most
    """

    def __init__(self, program: CompiledGraph, limit: int) -> None:
        self.program = program
        self.limit = limit
        self.length = 0
        self._batch = 0
        self._capacity = 0
        self._counts = np.zeros(limit, np.uint8)
        self._vocab = dims.evaluate(program.program.output_types["logits"].shape[-1], {})
        self.tells_tokens = TOKEN in program.output_names

    @property
    def _states(self) -> Mapping[str, TensorType]:
        signature = self.program.program.signature
        return {name: signature.types[name] for name in signature.states}

    def feed(self, ids: Array) -> Array:
        """The logits that follow the last of these tokens, i64[batch, n], which come behind those so far.

        After an error the context is as it was before, or empty if the device failed. Raises InputError for more tokens
        than a context can hold and for ids that are none, and RunTimeout or RunCancelled within this thread's limit.
        """
        return np.asarray(self._fed(ids, "logits", "host"))

    def begin(self, ids: Array | DeviceArray) -> DeviceArray:
        """As `feed`, of programs that tell the likeliest tokens: those that follow, i64[batch, 1], on the device, which
        may not have them yet. Ids on the device must be of this model."""
        token: DeviceArray = self._fed(ids, TOKEN, "device")
        token.start_reading()
        return token

    def _fed(self, ids: Array | DeviceArray, wanted: str, where: Where) -> Any:
        if not isinstance(ids, DeviceArray) and ids.size and not 0 <= ids.min() <= ids.max() < self._vocab:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise InputError(f"[generate] expected ids from 0 to {self._vocab - 1}, got {wrong}")
        batch, count = ids.shape
        if self.length + count > self.limit:
            total = self.length + count
            raise InputError(f"[generate] expected a context of at most {self.limit} tokens, got {total}")
        if self.length and batch != self._batch:
            raise InputError(f"[generate] expected {self._batch} rows, as before, got {batch}")
        before = self.length
        try:
            self._reserve(batch, before + count)
            longest = CHUNK if self.program.device == "cpu" else LONG_CHUNK
            for start in range(0, count, longest):
                interrupt.check()
                chunk = ids if isinstance(ids, DeviceArray) else np.ascontiguousarray(ids[:, start : start + longest])
                given = {"input_ids": chunk, CACHED: self._counts[: self.length]}
                result = self.program.run_to(given, {wanted: where})[wanted]
                self.length += chunk.shape[1]
        except BaseException as error:
            self.length = min(before, self.length)
            if isinstance(error, DriverError):  # the device may have the states no more
                self.forget()
            raise
        return result

    def forget(self) -> None:
        """Forgets all, and the memory of it: what a device lost comes back by feeding it again."""
        self.length = self._batch = self._capacity = 0

    def _reserve(self, batch: int, count: int) -> None:
        """Room for so many tokens: twice as much as before where it is not enough, so that each is moved once or
        twice."""
        if batch == self._batch and count <= self._capacity:
            return
        length = self.length
        capacity = min(max(count, 2 * self._capacity if batch == self._batch else FIRST_CAPACITY), self.limit)
        old = self.rows() if length else {}
        self.forget()  # until all have the new size
        for name, of in self._states.items():
            _, heads, _, size = (dims.evaluate(d, {"batch": batch, "capacity": capacity}) for d in of.shape)
            cache = np.zeros((batch, heads, capacity, size), of.dtype.numpy)
            if length:
                cache[:, :, :length] = old[name]
            self.program.bind_handle(name, cache)
        self.length, self._batch, self._capacity = length, batch, capacity

    def rows(self) -> dict[str, Array]:
        """Keys and values of the tokens so far, by the names of states."""
        return {name: self.program.read_handle(name)[:, :, : self.length] for name in self._states}

    def restore(self, rows: Mapping[str, Array]) -> None:
        """Makes these the keys and values. Raises InputError for those of another model."""
        shapes = {array.shape[0::2] for array in rows.values()}
        fits = rows.keys() == self._states.keys() and len(shapes) == 1
        for name, of in self._states.items() if fits else ():
            array = rows[name]
            fits = fits and array.ndim == 4 and array.dtype == of.dtype.numpy and array.shape[1::2] == of.shape[1::2]
        if not fits:
            raise InputError("[conversation] expected the keys and values of this model, got those of another")
        ((batch, length),) = shapes
        self.forget()
        self._reserve(batch, length)
        for name in self._states:
            cache = np.array(self.program.read_handle(name))
            cache[:, :, :length] = rows[name]
            self.program.bind_handle(name, cache)
        self.length = length
