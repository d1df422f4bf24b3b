"""Which values of a graph share their memory, and which calls write into it.

A *family* is the nodes whose tensors lie in one storage: its origin (the call, input or buffer that made it), views of
that, what writes in place return. It is found by playing the graph on meta tensors, since whether a reshape is a view
shows only there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx, nn

from placer.errors import UncapturableError
from placer.tracer.export.cleaning import Plain, is_mutable, target_name
from placer.tracer.measure.call_cache import storage_of
from placer.tracer.measure.meta_run import Played

_STATISTICS = ("aten::batch_norm", "aten::instance_norm")


@dataclass(slots=True, eq=False)
class Family:
    """Nodes of one storage in order, the first its origin, and of these the writes in order."""

    origin: fx.Node
    members: list[fx.Node] = field(default_factory=list)
    writes: list[fx.Node] = field(default_factory=list)


def families(plain: Plain, facts: dict[fx.Node, Played]) -> list[Family]:
    """The families that are written into. Raises UncapturableError for a write that names no tensor of the graph."""
    found: dict[int, Family] = {}
    for node in plain.graph.nodes:
        if node.op == "output":
            continue
        for storage in dict.fromkeys(map(storage_of, facts[node].results)):
            found.setdefault(storage, Family(origin=node)).members.append(node)
        target = written_tensor(node)
        if target is not None:
            family = found[storage_of(facts[target].results[0])]
            family.writes.append(node)
            if family.members[-1] is not node:
                family.members.append(node)
    chosen = [family for family in found.values() if family.writes]
    for family in chosen:
        # What makes several tensors is no value itself: the one that is taken from it begins the family.
        while family.origin.op == "call_function" and not isinstance(facts[family.origin].value, torch.Tensor):
            family.members.remove(family.origin)
            family.origin = family.members[0]
    return chosen


def written_tensor(node: fx.Node) -> fx.Node | None:
    """What a call writes into by its schema; None for a call that only computes.

    Batch norm's statistics, of which its schema is silent, are not meant: they have a rule of their own.
    """
    if node.op != "call_function" or not is_mutable(node) or target_name(node) in (*_STATISTICS, "aten::detach_"):
        return None
    assert isinstance(node.target, torch._ops.OpOverload)
    given = dict(zip((formal.name for formal in node.target._schema.arguments), node.args, strict=False)) | node.kwargs
    written = [
        given.get(formal.name)
        for formal in node.target._schema.arguments
        if formal.alias_info is not None and formal.alias_info.is_write
    ]
    if len(written) != 1 or not isinstance(written[0], fx.Node):
        raise UncapturableError(
            f"{target_name(node)} at {node.meta.get('source', '')} writes into several tensors at once, which placer "
            "cannot follow; write them one by one"
        )
    return written[0]


def is_chain(family: Family, order: dict[fx.Node, int]) -> bool:
    """Whether each write is into the whole value as it stands, which is read through its result alone from then on."""
    whole = {family.origin}
    for write in family.writes:
        if written_tensor(write) not in whole:
            return False
        before = [member for member in family.members if order[member] < order[write]]
        if any(order[user] > order[write] for member in before for user in member.users):
            return False
        whole.add(write)
    return True


def dependent(plain: Plain) -> set[fx.Node]:
    """The nodes that depend on a parameter, through whatever."""
    found: set[fx.Node] = set()
    for node in plain.graph.nodes:
        is_weight = node.op == "get_attr" and isinstance(plain.state[str(node.target)], nn.Parameter)
        if is_weight or any(argument in found for argument in node.all_input_nodes):
            found.add(node)
    return found
