"""What of an exported module follows from the values of tensors: the sizes of a result, or a number that it reads.

x[mask], nonzero(x)      sizes that values say            x[places], one_hot(x, 10)      sizes that are known before
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn


def counts_by_values(module: nn.Module) -> bool:
    """Whether an exported module has a call whose result has sizes that values say."""
    nodes = getattr(getattr(module, "graph", None), "nodes", ())
    return any(counted_by_values(node.target) and not _of_known_size(node) for node in nodes)


def reads_values(module: nn.Module) -> bool:
    """Whether an exported module computes with a number that it reads of a tensor."""
    graph = getattr(module, "graph", None)
    asking = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
    return graph is not None and any(node.target in asking and node.users for node in graph.nodes)


def counted_by_values(target: object) -> bool:
    """Whether the sizes of what the call gives follow from values."""
    tags = getattr(target, "tags", ())
    untagged = (torch.ops.aten.where.default, torch.ops.aten.nonzero_numpy.default)
    return torch.Tag.dynamic_output_shape in tags or target in untagged


def _of_known_size(node: fx.Node) -> bool:
    """Whether a call may give more or fewer numbers by values, and does not: `one_hot` that is told how many, places
    that are numbers and no mask."""
    if node.target is torch.ops.aten.one_hot.default:
        return node.args[1:] not in ((), (-1,))
    if node.target is not torch.ops.aten.index.Tensor:
        return False
    places: Any = node.args[1]
    values = [one.meta.get("val") for one in places if isinstance(one, fx.Node)]
    return all(isinstance(one, torch.Tensor) and one.dtype not in (torch.bool, torch.uint8) for one in values)
