"""coremltools itself, imported at its first use, and what MIL, Core ML's language, calls dtypes."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from rlx import flags, locks
from rlx.errors import MissingExtra
from rlx.ir import dtype as dtypes
from rlx.ir.dtype import DType
from rlx.ir.literal import Array

Value = Any
"""A variable of MIL."""
EXTRA = "pip install 'rlx[coreml]'"
TARGET = "iOS18"
"""The least system that converted models are for, and the set of ops that they may use; macOS 15 is the same."""
NAMES: dict[DType, str] = {
    dtypes.f32: "fp32", dtypes.f16: "fp16", dtypes.bf16: "fp32", dtypes.bool_: "bool",
    **{of: "int32" for of in dtypes.ALL.values() if of.is_integer and of not in (dtypes.u32, dtypes.u64)},
}  # fmt: skip
"""MIL computes with integers of 32 bits alone. Narrower ones are kept in them, and wrap as they should (`scalar`); of
64 bits they hold every index: constants and inputs that need more are refused."""
HUGE, GREATEST_F16 = np.float32(1e38), np.float32(np.finfo(np.float16).max)
LEAST, GREATEST = -(1 << 31), (1 << 31) - 1


_LOCK = locks.rlock()


@contextmanager
def at_work() -> Iterator[None]:
    """One thread uses coremltools at a time, as it keeps the program that it works on in variables of its own; without
    its warnings, which tell of every library that it has not been tested with, and of what only macOS has."""
    logger = logging.getLogger("coremltools")
    with _LOCK:
        before = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(before)


@cache
def tools() -> Any:
    """The module `coremltools`. Raises MissingExtra."""
    try:
        with at_work():
            module = importlib.import_module("coremltools")
            pipeline: Any = importlib.import_module("coremltools.converters.mil.mil.passes.pass_pipeline")
    except ImportError as error:
        raise MissingExtra(f"[device] the package coremltools is needed ({error}): {EXTRA}") from None
    progress = pipeline.tqdm
    pipeline.tqdm = lambda *items, **how: progress(*items, **{**how, "disable": True})  # rlx shows its own
    return module


class _Builder:
    """The builder of MIL: a method for every op of it."""

    def __getattr__(self, name: str) -> Any:
        tools()
        attribute = getattr(importlib.import_module("coremltools.converters.mil").Builder, name)
        setattr(self, name, attribute)
        return attribute


mb: Any = _Builder()


def mil_types() -> Any:
    return importlib.import_module("coremltools.converters.mil.mil").types


def mil_type(dtype: DType) -> Any:
    """The dtype in MIL."""
    return getattr(mil_types(), NAMES[dtype])


def known(value: Value) -> DType:
    """Our dtype of a variable; that of integers is i32, that of bf16 is f32."""
    return _BY_NAME[mil_types().builtin_to_string(value.dtype)]


def widened(value: Value) -> Value:
    """f16 as f32, in which sums keep their digits; others as they are. Where a model computes in f16 the conversion
    takes these casts out again."""
    return mb.cast(x=value, dtype="fp32") if known(value) is dtypes.f16 else value


def rounded_as(like: Value, y: Value) -> Value:
    """What was computed of `widened(like)` in the dtype of `like`."""
    return mb.cast(x=y, dtype="fp16") if known(like) is dtypes.f16 else y


_BY_NAME = {"fp32": dtypes.f32, "fp16": dtypes.f16, "int32": dtypes.i32, "bool": dtypes.bool_}


def shape_of(value: Value) -> tuple[int, ...]:
    return tuple(int(n) for n in value.shape)


def is_compressed(value: Value) -> bool:
    """Whether MIL makes this of smaller constants when a model is loaded."""
    return value.op is not None and value.op.op_type.startswith("constexpr_")


def narrowed(array: Array) -> Array:
    """The array as MIL takes it. Its integers must fit (`fits`).

    Where a model computes in f16, coremltools makes infinities of numbers from 1e38 on, as masks have them, and zero
    times these is NaN: they become the greatest number that f16 holds.
    """
    array = np.asarray(array)
    array = array.astype(np.float32) if array.dtype == dtypes.bf16.numpy else array
    if array.dtype == np.float32 and flags.coreml_precision() == "f16":
        huge = (np.abs(array) >= HUGE) & np.isfinite(array)
        return np.where(huge, np.copysign(GREATEST_F16, array), array) if huge.any() else array
    return array.astype(np.int32) if dtypes.of(array.dtype).is_integer else array


def fits(array: Array) -> bool:
    """Whether all integers of an array have 32 bits."""
    return array.dtype != np.int64 or not array.size or bool(array.min() >= LEAST and array.max() <= GREATEST)


def constant(array: Any) -> Value:
    """A constant of MIL."""
    value = narrowed(np.asarray(array))
    return mb.const(val=value if value.ndim else value[()])


def number(of: DType, value: float) -> Any:
    """A number of this dtype, as an operand."""
    return narrowed(np.asarray(value).astype(of.numpy))[()]


def on_macos() -> bool:
    """Whether Core ML is here, which runs what is converted."""
    return sys.platform == "darwin"
