"""The WGSL renderer where there is no device: what every shader must be, and the parts that decide its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx import flags, ops
from rlx.backends.base import Options
from rlx.backends.wgpu.build import Plan, build
from rlx.backends.wgpu.device import STORAGE_BUFFERS, in_two_dimensions
from rlx.codegen.scalar.int_ranges import Check, Ranges, fits, overflows
from rlx.codegen.scalar.small_floats import decode, encode
from rlx.codegen.simt import loops as nest
from rlx.codegen.simt.body import legal
from rlx.codegen.simt.code import WORKGROUP, Binding, Code, Shader, Slot
from rlx.codegen.simt.language.wgsl import library
from rlx.codegen.simt.language.wgsl.language import WGSL, float_literal
from rlx.codegen.simt.language.wgsl.shader import FUNCTIONS
from rlx.errors import RlxError
from rlx.ir import dim as dims
from rlx.ir import dtype as dtypes
from rlx.ir import expr as ex
from rlx.ir.dtype import DType
from rlx.ir.expr import Expr
from rlx.ir.graph import Graph
from rlx.kernel.ir.index import Linear, axis, dim_value, load
from rlx.kernel.ir.loops import LoopNest, Store

BUILTINS = {
    "abs", "min", "max", "clamp", "select", "fma", "dot", "sqrt", "floor", "ceil", "trunc", "round",
    "countLeadingZeros", "workgroupBarrier", "atomicLoad", "atomicAdd", "atomicMax", "f32", "i32", "u32",
}  # fmt: skip
KEYWORDS = {"if", "for", "while", "return", "fn", "let", "var", "else", "main", "workgroup_size", "binding", "group"}
N = dims.symbol("n")


def encoder(layers: int = 2) -> Graph:
    """Every kind of kernel: gathers, rows, contractions, maps, masks, narrow and 64-bit elements."""
    graph = Graph("encoder")
    ids = graph.input("ids", ("batch", "seq"), "i64")
    half = graph.input("half", ("batch", "seq", 16), "f16")
    x = ops.gather(graph.param("words", (40, 16)), ids, axis=0) + half.cast("f32")
    for i in range(layers):
        scores = x @ ops.transpose(x, permutation=(0, 2, 1))
        masked = ops.select(ops.ne(ids, 0)[:, None, :], scores, -1e30)
        x = ops.layer_norm(
            x + ops.softmax(masked, axis=-1) @ x, graph.param(f"s{i}", (16,)), graph.param(f"b{i}", (16,))
        )
        x = ops.gelu(x @ graph.param(f"w{i}", (16, 16)))
    graph.output(x, ops.argmax(x, axis=-1), ids * 3, ops.pow(x, 2.5), ops.rem(x, 0.7), x.cast("bf16"), ops.log(x))
    return graph


def selection() -> Graph:
    """What is no nest: scatters, running reductions, rankings of both kinds, and narrow elements."""
    graph = Graph("selection")
    x, at = graph.input("x", ("n", 40)), graph.input("at", ("m", 40), "i64")
    graph.output(ops.cumsum(x, axis=1), ops.cummax(x.T.cast("i64"), axis=1, reverse=True), ops.sort(x, axis=0))
    graph.output(*ops.top_k(x, axis=1, k=5), ops.cumsum(x.reshape(-1).cast("bf16"), axis=0, exclusive=True))
    graph.output(ops.scatter_elements(x, at, graph.input("updates", ("m", 40)), axis=0, combine="add"))
    graph.output(x.cast("f8e4m3"), graph.input("bits", ("n",), "u4").cast("f32"), x.cast("i2") + 1)
    return graph


def attention() -> Graph:
    """With all that it may have, and lengths that only a run knows."""
    graph = Graph("attention")
    q, k, v = graph.input("q", (2, 4, "n", 6)), graph.input("k", (2, 2, "m", 6)), graph.input("v", (2, 2, "m", 70))
    graph.output(ops.attention(q, k, v, graph.input("mask", (2, 1, "n", "m"), "bool"), causal=True, empty="nan"))
    graph.output(ops.attention(*(x.cast("bf16") for x in (q, k, v)), graph.input("added", ("m",), "bf16")))
    return graph


@pytest.fixture(scope="module", params=[encoder, selection, attention], ids=lambda made: str(made.__name__))
def plan(request: pytest.FixtureRequest) -> Plan:
    return build(request.param(), Options(), 1 << 20)


def shaders(plan: Plan) -> list[Shader]:
    return [step.shader for step in (*plan.prepare, *plan.main)]


def test_names_are_declared_once_and_before_their_use(plan: Plan) -> None:
    for shader in shaders(plan):
        entry = shader.text[shader.text.index("fn main") :]
        declared = re.findall(r"\b(?:let|var) (\w+)", entry)
        assert len(declared) == len(set(declared))
        seen: set[str] = set()
        for line in entry.splitlines():
            right = line.split("=", 1)[-1] if re.match(r"\s*(let|var) ", line) else line
            used = set(re.findall(r"\b([a-z]+\d+)\b(?![(<])", right)) - {"f32", "i32", "u32"}
            seen |= set(re.findall(r"\b(?:let|var) (\w+)", line))
            assert {name for name in used if not name.startswith("memory")} <= seen, line


def test_no_name_becomes_that_of_a_type() -> None:
    """Names are a stem and a number: a stem i would one day make i32, and hide the type."""
    code = Code(WGSL)
    stems = {"v", *re.findall(r'(?:fresh|let)\([^\n]*?"(\w+)"\)', _sources())}
    assert "index" in stems
    for stem in stems:
        names = {f"{stem}{n}" for n in range(200)}
        assert not names & {"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64"}
        assert not {n for n in names if re.fullmatch(r"(vec|mat)\d+", n)}
    assert code.fresh("v") != code.fresh("v")


def _sources() -> str:
    return "".join(path.read_text("utf-8") for path in Path(nest.__file__).parent.glob("*.py"))


def test_only_known_functions_are_called(plan: Plan) -> None:
    """Above all no exp, tanh or log of the driver: their errors are large and not the same everywhere."""
    for shader in shaders(plan):
        called = set(re.findall(r"(?<!@)\b([A-Za-z_]\w*)\(", shader.text)) - KEYWORDS
        defined = set(re.findall(r"\bfn (\w+)\(", shader.text))
        assert called <= BUILTINS | defined
        assert defined - {"main"} <= called


def test_shaders_keep_to_the_limits_of_the_standard(plan: Plan) -> None:
    for shader in shaders(plan):
        assert len(shader.bindings) <= STORAGE_BUFFERS
        assert WORKGROUP <= 256
        sizes = {"f32": 4, "i32": 4, "u32": 4, "bool": 4, "vec2<u32>": 8, "vec4<f32>": 16}
        shared = re.findall(r"var<workgroup> \w+: array<(.+), (\d+)>", shader.text)
        assert sum(sizes[kind] * int(count) for kind, count in shared) <= 16 << 10


def test_there_are_no_literals_of_what_wgsl_refuses(plan: Plan) -> None:
    for shader in shaders(plan):
        assert not re.search(r"\b(inf|nan)\b", shader.text)
        assert shader.text.count("{") == shader.text.count("}")


def test_barriers_stand_where_every_lane_comes_by(plan: Plan) -> None:
    for shader in shaders(plan):
        heads: list[str] = []  # of the blocks around a line
        for line in shader.text.splitlines():
            heads = heads[: (len(line) - len(line.lstrip())) // 2]
            # the first block is the function; others go alike for all lanes, as their heads show
            alike = (re.match(r" *(for \(var (start|size|half)\d|if \(record)", head) for head in heads[1:])
            assert "workgroupBarrier" not in line or all(alike), heads
            heads += [line] * line.endswith("{")


def test_layers_share_shaders() -> None:
    """Where buffers start, and dims, are no part of the text: a deeper model needs no more pipelines."""
    counts = [len({s.text for s in shaders(build(encoder(n), Options(), 1 << 20))}) for n in (2, 4)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("graph", [encoder, selection, attention])
def test_rendering_is_deterministic(graph: Callable[[], Graph]) -> None:
    first, second = (shaders(build(graph(), Options(), 1 << 20)) for _ in range(2))
    assert [s.text for s in first] == [s.text for s in second]


def test_dims_come_with_the_dispatch() -> None:
    """The numbers of a shader's record are the dims that its text asks for, in order."""
    body = load(1, Linear(0, ((0, N), (1, 1))), dtypes.f32)
    work = LoopNest((N, dims.mul(N, 2)), (), (Store(0, Linear(0, ((0, dims.mul(N, 2)), (1, 1))), body, False),))
    slots = [Slot(dtypes.f32, 0), Slot(dtypes.f32, 1)]
    made = nest.render(work, slots, [Binding("u32", True), Binding("u32", False)], "copy")
    assert made.positions == dims.mul(dims.mul(N, N), 2)
    entries = re.findall(r"record\[(\d+)\]\.([xyzw])", made.text)
    used = {4 * int(row) + "xyzw".index(column) for row, column in entries}
    assert used == set(range(1, 1 + made.slots + len(made.numbers)))
    assert set(made.numbers) >= {N, dims.mul(N, 2), made.positions}


