"""Seconds of the kernels that autograd runs between the backwards of ops, where no chains are compiled.

No op has them, so that a graph's ops do not tell; they follow from who reads what (torch/csrc/autograd/input_buffer.cpp
and tools/autograd/derivatives.yaml of torch 2.11):

    sums       of a value that n ops read n gradients come, which n - 1 additions make one of: 3 passes each; a block
               adds those that it is not the first to read, as often as the blocks of its class do in the mean
    slices     slice, select and narrow fill zeros of the whole and copy into them: 1 pass of it, 2 of the part;
               split, chunk and unbind lay their gradients beside each other: 2 passes of the whole
    expansion  what was broadcast gets the sum of a gradient as large as the result: 1 pass; a factor gets that of a
               product which is written first: 3 more

Sums over rows go by elements and not by bytes where they are measured on a GPU (`column_seconds`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from placer.cluster.cluster import Device
from placer.costs.compute.torch_kernels import MULTIPLYING, torch_kernels
from placer.costs.precision import Numerics, op_name
from placer.graph import ITEM_BYTES, BlockClass, Graph, Op, Parameter
from placer.plans.settings import RunSettings

CUTTING = frozenset({"slice", "select", "narrow"})
DIVIDING = frozenset({"split", "split_with_sizes", "chunk", "unbind", "tensor_split"})
EXPANDING = frozenset({"expand", "expand_as", "broadcast_to"})
# Seconds of one multiprocessor for an element of a sum over rows: 2.0 ps times 132 of them for biases and factors of
# 768 to 3,072 columns; 1.55 (GPT-2) to 1.76 (ViT) in bfloat16, 2.05 (Llama) to 2.3 (ViT) in float32: `reduce_kernel` in
# profiles of steps on one H200 (torch 2.11, 28 November 2026; models of `examples.measured.calibrated.one_gpu`).
COLUMNS = 2.0e-12 * 132


# Of inputs of a class of blocks, by number, in which part of its blocks another one has read them before.
Later: TypeAlias = Mapping[int, float]


class Moves(NamedTuple):
    """Bytes that kernels move, how many of these there are, and elements that one of them sums over rows."""

    size: float = 0.0
    kernels: float = 0
    summed: float = 0.0


def gradient_seconds(
    block_class: BlockClass, numerics: Numerics, device: Device, settings: RunSettings, rows: int, later: Later
) -> float:
    """Seconds of all such kernels of a block's backward."""
    if settings.fusion:
        return 0.0
    moves = (*additions(block_class, numerics, rows, later), *undone(block_class, numerics, rows))
    return sum(_seconds(one, device, settings) for one in moves)


def later_reads(graph: Graph) -> dict[int, Later]:
    """Of each class of blocks which of its inputs an earlier block has read already."""
    met: set[str] = set()
    counts, found = Counter(block.kind for block in graph.blocks), dict[int, dict[int, float]]()
    for block in graph.blocks:
        own = found.setdefault(block.kind, {})
        for number, reference in enumerate(block.inputs):
            if reference in met:
                own[number] = own.get(number, 0.0) + 1 / counts[block.kind]
        met.update(block.inputs)
    return dict(found)


def _seconds(one: Moves, device: Device, settings: RunSettings) -> float:
    moving = one.size / (device.memory_bandwidth * device.memory_share)
    return max(moving, column_seconds(one.summed, device, settings)) + one.kernels * device.launch_seconds


def column_seconds(elements: float, device: Device, settings: RunSettings) -> float:
    """Seconds that a GPU's kernel takes at least to sum so many elements over rows, where torch's were measured."""
    if torch_kernels(device, settings) is None or not device.multiprocessors:
        return 0.0
    return COLUMNS * elements / device.multiprocessors


def additions(
    block_class: BlockClass, numerics: Numerics, rows: int, later: Later = MappingProxyType({})
) -> Iterator[Moves]:
    """The additions of gradients that come to one value from several ops, or also from behind the block."""
    given = Counter[str](block_class.outputs)
    for op in block_class.ops:
        if _trains(op):
            given.update(op.inputs)
    for reference, count in given.items():
        again = later.get(int(reference[1:]), 0.0) if reference.startswith("i") else 0.0
        sums = count - 1 + again
        if sums and _wants_gradient(block_class, reference):
            size = _elements(block_class, reference, rows) * _item(block_class, numerics, reference)
            yield Moves(3 * sums * size, sums)


def undone(block_class: BlockClass, numerics: Numerics, rows: int) -> Iterator[Moves]:
    """What undoes views and broadcasts."""
    for op in block_class.ops:
        if not _trains(op) or not op.inputs:
            continue
        name, first = op_name(op), op.inputs[0]
        item, whole = _item(block_class, numerics, first), _elements(block_class, first, rows)
        part = prod(op.outputs[0].shape_at(rows))
        if name in CUTTING:
            yield Moves((whole + 2 * part) * item, 2)
        elif name in DIVIDING:
            yield Moves(2 * whole * item, 1)
        elif name in EXPANDING and part > whole:
            yield Moves(part * item, 1)
        elif op.kind == "pointwise":
            yield from _broadcast(block_class, op, part, item, rows)


def _broadcast(block_class: BlockClass, op: Op, made: int, item: int, rows: int) -> Iterator[Moves]:
    """The sums that give what was broadcast in an op its gradient; those over rows are of weights."""
    for reference in op.inputs:
        small = _wants_gradient(block_class, reference) and _elements(block_class, reference, rows) < made
        if not small:
            continue
        if op_name(op) in MULTIPLYING:
            yield Moves(3 * made * item, 1)
        yield Moves(made * item, 1, made if reference.startswith("p") else 0)


def _trains(op: Op) -> bool:
    return any(output.requires_grad for output in op.outputs)


def _wants_gradient(block_class: BlockClass, reference: str) -> bool:
    held = block_class.tensor(reference)
    return held.trainable if isinstance(held, Parameter) else held.requires_grad


def _elements(block_class: BlockClass, reference: str, rows: int) -> int:
    held = block_class.tensor(reference)
    return held.elements if isinstance(held, Parameter) else prod(held.shape_at(rows))


def _item(block_class: BlockClass, numerics: Numerics, reference: str) -> int:
    return ITEM_BYTES[numerics.type_of(block_class, reference)]
