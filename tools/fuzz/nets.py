"""Families of nets: convolutions and pools, norms over channels, attention, indices, order, quantised products."""

from __future__ import annotations

import numpy as np

from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Value
from tools.fuzz.core import epilogue
from tools.fuzz.generate import Maker, Refused, all_int, family


def image(make: Maker, least: int = 3, channels: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 16, 20)) -> Value:
    """A float value [n, c, spatial...] with some space: one that is there, or a leaf."""
    fits = [
        v for v in make.pool
        if v.dtype.is_float and least <= v.rank <= 4 and all_int(v.shape[1:]) and min(v.shape[1:]) > 0  # type: ignore[type-var]
        and make.size(v.shape[1:2]) <= 64
    ]  # fmt: skip
    if fits and make.chance(0.7):
        return make.random.choice(fits[-4:])
    batch = dims.symbol("n") if make.symbols and make.chance(0.5) else make.random.choice((1, 1, 2, 3))
    space = [make.extent(17) or 5 for _ in range(make.random.choice((1, 2, 2)))]
    return make.operand((batch, make.random.choice(channels), *space), make.float())


def window(make: Maker, value: Value) -> dict[str, tuple[int, ...]]:
    """Strides, dilations and pads for the axes behind the first two."""
    rank = value.rank - 2
    choose = make.random.choice

    def many(*options: int) -> tuple[int, ...]:
        return tuple(choose(options) for _ in range(rank))

    pads = many(0, 0, 1, 1, 2) if make.chance(0.9) else many(-1, 0, 1)
    return {
        "strides": many(1, 1, 1, 2, 3),
        "dilations": many(1, 1, 1, 2),
        "low": pads,
        "high": pads if make.chance(0.6) else many(0, 1, 2),
    }