def parsed(literal: str) -> np.float32:
    """The value of a float literal as a WGSL compiler reads it; the record's first number is 0."""
    bits = re.match(r"bitcast<f32>\((\d+)u", literal)
    if bits:
        return np.uint32(int(bits.group(1))).view(np.float32)
    return np.float32(float(literal.strip("()").removesuffix("f")))


def test_float_literals_are_exact() -> None:
    random = np.random.default_rng(0)
    numbers = random.integers(0, 1 << 32, 2000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4028235e38, 0.1, -1e-30, 16777216], np.float32)
    for number in (*numbers, *edges):
        got = parsed(float_literal(float(number)))
        assert got.tobytes() == number.tobytes() or (np.isnan(got) and np.isnan(number))


def test_constants_are_folded() -> None:
    """A constant expression that overflows is an error in WGSL; so is a division by zero."""
    one = ex.const(1, dtypes.i32)
    assert legal(ex.apply("div", one, 0)).kind == "const"
    assert legal(ex.apply("exp", ex.const(1000.0, dtypes.f32))).kind == "const"
    assert np.isinf(ex.value_of(legal(ex.apply("exp", ex.const(1000.0, dtypes.f32)))))
    x = Expr("load", dtypes.f32, (), None)
    assert legal(x + ex.const(1.0, dtypes.f32)).kind == "add"


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16])
def test_narrow_floats_survive_flushed_subnormals(dtype: DType) -> None:
    """Every pattern of bits, on hardware that takes subnormal operands for zeros."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    leaf = Expr("register", dtypes.u16, (), "bits")

    def flush(array: Any) -> Any:
        if getattr(array, "dtype", None) != np.float32:
            return array
        return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), array), array)

    memo: dict[Expr, Any] = {leaf: bits}
    for node in ex.walk([decode(leaf, dtype)]):
        if node not in memo:
            made = Expr(node.kind, node.dtype, tuple(Expr("at", a.dtype, (), a) for a in node.args), node.attr)
            read = flush if node.kind in ("add", "sub", "mul") else np.asarray
            memo[node] = ex.evaluate(made, lambda n, read=read: read(memo[n.attr]))
    got, want = memo[decode(leaf, dtype)], bits.view(dtype.numpy).astype(np.float32)
    assert ((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all()
    number = Expr("register", dtypes.f32, (), "number")
    back = ex.evaluate(encode(number, dtype), lambda _: want)
    assert ((back == bits) | np.isnan(want)).all()


def test_index_arithmetic_is_told_from_data() -> None:
    ranges = Ranges()
    data = load(0, Linear(), dtypes.i64)
    index = axis(0) * dim_value(N) + axis(1) - 3
    assert ranges.is_index(index) and ranges.fits(index)
    assert not ranges.is_index(data + axis(0)) and not ranges.fits(data + axis(0))
    clamped = ex.apply("max", ex.apply("min", data, dim_value(N) - 1), 0)
    assert ranges.fits(clamped)
    assert not ranges.fits(ex.cast(load(0, Linear(), dtypes.i32), dtypes.i64) + dim_value(N))
    assert ranges.fits(ex.cast(load(0, Linear(), dtypes.u8), dtypes.i64) * 1000 - 5)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "min", "max", "div", "rem"])
def test_intervals_hold_every_result(name: str) -> None:
    random = np.random.default_rng(4)
    for _ in range(200):
        ends = [sorted(random.integers(-40, 40, 2).tolist()) for _ in range(2)]
        if name in ("div", "rem"):
            ends[1] = [abs(e) + 1 for e in sorted(ends[1], key=abs)]
        leaves = [Expr("load", dtypes.i64, (), i) for i in range(2)]
        ranges = Ranges()
        ranges._known = {leaf: (low, high) for leaf, (low, high) in zip(leaves, ends)}
        low, high = ranges.interval(ex.apply(name, *leaves))
        left, right = (np.arange(a, b + 1) for a, b in ends)
        results = ex.INSTRUCTIONS[name].numpy(*np.meshgrid(left, right))
        assert low <= results.min() and results.max() <= high


def test_overflow_is_found_when_the_dims_are_known() -> None:
    check = Check((axis(0) * dim_value(N) + axis(1),), (N, N))
    assert not overflows(check, {"n": 46_340})
    assert overflows(check, {"n": 46_342})
    assert not overflows(check, {"n": 0})
    assert fits((-(1 << 31), (1 << 31) - 1)) and not fits((0, 1 << 31))


def test_the_library_is_closed() -> None:
    for text in FUNCTIONS.values():
        called = set(re.findall(r"\b([a-z_0-9]+)\(", text)) - {"if", "for", "while"}
        assert {c for c in called if c not in BUILTINS} <= FUNCTIONS.keys()
    assert library.closure(["sdiv64"], FUNCTIONS)[-1].startswith("fn sdiv64")


def test_workgroups_in_two_dimensions() -> None:
    for groups in (1, 65_535, 65_536, 1 << 24):
        x, y = in_two_dimensions(groups)
        assert x <= 65_535 and y <= 65_535 and x * y >= groups


def scheduled() -> Graph:
    """A kernel of each kind that is written from a schedule."""
    graph = Graph("scheduled")
    x = graph.input("x", (37, 150))
    graph.output(x @ graph.param("w", (150, 70)), ops.sort(graph.input("row", (3000,)), axis=0))
    for name, queries in (("many", 70), ("few", 3)):
        q, k, v = (graph.input(name + side, (1, 2, n, 24)) for side, n in zip("qkv", (queries, 300, 300)))
        graph.output(ops.attention(q, k, v))
    row, at = graph.input("scanned", (3000,)), graph.input("at", (3000,), "i32")
    graph.output(ops.cumsum(row, axis=0), ops.reduce_sum(graph.input("summed", (37, 150)).T, axes=(1,)))
    graph.output(ops.scatter_elements(row, at, row, axis=0, combine="min"), ops.exp(graph.input("turned", (50, 40)).T))
    return graph


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("contraction:register.m=2,register.k=16", "register m 2 x n 4 x k 16"),
        ("bitonic:workgroup.elements=256", "workgroup elements 256"),
        ("attention:thread.queries=1,workgroup.keys=4", "thread queries 1, workgroup keys 4"),
        ("split-kv:workgroup.queries=2,workgroup.keys=64", "workgroup queries 2 x keys 64"),
        ("rows:workgroup.rows=1", "workgroup rows 1, register terms 64, vectors of 64 along a1"),
        ("rows:register.terms=16", "workgroup rows 64, register terms 16, vectors of 64 along a0"),
        ("prefix-scan:thread.elements=5", "workgroup rows 1, thread elements 5"),
        ("prefix-scan:workgroup.rows=64", "workgroup rows 64, thread elements 3000"),
        ("scatter:thread.updates=3000", "thread updates 3000"),
        ("top-k:thread.elements=3000", "thread elements 3000"),
        ("transpose:workgroup.side=16", "workgroup side 16, vectors of 16 along a1, slot 1 in shared"),
    ],
)
def test_a_schedule_is_set_by_hand_and_shown(changed: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shaders(build(scheduled(), Options(), 1 << 20))
    monkeypatch.setenv(flags.schedule.name, changed)
    after = shaders(build(scheduled(), Options(), 1 << 20))
    assert not [s for s in before if str(s.schedule).startswith(words)]
    assert [s for s in after if str(s.schedule).startswith(words)]
    assert {s.text for s in before} != {s.text for s in after}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("bitonic:workgroup.elements=100", "a power of two from 2 to 1024, got workgroup.elements=100, for bitonic"),
        ("bitonic:workgroup.elements=2048", "a power of two from 2 to 1024"),
        ("attention:workgroup.keys=200", r"workgroup.keys of at most 85, .* 24 and 24 features, got 200"),
        ("split-kv:workgroup.keys=100", "workgroup.keys in multiples of 64, got 100"),
        ("split-kv:workgroup.keys=4096", "at most 4096 floats, got 3 queries and 4096 keys"),
        ("split-kv:register.keys=64", "one of workgroup.queries, workgroup.keys, got register.keys"),
        ("map:workgroup.positions=32", "workgroup.positions of 64, one a lane, got 32, for map"),
        ("rows:workgroup.rows=8", "workgroup.rows of 1 or 64, got 8, for rows"),
        ("rows:thread.rows=8", "one of workgroup.rows, register.terms, got thread.rows, for rows"),
        ("prefix-scan:workgroup.rows=2", "workgroup.rows of 1 or 64, got 2, for prefix-scan"),
        ("prefix-scan:thread.elements=65", "thread.elements of at most 64, got 65, for prefix-scan"),
        ("scatter:register.columns=16", "one of thread.updates, got register.columns, for scatter"),
        ("top-k:cache.elements=16", "one of thread.elements, got cache.elements, for top-k"),
        ("transpose:workgroup.side=12", "workgroup.side of 1, 8, 16, 32, got 12, for transpose"),
    ],
)
def test_a_schedule_that_no_workgroup_holds_is_refused(
    changed: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flags.schedule.name, changed)
    with pytest.raises(RlxError, match=rf"\[RLX_SCHEDULE\] expected .*{words}"):
        build(scheduled(), Options(), 1 << 20)


def test_squares_that_no_workgroup_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("wide squares")
    x, y = graph.input("x", (50, 40), "i64"), graph.input("y", (50, 40), "i64")
    graph.output(x.T + y.T)
    monkeypatch.setenv(flags.schedule.name, "transpose:workgroup.side=32")
    with pytest.raises(
        RlxError, match=r"workgroup.side whose 2 squares take at most 16384 bytes, got 32, for transpose"
    ):
        build(graph, Options(), 1 << 20)
