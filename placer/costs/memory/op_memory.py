"""Bytes that the ops of a block class keep for backward, and have while they are at work.

An attention op's kernel decides whether its scores are kept (`kept_results.fuses`). Where a block runs again but for
its products, it keeps what enters it and their results, each once: those that leave the block count where they are
read. As it runs again it makes the rest of what it saves.

A keyed dropout mask is made of two numbers of 64 bits per element that may be dropped (`runtime.stages.dropout`): they
are there while the op runs forward, beside all that is kept by then; one byte per element, the mask, stays. Where
chains of ops run as one kernel the numbers are never in memory.

What experts made is kept for the gradients of the weights it is multiplied with. Megatron-Core multiplies what enters
their second product instead, in the kernel of the activation, and keeps no result of it (megatron/core/transformer/moe/
experts.py, `permuted_probs`; fusions/fused_bias_swiglu.py, `weighted_bias_swiglu_impl`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placer.cluster.cluster import Backend
from placer.costs.autocast import elements_of
from placer.costs.compute.fusion import FusedChain, chains
from placer.costs.compute.roofline import score_elements
from placer.costs.kept_results import OWN_RESULT, fuses, kept_results, readers, scores_alone
from placer.costs.memory.cast_copies import Casts, cached_bytes, weight_gradient_bytes
from placer.costs.memory.chain_memory import chain_at_work, chain_saved
from placer.costs.precision import FLOATING, Numerics, OpNumerics, leads_to, op_name
from placer.graph import ITEM_BYTES, Affine, BlockClass, Op, Tensor, affine_sum
from placer.plans.settings import MEGATRON, MEGATRON_CORE, RunSettings
from placer.rules.calls import Call
from placer.rules.expert_loads import experts_of
from placer.rules.graph_calls import call_of

# A seed and an offset of 8 bytes each (torch: aten/src/ATen/cuda/PhiloxCudaState.h).
NUMBERS_BYTES = 16
# Where each op says with which probability it drops (torch: aten/src/ATen/native/native_functions.yaml).
DROPPING = {"dropout": 1, "dropout_": 1, "scaled_dot_product_attention": 4}
# Ops that hand the gradient they get on as it is, or pieces of it.
PASSING = frozenset({"add", "add_", "cat", "concat", "stack"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMemory:
    """Bytes of a block of one class: `saved` by autograd, `at_work` the most that one of its ops has in backward (the
    largest at some number of rows), `arrived` what a backward in two parts keeps between them: the gradients of the
    results of ops with weights. `results`: of products, kept where the others run again, and `remade` what these save
    then. `cached`: copies of parameters that there are while it, and all blocks after it, run forward. `copied`: the
    inputs that it keeps as copies of their own alone."""

    saved: Affine
    results: Affine
    remade: Affine
    at_work: tuple[Affine, ...]
    arrived: Affine
    cached: int
    copied: frozenset[int]


def class_memory(block_class: BlockClass, numerics: Numerics, settings: RunSettings, backend: Backend) -> ClassMemory:
    """At the run's precision and kernels, which on CPUs and accelerators (`backend`) do not keep the same."""
    numbers = numerics.ops(block_class)
    calls = [_call(block_class, op) for op in block_class.ops]
    fused = [fuses(op, call, settings, backend) for op, call in zip(block_class.ops, calls, strict=True)]
    alone = [
        _less((op.fused_saved_bytes if kernel else op.saved_bytes).scaled(own.saved), unkept)
        for op, own, kernel, unkept in zip(
            block_class.ops, numbers, fused, _weighed_results(block_class, numerics, settings), strict=True
        )
    ]
    casts = Casts.of(block_class, numerics, alone) if numerics.autocast else None
    alone = casts.kept if casts else alone
    each = [
        _op_bytes(block_class, index, numerics, settings, Affine() if fused[index] else _score_bytes(op))
        for index, op in enumerate(block_class.ops)
    ]
    sizes = {
        _mask_bytes(op, call, settings, Affine() if kernel else _score_bytes(op))
        for op, call, kernel in zip(block_class.ops, calls, fused, strict=True)
    }
    saved = affine_sum(alone)
    if settings.fusion:
        views = (own for op, own in zip(block_class.ops, alone, strict=True) if op.kind == "view")
        kernels = [*_kernels(block_class, settings)]
        saved = affine_sum((*(chain_saved(block_class, one, numbers, alone) for one in kernels), *views))
        each = [
            chain_at_work(block_class, one, numbers, [size for i in one.ops for size in each[i]]) for one in kernels
        ]
    sizes.update(size for own in each for size in own)
    if scores_alone(settings):
        again = _less(saved, _kept_score_bytes(block_class, numerics, settings, backend))
        results = _less(again, _entering_bytes(block_class, numerics))
    else:
        results, again = _result_bytes(block_class, numerics, settings, backend)
    return ClassMemory(
        saved=saved,
        results=results,
        remade=_less(saved, again),
        at_work=tuple(size for size in sizes if not any(_exceeds(other, size) for other in sizes)),
        arrived=_arrived_bytes(block_class, numerics),
        cached=cached_bytes(block_class, numerics),
        copied=casts.copied if casts else frozenset(),
    )


