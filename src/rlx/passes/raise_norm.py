"""Finds layer norm and RMS norm that a model spells in primitives, first without, then with scale and bias, and group
norm that is written as an instance norm of groups."""

from __future__ import annotations

from rlx.ir import dim as dims
from rlx.ir.graph import Value
from rlx.ir.literal import Array
from rlx.ops import build
from rlx.ops.elementwise import Add, Div, Mul, Reciprocal, Rsqrt, Sqrt, Square, Sub
from rlx.ops.norm import InstanceNorm, LayerNorm, RmsNorm
from rlx.ops.reduce import ReduceMean
from rlx.ops.shape import Reshape
from rlx.ops.transcendental import Pow
from rlx.passes.driver import Rules
from rlx.passes.pattern import Const, Either, Is, Pattern, Var

rules = Rules("raise-norm")
x, g, b, axes = Var("x"), Var("g"), Var("b"), Var("axes")


def _one_number(array: Array) -> bool:
    return array.size == 1


def _by_root(of: Pattern, variance: Pattern) -> Pattern:
    """of / √(variance + epsilon), in the ways to write it."""
    shifted = Is(Add, variance, Const(name="epsilon", where=_one_number), once=True)
    root = Is(Sqrt, shifted, once=True)
    return Either(
        Is(Div, of, root),
        Is(Mul, of, Is(Rsqrt, shifted, once=True)),
        Is(Mul, of, Is(Reciprocal, root, once=True)),
        Is(Mul, of, Is(Div, Const(1), root, once=True)),
    )


def _squared(of: Pattern) -> Pattern:
    return Either(Is(Square, of, once=True), Is(Mul, of, of, once=True), Is(Pow, of, Const(2), once=True))


def _number(epsilon: Value) -> float:
    assert epsilon.constant is not None
    return float(epsilon.constant.reshape(-1)[0])


def _kept_rank(x: Value, epsilon: Value, root: Value) -> bool:
    return x.type == root.type and epsilon.rank <= x.rank


_centred = Is(Sub, x, Is(ReduceMean, x, axes=axes, keepdims=True), name="centred")
_variance = Is(ReduceMean, _squared(_centred), axes=axes, keepdims=True, once=True)


@rules.rule("layer-norm", _by_root(_centred, _variance), when=_kept_rank)
def layer_norm(x: Value, axes: tuple[int, ...], epsilon: Value) -> Value:
    return build.layer_norm(x, axes=axes, epsilon=_number(epsilon))


_mean_square = Is(ReduceMean, _squared(x), axes=axes, keepdims=True, once=True)


@rules.rule("rms-norm", _by_root(x, _mean_square), when=_kept_rank)
def rms_norm(x: Value, axes: tuple[int, ...], epsilon: Value) -> Value:
    return build.rms_norm(x, axes=axes, epsilon=_number(epsilon))


def _along(vector: Value, x: Value, axes: tuple[int, ...]) -> bool:
    """Whether `vector` varies along the normalised axes only, so that a row kernel reads it once for all rows."""
    if vector.rank > x.rank:
        return False
    normal = {axis % x.rank for axis in axes}
    lead = x.rank - vector.rank
    return all(d == 1 or (d == x.shape[lead + i] and lead + i in normal) for i, d in enumerate(vector.shape))


_bare = Is(LayerNorm, x, axes=axes, epsilon=Var("epsilon"), once=True)
_scaled = Is(LayerNorm, x, g, axes=axes, epsilon=Var("epsilon"), once=True)
_bare_rms = Is(RmsNorm, x, axes=axes, epsilon=Var("epsilon"), once=True)

rules.add("layer-norm-scale", Is(Mul, _bare, g), lambda x, g, axes, epsilon: build.layer_norm(
    x, g, axes=axes, epsilon=epsilon), when=lambda x, g, axes: _along(g, x, axes))  # fmt: skip
rules.add("layer-norm-bias", Is(Add, _scaled, b), lambda x, g, b, axes, epsilon: build.layer_norm(
    x, g, b, axes=axes, epsilon=epsilon), when=lambda x, b, axes: _along(b, x, axes))  # fmt: skip
rules.add("rms-norm-scale", Is(Mul, _bare_rms, g), lambda x, g, axes, epsilon: build.rms_norm(
    x, g, axes=axes, epsilon=epsilon), when=lambda x, g, axes: _along(g, x, axes))  # fmt: skip


def _are_groups(x: Value, inner: Value, root: Value) -> bool:
    """Whether the instances are runs of whole channels of x, which comes out as it went in."""
    groups = inner.shape[1] if inner.rank == 3 else None
    if x.rank < 3 or x.shape != root.shape or not isinstance(groups, int) or inner.shape[0] != x.shape[0]:
        return False
    share = dims.exact_div(x.shape[1], groups) if groups else None
    return share is not None and inner.shape[2] == dims.product((share, *x.shape[2:]))


@rules.rule(
    "group-norm",
    Is(Reshape, Is(InstanceNorm, Is(Reshape, x, name="inner"), g, b, epsilon=Var("epsilon"), once=True)),
    when=_are_groups,
)
def group_norm(x: Value, inner: Value, g: Value, b: Value, epsilon: float) -> Value:
    """As torch exports it: an instance norm over [batch, groups, rest]."""
    groups, channels = inner.shape[1], x.shape[1]
    share = dims.floordiv(channels, groups)
    scale, bias = (build.broadcast_to(v.reshape(groups, 1), shape=(groups, share)).reshape(channels) for v in (g, b))
    return build.group_norm(x, scale, bias, groups=groups, epsilon=epsilon)
