"""Seconds of ops and blocks on a device: a roofline per kernel, plus its launch.

    kernel seconds = max(sum over its products of 2 b m n k / (rate(dtype) * efficiency(product)), bytes / bandwidth)
                     + launch

`efficiency` is the device's achieved share at that many FLOPs (`Device.curve`: plateau and small-size fall), or, where
its multiprocessors are known, its ceiling times what tiles, waves, depth and alignment leave (`tile_quantization`)
and what is sustained in a step: of a product that keeps the chip busy `Device.sustained`, of one that leaves part of it
idle, which takes less power, as much more: 1 - (1 - sustained) * share (`product_rates`).
Bandwidth is the achieved one. Views cost nothing. With `settings.fusion` a chain of memory-bound ops is one kernel that
reads and writes only what enters and leaves the chain and what is kept for backward; without it each op is one kernel.
Megatron (`settings.stack`) has kernels of its own for the chains of its layers, and none for those of its loss.
Backward: one kernel per product, or one per op, and between them what autograd adds (`gradient_kernels`). On a GPU
passes wait for the host that issues them (`timing.host_lead`); under recompute (checkpointing block by block) it issues
the forward again and what checkpointing itself takes.

An op of kind `attention` carries its two products: scores (b, s, s', d) and values (b, s, d, s'). Its captured bytes
are of its inputs and results; what it reads and keeps in backward includes the scores. Flash attention does not move
them, eager attention does:

    forward    written by the product, read and written by the softmax, read by the second product      4 passes
               with dropout read and written once more, and a mask of bytes written                     + 2 and the mask
               scaled and masked by kernels of their own where chains do not fuse                       + 2
    backward   read by the gradient of v; their gradient written; softmax: both read, result written;
               read by the gradients of q and k                                                         7 passes
               with dropout the gradient and the mask read, the gradient written                        + 2 and the mask

Runs of ours weigh, mask and drop the scores in one kernel (`placer.runtime.stages.dropout`): 5 passes and the mask
forward, 7 and the mask backward.

Attention that a model writes out op by op is counted op by op.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from placer.cluster.cluster import Backend, Device
from placer.costs.autocast import Copying
from placer.costs.compute.fusion import FusedChain, chains
from placer.costs.compute.gradient_kernels import Later, column_seconds, gradient_seconds
from placer.costs.compute.host_issue import HostSeconds, checkpoint_seconds, issued
from placer.costs.compute.integer_work import integer_seconds, result_elements
from placer.costs.compute.op_shares import reached, widening_share
from placer.costs.compute.product_rates import products_seconds
from placer.costs.compute.torch_kernels import laid_out_bytes, torch_kernels
from placer.costs.compute.weight_gradients import has_backward, unmade_ops, weight_ops, weight_share
from placer.costs.kept_results import drops, keyed_scores, makes_scores
from placer.costs.precision import Numerics, OpNumerics, op_name
from placer.graph import ITEM_BYTES, BlockClass, Op
from placer.plans.settings import EARLY_MEGATRON, RunSettings

FORWARD_PASSES, BACKWARD_PASSES, DROPOUT_PASSES, SCALING_PASSES = 4, 7, 2, 2
# With the mask some 0.63 of them by the kernel that drops, at 2 and at 4 bytes: 3 passes and a byte of 5 and a byte.
KEYED_PASSES, KEYED_PART = 5, 0.63
# Kernels of each pass: two products, softmax, dropout; four products, softmax, dropout.
FORWARD_KERNELS, BACKWARD_KERNELS = 4, 6
# The same where a run of ours drops scores (placer/runtime/stages/dropout.py): two products, four, and what drops.
KEYED_KERNELS = 3, 5
# What the host takes for the keys of a mask, fourteen small kernels without autograd, and for calling what was
# compiled, in launches as they are counted in `host_issue`: GPT-2's 37 on one H200 (torch 2.11, 28 November 2026;
# `examples.measured.calibrated.one_gpu`), whose step of 72 ms is predicted as 66, without them as 60.
KEYED_LAUNCHES = 6
# Kinds of ops without a kernel of their own.
UNLAUNCHED = frozenset({"view", "communication"})

# The loss of Megatron, which no kernel fuses (megatron/mpu/cross_entropy.py, `_VocabParallelCrossEntropy`).
LOSS = re.compile(r"loss|log_softmax")

# Which of the tensors of a product its bias is, by definition.
BIAS = {"linear": 2, "addmm": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Seconds of one block: `backward` is the whole backward, `weight` the part of it that makes weight gradients.

    recompute: seconds of the forward when it is run again, up to the last value that backward reads; selective: when
    it is but for the products that kept their results, never more.
    """

    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    recompute: float = 0.0
    selective: float = 0.0

    def __add__(self, other: BlockSeconds) -> BlockSeconds:
        return BlockSeconds(
            forward=self.forward + other.forward,
            backward=self.backward + other.backward,
            weight=self.weight + other.weight,
            recompute=self.recompute + other.recompute,
            selective=self.selective + other.selective,
        )