@family(7)
def convolution(make: Maker) -> None:
    value = image(make)
    channels = make.at(value.shape[1])
    choose = make.random.choice
    groups = choose([g for g in (1, 1, 1, 1, 2, 4, channels) if channels % g == 0])
    kernel = [choose((1, 1, 2, 3, 3, 5)) for _ in value.shape[2:]]
    if make.chance(0.4) and groups == 1:
        out = channels  # so that residuals fit
        kernel = [choose((1, 3)) for _ in kernel]
        attributes = {
            "strides": (1,) * len(kernel), "dilations": (1,) * len(kernel),
            "low": tuple(k // 2 for k in kernel), "high": tuple(k // 2 for k in kernel),
        }  # fmt: skip
    else:
        out = groups * choose((1, 1, 2, 3, 5, 8, 17))
        attributes = window(make, value)
    weight = make.operand((out, channels // groups, *kernel), value.dtype)
    y = make.add("conv", value, weight, groups=groups, **attributes)
    if make.chance(0.4):
        bias = make.operand((out, *[1] * len(kernel)), value.dtype)
        y = make.add("add", y, bias)
    if make.chance(0.25):
        vectors = [make.leaf((out,), value.dtype) for _ in range(3)]
        variance = make.add("add", make.add("abs", make.leaf((out,), value.dtype)), 1.0)
        y = make.add("batch_norm", y, *vectors, variance)
    epilogue(make, y, value)


@family(1.5)
def transposed_convolution(make: Maker) -> None:
    value = image(make)
    channels = make.at(value.shape[1])
    groups = make.random.choice([g for g in (1, 1, 2) if channels % g == 0])
    kernel = [make.random.choice((1, 2, 3)) for _ in value.shape[2:]]
    weight = make.operand((channels, make.random.choice((1, 2, 4)), *kernel), value.dtype)
    y = make.add("conv_transpose", value, weight, groups=groups, **window(make, value))
    epilogue(make, y, value)


@family(3)
def pool(make: Maker) -> None:
    value = image(make)
    sizes = tuple(make.random.choice((1, 2, 2, 3)) for _ in value.shape[2:])
    attributes = window(make, value)
    if make.chance(0.5):
        how = make.random.choice(("add", "max", "min"))
        make.add("reduce_window", value, combine=how, window=sizes, **attributes)
    else:
        make.add("average_pool", value, window=sizes, count_pads=make.chance(0.5), **attributes)


@family(2)
def channel_norm(make: Maker) -> None:
    value = image(make)
    channels = make.at(value.shape[1])
    name = make.random.choice(("group_norm", "instance_norm", "local_response_norm"))
    if name == "local_response_norm":
        y = make.add(name, value, size=make.random.choice((1, 3, 5)))
    else:
        groups = make.random.choice([g for g in (1, 2, channels) if channels % g == 0])
        vectors = [make.operand((channels,), value.dtype) for _ in range(2)]
        y = make.add(name, value, *vectors, **({"groups": groups} if name == "group_norm" else {}))
    if make.chance(0.5):
        make.add("add", y, make.through(value))


@family(5)
def attention(make: Maker) -> None:
    """Attention, with keys and values from where the queries are at times, and a residual behind it."""
    choose = make.random.choice
    dtype = make.float()
    heads, features = choose((1, 2, 4)), choose((1, 4, 8, 16, 17, 32))
    shared = choose([h for h in (1, heads) if heads % h == 0])
    batch = dims.symbol("n") if make.symbols and make.chance(0.5) else choose((1, 1, 2))
    queries = dims.symbol(make.symbols[-1]) if make.symbols and make.chance(0.4) else make.extent(70)
    keys = queries if make.chance(0.5) else make.extent(70) or 1
    if keys == 0:
        raise Refused("no keys")
    q = make.operand((batch, heads, queries, features), dtype)
    if make.chance(0.3) and shared == heads and keys == queries:
        k, v = make.through(q), make.through(q)
    else:
        k = make.operand((batch, shared, keys, features), dtype)
        v = make.operand((batch, shared, keys, choose((features, features, 6))), dtype)
    far = make.chance(0.15)
    if far:  # every score of a row is far below zero
        q, k = make.add("abs", q), make.add("neg", make.add("abs", k))
    mask = []
    if make.chance(0.4):
        shape = choose(((queries, keys), (batch, 1, 1, keys), (batch, 1, queries, keys), (batch, heads, queries, keys)))
        mask = [make.operand(shape, choose((dtypes.bool_, dtype)))]
    attributes: dict[str, object] = {"causal": make.chance(0.3)}
    if make.chance(0.2):
        attributes["window"] = choose((1, 2, 3, 20))
    if make.chance(0.2):
        attributes["softcap"] = choose((2.0, 10.0))
    if far or make.chance(0.3):
        attributes["scale"] = 8.0 if far else choose((0.5, 1.0))
    if attributes["causal"] and make.chance(0.4):
        attributes["offset"] = choose((-2, 0, 1, 5))
    y = make.add("attention", q, k, v, *mask, **attributes)
    if y.shape == q.shape and make.chance(0.6):
        y = make.add("add", y, make.through(q))
    if make.chance(0.4):
        heads_last = make.add("transpose", y, permutation=(0, 2, 1, 3))
        merged = dims.mul(heads_last.shape[2], heads_last.shape[3])
        make.add("reshape", heads_last, shape=(*heads_last.shape[:2], merged))


@family(2)
def spelt_out_attention(make: Maker) -> None:
    """What exporters write for attention: products, a scale, a mask, a softmax."""
    choose = make.random.choice
    dtype = make.float()
    lead = (choose((1, 2)), choose((1, 2, 4)))
    queries, features = make.extent(40) or 3, choose((4, 8))
    keys = queries if make.chance(0.6) else make.extent(40) or 2
    q, k, v = (make.operand((*lead, n, features), dtype) for n in (queries, keys, keys))
    scores = make.add("matmul", q, make.add("transpose", k, permutation=(0, 1, 3, 2)))
    if make.chance(0.7):
        scores = make.add(*choose((("mul", scores, 0.5), ("div", scores, 2.0))))
    if make.chance(0.5):
        scores = make.add("add", scores, make.operand(choose(((queries, keys), (lead[0], 1, 1, keys))), dtype))
    y = make.add("matmul", make.add("softmax", scores, axis=-1), v)
    if make.chance(0.5):
        make.add("add", y, make.through(q))


@family(1)
def rotary(make: Maker) -> None:
    choose = make.random.choice
    dtype = make.float()
    length, half = make.extent(20), choose((1, 2, 4))
    x = make.operand((choose((1, 2)), choose((1, 3)), length, choose((half * 2, half * 2 + 4))), dtype)
    make.add(
        "rotary_embedding", x, *(make.operand((length, half), dtype) for _ in range(2)), interleaved=make.chance(0.5)
    )


def indices(make: Maker, shape: tuple[object, ...], extent: int) -> Value:
    """Whole numbers that say places, some counted from the back, a few beyond."""
    wild = 3 if make.chance(0.15) else 0
    if wild or extent == 0 or make.symbols:  # at other sizes what fits here does not
        make.clamp()
    return make.leaf(
        shape,  # type: ignore[arg-type]
        make.random.choice((dtypes.i64, dtypes.i32)),
        low=-extent - wild if make.chance(0.5) else 0,
        high=max(extent - 1, 0) + wild,
    )


@family(7)
def gather(make: Maker) -> None:
    value = make.any(rank=(1, 4))
    axis = make.random.randrange(value.rank)
    extent = make.at(value.shape[axis])
    name = make.random.choice(("gather", "gather", "gather_elements", "gather_nd"))
    if name == "gather":
        make.add(name, value, indices(make, make.shape(0, 2), extent), axis=axis)
    elif name == "gather_elements":
        shape = list(value.shape)
        shape[axis] = make.extent(20)
        make.add(name, value, indices(make, tuple(shape), extent), axis=axis)
    else:
        depth = make.random.randint(1, value.rank)
        most = min(make.at(d) for d in value.shape[:depth])
        make.add(name, value, indices(make, (*make.shape(0, 2, open_=False), depth), most))


@family(4)
def scatter(make: Maker) -> None:
    value = make.any("float", "int", rank=(1, 3))
    combine = make.random.choice((None, None, "add", "mul", "min", "max"))
    if make.chance(0.5):
        axis = make.random.randrange(value.rank)
        shape = list(value.shape)
        shape[axis] = make.extent(20)
        at = indices(make, tuple(shape), make.at(value.shape[axis]))
        make.add("scatter_elements", value, at, make.operand(tuple(shape), value.dtype), axis=axis, combine=combine)
    else:
        depth = make.random.randint(1, value.rank)
        most = min(make.at(d) for d in value.shape[:depth])
        lead = make.shape(0, 2, open_=False)
        updates = make.operand((*lead, *value.shape[depth:]), value.dtype)
        make.add("scatter_nd", value, indices(make, (*lead, depth), most), updates, combine=combine)


@family(3)
def order(make: Maker) -> None:
    value = make.any("float", "int", "uint", rank=(1, 3))
    axis = make.random.randrange(value.rank)
    name = make.random.choice(("sort", "argsort", "top_k"))
    if name == "top_k":
        extent = value.shape[axis]
        k = make.random.randint(0, min(extent, 9)) if isinstance(extent, int) else extent
        make.several(name, value, axis=axis, k=k, largest=make.chance(0.6))
    else:
        make.add(name, value, axis=axis, descending=make.chance(0.5))


@family(3)
def quantised(make: Maker) -> None:
    """Numbers to bytes and back, and products of bytes."""
    value = make.any("float", rank=(1, 3), where=lambda v: v.dtype is dtypes.f32)
    dtype = make.random.choice((dtypes.u8, dtypes.i8))
    scale = make.leaf((), dtypes.f32, array=np.array(make.random.choice((0.25, 0.5, 1.0)), np.float32))
    zero = make.leaf((), dtype, low=0, high=3)
    as_bytes = make.add("quantize", value, scale, zero, dtype=dtype)
    how = make.random.random()
    if how < 0.4:
        make.add("dequantize", as_bytes, scale, zero, dtype=dtypes.f32)
    elif how < 0.9 and isinstance(value.shape[-1], int):
        width = make.extent(40)
        weight = make.operand((value.shape[-1], width), make.random.choice((dtypes.i8, dtypes.u8)))
        zeros = [zero, make.leaf(make.random.choice(((), (width,))), weight.dtype, low=0, high=2)]
        product = make.add("integer_matmul", as_bytes, weight, *zeros)
        if make.chance(0.6):
            wide = make.add("mul", make.add("cast", product, to=dtypes.f32), make.operand((width,), dtypes.f32))
            if wide.shape == value.shape:
                make.add("add", wide, make.through(value))


GIVEN = ("param", "constant")
"""What is there before a run."""


@family(2)
def packed(make: Maker) -> None:
    """Products with weights of few bits: some rows are whole pieces of what kernels load at once."""
    bits = make.random.choice((2, 4, 4, 8))
    piece = 128 // bits
    depth = piece * make.random.choice((1, 2, 3, 5)) if make.chance(0.8) else make.extent(160) or 1
    block, columns = make.random.choice((16, 32, 64, 96)), make.random.choice((1, 8, 9, 24, 40))
    dtype = make.random.choice((dtypes.f32, dtypes.f16, dtypes.bf16))
    scales = dtype if make.chance(0.7) else dtypes.f32
    count = -(-depth // block)
    x = make.operand((*make.shape(0, 2), depth), dtype)
    w = make.leaf((columns, count * block * bits // 8), dtypes.u8, low=0, high=255, what=make.random.choice(GIVEN))
    steps = 2.0 ** -np.arange(bits, bits + columns * count).clip(max=bits + 2).reshape(columns, count)
    parameters = [make.leaf((columns, count), scales, array=steps.astype(scales.numpy), what=make.random.choice(GIVEN))]
    how = make.random.choice(("half", "whole", "float", "added"))
    if how == "whole":
        zero = make.leaf((columns, count), dtypes.u8, low=0, high=(1 << bits) - 1, what=make.random.choice(GIVEN))
        parameters.append(make.add("cast", zero, to=scales))
    elif how != "half":
        parameters.append(make.leaf((columns, count), scales, what=make.random.choice(GIVEN)))
    y = make.add("packed_matmul", x, w, *parameters, depth=depth, bits=bits, block=block, added=how == "added")
    if make.chance(0.5):
        make.add(make.random.choice(("silu", "relu", "neg")), y)
