"""Which block each node belongs to: the one function that capture and trace share, so that their names agree.

Nodes in execution order fall into runs of one unit (`units`), with gaps between them. A gap with weights (stem,
embeddings, downsampling, final norm and head) is a block of its own, unless it is small and between two units of one
stack; a gap without weights is divided where the fewest bytes cross. Runs in execution order are convex and all values
flow forward.

What could compute at the same time is not one block: a gap is divided where nothing before is read behind (between two
towers), and a run that reads what it is given on `MANY_BRANCHES` ways or more into these and what joins them
(`branches`). Where single ops are asked for, each is a block; only what writes in place stays with what it writes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import fx, nn

from placer.graph import Granularity
from placer.tracer.export.cleaning import Plain, target_name, within
from placer.tracer.export.symbolic_rows import is_size
from placer.tracer.measure.call_cache import storage_of
from placer.tracer.measure.meta_run import Played
from placer.tracer.partition.branches import branch_ends
from placer.tracer.partition.prologue import prologue_of, written_by
from placer.tracer.partition.units import units_of

# A weighted gap between two units of one stack joins its neighbour below this share of the mean unit's weight.
SMALL_GAP = 1 / 8
# Bytes that no cut is worth.
NEVER_CUT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNodes:
    """A block before it has values: its name, the path its module names are relative to, its nodes in order."""

    name: str
    root: str
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Blocks in order and the prologue; size nodes belong to none."""

    pieces: tuple[BlockNodes, ...]
    prologue: BlockNodes

    def block_of(self) -> dict[fx.Node, int]:
        """The block of each node, -1 for the prologue."""
        found = dict.fromkeys(self.prologue.nodes, -1)
        for index, piece in enumerate(self.pieces):
            found.update(dict.fromkeys(piece.nodes, index))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeRange:
    """Consecutive positions `first` to `last` (exclusive) of one unit; no unit: a gap."""

    unit: str
    first: int
    last: int
    branch: bool = False


def partition(
    plain: Plain, model: nn.Module, facts: dict[fx.Node, Played], granularity: Granularity = "block"
) -> Partition:
    """The blocks of `plain`, a graph of `model` that was played with `facts`."""
    prologue = prologue_of(plain, facts)
    order = _order(plain.graph, prologue)
    if granularity == "op":
        pieces = _named_ops(_joined_writes(_single_ops(order), order, facts), order)
    else:
        flow = _Flow(order, facts, plain)
        units = units_of(model, order, flow.values)
        runs = _without_small_gaps(_runs(order, units), order, flow, units)
        runs = [part for run in runs for part in _apart(run, order, flow)]
        pieces = _named(_joined_writes(runs, order, facts), order, plain, units)
    return Partition(
        pieces=pieces,
        prologue=BlockNodes(name="prologue", root="", nodes=tuple(n for n in plain.graph.nodes if n in prologue)),
    )


class _Flow:
    """Bytes and values that cross each position of the order, and the weights each node reads."""

    def __init__(self, order: list[fx.Node], facts: dict[fx.Node, Played], plain: Plain):
        self.position = {node: index for index, node in enumerate(order)}
        self.bytes = [0] * (len(order) + 2)
        self.values = [0] * (len(order) + 2)
        for node in order:
            size = facts[node].result_bytes
            users = [self.position[user] for user in node.users if user in self.position]
            if not isinstance(facts[node].value, torch.Tensor):
                size = NEVER_CUT  # several results are taken apart where they were made
            if users:
                for at, sign in ((self.position[node] + 1, 1), (max(users) + 1, -1)):
                    self.bytes[at] += sign * size
                    self.values[at] += sign
        self.bytes, self.values = list(accumulate(self.bytes)), list(accumulate(self.values))
        self.weights = {node: _weight_names(node, plain) for node in order}
        self.sizes = {name: tensor.numel() for name, tensor in plain.state.items()}

    def weight(self, nodes: list[fx.Node]) -> int:
        """Elements of the distinct parameters the nodes read."""
        return sum(self.sizes[name] for name in {name for node in nodes for name in self.weights[node]})


def _weight_names(node: fx.Node, plain: Plain) -> tuple[str, ...]:
    return tuple(
        str(argument.target)
        for argument in node.all_input_nodes
        if argument.op == "get_attr" and isinstance(plain.state[str(argument.target)], nn.Parameter)
    )


def _order(graph: fx.Graph, prologue: set[fx.Node]) -> list[fx.Node]:
    """Calls in execution order, each getitem right behind the call it takes from."""
    order: list[fx.Node] = []
    for node in graph.nodes:
        if node.op == "call_function" and node not in prologue and not is_size(node) and not _is_getitem(node):
            order.append(node)
            order.extend(user for user in node.users if _is_getitem(user))
    return order


def _is_getitem(node: fx.Node) -> bool:
    return target_name(node) == "builtin::getitem"


def _runs(order: list[fx.Node], units: list[str]) -> list[_NodeRange]:
    runs: list[_NodeRange] = []
    known: dict[str, str] = {}
    for index, node in enumerate(order):
        made = node.all_input_nodes[0] if _is_getitem(node) else node
        path = made.meta["module"]
        if path not in known:
            known[path] = next((unit for unit in units if within(path, unit)), "")
        # A unit that is called again is another block with the same weights.
        unit = known[path] + made.meta["calls"].get(known[path], "")
        if runs and runs[-1].unit == unit:
            runs[-1] = replace(runs[-1], last=index + 1)
        else:
            runs.append(_NodeRange(unit=unit, first=index, last=index + 1))
    return runs