NOTHING = BlockSeconds()


class Idle(NamedTuple):
    """Seconds that a device waits within a forward and a backward of a block for what the host issues."""

    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPasses:
    """What the passes of a block keep its device busy for, and what they take the host to issue.

    again: seconds of the host that running the forward again adds; unread, spared: of the device that it does not take
    as nothing reads what it would make, and also where products kept their results (the host goes through their
    autograd all the same). issuing_weights: those seconds of the host's backward that issue weight gradients.
    """

    busy: BlockSeconds
    host: HostSeconds
    issuing_weights: float = 0.0
    again: float
    unread: float
    spared: float

    @property
    def idle(self) -> Idle:
        """Where the host begins with each pass when the device does."""
        busy, host = self.busy, self.host
        return Idle(max(0.0, host.forward - busy.forward), max(0.0, host.backward - busy.backward))

    def waiting(self, idle: Idle) -> BlockSeconds:
        """Seconds of a block that waits so long; running it again waits as if by itself."""
        busy, host = self.busy, self.host
        whole = busy.backward + idle.backward if busy.backward else 0.0
        return BlockSeconds(
            forward=busy.forward + idle.forward,
            backward=whole,
            weight=self._weight(idle),
            recompute=max(busy.forward - self.unread, host.forward + self.again),
            selective=max(busy.forward - self.spared, host.forward + self.again),
        )

    def _weight(self, idle: Idle) -> float:
        """The part of the backward that makes weight gradients. The others are there when the host has issued them and
        the device has made them, so that a weight that is frozen, or multiplied sooner, makes none of them later."""
        others = self.busy.backward - self.busy.weight
        late = max(0.0, self.host.backward - self.issuing_weights - others)
        return max(0.0, self.busy.weight + idle.backward - late) if self.busy.weight else 0.0


def block_passes(
    block_class: BlockClass, numerics: Numerics, device: Device, settings: RunSettings, rows: int,
    kept: Sequence[int] = (), stops: bool = False, later: Later = MappingProxyType({}),
) -> BlockPasses:  # fmt: skip
    """The passes of a block of class `block_class` for a microbatch of `rows` rows; `kept` are the ops that a selective
    recompute does not run again; `stops`: whether running again ends with the last value that backward reads; `later`:
    which inputs earlier blocks read too."""
    numbers, known = numerics.ops(block_class), dict[tuple[int, int], BlockSeconds]()
    if settings.fusion:
        busy = _total(
            (_chain_seconds(block_class, chain, numbers, device, settings, rows), 1)
            for chain in _fused(block_class, settings)
        )
    else:
        alike = numerics.alike(block_class)
        each = [(op_seconds(op, number, device, settings, rows), count) for op, number, count in alike]
        known = {(id(op), id(number)): own for (op, number, _), (own, _) in zip(alike, each, strict=True)}
        busy = _total(each)

    busy += BlockSeconds(backward=gradient_seconds(block_class, numerics, device, settings, rows, later))

    def alone(number: int) -> BlockSeconds:
        op = block_class.ops[number]
        return known.get((id(op), id(numbers[number]))) or op_seconds(op, numbers[number], device, settings, rows)

    def spared(ops: Iterable[int]) -> float:
        return sum(alone(number).forward for number in ops)

    unread = unread_products(block_class) if stops else ()
    copies = 0 if settings.fusion else sum(own.copies for own in numbers)
    return BlockPasses(
        busy=busy,
        host=host_seconds(block_class, device, settings, copies),
        issuing_weights=issued(device, settings, 1).backward * weight_ops(block_class, rows),
        again=checkpoint_seconds(device, settings),
        unread=spared(unread),
        spared=spared({*kept, *unread}),
    )


