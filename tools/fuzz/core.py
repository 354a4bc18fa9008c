"""Families of ops that every net is made of: elementwise, products, reductions, rows, moves."""

from __future__ import annotations

from rlx.ir import dtype as dtypes
from rlx.ir.dim import Shape
from rlx.ir.graph import Value
from rlx.ir.op import REGISTRY, Elementwise
from rlx.ops.activation import Activation
from rlx.ops.reduce import Reduction, Statistic
from tools.fuzz.generate import DTYPES, Maker, Refused, all_int, family

EXACT = ("add", "sub", "mul", "minimum", "maximum", "neg", "abs", "square", "select", "lt", "ge", "eq", "clamp", "sign")
UNARY = ("relu", "tanh", "exp", "gelu", "sigmoid", "silu", "sqrt", "erf", "rsqrt", "reciprocal")
ELSEWHERE = ("philox",)
ELEMENTWISE = [
    cls for cls in REGISTRY.values()
    if issubclass(cls, Elementwise) and cls.name not in ELSEWHERE
]  # fmt: skip
ACTIVATIONS = [cls for cls in REGISTRY.values() if issubclass(cls, Activation)]
REDUCTIONS = [
    cls for cls in REGISTRY.values()
    if issubclass(cls, (Reduction, Statistic)) or cls.name in ("reduce_any", "reduce_all")
]  # fmt: skip
POSITIVE = ("log", "log2", "sqrt", "rsqrt", "reciprocal", "acosh", "log1p", "pow")


def broadcastable(make: Maker, shape: Shape) -> Shape:
    """A shape that broadcasts to this one: itself most often."""
    if make.chance(0.65) or not shape:
        return shape
    how = make.random.random()
    if how < 0.25:
        return ()
    cut = shape[make.random.randrange(len(shape)) :] if make.chance(0.5) else shape
    return tuple(1 if make.chance(0.3) else d for d in cut)


@family(30)
def exact_elementwise(make: Maker) -> None:
    """What whole numbers pass through unharmed, in short chains."""
    value = make.any("float", "int")
    for _ in range(make.random.choice((1, 1, 2, 3))):
        value = elementwise(make, make.random.choice(EXACT), value)
        if value.dtype is dtypes.bool_:
            return


@family(10)
def some_elementwise(make: Maker) -> None:
    cls = make.random.choice(ELEMENTWISE)
    kinds = cls.kinds
    elementwise(make, cls.name, make.any(*[k for k in kinds if k != "complex"]))


@family(8)
def activation(make: Maker) -> None:
    value = make.any("float")
    if make.chance(0.6):
        elementwise(make, make.random.choice(UNARY), value)
    else:
        make.add(make.random.choice(ACTIVATIONS).name, value)


def elementwise(make: Maker, name: str, value: Value) -> Value:
    """One elementwise op with the value among its operands."""
    cls = REGISTRY[name]
    if name in ("cast", "bitcast"):
        return cast(make, name, value)
    if name == "select":
        value = make.operand(value.shape, value.dtype) if value.dtype is dtypes.bool_ and make.chance(0.5) else value
        condition = make.operand(broadcastable(make, value.shape), dtypes.bool_)
        others = [value, make.operand(broadcastable(make, value.shape), value.dtype)]
        make.random.shuffle(others)
        return make.add(name, condition, *others)
    if name in POSITIVE and value.dtype.is_float and make.chance(0.7):
        value = make.add("add", make.add("abs", value), make.random.choice((0.5, 1.0)))
    count = cls.arity[0]
    operands = [value]
    for _ in range(count - 1):
        if make.chance(0.12):
            operands.append(make.through(value))
        elif make.chance(0.12) and value.dtype is not dtypes.bool_:
            scalar = make.random.choice((0, 1, 1, 2, 3)) if value.dtype.bits >= 8 else 1
            operands.append(make.leaf((), value.dtype, low=scalar, high=scalar))
        else:
            operands.append(make.operand(broadcastable(make, value.shape), value.dtype))
    make.random.shuffle(operands)
    if name in ("shift_left", "shift_right"):
        operands[1] = make.leaf(broadcastable(make, value.shape), value.dtype, low=0, high=value.dtype.bits)
    if name == "pow" and value.dtype.is_integer:
        operands[1] = make.leaf(broadcastable(make, value.shape), value.dtype, low=0, high=3)
    return make.add(name, *operands)


