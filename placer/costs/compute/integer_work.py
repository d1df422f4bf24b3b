"""Seconds of whole numbers that a GPU reckons with for each element, where torch's own kernels were measured.

Two kinds of memory-bound kernels take longer than moving their bytes does:

placed    a pointwise op of a tensor that is broadcast, or of several laid beside each other: where each element of each
          lies is found by divisions (torch: aten/src/ATen/cuda/detail/OffsetCalculator.cuh, of cat Shape.cu)
keyed     dropout of a run of ours, whose masks depend on rows and not on layouts: three products of 64 bits and as many
          shifts for each element (`placer.runtime.stages.keyed_numbers`)

Multiprocessors reckon with whole numbers at one rate (64 lanes of 32 bits on every chip since V100: CUDA C++
Programming Guide, "Arithmetic Instructions"), hence seconds of a multiprocessor for an element.
"""

from __future__ import annotations

from typing import NamedTuple

from placer.cluster.cluster import Device
from placer.costs.compute.torch_kernels import MULTIPLYING, torch_kernels
from placer.costs.kept_results import drops
from placer.costs.precision import op_name
from placer.graph import ITEM_BYTES, Op
from placer.plans.settings import RunSettings

# Seconds of one multiprocessor for an element: 2.95 ps times 132 of them for products of 8,192 x 2,048 numbers with one
# that is broadcast, in 16 and in 32 bits (50 and 53 us), 2.68 ps for 100 million scores that are weighed
# and dropped: kernels of steps of a Llama of a billion parameters and of GPT-2 on one H200 (torch 2.11, 28 November
# 2026; models of `examples.measured.calibrated.one_gpu`, torch's profiler).
PLACED, KEYED = 2.95e-12 * 132, 2.68e-12 * 132
# Small kernels that make the keys of a mask: those of `keyed_numbers.keys_for` and one sum.
KEY_KERNELS = 14
# Those that read conditions, of one byte an element.
CHOOSING = frozenset({"where", "masked_fill", "masked_fill_"})
# What is read beside a tensor's result counts as broadcast where it is less than this part of it.
WHOLE = 0.99


class IntegerSeconds(NamedTuple):
    """Seconds that the kernels of an op's passes take at least, and those that come on top."""

    forward: float = 0.0
    backward: float = 0.0
    keys: float = 0.0


def integer_seconds(op: Op, elements: int, device: Device, settings: RunSettings, rows: int) -> IntegerSeconds:
    """Those of an op that drops, of so many `elements`, or of one that reads a broadcast tensor."""
    if torch_kernels(device, settings) is None or not device.multiprocessors:
        return IntegerSeconds()
    if drops(op):
        keyed = KEYED * elements / device.multiprocessors
        return IntegerSeconds(forward=keyed, keys=KEY_KERNELS * device.launch_seconds)
    if op.kind != "pointwise" or not _broadcasts(op, rows):
        return IntegerSeconds()
    placed = PLACED * elements / device.multiprocessors
    return IntegerSeconds(placed, placed if op_name(op) in MULTIPLYING else 0.0)


def _broadcasts(op: Op, rows: int) -> bool:
    """Whether one of several tensors is smaller than the result."""
    given = op.read_bytes.at(rows)
    several = len(op.inputs) > 1 and op_name(op) not in CHOOSING
    return several and given < WHOLE * len(op.inputs) * op.written_bytes.at(rows)


def result_elements(op: Op, rows: int) -> int:
    """Elements of what an op makes."""
    item = ITEM_BYTES[op.outputs[0].dtype] if op.outputs else 1
    return op.written_bytes.at(rows) // item