def host_seconds(block_class: BlockClass, device: Device, settings: RunSettings, copies: int = 0) -> HostSeconds:
    """Seconds the host takes to issue a block's passes, op by op, and the copies that autocast makes for them."""
    fused = sum(len(chain.ops) - 1 for chain in _fused(block_class, settings)) if settings.fusion else 0
    scored = [op for op in block_class.ops if op.kind == "attention" and makes_scores(op, settings, device.backend)]
    ops = len(block_class.ops) - fused + (FORWARD_KERNELS - 1) * len(scored)
    unmade = unmade_ops(block_class)
    if settings.fusion or torch_kernels(device, settings) is None:
        return issued(device, settings, ops, copies, unmade=unmade)
    views = sum(op.kind in UNLAUNCHED for op in block_class.ops)
    keyed = KEYED_LAUNCHES * sum(map(drops, block_class.ops))
    return issued(device, settings, ops - views, copies + keyed, unmade=unmade)


def _fused(block_class: BlockClass, settings: RunSettings) -> Iterator[FusedChain]:
    """The chains that run as one kernel each."""
    for chain in chains(block_class):
        apart = settings.stack in EARLY_MEGATRON or not settings.fused_loss
        if apart and any(LOSS.search(op_name(block_class.ops[i])) for i in chain.ops):
            yield from (FusedChain(ops=(i,)) for i in chain.ops)
        else:
            yield chain


def unread_products(block_class: BlockClass) -> tuple[int, ...]:
    """The last product of a block where nothing keeps what it makes: checkpoint stops before it (torch's
    documentation of `torch.utils.checkpoint`, `early_stop`: as soon as all saved tensors are made again)."""
    keeping = [i for i, op in enumerate(block_class.ops) if any(op.saved_bytes) or op.kept_again]
    last = keeping[-1] if keeping else -1
    return (last,) if last >= 0 and block_class.ops[last].kind in ("matmul", "convolution") else ()


