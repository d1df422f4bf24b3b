"""Seconds of casting gradients to the type in which replicas sum them, and back: memory-bound, beside the sum.

    whole gradients   a bucket of w bytes per element cast to c bytes, and its sum back: 2 (w + c)
    sharded state     a block's gradients, and this replica's shard of their sum back: (w + c) (1 + 1/parts)

As torch's bf16_compress_hook does it (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py, `_compress_hook`),
but that gradients are summed, not averaged.
"""

from __future__ import annotations

from placer.cluster.cluster import Device
from placer.costs.compute.roofline import pass_seconds


def cast_seconds(size: float, compressed: float, device: Device, parts: int = 1) -> float:
    """Seconds of casting `size` bytes to `compressed` bytes, and one of `parts` of their sum back; 0 where both are the
    same."""
    return pass_seconds(device, (size + compressed) * (1 + 1 / parts), 2) if size != compressed else 0.0
