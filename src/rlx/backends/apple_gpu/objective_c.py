"""Messages to objects of macOS, by the runtime of Objective-C.

An object that a method makes whose name begins with new, alloc, copy or retain is the caller's, who releases it once;
others end with the pool that is open when they are given out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import POINTER
from ctypes import c_bool as Bool
from ctypes import c_char_p as Text
from ctypes import c_double as Double
from ctypes import c_long as Integer
from ctypes import c_ulong as Unsigned
from ctypes import c_void_p as Handle
from functools import cache
from typing import Any

from rlx.errors import DeviceUnavailable

RUNTIME = "/usr/lib/libobjc.A.dylib"
FRAMEWORKS = "/System/Library/Frameworks"
METAL = f"{FRAMEWORKS}/Metal.framework/Metal"
OTHERS = (f"{FRAMEWORKS}/Foundation.framework/Foundation", f"{FRAMEWORKS}/CoreGraphics.framework/CoreGraphics")
"""Strings and errors are Foundation's; without CoreGraphics there is no default device."""


class Size(ctypes.Structure):
    """`MTLSize`."""

    _fields_ = [("width", Unsigned), ("height", Unsigned), ("depth", Unsigned)]


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "alloc": (Handle,),
    "init": (Handle,),
    "retain": (Handle,),
    "release": (None,),
    "stringWithUTF8String:": (Handle, Text),
    "UTF8String": (Text,),
    "localizedDescription": (Handle,),
    "code": (Integer,),
    "name": (Handle,),
    "recommendedMaxWorkingSetSize": (ctypes.c_uint64,),
    "currentAllocatedSize": (Unsigned,),
    "setFastMathEnabled:": (None, Bool),
    "setLanguageVersion:": (None, Unsigned),
    "newLibraryWithSource:options:error:": (Handle, Handle, Handle, POINTER(Handle)),
    "newFunctionWithName:": (Handle, Handle),
    "newComputePipelineStateWithFunction:error:": (Handle, Handle, POINTER(Handle)),
    "newBufferWithLength:options:": (Handle, Unsigned, Unsigned),
    "newBufferWithBytes:length:options:": (Handle, Handle, Unsigned, Unsigned),
    "contents": (Handle,),
    "gpuAddress": (ctypes.c_uint64,),
    "newCommandQueue": (Handle,),
    "commandBuffer": (Handle,),
    "computeCommandEncoder": (Handle,),
    "blitCommandEncoder": (Handle,),
    "setComputePipelineState:": (None, Handle),
    "setBuffer:offset:atIndex:": (None, Handle, Unsigned, Unsigned),
    "setBytes:length:atIndex:": (None, Handle, Unsigned, Unsigned),
    "useResource:usage:": (None, Handle, Unsigned),
    "dispatchThreadgroups:threadsPerThreadgroup:": (None, Size, Size),
    "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:": (
        None, Handle, Unsigned, Handle, Unsigned, Unsigned,
    ),
    "endEncoding": (None,),
    "commit": (None,),
    "waitUntilCompleted": (None,),
    "status": (Unsigned,),
    "error": (Handle,),
    "GPUEndTime": (Double,),
}  # fmt: skip
"""What a message gives, and its arguments, by Metal's headers of macOS 13."""


class ObjectiveC:
    """The runtime, and Metal's framework. Raises DeviceUnavailable where they do not load."""

    def __init__(self) -> None:
        try:
            self.runtime = ctypes.CDLL(RUNTIME)
            for framework in OTHERS:
                ctypes.CDLL(framework)
            self.metal = ctypes.CDLL(METAL)
        except OSError as error:
            raise DeviceUnavailable(f"[device] Metal does not load: {error}") from error
        signatures: Mapping[str, tuple[Any, ...]] = {
            "objc_getClass": (Handle, Text),
            "sel_registerName": (Handle, Text),
            "objc_autoreleasePoolPush": (Handle,),
            "objc_autoreleasePoolPop": (None, Handle),
        }
        for name, (result, *arguments) in signatures.items():
            function = getattr(self.runtime, name)
            function.restype, function.argtypes = result, arguments
        self.metal.MTLCreateSystemDefaultDevice.restype = Handle
        self.metal.MTLCreateSystemDefaultDevice.argtypes = ()
        address = ctypes.cast(self.runtime.objc_msgSend, Handle).value or 0
        self._messages = {
            name: (
                ctypes.CFUNCTYPE(result, Handle, Handle, *arguments)(address),
                self.runtime.sel_registerName(name.encode()),
            )
            for name, (result, *arguments) in SIGNATURES.items()
        }

    def send(self, receiver: int | None, message: str, *arguments: Any) -> Any:
        """What a message gives; of an object that is not there, 0 or None."""
        function, selector = self._messages[message]
        return function(receiver, selector, *arguments)

    def class_named(self, name: str) -> int:
        found = self.runtime.objc_getClass(name.encode())
        if not found:
            raise DeviceUnavailable(f"[device] macOS has no class {name}")
        return int(found)

    def default_device(self) -> int | None:
        """A device that is the caller's; None where there is none."""
        device: int | None = self.metal.MTLCreateSystemDefaultDevice()
        return device

    @contextmanager
    def pool(self) -> Iterator[None]:
        """Objects that are nobody's end with it."""
        pool = self.runtime.objc_autoreleasePoolPush()
        try:
            yield
        finally:
            self.runtime.objc_autoreleasePoolPop(pool)

    def string(self, text: str) -> int:
        """A string, which ends with the pool."""
        return int(self.send(self.class_named("NSString"), "stringWithUTF8String:", text.encode()))

    def text(self, string: int | None) -> str:
        held: bytes | None = self.send(string, "UTF8String")
        return (held or b"").decode(errors="replace")

    def told(self, error: int | None) -> str:
        """What an error says."""
        return self.text(self.send(error, "localizedDescription"))


@cache
def objective_c() -> ObjectiveC:
    """Raises DeviceUnavailable."""
    return ObjectiveC()