def op_seconds(op: Op, numbers: OpNumerics, device: Device, settings: RunSettings, rows: int) -> BlockSeconds:
    """Seconds of one op run by itself."""
    if op.kind in UNLAUNCHED:  # what moves between devices is counted by `timing.stage`
        return NOTHING
    if op.seconds is not None:
        own = max(0.0, op.seconds[0] + op.seconds[1] * rows)
        return BlockSeconds(forward=own, backward=2 * own if has_backward(op) else 0.0)
    extra = _traffic(op, settings, device.backend, rows, numbers.saved)
    moved = numbers.read * op.read_bytes.at(rows) + numbers.written * op.written_bytes.at(rows) + extra.forward
    share = reached(op, device, settings, numbers)
    elements = score_elements(op, rows) if op.kind == "attention" else result_elements(op, rows)
    whole = integer_seconds(op, elements, device, settings, rows)
    laid_out = (0.0, 0.0) if torch_kernels(device, settings) is None else laid_out_bytes(op, numbers, device, rows)
    ahead = products_seconds(op, op.products, op.forward_flops.at(rows), numbers, device, settings, rows)
    moving = moved / (device.memory_bandwidth * share.memory[0])
    moving += max(0.0, whole.forward - moving * (KEYED_PART if op.kind == "attention" else 1.0))
    forward = share.seconds(ahead / share.products[0], moving) + whole.keys
    forward += device.launch_seconds * extra.forward_kernels + pass_seconds(device, laid_out[0], 2)
    heads = _heads(op, settings, device.backend, rows)
    forward += heads * device.head_seconds[0]
    forward += _cast_seconds(_operand_bytes(op, rows), numbers, device)
    forward += _copy_seconds(op, numbers.copied, numbers, device, settings, rows)
    if not has_backward(op):
        return BlockSeconds(forward=forward)
    moved = numbers.written * op.backward_read_bytes.at(rows) + numbers.read * op.backward_written_bytes.at(rows)
    behind = products_seconds(op, op.backward_products, op.backward_flops.at(rows), numbers, device, settings, rows)
    moving = max(0.0, moved + extra.backward) / (device.memory_bandwidth * share.memory[1])
    backward = share.seconds(behind / share.products[1], max(moving, whole.backward))
    backward += device.launch_seconds * extra.backward_kernels + heads * device.head_seconds[1]
    backward += pass_seconds(device, laid_out[1], 4)
    backward += _cast_seconds(op.written_bytes.at(rows), numbers, device)
    backward += _bias_seconds(op, numbers, device, settings, rows)
    backward += _copy_seconds(op, numbers.copied_back, numbers, device, settings, rows)
    return BlockSeconds(forward=forward, backward=backward, weight=weight_share(op, rows) * backward)


def _heads(op: Op, settings: RunSettings, backend: Backend, rows: int) -> int:
    """Heads of rows of fused attention."""
    fused = op.kind == "attention" and op.products and not makes_scores(op, settings, backend)
    return op.products[0].batch.at(rows) if fused else 0


def _cast_seconds(size: float, numbers: OpNumerics, device: Device) -> float:
    """Seconds of casting an operand of so many captured bytes to few bits, where the chip is faster in them."""
    faster = numbers.cast > 0 and device.rate(numbers.dtype) > device.rate("bfloat16")
    return pass_seconds(device, numbers.cast * size) if faster else 0.0


def _copy_seconds(
    op: Op, copied: Copying, numbers: OpNumerics, device: Device, settings: RunSettings, rows: int
) -> float:
    """Seconds of autocast's copies of what a product reads; where chains run as one kernel those of values are made by
    the one before."""
    if settings.fusion:
        return pass_seconds(device, copied._replace(per_row=0.0).moved(op.read_bytes, rows))
    moved = copied.moved(op.read_bytes, rows)
    return pass_seconds(device, moved / widening_share(op, device, settings), numbers.copies)


def _bias_seconds(op: Op, numbers: OpNumerics, device: Device, settings: RunSettings, rows: int) -> float:
    """Seconds of summing the gradient of a bias, a kernel of its own that reads the result's gradient once more.

    So torch does (derivatives.yaml, addmm) and Megatron-LM (core/tensor_parallel/layers.py, `grad_output.sum(dim=0)`);
    where that is cast to few bits it is summed in passing (Transformer Engine, `bgrad_quantize`).
    """
    biased = len(op.inputs) > BIAS.get(op_name(op), len(op.inputs)) and not numbers.cast
    if not biased:
        return 0.0
    moving = pass_seconds(device, numbers.written * op.written_bytes.at(rows))
    return max(moving, column_seconds(result_elements(op, rows), device, settings))


def _operand_bytes(op: Op, rows: int) -> int:
    """Captured bytes of what a product reads beside its weights: each row of `m` once, of all its products' batches."""
    item = ITEM_BYTES[op.outputs[0].dtype] if op.outputs else 0
    return sum(item * p.batch.at(rows) * p.m.at(rows) * p.k.at(rows) for p in op.products)


