"""Where consecutive nodes part into branches that need nothing of each other.

A node that reads nothing made among the nodes begins a branch, unless all it reads is state (counting batches); one
that reads of a single branch belongs to it; one that reads of several joins them and begins what comes behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from placer.tracer.export.cleaning import target_name

# Fewer ways than this are a detour (the shortcut of a residual block), not worth blocks of their own.
MANY_BRANCHES = 3
# What joins branches; others that read several values (attention) belong to what makes these.
JOINS = frozenset({"aten::cat", "aten::stack"})


def branch_ends(nodes: Sequence[fx.Node], weighted: Sequence[bool], *, gap: bool) -> list[int]:
    """Where the nodes, in execution order, are to be cut: the index of the first node of each part but the first.

    A `gap` between repeated layers is cut wherever two parts with weights need nothing of each other, others where
    `MANY_BRANCHES` of them are put together.
    """
    of = _branches(nodes)
    if gap:
        return _weighted_parts(_free_cuts(of, nodes), weighted)
    heavy = {branch for branch, own in zip(of, weighted, strict=True) if own}
    branch = dict(zip(nodes, of, strict=True))
    joined = ({branch.get(before) for before in node.all_input_nodes} for node in nodes if target_name(node) in JOINS)
    if not any(len(read & heavy) >= MANY_BRANCHES for read in joined):
        return []
    return [index for index in range(1, len(nodes)) if of[index] != of[index - 1]]


def _branches(nodes: Sequence[fx.Node]) -> list[int]:
    """The number of the branch of each node."""
    found: dict[fx.Node, int] = {}
    latest = 0
    for node in nodes:
        read = {found[before] for before in node.all_input_nodes if before in found}
        if len(read) == 1:
            latest = read.pop()
        elif read or any(before.op != "get_attr" for before in node.all_input_nodes):
            latest = len(found)
        found[node] = latest
    return list(found.values())


def _free_cuts(of: Sequence[int], nodes: Sequence[fx.Node]) -> list[int]:
    """Where nothing before the cut is read behind it."""
    at = {node: index for index, node in enumerate(nodes)}
    furthest = -1
    found = []
    for index, node in enumerate(nodes):
        if index and furthest < index:
            found.append(index)
        furthest = max([furthest, *(at[user] for user in node.users if user in at)])
    return found if len(set(of)) > 1 else []


def _weighted_parts(cuts: list[int], weighted: Sequence[bool]) -> list[int]:
    """The cuts that leave weights on both sides: a part without any stays with what comes behind it."""
    kept: list[int] = []
    for cut in cuts:
        if any(weighted[kept[-1] if kept else 0 : cut]) and any(weighted[cut:]):
            kept.append(cut)
    return kept
