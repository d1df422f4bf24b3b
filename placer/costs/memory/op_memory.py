"""Bytes that the ops of a block class keep for backward, and have while they are at work.

An attention op's kernel decides whether its scores are kept (settings.attention). The fused kernel of a CPU
(`_scaled_dot_product_flash_attention_for_cpu`) runs a call only where nothing is dropped, no gradient flows to the
mask, and all tensors have four dims, the mask two or four, and query, key and value the same width (torch/csrc:
aten/src/ATen/native/transformers/sdp_utils_cpp.cpp); any other call keeps its scores there.

A keyed dropout mask is made of two numbers of 64 bits per element that may be dropped (`runtime.stages.dropout`): they
are there while the op runs forward, beside all that is kept by then; one byte per element, the mask, stays. Where
chains of ops run as one kernel the numbers are never in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placer.cluster.cluster import Backend
from placer.costs.compute.roofline import score_elements
from placer.costs.precision import Numerics, OpNumerics, op_name
from placer.graph import ITEM_BYTES, Affine, BlockClass, Op, Tensor, affine_sum
from placer.plans.settings import RunSettings
from placer.rules.calls import Call, Value
from placer.rules.graph_calls import call_of

RANK = 4  # rows, heads, positions, width
NUMBERS_BYTES = 16
# Where each op says with which probability it drops.
DROPPING = {"dropout": 1, "dropout_": 1, "scaled_dot_product_attention": 4}
# Ops that hand the gradient they get on as it is, or pieces of it.
PASSING = frozenset({"add", "add_", "cat", "concat", "stack"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMemory:
    """Bytes of a block of one class: `saved` by autograd, `at_work` the most that one of its ops has in backward (the
    largest at some number of rows), `arrived` what a backward in two parts keeps between them: the gradients of the
    results of ops with weights."""

    saved: Affine
    at_work: tuple[Affine, ...]
    arrived: Affine


def class_memory(block_class: BlockClass, numerics: Numerics, settings: RunSettings, backend: Backend) -> ClassMemory:
    """At the run's precision and kernels, which on CPUs and accelerators (`backend`) do not keep the same."""
    fixed = per_row = 0.0
    sizes: set[Affine] = set()
    for op, numbers in zip(block_class.ops, numerics.ops(block_class), strict=True):
        # Of an op whose arguments were not kept nothing is known.
        call = call_of(block_class, op, 1) if op.arguments and op_name(op) in DROPPING else None
        fuses = _fuses(op, call, settings, backend)
        kept = op.fused_saved_bytes if fuses else op.saved_bytes
        fixed += numbers.saved * kept.fixed
        per_row += numbers.saved * kept.per_row
        scores = Affine() if fuses else _score_bytes(op)
        sizes |= {_mask_bytes(op, call, settings, scores), *_gradient_bytes(op, numbers, scores)}
    return ClassMemory(
        saved=Affine(round(fixed), round(per_row)),
        at_work=tuple(size for size in sizes if not any(_exceeds(other, size) for other in sizes)),
        arrived=_arrived_bytes(block_class, numerics),
    )


def _fuses(op: Op, call: Call | None, settings: RunSettings, backend: Backend) -> bool:
    """Whether a fused kernel runs an attention op. On a CPU torch chooses it; other calls name their kernel."""
    if op.kind != "attention" or settings.attention != "flash" or not any(op.fused_saved_bytes):
        return False
    return backend != "cpu" or call is None or fuses_on_cpu(call)


def fuses_on_cpu(call: Call) -> bool:
    """Whether the fused kernel of a CPU runs a `scaled_dot_product_attention`."""
    shapes = [call.tensor(position).shape for position in range(3)]
    mask = call.argument(3, "attn_mask")
    if call.argument(4, "dropout_p", 0.0) or any(len(shape) != RANK for shape in shapes):
        return False
    if isinstance(mask, Value) and (mask.requires_grad or len(mask.shape) not in (2, RANK)):
        return False
    return len({shape[-1] for shape in shapes}) == 1


def _score_bytes(op: Op) -> Affine:
    """Captured bytes of the scores that a plain attention op makes; of others none."""
    if op.kind != "attention" or not op.outputs:
        return Affine()
    one, two = (score_elements(op, rows) * ITEM_BYTES[op.outputs[0].dtype] for rows in (1, 2))
    return Affine.through(1, one, 2, two)


def _mask_bytes(op: Op, call: Call | None, settings: RunSettings, scores: Affine) -> Affine:
    """Bytes that the mask of an op is made of; none where it drops nothing."""
    if call is None or settings.fusion or not op.outputs or not call.argument(DROPPING[op_name(op)], "dropout_p", 0.0):
        return Affine()
    masked = scores if op.kind == "attention" else op.written_bytes
    each = NUMBERS_BYTES // ITEM_BYTES[op.outputs[0].dtype]
    return Affine(each * masked.fixed, each * masked.per_row)


def _gradient_bytes(op: Op, numbers: OpNumerics, scores: Affine) -> Iterator[Affine]:
    """Bytes of the gradients of an op's results and of what it read; scores have one before and one behind their
    softmax."""
    if op.kind == "communication":
        yield _conversion_bytes(op, numbers)
    elif op.kind != "view":
        # The loss of labels is made of two ops, each of which writes gradients of its own.
        back = op.backward_written_bytes.scaled(numbers.read * (1 + (op_name(op) == "cross_entropy_loss")))
        read = Affine() if op_name(op) in PASSING else affine_sum((back, scores.scaled(2 * numbers.read)))
        yield affine_sum((op.written_bytes.scaled(numbers.written), read)) if any(back) else Affine()


def _conversion_bytes(op: Op, numbers: OpNumerics) -> Affine:
    """Bytes of both gradients where a value is laid out anew; the op writes as many as the whole has (`communication`).

    A halo and what an op says inside itself have no results of their own: nothing beside that op's.
    """
    after = affine_sum(_line_of(value) for value in op.outputs)
    words = op.target.split(".")[1:3]
    before = after if "all_to_all" in words or not op.outputs else op.backward_written_bytes
    return affine_sum((after.scaled(numbers.written), before.scaled(numbers.read)))


def _line_of(value: Tensor) -> Affine:
    """Bytes of a value as traced, for any number of rows."""
    size = value.bytes_at(1)
    return Affine(0, size) if value.batched else Affine(size, 0)


def _arrived_bytes(block_class: BlockClass, numerics: Numerics) -> Affine:
    """Bytes of the gradients of the results of ops with weights: what a backward in two parts keeps between them."""
    weights, total = {f"p{index}" for index, one in enumerate(block_class.parameters) if one.trainable}, Affine()
    for index, (op, numbers) in enumerate(zip(block_class.ops, numerics.ops(block_class), strict=True)):
        if not weights.intersection(op.inputs):
            continue
        if op.kind == "view":
            weights.update(f"o{index}.{output}" for output in range(len(op.outputs)))
        else:
            total = affine_sum((total, op.written_bytes.scaled(numbers.written)))
    return total


def _exceeds(other: Affine, size: Affine) -> bool:
    return other != size and other.fixed >= size.fixed and other.per_row >= size.per_row