def pass_seconds(device: Device, size: float, kernels: int = 1) -> float:
    """Seconds of memory-bound kernels that move `size` bytes together."""
    return size / memory_rate(device) + kernels * device.launch_seconds if size else 0.0


def memory_rate(device: Device) -> float:
    """Achieved bytes/second of the device's memory."""
    return device.memory_bandwidth * device.memory_share


def _chain_seconds(
    block_class: BlockClass,
    chain: FusedChain,
    numbers: Sequence[OpNumerics],
    device: Device,
    settings: RunSettings,
    rows: int,
) -> BlockSeconds:
    """Seconds of a fused chain; never more than its ops one by one."""
    alone = _total((op_seconds(block_class.ops[i], numbers[i], device, settings, rows), 1) for i in chain.ops)
    if len(chain.ops) < 2:
        return alone
    forward = pass_seconds(device, chain.forward_bytes(block_class, numbers, rows))
    backward = pass_seconds(device, chain.backward_bytes(block_class, numbers, rows)) if alone.backward else 0.0
    return BlockSeconds(
        forward=min(forward, alone.forward), backward=min(backward, alone.backward), weight=alone.weight
    )


def _total(parts: Iterable[tuple[BlockSeconds, int]]) -> BlockSeconds:
    """The sum of seconds, each so many times."""
    forward = backward = weight = recompute = 0.0
    for part, count in parts:
        if part is not NOTHING:
            forward += count * part.forward
            backward += count * part.backward
            weight += count * part.weight
            recompute += count * part.recompute
    return BlockSeconds(forward=forward, backward=backward, weight=weight, recompute=recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """Bytes an op moves besides its captured ones (less, where negative), and its kernels."""

    forward: float
    backward: float
    forward_kernels: int
    backward_kernels: int


def _traffic(op: Op, settings: RunSettings, backend: Backend, rows: int, kept: float) -> _Traffic:
    """What the run's kernel adds to the captured bytes of an op; `kept` scales saved bytes to the run's precision."""
    forward, backward = max(1, len(op.products)), max(1, len(op.backward_products))
    if op.kind != "attention":
        return _Traffic(forward=0.0, backward=0.0, forward_kernels=forward, backward_kernels=backward)
    # What plain attention only keeps, and reads in backward.
    extra = op.saved_bytes.at(rows) - op.fused_saved_bytes.at(rows) if any(op.fused_saved_bytes) else 0
    if not makes_scores(op, settings, backend):
        return _Traffic(forward=0.0, backward=-kept * extra, forward_kernels=1, backward_kernels=1)
    elements = score_elements(op, rows)
    item = ITEM_BYTES["bfloat16" if settings.precision == "bfloat16-autocast" else settings.precision]
    captured = ITEM_BYTES[op.outputs[0].dtype] if op.outputs else item
    # Without dropout the softmax's result is kept, with it also what dropout makes and its mask.
    dropout = extra > 1.5 * elements * captured
    if keyed_scores(op, settings, backend):
        return _Traffic(
            forward=elements * (KEYED_PASSES * item + 1),
            backward=elements * (BACKWARD_PASSES * item + 1) - kept * extra,
            forward_kernels=KEYED_KERNELS[0],
            backward_kernels=KEYED_KERNELS[1],
        )
    passes = DROPOUT_PASSES * item + 1 if dropout else 0
    scaling = 0 if settings.fusion else SCALING_PASSES
    return _Traffic(
        forward=elements * ((FORWARD_PASSES + scaling) * item + passes),
        backward=elements * (BACKWARD_PASSES * item + passes) - kept * extra,
        forward_kernels=FORWARD_KERNELS,
        backward_kernels=BACKWARD_KERNELS,
    )


def score_elements(op: Op, rows: int) -> int:
    """Elements of the score matrices."""
    if not op.products:
        return 0
    first = op.products[0]
    return first.batch.at(rows) * first.m.at(rows) * first.n.at(rows)
