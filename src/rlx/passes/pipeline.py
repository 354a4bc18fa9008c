"""The phases, which are lists of passes, and `optimise`, which runs them: what a backend calls before it makes code.

    canonicalise   the graph without what it need not have
    raise          ops again of what exporters took apart
    legalise       what a target takes: primitives, and the composites that it claims
    layout         axes in the order in which targets read them
    joined         concatenations as choices

A backend puts together the list that it wants: usually `[*standard(claims), *layout()]`, with passes of its own before
or behind. The same pass may come again where what others left gives it something to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ops.contraction import Einsum
from rlx.ops.packed import PackedMatmul
from rlx.passes import (
    canonical,
    joins,
    masks,
    raise_activation,
    raise_attention,
    raise_integers,
    raise_norm,
    raise_quantised,
    simplify,
)
from rlx.passes.cse import Cse
from rlx.passes.dce import Dce
from rlx.passes.decompose import Claims, Decompose, no_claims
from rlx.passes.driver import Context, Pass, Rebuild, Report, Rules, run_passes
from rlx.passes.fold import Fold
from rlx.passes.hoist import Hoist
from rlx.passes.layout import ChannelsLast
from rlx.passes.merge_dots import MergeDots, MergePacked
from rlx.passes.narrow_activations import NarrowActivations
from rlx.passes.narrow_norms import NarrowNorms
from rlx.passes.narrow_rows import NarrowRows
from rlx.passes.precision import Policy, Precision
from rlx.passes.quantise import Quantise
from rlx.passes.specialise import assume_equal
from rlx.passes.transpose_weights import TransposeWeights


def canonicalise(claims: Claims = no_claims) -> list[Pass]:
    """Constants folded, equal nodes merged, products with packed weights that nobody claims taken apart, and einsum,
    which is but a notation, and attention may be written in it."""

    def opened(node: Node) -> bool:
        return not isinstance(node.op, Einsum) and (not isinstance(node.op, PackedMatmul) or claims(node))

    return [
        Dce(),
        Decompose(opened),  # products whose weights are floats from now on merge with others
        simplify.rules,
        raise_quantised.rules,  # before weights fold into floats
        Fold(),
        Cse(),
        simplify.rules,
    ]


def raise_composites() -> list[Pass]:
    """Norms, activations and attention as single ops; products of one left side as one."""
    return [
        raise_quantised.rules,
        raise_norm.rules,
        raise_activation.rules,
        raise_attention.rules,
        masks.rules,
        canonical.rules,
        MergeDots(),
    ]


def legalise(claims: Claims = no_claims, policy: Policy | None = None, narrows: DType | None = None) -> list[Pass]:
    """Primitives, and the composites that `claims` says. `policy` tells the dtype that a node computes in, where it is
    another than its own, and `narrows` that norms between such nodes read and make that dtype, too, and as which one
    products of bytes count there."""
    return [
        Precision(policy),
        *([NarrowNorms(narrows)] if narrows and policy is not None else []),
        Decompose(claims),
        simplify.rules,
        Fold(),
        canonical.rules,
        simplify.rules,
        Cse(),
    ]


def layout(pads: Collection[DType] = ()) -> list[Pass]:
    """Convolutions, and what lies between them, on [N, spatial..., C]. Those of dtypes in `pads` keep their pads."""
    return [ChannelsLast(pads), simplify.rules, Fold(), Cse()]


def narrowed(to: DType | None) -> list[Pass]:
    """Activations of nets of convolutions in their dtype, where a policy has made that narrow, and rows that become
    bytes in `to`, the policy's: for targets that have instructions for such floats."""
    return [NarrowActivations(), NarrowRows(to), simplify.rules, Cse()] if to is not None else []


def joined() -> list[Pass]:
    """Concatenations as a part of what reads them, for targets on which every kernel has a price."""
    return [joins.rules, simplify.rules, Fold(), Cse()]


def standard(claims: Claims = no_claims, policy: Policy | None = None, narrows: DType | None = None) -> list[Pass]:
    """What every target wants."""
    return [*canonicalise(claims), *raise_composites(), *legalise(claims, policy, narrows)]


def names() -> list[str]:
    """Names of all passes that targets choose among, as `disable` and `RLX_DISABLE` take them."""
    others = (
        MergePacked(), NarrowActivations(), NarrowNorms(), NarrowRows(), TransposeWeights(), Hoist(), Quantise(),
        raise_integers.rules,
    )  # fmt: skip
    return list(dict.fromkeys(each.name for each in (*standard(), *layout(), *joined(), *others)))


def switches(passes: Iterable[Pass]) -> list[str]:
    """Names of passes, and `pass/rewrite` of those that are lists of rules."""
    distinct = dict.fromkeys(passes)
    rewrites = [f"{each.name}/{rule.name}" for each in distinct if isinstance(each, Rules) for rule in each.rules]
    return [*(each.name for each in distinct), *rewrites]


def optimise(
    graph: Graph, passes: Sequence[Pass] | None = None, disable: Iterable[str] = (), stop_at: int | None = None
) -> tuple[Graph, Report]:
    """The graph made ready for a target.

    passes    in order; those of `standard` without claims if None. They are done in the graph and then in its regions,
              those that are `outermost` in the graph alone
    disable   passes or rewrites to leave out (`pass` or `pass/rewrite`), beside those of RLX_DISABLE
    stop_at   apply only so many rewrites (RLX_STOP_AT if None; -1 applies all)

    Dims that broadcast are taken to be equal: runs in which they are not get another graph (`runtime/broadcasting.py`).
    Inputs, params, their order, output names, bounds, equalities and data stay. The graph given is not changed.
    """
    context = Context(disable, stop_at)
    optimised = assume_equal(graph)
    for outermost, group in groupby(standard() if passes is None else passes, lambda each: each.outermost):
        optimised = (run_passes if outermost else _within)(optimised, list(group), context)
    return optimised, context.report


def _within(graph: Graph, order: list[Pass], context: Context) -> Graph:
    """The graph first, then its regions: some come only with what composites are made of."""
    graph = run_passes(graph, order, context)
    if any(node.regions for node in graph.nodes):
        rebuild = Rebuild(graph)
        for node in graph.nodes:
            rebuild.keep(node, tuple(_within(region, order, context) for region in node.regions) or None)
        graph = rebuild.finish()
    return graph