def _call(block_class: BlockClass, op: Op) -> Call | None:
    """What an op that may drop was called with; of one whose arguments were not kept nothing is known."""
    return call_of(block_class, op, 1) if op.arguments and op_name(op) in DROPPING else None


def _op_bytes(
    block_class: BlockClass, index: int, numerics: Numerics, settings: RunSettings, scores: Affine
) -> tuple[Affine, ...]:
    """Bytes that an op has in backward."""
    op, numbers = block_class.ops[index], numerics.ops(block_class)[index]
    if settings.stack in MEGATRON and _of_loss(block_class, index):
        return (_in_place_bytes(op, numbers),)
    wide = weight_gradient_bytes(op, numerics.copies(block_class)[index], numerics)
    return tuple(Affine(fixed + wide, per_row) for fixed, per_row in _gradient_bytes(op, numbers, scores))


def _weighed_results(block_class: BlockClass, numerics: Numerics, settings: RunSettings) -> Iterator[Affine]:
    """Of each op the bytes of results of experts that it weighs, where the stack's kernels weigh what enters them."""
    core, numbers = settings.stack in MEGATRON_CORE, numerics.ops(block_class)
    made = {f"o{index}.0": index for index, op in enumerate(block_class.ops) if core and experts_of(block_class, op)}
    for op in block_class.ops:
        read = [made[reference] for reference in op.inputs if reference in made and op_name(op) == "mul"]
        yield affine_sum(block_class.ops[index].written_bytes.scaled(numbers[index].written) for index in read)


def _kept_score_bytes(block_class: BlockClass, numerics: Numerics, settings: RunSettings, backend: Backend) -> Affine:
    """Bytes that attention keeps of its scores: all that Megatron's selective recompute makes again."""
    found = (
        _less(op.saved_bytes, op.fused_saved_bytes).scaled(numbers.saved)
        for op, numbers in zip(block_class.ops, numerics.ops(block_class), strict=True)
        if op.kind == "attention" and any(op.fused_saved_bytes) and not fuses(op, None, settings, backend)
    )
    return affine_sum(found)


def _entering_bytes(block_class: BlockClass, numerics: Numerics) -> Affine:
    """Bytes of what enters the block and is kept in it, which counts by itself where something runs again."""
    sizes = []
    for reference in (f"i{index}" for index in block_class.kept_inputs):
        value = block_class.tensor(reference)
        if isinstance(value, Tensor) and value.dtype in FLOATING:
            sizes.append(elements_of(value).scaled(ITEM_BYTES[numerics.type_of(block_class, reference)]))
    return affine_sum(sizes)


def _less(size: Affine, part: Affine) -> Affine:
    return Affine(max(0, size.fixed - part.fixed), max(0, size.per_row - part.per_row))


def _result_bytes(
    block_class: BlockClass, numerics: Numerics, settings: RunSettings, backend: Backend
) -> tuple[Affine, Affine]:
    """Bytes of the results that products keep where the others run again, and of those that are saved anyway."""
    numbers, found, saved = numerics.ops(block_class), [Affine()], [Affine()]
    for index in kept_results(block_class, settings, backend):
        op, read = block_class.ops[index], readers(block_class, index)
        size = affine_sum(map(_line_of, op.outputs)).scaled(numbers[index].written)
        if not read.leaves:
            found.append(size)
        if op.kind == "attention" or any(_saves(block_class.ops[one], op) for one in read.ops):
            saved.append(size)
    return affine_sum(found), affine_sum(saved)


def _saves(reader: Op, maker: Op) -> bool:
    """Whether an op that reads a result saves it: as much as that at least, and not what it makes itself."""
    if op_name(reader).removesuffix("_") in OWN_RESULT:
        return False
    kept, size = reader.saved_bytes, affine_sum(map(_line_of, maker.outputs))
    return bool(reader.kept_again) or (kept.fixed >= size.fixed and kept.per_row >= size.per_row)


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


def _kernels(block_class: BlockClass, settings: RunSettings) -> Iterator[FusedChain]:
    """What runs as one kernel: chains, where the loss is apart none with it."""
    for chain in chains(block_class):
        apart = settings.stack in MEGATRON or not settings.fused_loss
        lone = apart and any("loss" in op_name(block_class.ops[i]) for i in chain.ops)
        yield from (FusedChain(ops=(index,)) for index in chain.ops) if lone else (chain,)


def _of_loss(block_class: BlockClass, index: int) -> bool:
    """Whether an op is the loss, or stands between the product of its logits and it."""
    op = block_class.ops[index]
    return "loss" in op_name(op) or (op.kind == "pointwise" and leads_to(block_class, index, "loss"))


def _in_place_bytes(op: Op, numbers: OpNumerics) -> Affine:
    """Bytes beside the kept softmax, where the gradient of the loss lies: of the gradient that goes on, if it is of
    another type."""
    return Affine() if "loss" in op_name(op) else op.backward_written_bytes.scaled(numbers.read)


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
