"""Seconds of ops and blocks on a device: a roofline per kernel, plus its launch.

    kernel seconds = max(sum over its products of 2 b m n k / (rate(dtype) * efficiency(product)), bytes / bandwidth)
                     + launch

`efficiency` is the device's achieved share at that many FLOPs (`Device.curve`: plateau and small-size fall), or, where
its multiprocessors are known, its ceiling times what tiles, waves, depth and alignment leave (`tile_quantization`).
Bandwidth is the achieved one. Views cost nothing. With `settings.fusion` a chain of memory-bound ops is one kernel that
reads and writes only what enters and leaves the chain and what is kept for backward; without it each op is one kernel.
Backward: one kernel per product, or one per op. On a GPU a pass of a block is never faster than the host issues it;
under recompute (checkpointing, block by block) it issues the forward again and what checkpointing itself takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from placer.cluster.cluster import Device
from placer.costs.compute.attention import FORWARD_KERNELS, attention_traffic, flash_share
from placer.costs.compute.fusion import FusedChain, chains
from placer.costs.compute.tile_quantization import shape_share
from placer.costs.precision import PRODUCT_KINDS, Numerics, OpNumerics
from placer.graph import BlockClass, Op, Product
from placer.plans.settings import RunSettings

# Seconds the host of a GPU takes per op of an eager model, views included. 12 layers of BERT-base are 29 ops each, 362
# with embeddings, mask and pooler (modeling_bert.py of transformers 2.11); their forward takes 6 ms for 64 tokens and
# 6 ms for 256 (transformers' documentation, "Benchmarks", PyTorch 1.4, TITAN RTX), hence by the host: 6 ms / 362.
# That is inference. In training autograd records the ops and runs as many: our measurement on tensors of few elements
# (layers of examples/published/megatron_gpt.py, torch 2.13 on a CPU, processor time, 22 November 2026): forward 1.29
# and backward 1.20 times the forward under no_grad, which took 15.2 us per op there.
INFERENCE_SECONDS = 16.6e-6
HOST_SECONDS = 1.25 * INFERENCE_SECONDS

# What torch.utils.checkpoint adds to a layer's passes, saving and restoring random states and running backward of its
# own, in ops of inference: 470 us where one took 15.2 us (the same measurement).
CHECKPOINT_OPS = 31

# FLOPs at which every curve has reached its ceiling.
LARGE = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Seconds of one block: `backward` is the whole backward, `weight` the part of it that makes weight gradients.

    recompute: seconds of the forward when it is run again, never less than the forward.
    """

    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    recompute: float = 0.0

    def __add__(self, other: BlockSeconds) -> BlockSeconds:
        return BlockSeconds(
            forward=self.forward + other.forward,
            backward=self.backward + other.backward,
            weight=self.weight + other.weight,
            recompute=self.recompute + other.recompute,
        )


NOTHING = BlockSeconds()


def block_seconds(
    kind: BlockClass, numerics: Numerics, device: Device, settings: RunSettings, rows: int
) -> BlockSeconds:
    """Seconds of a block of class `kind` for a microbatch of `rows` rows."""
    if settings.fusion:
        numbers = numerics.ops(kind)
        busy = _total((_chain_seconds(kind, chain, numbers, device, settings, rows), 1) for chain in chains(kind))
    else:
        alike = numerics.alike(kind)
        busy = _total((op_seconds(op, number, device, settings, rows), count) for op, number, count in alike)
    again = CHECKPOINT_OPS * INFERENCE_SECONDS if device.backend == "cuda" else 0.0
    return _issued(busy, host_seconds(kind, device, settings), again)


def host_seconds(kind: BlockClass, device: Device, settings: RunSettings) -> float:
    """Seconds the host takes to issue a block's forward, op by op; its backward has as many nodes."""
    if device.backend != "cuda":
        return 0.0
    fused = sum(len(chain.ops) - 1 for chain in chains(kind)) if settings.fusion else 0
    eager = settings.attention == "eager"
    extra = sum(FORWARD_KERNELS - 1 for op in kind.ops if eager and op.kind == "attention")
    return HOST_SECONDS * (len(kind.ops) - fused + extra)


def _issued(busy: BlockSeconds, host: float, again: float) -> BlockSeconds:
    """A pass takes as long as the device is busy or the host takes to issue it, whichever is longer.

    again: seconds of the host that running the forward again adds.
    """
    backward = max(busy.backward, host) if busy.backward else 0.0
    return BlockSeconds(
        forward=max(busy.forward, host),
        backward=backward,
        weight=busy.weight * backward / busy.backward if busy.backward else 0.0,
        recompute=max(busy.forward, host + again),
    )


