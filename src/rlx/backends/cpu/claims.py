"""What the CPU supports: composites with a kernel of their own, and dtypes that its code handles."""

from __future__ import annotations

from rlx.backends.base import Unsupported
from rlx.backends.claims import attention_unsupported, is_static
from rlx.codegen.simd.attention import DTYPES as DTYPES_OF_ATTENTION
from rlx.ir import dtype as dtypes
from rlx.ir.graph import Graph, Node
from rlx.kernel.passes.twiddles import gains
from rlx.ops.control import Control
from rlx.ops.fourier import Fft, Irfft, Rfft
from rlx.ops.nms import SuppressOverlaps
from rlx.ops.packed import PackedMatmul
from rlx.ops.transformer import Attention

DTYPES = frozenset(dtype for dtype in dtypes.ALL.values() if not dtype.is_complex)


def attention(node: Node) -> str:
    """Why the fused attention kernel does not take a node; empty if it does."""
    q = node.inputs[0].type
    if q.dtype not in DTYPES_OF_ATTENTION:
        return f"{q.dtype}: the kernel is for {', '.join(dtype.name for dtype in DTYPES_OF_ATTENTION)}"
    return attention_unsupported(node)


def transform(node: Node) -> str:
    """Why the kernel for whole transforms does not take a node; empty if it does. A node that is not plain is
    decomposed to one that is, and lengths with large prime factors to transforms of other lengths."""
    op = node.op
    assert isinstance(op, (Fft, Rfft, Irfft))
    if not op.is_plain(node.inputs[0].type):
        return "an axis that is not the last, another length than the operand's, or a narrow dtype"
    length = (node.types[0] if isinstance(op, Irfft) else node.inputs[0].type).shape[-1]
    if not isinstance(length, int):
        return "a length that is not known"
    if not isinstance(op, Fft) and length % 2:
        return "a real signal of odd length"
    return "" if gains(length if isinstance(op, Fft) else length // 2) else "a short length, or large prime factors"


def packed_matmul(node: Node) -> str:
    """Why no core unpacks the weights of a product as it reads them; empty if one does. What is multiplied is f32."""
    op, (x, *weight) = node.op, node.inputs
    assert isinstance(op, PackedMatmul)
    if x.dtype is not dtypes.f32 or weight[1].dtype is not dtypes.f32:
        return f"{x.dtype} with scales of {weight[1].dtype}"
    if not all(is_static(operand) for operand in weight):
        return "weights that a run makes"
    if not isinstance(weight[0].shape[0], int) or op.depth != op.blocks * op.block:
        return "an open number of columns, or a depth that is not whole blocks"
    return ""


def claim(node: Node) -> str | None:
    """None for what has no kernel of its own, "" for what runs as it is, else why not."""
    match node.op:
        case Attention():
            return attention(node)
        case Fft() | Rfft() | Irfft():
            return transform(node)
        case PackedMatmul():
            return packed_matmul(node)
        case SuppressOverlaps():
            return "" if node.inputs[0].dtype is dtypes.f32 else f"{node.inputs[0].dtype}: the kernel is for f32"
    return None


def refused(graph: Graph) -> list[Unsupported]:
    """Nodes of a legalised graph that the CPU cannot take."""
    from rlx.kernel.lower.lowering import untaken
    from rlx.kernel.lower.table import irregular_ops

    unsupported = [
        Unsupported(node, f"no kernel for {node.op.name}")
        for node in untaken(graph, irregular_ops())
        if not isinstance(node.op, Control)
    ]
    named = {id(u.node) for u in unsupported}
    for node in graph.nodes:
        wrong = [t.dtype for t in node.types if t.dtype not in DTYPES]
        if wrong and id(node) not in named:
            unsupported.append(Unsupported(node, f"{wrong[0]} does not compile to native code"))
        for region in node.regions:
            unsupported.extend(refused(region))
    return unsupported
