"""Experts of a model: how many its products have, and how tokens that prefer some of them load the devices.

load of a device = sum over its experts of their loads / sum over all experts       1 / degree where all are alike
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import UsageError
from placer.graph import BlockClass, Graph, Op
from placer.rules.layouts import piece

# The product of rows sorted by expert, by its names.
PRODUCTS = frozenset({"grouped_mm", "_grouped_mm", "grouped_mm_fallback"})


def experts_of(block_class: BlockClass, op: Op) -> int:
    """The experts of a product of experts; 0 for any other op."""
    if op.target.split(".")[1] not in PRODUCTS or len(op.inputs) < 2:
        return 0
    shape = block_class.tensor(op.inputs[1]).shape
    size = shape[0] if len(shape) == 3 else 0
    return size if isinstance(size, int) else size.fixed


def expert_counts(graph: Graph) -> tuple[int, ...]:
    """The numbers of experts of the model's products of experts, ascending; none where it has none."""
    return tuple(sorted({experts_of(block_class, op) for block_class in graph.classes for op in block_class.ops} - {0}))


def require_loads(graph: Graph, loads: Sequence[float]) -> None:
    """Raise UsageError where loads are given that are not one for each expert of every layer."""
    counts = expert_counts(graph)
    if loads and counts != (len(loads),):
        found = f"layers of {' and of '.join(map(str, counts))} experts" if counts else "no experts"
        raise UsageError(
            f"expert_loads names {len(loads)} experts, the model {graph.name} has {found}; give one load for each "
            "expert of a layer"
        )


def held_experts(count: int, order: Sequence[int], degree: int) -> tuple[tuple[int, ...], ...]:
    """The experts of each device: its piece of the `count` experts in that order, of their own where it is empty."""
    experts = order or range(count)
    bounds = (piece(count, degree, rank) for rank in range(degree))
    return tuple(tuple(experts[start:end]) for start, end in bounds)


def device_loads(loads: Sequence[float], order: Sequence[int], degree: int) -> tuple[float, ...]:
    """The share of the tokens that each device computes which holds its piece of the experts in that order."""
    total = sum(loads)
    return tuple(sum(loads[expert] for expert in held) / total for held in held_experts(len(loads), order, degree))


def overload(loads: Sequence[float], order: Sequence[int], degree: int) -> float:
    """How many times its even share the most loaded device computes; 1 where no loads are given."""
    return max(device_loads(loads, order, degree)) * degree if loads else 1.0