def _without_small_gaps(
    runs: list[_NodeRange], order: list[fx.Node], flow: _Flow, units: list[str]
) -> list[_NodeRange]:
    weights = [flow.weight(order[run.first : run.last]) for run in runs if run.unit]
    enough = SMALL_GAP * sum(weights) / max(len(weights), 1)
    kept: list[_NodeRange] = []
    for index, run in enumerate(runs):
        after = runs[index + 1] if index + 1 < len(runs) else None
        if run.unit and kept and kept[-1].unit == run.unit:
            kept[-1] = replace(kept[-1], last=run.last)
        elif run.unit or _stands_alone(
            run, kept[-1] if kept else None, after, flow.weight(order[run.first : run.last]), enough
        ):
            first = kept[-1].last if kept else 0
            kept.append(replace(run, first=first))
        elif kept:
            cut = run.last if after is None else min(range(run.first, run.last + 1), key=lambda at: flow.bytes[at])
            kept[-1] = replace(kept[-1], last=cut)
    if not kept:
        return [_NodeRange(unit="", first=0, last=len(order))] if order else []
    return [replace(run, last=kept[i + 1].first if i + 1 < len(kept) else len(order)) for i, run in enumerate(kept)]


def _stands_alone(
    run: _NodeRange, before: _NodeRange | None, after: _NodeRange | None, weight: int, enough: float
) -> bool:
    if not weight:
        return False
    if before is None or after is None:
        return True
    same_stack = before.unit.rpartition(".")[0] == after.unit.rpartition(".")[0]
    return not same_stack or weight >= enough


def _apart(run: _NodeRange, order: list[fx.Node], flow: _Flow) -> list[_NodeRange]:
    """The parts of a run that need nothing of each other, each with weights, and what joins them."""
    nodes = order[run.first : run.last]
    ends = branch_ends(nodes, [bool(flow.weights[node]) for node in nodes], gap=not run.unit)
    edges = pairwise((run.first, *(run.first + end for end in ends), run.last))
    return [replace(run, first=first, last=last, branch=bool(ends)) for first, last in edges]


def _joined_writes(runs: list[_NodeRange], order: list[fx.Node], facts: dict[fx.Node, Played]) -> list[_NodeRange]:
    """Join runs so that no cut lies between a value and an in-place write into it, or between a buffer that is written
    and who reads it: two stages would each have their own."""
    position = {node: index for index, node in enumerate(order)}
    forbidden = _written_buffers(position)
    born: dict[int, int] = {}
    for node in order:
        for result in facts[node].results:
            born.setdefault(storage_of(result), position[node])
        for written in written_by(node):
            for result in facts[written].results:
                if storage_of(result) in born:
                    forbidden.append((born[storage_of(result)], position[node]))
    joined: list[_NodeRange] = []
    for run in runs:
        if joined and any(start < run.first <= end for start, end in forbidden):
            joined[-1] = replace(joined[-1], last=run.last)
        else:
            joined.append(run)
    return joined


def _written_buffers(position: dict[fx.Node, int]) -> list[tuple[int, int]]:
    """The positions between which each buffer that some node writes is read and written."""
    written = {str(one.target) for node in position for one in written_by(node) if one.op == "get_attr"}
    users: dict[str, list[int]] = {}
    for node, index in position.items():
        for name in {str(one.target) for one in node.all_input_nodes if one.op == "get_attr"} & written:
            users.setdefault(name, []).append(index)
    return [(min(indices), max(indices)) for indices in users.values()]


def _single_ops(order: list[fx.Node]) -> list[_NodeRange]:
    """Each call by itself, with what takes its results apart."""
    starts = [index for index, node in enumerate(order) if not _is_getitem(node)]
    return [_NodeRange(unit="", first=first, last=last) for first, last in pairwise((*starts, len(order)))]


def _named_ops(runs: list[_NodeRange], order: list[fx.Node]) -> tuple[BlockNodes, ...]:
    """Blocks of single ops, each by its module and its operator: `h.0.attn.c_attn:linear`."""
    pieces: list[BlockNodes] = []
    taken = Counter[str]()
    for run in runs:
        nodes = tuple(order[run.first : run.last])
        root = nodes[0].meta["module"]
        name = f"{root or 'model'}:{target_name(nodes[0]).rpartition('::')[2]}"
        taken[name] += 1
        pieces.append(BlockNodes(name=name if taken[name] == 1 else f"{name}@{taken[name]}", root=root, nodes=nodes))
    return tuple(pieces)


def _named(runs: list[_NodeRange], order: list[fx.Node], plain: Plain, units: list[str]) -> tuple[BlockNodes, ...]:
    pieces: list[BlockNodes] = []
    taken: dict[str, int] = {}
    for run in runs:
        nodes = tuple(order[run.first : run.last])
        root = run.unit.partition("@")[0]
        name = root if root and not run.branch else _gap_name(nodes, plain, units)
        taken[name] = taken.get(name, 0) + 1
        pieces.append(BlockNodes(name=name if taken[name] == 1 else f"{name}@{taken[name]}", root=root, nodes=nodes))
    return tuple(pieces)


def _gap_name(nodes: tuple[fx.Node, ...], plain: Plain, units: list[str]) -> str:
    """The module around the gap's weights, or where units lie in it too, the modules that hold them, at most three."""
    holders: dict[str, None] = {}
    for node in nodes:
        if _weight_names(node, plain):
            holders.setdefault(node.meta["module"] or "model")
    around = _common_path(list(holders))
    if around and not any(within(unit, around) for unit in units):
        return around
    names = list(holders) or [nodes[0].meta["module"] or "model"]
    return "+".join(names[:3]) + ("+..." if len(names) > 3 else "")


def _common_path(paths: list[str]) -> str:
    common: list[str] = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
