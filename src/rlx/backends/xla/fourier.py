"""Fourier transforms by XLA's own: which nodes are left whole for it, and how it is called."""

from __future__ import annotations

from typing import Any

from rlx.backends.op_by_op import Table
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Node
from rlx.ops.fourier import Fft, Irfft, Rfft

TABLE = Table()
lowers = TABLE.lowers
Pair = tuple[Any, Any]


def claim(node: Node) -> str | None:
    """None for what is no transform, "" for one that XLA takes, else why not. What is not plain is decomposed to what
    is."""
    op = node.op
    if not isinstance(op, (Fft, Rfft, Irfft)):
        return None
    x = node.inputs[0].type
    if x.dtype is not dtypes.f32:
        return "a dtype other than f32"
    return "" if op.is_plain(x) else "an axis that is not the last, or another length than the operand's"


def estimated(node: Node) -> str | None:
    """As `claim`, for what `kernel.lower` has a kernel for: predictions are made of such kernels."""
    told = claim(node)
    if told == "" and not isinstance(node.op, Fft):
        length = (node.types[0] if isinstance(node.op, Irfft) else node.inputs[0].type).shape[-1]
        return "" if isinstance(length, int) and length % 2 == 0 else "an odd length, or one that is not known"
    return told


def _parts(made: Any, wrong: Any) -> Pair:
    """Real and imaginary part. A NaN reaches every bin, also where an algorithm would pass it by."""
    import jax.numpy as jnp

    bad = jnp.any(wrong, -1, keepdims=True)
    return jnp.where(bad, jnp.nan, made.real), jnp.where(bad, jnp.nan, made.imag)


def _complex(real: Any, imaginary: Any | None) -> Any:
    import jax.numpy as jnp
    from jax import lax

    return lax.complex(real, jnp.zeros_like(real) if imaginary is None else imaginary)


@lowers("fft")
def _fft(op: Any, real: Any, imaginary: Any | None = None) -> Pair:
    import jax.numpy as jnp

    if real.size == 0:
        return jnp.zeros_like(real), jnp.zeros_like(real)
    wrong = jnp.isnan(real) if imaginary is None else jnp.isnan(real) | jnp.isnan(imaginary)
    transform = jnp.fft.ifft if op.inverse else jnp.fft.fft
    return _parts(transform(_complex(real, imaginary)), wrong)


@lowers("rfft")
def _rfft(op: Any, x: Any) -> Pair:
    import jax.numpy as jnp

    if x.size == 0:
        empty = jnp.zeros((*x.shape[:-1], x.shape[-1] // 2 + 1), x.dtype)
        return empty, empty
    return _parts(jnp.fft.rfft(x), jnp.isnan(x))


@lowers("irfft")
def _irfft(op: Any, real: Any, imaginary: Any | None = None) -> Any:
    import jax.numpy as jnp

    length = 2 * (real.shape[-1] - 1) if op.length is None else op.length
    if real.size == 0:
        return jnp.zeros((*real.shape[:-1], length), real.dtype)
    return jnp.fft.irfft(_complex(real, imaginary), length)