def cast(make: Maker, name: str, value: Value) -> Value:
    if name == "cast":
        return make.add(name, value, to=make.random.choice(DTYPES))
    same = [d for d in DTYPES if d.bits == value.dtype.bits and d is not dtypes.bool_]
    if not same or value.dtype is dtypes.bool_:
        raise Refused("no other dtype of its width")
    return make.add(name, value, to=make.random.choice(same))


@family(16)
def move(make: Maker) -> None:
    value = make.any()
    for _ in range(make.random.choice((1, 1, 2, 3))):
        value = make.view(value)


@family(2)
def concat(make: Maker) -> None:
    value = make.any(rank=(1, 4))
    axis = make.random.randrange(value.rank)
    parts = [value]
    for _ in range(make.random.choice((1, 1, 2))):
        shape = list(value.shape)
        if all_int(shape):
            shape[axis] = make.extent(20)
        parts.append(make.operand(tuple(shape), value.dtype))
    make.random.shuffle(parts)
    make.add("concat", *parts, axis=axis)


@family(1)
def iota(make: Maker) -> None:
    shape = make.shape(1, 3)
    dtype = make.random.choice((dtypes.i32, dtypes.i64, dtypes.f32))
    make.add("iota", make.graph, shape=shape, dtype=dtype, axis=make.random.randrange(len(shape)))


@family(14)
def product(make: Maker) -> None:
    """A product of a value with a weight, often square so that residuals fit, and an epilogue."""
    value = (
        make.any("float", "int", "uint", rank=(1, 4)) if make.chance(0.8) else make.leaf(make.shape(2, 3), make.float())
    )
    if value.dtype.bits < 16 and make.chance(0.8):
        raise Refused("sums of bytes overflow")
    depth = value.shape[-1]
    if not isinstance(depth, int) and make.chance(0.7):
        raise Refused("an open depth")
    width = depth if make.chance(0.5) else make.extent()
    shape: Shape = (depth, width)
    if value.rank > 2 and make.chance(0.25):
        shape = (*value.shape[:-2], depth, width)
    elif make.chance(0.07):
        shape = (depth,)
    if make.size(shape) > 20000 or make.size((*value.shape, width)) > 400_000:
        raise Refused("too much work")
    y = make.add("matmul", value, make.operand(shape, value.dtype))
    epilogue(make, y, value)


@family(6)
def dot_general(make: Maker) -> None:
    value = make.any("float", "int", "uint", rank=(1, 4))
    axes = list(range(value.rank))
    make.random.shuffle(axes)
    batch = axes[: make.random.choice((0, 0, 1, 2))]
    rest = axes[len(batch) :]
    contract = rest[: make.random.choice((0, 1, 1, 1, 2))]
    free = [make.extent(40) for _ in range(make.random.choice((0, 1, 1, 2)))]
    labels = [("b", i) for i in batch] + [("c", i) for i in contract] + [("f", i) for i in range(len(free))]
    make.random.shuffle(labels)
    shape = tuple(free[i] if what == "f" else value.shape[i] for what, i in labels)
    if make.size(shape) > 20000 or make.size((*value.shape, *free)) > 400_000:
        raise Refused("too much work")
    other = make.operand(shape, value.dtype)
    y = make.add(
        "dot_general", value, other, lhs_contract=tuple(contract), lhs_batch=tuple(batch),
        rhs_contract=tuple(labels.index(("c", i)) for i in contract),
        rhs_batch=tuple(labels.index(("b", i)) for i in batch),
    )  # fmt: skip
    epilogue(make, y, value)


