"""Which ops of a Graph no rule knows, and how much they could weigh."""

from __future__ import annotations

from dataclasses import dataclass

from placer.graph import Graph, Op, Parameter, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncovered:
    """An operator nobody has a rule for: how often it occurs and where first, with the FLOPs it may stand for.

    `flops` is a guess from above for an operator that multiplies by its weights: 2 x positions of its first input x
    elements of its parameters, forward; an operator without parameters is guessed at one FLOP per byte it moves.
    """

    target: str
    count: int
    source: str
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The uncovered operators and their share of all forward FLOPs (theirs guessed, see `Uncovered`)."""

    uncovered: tuple[Uncovered, ...]
    share: float


def coverage(graph: Graph) -> Coverage:
    """What the FLOPs of `graph` leave out. With nothing uncovered the share is 0."""
    found: dict[str, Uncovered] = {}
    for block, op in graph.ops:
        if not op.covered:
            before = found.get(op.target)
            found[op.target] = Uncovered(
                target=op.target,
                count=1 + (before.count if before else 0),
                source=before.source if before else op.source,
                flops=_guess(graph, block.kind, op) + (before.flops if before else 0),
            )
    guessed = sum(one.flops for one in found.values())
    total = graph.forward_flops + guessed
    ordered = sorted(found.values(), key=lambda one: (-one.flops, one.target))
    return Coverage(uncovered=tuple(ordered), share=guessed / total if total else 0.0)


def _guess(graph: Graph, kind: int, op: Op) -> int:
    values = [graph.classes[kind].tensor(reference) for reference in op.inputs]
    weights = sum(value.elements for value in values if isinstance(value, Parameter) and not value.buffer)
    first = next((value for value in values if isinstance(value, Tensor)), None)
    if not weights or first is None or not first.shape:
        return op.read_bytes.at(graph.rows) + op.written_bytes.at(graph.rows)
    positions = 1
    for size in first.shape_at(graph.rows)[:-1]:
        positions *= size
    return 2 * positions * weights