def op_seconds(op: Op, numbers: OpNumerics, device: Device, settings: RunSettings, rows: int) -> BlockSeconds:
    """Seconds of one op run by itself."""
    if op.kind in ("view", "communication"):  # what moves between devices is `profiles`' to count
        return NOTHING
    if op.seconds is not None:
        own = max(0.0, op.seconds[0] + op.seconds[1] * rows)
        return BlockSeconds(forward=own, backward=2 * own if _has_backward(op) else 0.0)
    extra = attention_traffic(op, settings, rows, numbers.saved)
    moved = numbers.read * op.read_bytes.at(rows) + numbers.written * op.written_bytes.at(rows) + extra.forward
    ahead = _products_seconds(op, op.products, op.forward_flops.at(rows), numbers, device, settings, rows)
    forward = max(ahead, moved / memory_rate(device)) + device.launch_seconds * extra.forward_kernels
    if not _has_backward(op):
        return BlockSeconds(forward=forward)
    moved = numbers.written * op.backward_read_bytes.at(rows) + numbers.read * op.backward_written_bytes.at(rows)
    behind = _products_seconds(op, op.backward_products, op.backward_flops.at(rows), numbers, device, settings, rows)
    backward = max(behind, max(0.0, moved + extra.backward) / memory_rate(device))
    backward += device.launch_seconds * extra.backward_kernels
    return BlockSeconds(forward=forward, backward=backward, weight=_weight_share(op, rows) * backward)


def pass_seconds(device: Device, size: float, kernels: int = 1) -> float:
    """Seconds of memory-bound kernels that move `size` bytes together."""
    return size / memory_rate(device) + kernels * device.launch_seconds if size else 0.0


def memory_rate(device: Device) -> float:
    """Achieved bytes/second of the device's memory."""
    return device.memory_bandwidth * device.memory_share


def product_flops(product: Product, rows: int) -> int:
    """FLOPs of a matrix product."""
    return 2 * product.batch.at(rows) * product.m.at(rows) * product.n.at(rows) * product.k.at(rows)


def efficiency(product: Product, dtype: str, device: Device, rows: int) -> float:
    """The share of the device's peak rate for `dtype` that a product reaches: by shape where tiles are known."""
    if not device.multiprocessors:
        return device.efficiency(dtype, product_flops(product, rows))
    sizes = (product.batch.at(rows), product.m.at(rows), product.n.at(rows), product.k.at(rows))
    summed = product.k.per_row > 0 and product.m.per_row == product.n.per_row == 0
    return device.efficiency(dtype, LARGE) * shape_share(device, dtype, *sizes, rows=summed)


def _products_seconds(
    op: Op, products: Sequence[Product], flops: int, numbers: OpNumerics, device: Device, settings: RunSettings,
    rows: int,
) -> float:  # fmt: skip
    """Seconds of an op's arithmetic; FLOPs that no product accounts for run at the efficiency of one large product."""
    rate = device.rate(numbers.dtype)
    if not products:
        return flops / (rate * device.efficiency(numbers.dtype, flops)) if flops else 0.0
    share = flash_share(op, settings, device, backward=products is op.backward_products)
    total = 0.0
    for product in products:
        own = product_flops(product, rows)
        if own:
            total += own / (rate * min(share, efficiency(product, numbers.dtype, device, rows)))
    return total


def _has_backward(op: Op) -> bool:
    return any((*op.backward_flops, *op.backward_read_bytes, *op.backward_written_bytes))


def _weight_share(op: Op, rows: int) -> float:
    """The part of an op's backward that makes weight gradients: products that sum over rows, of fixed size."""
    if op.kind not in PRODUCT_KINDS:
        return 0.0
    if not op.backward_products:
        return 0.5 if any(reference.startswith("p") for reference in op.inputs) else 0.0
    flops = [product_flops(product, rows) for product in op.backward_products]
    fixed = [
        own
        for own, product in zip(flops, op.backward_products, strict=True)
        if not (product.m.per_row or product.n.per_row or product.batch.per_row)
    ]
    return sum(fixed) / sum(flops) if sum(flops) else 0.0


def _chain_seconds(
    kind: BlockClass, chain: FusedChain, numbers: Sequence[OpNumerics], device: Device, settings: RunSettings, rows: int
) -> BlockSeconds:
    """Seconds of a fused chain; never more than its ops one by one."""
    alone = _total((op_seconds(kind.ops[i], numbers[i], device, settings, rows), 1) for i in chain.ops)
    if len(chain.ops) < 2:
        return alone
    forward = pass_seconds(device, chain.forward_bytes(kind, numbers, rows))
    backward = pass_seconds(device, chain.backward_bytes(kind, numbers, rows)) if alone.backward else 0.0
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
