"""Seconds that the host of a GPU takes to issue ops, for which passes wait. On a CPU nobody issues them."""

from __future__ import annotations

from typing import NamedTuple

from placer.cluster.cluster import Device
from placer.costs.compute.torch_kernels import torch_kernels
from placer.plans.settings import MEGATRON_CORE, RunSettings

# Seconds the host of a GPU takes per op of an eager model, views included. 12 layers of BERT-base are 29 ops each, 362
# with embeddings, mask and pooler (modeling_bert.py of transformers 2.11); their forward takes 6 ms for 64 tokens and
# 6 ms for 256 (transformers' documentation, "Benchmarks", PyTorch 1.4, TITAN RTX), hence by the host: 6 ms / 362.
# That is inference. In training autograd records the ops, and its backward runs more kernels than they did: our
# measurement on tensors of few elements (layers of placer/tracer/published/megatron_gpt.py, 8 less 2 of them, torch
# 2.13 on a CPU, processor time, the least of 11 times 15 passes, 25 November 2026): forward 1.25 to 1.38, backward 1.93
# to 2.11 times the forward under no_grad in six runs, with attention in one kernel and in several.
INFERENCE_SECONDS = 16.6e-6
FORWARD_SHARE, BACKWARD_SHARE = 1.3, 2.0
# Layers of Megatron-Core take more of it: the same measurement of its GPT (megatron-core 0.16.1, local layers, no fused
# kernels, which it has none of on a CPU) beside the one above: forward 2.0 and backward 1.4 times, in three runs.
CORE_SHARES = 2.0, 1.4

# What torch.utils.checkpoint adds to a layer's passes, saving and restoring random states and running backward of its
# own, in ops of inference: 470 us where one took 15.2 us (the same measurement).
CHECKPOINT_OPS = 31


# Of torch's own kernels on a GPU, in seconds of an op of inference as they were measured beside it: what the host takes
# for each op that launches any, autograd's records and the views around it included, forward (as much for a launch that
# has no backward) and backward, and for a weight that is handed to the optimizer, cast to 32 bits or as it is. Steps
# that waited for the host, on one H200 whose host takes 8.9 us for an op of inference: ViT base in bfloat16 (187 ops
# that launch, 200 weights) 27.3 ms, under autocast (199 copies more) 34.6, ResNet-50 (228 ops, 161 weights) 33.5 and
# 31.8; these give 27.1, 28.9, 30.1 and 27.8
# (torch 2.11, 28 November 2026; `examples.measured.calibrated.one_gpu`).
LAUNCHED, LAUNCHED_BACK, CAST, HANDED = 4.0, 8.0, 4.0, 1.0


class HostSeconds(NamedTuple):
    """Seconds the host takes to issue a forward and its backward."""

    forward: float = 0.0
    backward: float = 0.0


def issued(device: Device, settings: RunSettings, ops: int, launches: int = 0, *, unmade: float = 0.0) -> HostSeconds:
    """Seconds the host takes to issue so many ops, and their backward, and so many launches that have none.

    unmade: of the ops' backward what is not issued, as nothing wants it, in ops.
    Of torch's own kernels, where these were measured and no chains are compiled, ops are those that launch one.
    """
    if device.backend != "cuda":
        return HostSeconds()
    kernels = torch_kernels(device, settings)
    if kernels is not None and not settings.fusion:
        each = kernels.host_op_seconds
        return HostSeconds(LAUNCHED * (ops + launches) * each, LAUNCHED_BACK * (ops - unmade) * each)
    ahead, behind = CORE_SHARES if settings.stack in MEGATRON_CORE else (1.0, 1.0)
    each = _inference_seconds(device, settings)
    inference, back = (ops + launches) * each, (ops + launches - unmade) * each
    return HostSeconds(ahead * FORWARD_SHARE * inference, behind * BACKWARD_SHARE * back)


def handing_seconds(device: Device, settings: RunSettings, tensors: int, *, cast: bool) -> float:
    """Seconds the host takes to hand so many gradients to an optimizer of torch's."""
    kernels = torch_kernels(device, settings)
    return 0.0 if kernels is None else tensors * (CAST if cast else HANDED) * kernels.host_op_seconds


def checkpoint_seconds(device: Device, settings: RunSettings) -> float:
    """Seconds of the host that running a block again adds to issuing it once more."""
    return CHECKPOINT_OPS * _inference_seconds(device, settings) if device.backend == "cuda" else 0.0


def _inference_seconds(device: Device, settings: RunSettings) -> float:
    """Those of an op; of torch's own as measured on a host of the device where they were."""
    kernels = torch_kernels(device, settings)
    return INFERENCE_SECONDS if kernels is None else kernels.host_op_seconds
