"""Bytes and kernels of what happens to gradients and state outside of the model's ops: all of it memory-bound.

Per element, with w bytes of a weight and of its gradient:

    accumulate   read both gradients, write one: 3 w                                   (autograd's AccumulateGrad)
    bucket       copy gradients in, results back: 4 w
    gathering    copy what was updated in, everything back: 2 w / parts + 2 w
    norm         w, and 32 more where it is made op by op in float64: to double 8, square 16, sum 8
    scaling      2 w
    masters      gradient to float32 w + 4, master to weight 4 + w
    update       in one kernel (`fusion`): gradient, weight and each state read, weight and each state written;
                 op by op, adamw: 20 passes (mul 2, lerp 3, mul 2, addcmul 3, sqrt 2, div 2, add 2, addcdiv 4;
                 torch/optim/adamw.py), sgd: weight decay 3, momentum 5 if any, add 3

On a CPU each of these is a kernel per tensor; on a GPU torch runs lists of tensors (`_foreach`), some tens per kernel.
"""

from __future__ import annotations

from placer.cluster.cluster import Device
from placer.costs.compute.roofline import pass_seconds
from placer.costs.memory.parameters import ParameterCounts
from placer.costs.precision import Numerics
from placer.plans.settings import RunSettings, state_count

# Tensors one multi-tensor kernel takes (ATen/native/cuda/MultiTensorApply.cuh: 110, 64, 48, 36 for depth 1 to 4).
TENSORS_PER_KERNEL = 36
ADAMW_PASSES, ADAMW_KERNELS = 20, 8
NORM_BYTES, NORM_KERNELS = 32, 4


def accumulate_seconds(counts: ParameterCounts, numerics: Numerics, device: Device) -> float:
    """Seconds of adding one microbatch's gradients to those of earlier ones."""
    return pass_seconds(device, 3 * counts.trainable * numerics.weight_bytes, counts.tensors)


def bucket_seconds(size: float, device: Device) -> float:
    """Seconds of copying a bucket of `size` bytes in and out."""
    return pass_seconds(device, 4 * size, 2)


def gathering_seconds(size: float, device: Device, parts: int) -> float:
    """Seconds of copying parameters of `size` bytes, of which this device has one of `parts`, in and out."""
    return pass_seconds(device, 2 * size * (1 + 1 / parts), 2)


def update_seconds(
    counts: ParameterCounts, numerics: Numerics, settings: RunSettings, device: Device, parts: int = 1
) -> float:
    """Seconds of clipping and updating state that is divided into `parts`, on one device."""
    size, kernels = update_bytes(numerics, settings), _kernels(numerics, settings)
    each = 1 if device.backend == "cpu" else TENSORS_PER_KERNEL
    return pass_seconds(device, counts.trainable * size / parts, -(-counts.tensors // each) * kernels)


def update_bytes(numerics: Numerics, settings: RunSettings) -> int:
    """Bytes per element of clipping and updating; of clipping alone where the host updates (see `offload`)."""
    weight = numerics.weight_bytes
    kept = 4 if numerics.masters else weight
    size = 0
    if settings.clip_norm is not None:
        size += 3 * weight + (0 if settings.fusion else NORM_BYTES)
    if settings.offload == "optimizer":
        return size
    if settings.fusion:
        states = state_count(settings)
        return size + weight + kept * (2 * states + 2) + (weight if numerics.masters else 0)
    if numerics.masters:
        size += 2 * (weight + 4)
    return size + kept * _passes(settings)


def _passes(settings: RunSettings) -> int:
    if settings.optimizer == "adamw":
        return ADAMW_PASSES
    return 3 + 3 * bool(settings.weight_decay) + 5 * state_count(settings)


def _kernels(numerics: Numerics, settings: RunSettings) -> int:
    """Kernels per tensor, or per list of tensors."""
    if settings.offload == "optimizer":
        return (2 if settings.fusion else NORM_KERNELS) * (settings.clip_norm is not None)
    if settings.fusion:
        return 1 + 2 * (settings.clip_norm is not None)
    update = ADAMW_KERNELS if settings.optimizer == "adamw" else 3
    return update + NORM_KERNELS * (settings.clip_norm is not None) + 2 * numerics.masters
