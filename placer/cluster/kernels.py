"""TorchKernels: what the kernels that torch runs on a GPU reach, beside the chip's best, where it was measured."""

from __future__ import annotations

from dataclasses import dataclass

from placer.io.bounds import AchievedShare, AmountAboveZero

Shares = tuple[AchievedShare, AchievedShare]
# Keys that fill the pipeline of fused attention in 16 bits (placer/costs/compute/torch_kernels.py): fitted on one H200
# (six shapes, 26 November 2026; `examples.measured.calibrated.ops`).
FILL = 192


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchKernels:
    """Of a chip on which torch's own steps were measured; other stacks bring kernels of their own.

    Shares are of the rate of the product's type, unless they say float32's; pairs are forward and backward.

    sustained: what is left of a product's rate in the steps of a training run on this chip.
    streams: whether those of 16 bits divide the work of all tiles evenly (stream-K).
    misaligned: of a product whose rows start at a multiple of 4 bytes, and of 2 only.
    tensor_float_sums: of a TensorFloat-32 product that sums over rows, as a weight's gradient does: both factors lie
    the other way, which the instructions take for types of 16 bits alone (PTX ISA, `wgmma`: transposed operands).
    attention: fused attention in 16 bits at a head of 128 and many positions; attention_float32: in float32, of the
    float32 rate.
    depthwise: convolutions of one channel each, of the float32 rate; images: those of a picture's few channels.
    host_op_seconds: what the host takes to issue an op of inference.
    """

    sustained: AchievedShare
    misaligned: Shares
    tensor_float_sums: AchievedShare
    attention: Shares
    attention_float32: Shares
    depthwise: Shares
    images: AchievedShare
    host_op_seconds: AmountAboveZero
    streams: bool = False
