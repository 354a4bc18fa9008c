"""What a device is given, in order: kernels and copies in buffers of commands, of which one is being written."""

from __future__ import annotations

from collections import deque

from rlx import locks
from rlx.backends.apple_gpu.objective_c import ObjectiveC
from rlx.backends.cuda.driver import OUT_OF_MEMORY, CallError

COMPLETED, FAILED = 4, 5
"""`MTLCommandBufferStatus`."""
NO_MEMORY = 8
"""`MTLCommandBufferErrorOutOfMemory`."""
LAUNCH_FAILURE = 719
"""The code of `STICKY` for commands that failed in another way: what they wrote is unknown."""
MOST_LAUNCHES = 128
"""Of a buffer of commands, so that the device begins before a long program is written."""


def _made(objects: ObjectiveC, receiver: int, message: str) -> int:
    """What a message makes. Raises CallError where that is nothing, to which messages would be lost without a word."""
    made: int | None = objects.send(receiver, message)
    if not made:
        raise CallError(message, LAUNCH_FAILURE, "nothing")
    return made


class CommandBuffer:
    """A buffer of commands, released when nobody has it."""

    def __init__(self, objects: ObjectiveC, handle: int) -> None:
        self.objects = objects
        self.handle = objects.send(handle, "retain")
        self.committed = False
        self.ended = False
        self._failure: tuple[int, str] | None = None

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self.ended or self.objects.send(self.handle, "status") in (COMPLETED, FAILED)

    def finish(self) -> None:
        """Waits for its end. Raises CallError, each time, where it has failed."""
        objects = self.objects
        if not self.ended:
            with objects.pool():
                objects.send(self.handle, "waitUntilCompleted")
                if objects.send(self.handle, "status") == FAILED:
                    error = objects.send(self.handle, "error")
                    code = OUT_OF_MEMORY if objects.send(error, "code") == NO_MEMORY else LAUNCH_FAILURE
                    self._failure = code, objects.told(error)
            self.ended = True
        if self._failure is not None:
            raise CallError("waitUntilCompleted", *self._failure)

    def end_time(self) -> float:
        """When the device was done, in seconds."""
        self.finish()
        return float(self.objects.send(self.handle, "GPUEndTime"))

    def __del__(self) -> None:
        self.objects.send(self.handle, "release")


class Commands:
    """A queue. Any thread may wait, one at a time writes.

    latest   the last buffer of commands that was begun
    """

    def __init__(self, objects: ObjectiveC, device: int) -> None:
        self.objects = objects
        self.lock = locks.rlock()
        self.queue = _made(objects, device, "newCommandQueue")
        self.latest: CommandBuffer | None = None
        self._under_way: deque[CommandBuffer] = deque()
        self._encoder: int | None = None
        self._kind = ""
        self._launches = 0

    def is_idle(self) -> bool:
        """Whether all is done that it was given."""
        return self.latest is None or (self.latest.committed and self.latest.is_completed())

    def encoder(self, kind: str) -> int:
        """What writes commands of a kind, `compute` or `blit`, behind those that there are."""
        with self.objects.pool():
            if self._kind != kind:
                self._end_encoding()
                made = _made(self.objects, self._open().handle, f"{kind}CommandEncoder")
                self._encoder, self._kind = self.objects.send(made, "retain"), kind
        assert self._encoder is not None
        return self._encoder

    def launched(self) -> None:
        """Counts a kernel."""
        self._launches += 1
        if self._launches >= MOST_LAUNCHES:
            self.submit()

    def submit(self) -> None:
        """Has the device begin with what was written."""
        with self.lock, self.objects.pool():
            self._end_encoding()
            if self.latest is not None and not self.latest.committed:
                self.objects.send(self.latest.handle, "commit")
                self.latest.committed = True
                self._launches = 0

    def mark(self) -> CommandBuffer:
        """Has the device begin, and gives a buffer that ends now, whose time is that of what was written."""
        with self.lock:
            marked = self._open()
            self.submit()
            return marked

    def finish(self, last: CommandBuffer | None) -> None:
        """Waits for a buffer and all before it, without holding writers up. Raises CallError."""
        if last is None:
            return
        with self.lock:
            if not last.committed:
                self.submit()
            before = list(self._under_way)
        for each in before if last in before else [last]:
            try:
                each.finish()
            finally:
                with self.lock:
                    if each in self._under_way:
                        self._under_way.remove(each)
            if each is last:
                return

    def drain(self) -> None:
        """Waits for all. Raises CallError, once, where something has failed."""
        with self.lock:
            last = self._under_way[-1] if self._under_way else None
        self.finish(last)

    def _open(self) -> CommandBuffer:
        if self.latest is None or self.latest.committed:
            with self.objects.pool():
                self.latest = CommandBuffer(self.objects, _made(self.objects, self.queue, "commandBuffer"))
            self._under_way.append(self.latest)
        return self.latest

    def _end_encoding(self) -> None:
        if self._encoder is not None:
            self.objects.send(self._encoder, "endEncoding")
            self.objects.send(self._encoder, "release")
            self._encoder, self._kind = None, ""

    def close(self) -> None:
        """Gives the queue back, and all that it was given."""
        self._end_encoding()
        self.latest = None
        self._under_way.clear()
        self.objects.send(self.queue, "release")
