"""Which block each node belongs to: the one function that capture and trace share, so that their names agree.

Repeated layers are found in the module tree: a *stack* is a ModuleList or Sequential whose weighted children are of one
class; each child is a *unit*. A stack inside a unit is followed where cutting inside it moves no more values than
cutting around the unit (the stages of a ResNet hold residual blocks), and left alone where it does (the convolutions
inside a residual block). A model without stacks is divided into the children of its heaviest modules.

Nodes in execution order fall into runs of one unit, with gaps between them. A gap with weights (stem, embeddings,
downsampling, final norm and head) is a block of its own, unless it is small and between two units of one stack; a gap
without weights is divided where the fewest bytes cross. Runs in execution order are convex and all values flow forward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import fx, nn

from placer.tracer.cleaning import Plain, is_mutable, is_random, target_name
from placer.tracer.lifting import is_size
from placer.tracer.playing import Played
from placer.tracer.replaying import storage_of

# A weighted gap between two units of one stack joins its neighbour below this share of the mean unit's weight.
SMALL_GAP = 1 / 8
# Work without weights that is more than this share of all bytes moved is not repeated in every stage.
HEAVY = 0.01
# Bytes that no cut is worth.
NEVER_CUT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A block before it has values: its name, the path its module names are relative to, its nodes in order."""

    name: str
    root: str
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Blocks in order and the prologue; size nodes belong to none."""

    pieces: tuple[Piece, ...]
    prologue: Piece

    def block_of(self) -> dict[fx.Node, int]:
        """The block of each node, -1 for the prologue."""
        found = dict.fromkeys(self.prologue.nodes, -1)
        for index, piece in enumerate(self.pieces):
            found.update(dict.fromkeys(piece.nodes, index))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Consecutive positions `first` to `last` (exclusive) of one unit; no unit: a gap."""

    unit: str
    first: int
    last: int


def partition(plain: Plain, model: nn.Module, facts: dict[fx.Node, Played]) -> Partition:
    """The blocks of `plain`, a graph of `model` that was played with `facts`."""
    prologue = _prologue(plain, facts)
    order = _order(plain.graph, prologue)
    flow = _Flow(order, facts, plain)
    units = _units(model, order, flow)
    runs = _runs(order, units)
    runs = _without_small_gaps(runs, order, flow, units)
    runs = _joined_writes(runs, order, facts)
    pieces = _named(runs, order, plain, units)
    return Partition(
        pieces=pieces,
        prologue=Piece(name="prologue", root="", nodes=tuple(n for n in plain.graph.nodes if n in prologue)),
    )


class _Flow:
    """Bytes and values that cross each position of the order, and the weights each node reads."""

    def __init__(self, order: list[fx.Node], facts: dict[fx.Node, Played], plain: Plain):
        self.position = {node: index for index, node in enumerate(order)}
        self.bytes = [0] * (len(order) + 2)
        self.values = [0] * (len(order) + 2)
        for node in order:
            size = sum(result.numel() * result.element_size() for result in facts[node].results)
            users = [self.position[user] for user in _readers(node) if user in self.position]
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


def _readers(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if user.op != "output"]


def _weight_names(node: fx.Node, plain: Plain) -> tuple[str, ...]:
    return tuple(
        str(argument.target)
        for argument in node.all_input_nodes
        if argument.op == "get_attr" and isinstance(plain.state[str(argument.target)], nn.Parameter)
    )


def _prologue(plain: Plain, facts: dict[fx.Node, Played]) -> set[fx.Node]:
    """Calls that depend on no parameter, draw no random number, write nothing and are cheap."""
    written = _written_storages(plain.graph, facts)
    total = sum(_moved(node, facts) for node in plain.graph.nodes if node.op == "call_function")
    found: set[fx.Node] = set()
    for node in plain.graph.nodes:
        if node.op != "call_function" or is_size(node) or is_random(node) or is_mutable(node):
            continue
        if any(storage_of(result) in written for result in facts[node].results):
            continue
        fixed = all(_is_fixed(argument, plain, written, facts, found) for argument in node.all_input_nodes)
        if fixed and (total == 0 or _work(node, facts) <= HEAVY * total):
            found.add(node)
    return found


