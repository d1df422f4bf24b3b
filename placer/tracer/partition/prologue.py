"""The prologue of a model: what every stage works out for itself, as it depends on no parameter and is cheap."""

from __future__ import annotations

import torch
from torch import fx, nn

from placer.tracer.export.cleaning import Plain, is_mutable, is_random, target_name
from placer.tracer.export.symbolic_rows import is_size
from placer.tracer.measure.call_cache import storage_of
from placer.tracer.measure.meta_run import Played

# Work without weights that is more than this share of all bytes moved is not repeated in every stage.
HEAVY = 0.01


def prologue_of(plain: Plain, facts: dict[fx.Node, Played]) -> set[fx.Node]:
    """Calls that depend on no parameter, draw no random number, write nothing and are cheap."""
    targets = (target for node in plain.graph.nodes for target in written_by(node))
    written = {storage_of(result) for target in targets for result in facts[target].results}
    total = sum(facts[node].result_bytes for node in plain.graph.nodes if node.op == "call_function")
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


def written_by(node: fx.Node) -> list[fx.Node]:
    """The nodes whose values `node` writes into, batch norm's running statistics included."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    if target_name(node) in ("aten::batch_norm", "aten::instance_norm"):
        training = node.args[5]
        return [argument for argument in node.args[3:5] if isinstance(argument, fx.Node)] if training else []
    schema = node.target._schema
    return [
        argument
        for argument, formal in zip(node.args, schema.arguments, strict=False)
        if isinstance(argument, fx.Node) and formal.alias_info is not None and formal.alias_info.is_write
    ]


def _work(node: fx.Node, facts: dict[fx.Node, Played]) -> int:
    """Multiplications of a product over values without weights, as bytes; nothing for other operations."""
    if target_name(node).removeprefix("aten::") not in ("mm", "bmm", "matmul", "linear", "conv1d", "conv2d", "einsum"):
        return 0
    first = facts[node.all_input_nodes[0]].results[0]
    return facts[node].result_bytes * (first.shape[-1] if first.dim() else 1) // 64
