"""Which ops of a Graph no rule knows, and which none can cut, and how much they could weigh."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from placer.graph import Graph, Op, Parameter, Tensor
from placer.rules.layouts import WHOLE, Choice
from placer.rules.splits.block_choices import block_choices


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
    return 2 * prod(first.shape_at(graph.rows)[:-1]) * weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsplit:
    """An operator that only has the choice to be done whole: how often, where first, its share of the FLOPs.

    `share` is of the forward FLOPs of the model, `bytes` what it reads and writes forward.
    """

    target: str
    count: int
    source: str
    share: float
    bytes: int


def unsplit(graph: Graph) -> tuple[Unsplit, ...]:
    """The operators of a graph that cannot be cut, those with most FLOPs and bytes first."""
    found: dict[str, Unsplit] = {}
    uncut: dict[int, list[bool]] = {}
    total = max(1, graph.forward_flops)
    for block in (graph.prologue, *graph.blocks):
        block_class = graph.classes[block.kind]
        if block.kind not in uncut:
            uncut[block.kind] = [all(_is_whole(one) for one in choices) for choices in block_choices(block_class)]
        for op, alone in zip(block_class.ops, uncut[block.kind], strict=True):
            if alone:
                before = found.get(op.target, Unsplit(target=op.target, count=0, source=op.source, share=0.0, bytes=0))
                found[op.target] = replace(
                    before,
                    count=before.count + 1,
                    share=before.share + op.forward_flops.at(graph.rows) / total,
                    bytes=before.bytes + op.read_bytes.at(graph.rows) + op.written_bytes.at(graph.rows),
                )
    return tuple(sorted(found.values(), key=lambda one: (-one.share, -one.bytes, one.target)))


def _is_whole(choice: Choice) -> bool:
    return all(state.value is WHOLE for state in (*choice.inputs, *choice.outputs))