def _is_fixed(
    node: fx.Node, plain: Plain, written: set[int], facts: dict[fx.Node, Played], found: set[fx.Node]
) -> bool:
    if node.op == "placeholder" or is_size(node):
        return True
    if node.op == "get_attr":
        is_weight = isinstance(plain.state[str(node.target)], nn.Parameter)
        return not is_weight and storage_of(facts[node].results[0]) not in written
    return node in found


def _written_storages(graph: fx.Graph, facts: dict[fx.Node, Played]) -> set[int]:
    found: set[int] = set()
    for node in graph.nodes:
        for written in _written(node):
            found.update(storage_of(result) for result in facts[written].results)
    return found


def _written(node: fx.Node) -> list[fx.Node]:
    """The nodes whose values `node` writes into, batch norm's running statistics included."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    if target_name(node) in ("aten::batch_norm", "aten::instance_norm"):
        return [argument for argument in node.args[3:5] if isinstance(argument, fx.Node)]
    schema = node.target._schema
    return [
        argument
        for argument, formal in zip(node.args, schema.arguments, strict=False)
        if isinstance(argument, fx.Node) and formal.alias_info is not None and formal.alias_info.is_write
    ]


def _moved(node: fx.Node, facts: dict[fx.Node, Played]) -> int:
    return sum(result.numel() * result.element_size() for result in facts[node].results)


def _work(node: fx.Node, facts: dict[fx.Node, Played]) -> int:
    """Multiplications of a product over values without weights, as bytes; nothing for other operations."""
    if target_name(node).removeprefix("aten::") not in ("mm", "bmm", "matmul", "linear", "conv1d", "conv2d", "einsum"):
        return 0
    first = facts[node.all_input_nodes[0]].results[0]
    return _moved(node, facts) * (first.shape[-1] if first.dim() else 1) // 64


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


def _units(model: nn.Module, order: list[fx.Node], flow: _Flow) -> list[str]:
    """Paths of the modules that are placed whole."""
    found: list[str] = []
    for path, module in model.named_children():
        found.extend(_stacked_units(module, path))
    found = [part for unit in found for part in _refined(model.get_submodule(unit), unit, order, flow)]
    return found or _heavy_children(model)


def _stacked_units(module: nn.Module, path: str) -> list[str]:
    weighted = [name for name, child in module.named_children() if _elements(child)]
    if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(weighted) > 1:
        children = dict(module.named_children())
        if len({type(children[name]) for name in weighted}) == 1:
            return [f"{path}.{name}" for name in weighted]
    return [unit for name, child in module.named_children() for unit in _stacked_units(child, f"{path}.{name}")]


def _refined(module: nn.Module, path: str, order: list[fx.Node], flow: _Flow) -> list[str]:
    parts = [unit for name, child in module.named_children() for unit in _stacked_units(child, f"{path}.{name}")]
    if len(parts) < 2:
        return [path]
    inside = [_span(part, order) for part in parts]
    whole = _span(path, order)
    if whole is None or any(span is None for span in inside):
        return [path]
    starts = [span[0] for span in inside[1:] if span is not None]
    if max(flow.values[at] for at in starts) > max(flow.values[whole[0]], flow.values[whole[1]], 1):
        return [path]
    return [
        piece for part in parts for piece in _refined(module.get_submodule(part[len(path) + 1 :]), part, order, flow)
    ]


def _span(path: str, order: list[fx.Node]) -> tuple[int, int] | None:
    positions = [index for index, node in enumerate(order) if _within(node.meta["module"], path)]
    return (positions[0], positions[-1] + 1) if positions else None


def _within(module: str, path: str) -> bool:
    return module == path or module.startswith(path + ".")


def _heavy_children(model: nn.Module) -> list[str]:
    """For a model without stacks: its weighted children, those that hold most of the weight opened."""
    total = _elements(model)
    found: list[str] = []
    pending = [(name, child) for name, child in model.named_children() if _elements(child)]
    while pending:
        path, module = pending.pop(0)
        children = [(f"{path}.{name}", child) for name, child in module.named_children() if _elements(child)]
        if children and 2 * _elements(module) > total:
            pending = children + pending
        else:
            found.append(path)
    return found


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _runs(order: list[fx.Node], units: list[str]) -> list[_Run]:
    runs: list[_Run] = []
    known: dict[str, str] = {}
    for index, node in enumerate(order):
        made = node.all_input_nodes[0] if _is_getitem(node) else node
        path = made.meta["module"]
        if path not in known:
            known[path] = next((unit for unit in units if _within(path, unit)), "")
        # A unit that is called again is another block with the same weights.
        unit = known[path] + made.meta["calls"].get(known[path], "")
        if runs and runs[-1].unit == unit:
            runs[-1] = replace(runs[-1], last=index + 1)
        else:
            runs.append(_Run(unit=unit, first=index, last=index + 1))
    return runs


def _without_small_gaps(runs: list[_Run], order: list[fx.Node], flow: _Flow, units: list[str]) -> list[_Run]:
    weights = [flow.weight(order[run.first : run.last]) for run in runs if run.unit]
    enough = SMALL_GAP * sum(weights) / max(len(weights), 1)
    kept: list[_Run] = []
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
        return [_Run(unit="", first=0, last=len(order))] if order else []
    return [replace(run, last=kept[i + 1].first if i + 1 < len(kept) else len(order)) for i, run in enumerate(kept)]


def _stands_alone(run: _Run, before: _Run | None, after: _Run | None, weight: int, enough: float) -> bool:
    if not weight:
        return False
    if before is None or after is None:
        return True
    same_stack = before.unit.rpartition(".")[0] == after.unit.rpartition(".")[0]
    return not same_stack or weight >= enough


def _joined_writes(runs: list[_Run], order: list[fx.Node], facts: dict[fx.Node, Played]) -> list[_Run]:
    """Join runs so that no cut lies between a value and an in-place write into it."""
    position = {node: index for index, node in enumerate(order)}
    born: dict[int, int] = {}
    forbidden: list[tuple[int, int]] = []
    for node in order:
        for result in facts[node].results:
            born.setdefault(storage_of(result), position[node])
        for written in _written(node):
            for result in facts[written].results:
                if storage_of(result) in born:
                    forbidden.append((born[storage_of(result)], position[node]))
    joined: list[_Run] = []
    for run in runs:
        if joined and any(start < run.first <= end for start, end in forbidden):
            joined[-1] = replace(joined[-1], last=run.last)
        else:
            joined.append(run)
    return joined


def _named(runs: list[_Run], order: list[fx.Node], plain: Plain, units: list[str]) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    taken: dict[str, int] = {}
    for run in runs:
        nodes = tuple(order[run.first : run.last])
        root = run.unit.partition("@")[0]
        name = root or _gap_name(nodes, plain, units)
        taken[name] = taken.get(name, 0) + 1
        pieces.append(Piece(name=name if taken[name] == 1 else f"{name}@{taken[name]}", root=root, nodes=nodes))
    return tuple(pieces)


def _gap_name(nodes: tuple[fx.Node, ...], plain: Plain, units: list[str]) -> str:
    """The module around the gap's weights, or where units lie in it too, the modules that hold them, at most three."""
    holders: dict[str, None] = {}
    for node in nodes:
        if _weight_names(node, plain):
            holders.setdefault(node.meta["module"] or "model")
    around = _common_path(list(holders))
    if around and not any(_within(unit, around) for unit in units):
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
