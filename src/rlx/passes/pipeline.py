"""The passes in order. `optimise` is what a backend calls before it makes code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlx.ir.graph import Graph, Node
from rlx.ops.packed import PackedMatmul
from rlx.passes import canonical, masks, raise_activation, raise_attention, raise_norm, raise_quantised, simplify
from rlx.passes.cse import Cse
from rlx.passes.dce import Dce
from rlx.passes.decompose import Claims, Decompose, no_claims
from rlx.passes.driver import Context, Pass, Rebuild, Report, run_passes
from rlx.passes.fold import Fold
from rlx.passes.hoist import Hoist
from rlx.passes.layout import ChannelsLast
from rlx.passes.merge_dots import MergeDots
from rlx.passes.precision import Policy, Precision
from rlx.passes.specialise import assume_equal
from rlx.passes.turn_weights import TurnWeights


def passes(claims: Claims = no_claims, policy: Policy | None = None, channels_last: bool = False) -> list[Pass]:
    """What `optimise` runs. The same pass may come again where what others left gives it something to do."""

    def opened(node: Node) -> bool:
        return not isinstance(node.op, PackedMatmul) or claims(node)

    turned: list[Pass] = [ChannelsLast(), simplify.rules, Fold(), Cse()] if channels_last else []
    return [
        Dce(),
        Decompose(opened),  # products whose weights are floats from here on merge with others
        simplify.rules,
        raise_quantised.rules,  # before weights fold into floats
        Fold(),
        Cse(),
        simplify.rules,
        raise_quantised.rules,
        raise_norm.rules,
        raise_activation.rules,
        raise_attention.rules,
        masks.rules,
        canonical.rules,
        MergeDots(),
        Precision(policy),
        Decompose(claims),
        simplify.rules,
        Fold(),
        canonical.rules,
        simplify.rules,
        Cse(),
        *turned,
    ]


def names() -> list[str]:
    """Names of all passes, as `disable` and `RLX_DISABLE` take them."""
    return list(dict.fromkeys([*(each.name for each in passes(channels_last=True)), TurnWeights.name, Hoist.name]))


def optimise(
    graph: Graph,
    claims: Claims = no_claims,
    disable: Iterable[str] = (),
    stop_at: int | None = None,
    policy: Policy | None = None,
    channels_last: bool = False,
    turn_weights: bool = False,
    hoist: bool = False,
    first: Sequence[Pass] = (),
    last: Sequence[Pass] = (),
) -> tuple[Graph, Report]:
    """The graph made ready for a target that takes all primitives and the composites that `claims` says.

    disable   passes or rewrites to leave out (`pass` or `pass/rewrite`), beside those of RLX_DISABLE
    stop_at   apply only so many rewrites (RLX_STOP_AT if None; -1 applies all)
    policy    compute dtype by node, where it is another than the node's own
    channels_last  convolutions, and what lies between them, on [N, spatial..., C]
    turn_weights  right sides of products that stay as [k, n]
    hoist     what is the same in every trip of a loop before it
    first, last  passes of the target's own, before and behind all others; they are done in regions too

    Dims that broadcast are taken to be equal: runs in which they are not get another graph (`runtime/broadcasting.py`).
    Inputs, params, their order, output names, bounds, equalities and data stay. The graph given is not changed.
    """
    context = Context(disable, stop_at)
    made = _optimise(assume_equal(graph), [*first, *passes(claims, policy, channels_last), *last], context)
    outermost: list[Pass] = [TurnWeights()] * turn_weights + [Hoist()] * hoist
    if outermost:  # when bodies are all primitives
        made = run_passes(made, outermost, context)
    return made, context.report


def _optimise(graph: Graph, order: list[Pass], context: Context) -> Graph:
    """The graph first, then its regions: some come only with what composites are made of."""
    graph = run_passes(graph, order, context)
    if any(node.regions for node in graph.nodes):
        rebuild = Rebuild(graph)
        for node in graph.nodes:
            rebuild.keep(node, tuple(_optimise(region, order, context) for region in node.regions) or None)
        graph = rebuild.finish()
    return graph