def epilogue(make: Maker, y: Value, source: Value) -> Value:
    """What often follows a product: bias, residual, activation, a mean over what came out."""
    for _ in range(make.random.choice((0, 1, 1, 2, 3))):
        how = make.random.random()
        if how < 0.25 and y.rank:
            y = make.add("add", y, make.operand(y.shape[-1:], y.dtype))
        elif how < 0.6 and source.shape == y.shape and source.dtype is y.dtype:
            operands = [y, make.through(source)]
            make.random.shuffle(operands)
            y = make.add(make.random.choice(("add", "sub", "mul", "maximum")), *operands)
        elif how < 0.8:
            y = elementwise(make, make.random.choice(EXACT), y)
        elif y.dtype.is_float:
            y = (
                elementwise(make, make.random.choice(("relu", "gelu", "sigmoid", "tanh", "relu")), y)
                if make.chance(0.3)
                else make.add("relu", y)
            )
    return y


@family(12)
def reduction(make: Maker) -> None:
    """A reduction, and often what it gives joined with what it reduced."""
    cls = make.random.choice(REDUCTIONS)
    if make.chance(0.6):
        cls = REGISTRY[make.random.choice(("reduce_sum", "reduce_max", "reduce_min", "reduce_mean"))]
    value = make.any(*getattr(cls, "kinds", ("bool",)), rank=(1, 4))
    if not all(make.size((d,)) for d in value.shape) and cls.name in ("reduce_max", "reduce_min", "reduce_mean"):
        raise Refused("extrema of nothing")
    axes = tuple(sorted(make.random.sample(range(value.rank), make.random.randint(1, min(value.rank, 2)))))
    if make.chance(0.4):
        axes = (value.rank - 1,)
    keep = make.chance(0.6)
    y = make.add(cls.name, value, axes=axes, keepdims=keep)
    if keep and y.dtype is value.dtype and make.chance(0.6):
        operands = [value, y]
        make.random.shuffle(operands)
        joint = make.add(make.random.choice(("add", "sub", "mul", "maximum")), *operands)
        if make.chance(0.3):
            make.add("reduce_sum" if joint.dtype.kind != "bool" else "reduce_any", joint, axes=axes, keepdims=True)


@family(2)
def extremum(make: Maker) -> None:
    value = make.any("float", "int", rank=(1, 4))
    if not make.size(value.shape):
        raise Refused("extrema of nothing")
    axis = make.random.randrange(value.rank)
    make.add(
        make.random.choice(("argmax", "argmin")), value, axis=axis, keepdims=make.chance(0.5), last=make.chance(0.3)
    )


@family(3)
def cumulative(make: Maker) -> None:
    value = make.any("float", "int", rank=(1, 4))
    name = make.random.choice(("cumsum", "cumsum", "cummax", "cummin", "cumprod"))
    axis = make.random.randrange(value.rank)
    make.add(name, value, axis=axis, exclusive=make.chance(0.3), reverse=make.chance(0.4))


@family(7)
def row(make: Maker) -> None:
    """Softmax, norms and their like, and a residual behind them."""
    value = make.any("float", rank=(1, 4))
    name = make.random.choice(("softmax", "log_softmax", "l2_normalize", "layer_norm", "rms_norm"))
    if name in ("layer_norm", "rms_norm"):
        operands = [make.operand(value.shape[-1:], value.dtype) for _ in range(make.random.randrange(3))]
        y = make.add(name, value, *operands[: 2 if name == "layer_norm" else 1])
    else:
        y = make.add(name, value, axis=make.random.choice((-1, -1, make.random.randrange(value.rank))))
    if make.chance(0.5):
        make.add(make.random.choice(("add", "mul", "sub")), y, make.through(value))
