"""What ops reach on a device where that was measured op by op (`Device.op_shares`: a processor, or torch's own kernels
on a GPU); elsewhere one share of the memory's bandwidth is that of all that move bytes, and products reach what the
curve says.

A batch norm gives a channel to each of a GPU's multiprocessors, backward with fewer warps two of them to each: where
there are fewer channels, some are idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from placer.cluster.cluster import Device, OpShare
from placer.costs.precision import PRODUCT_KINDS, OpNumerics, op_name
from placer.graph import Op
from placer.plans.settings import SIXTEEN_BITS, RunSettings

# Ops that do the same as one that is measured, and what stands for those of a kind that are not: a pointwise op for the
# cheapest of them, a product for a layer's. A reduction without a name has the share of all.
ALIKE = {
    "relu_": "relu",
    "threshold": "relu",
    "sigmoid": "tanh",
    "group_norm": "layer_norm",
    "rms_norm": "layer_norm",
    "log_softmax": "cross_entropy_loss",
    "nll_loss": "cross_entropy_loss",
}
OF_KIND = {"matmul": "linear", "convolution": "conv2d", "pointwise": "mul", "random": "dropout"}


Shares = tuple[float, float]
WHOLE: Shares = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Reached:
    """Forward and backward: of the curve's rate for a product as large, and of the memory's bandwidth. `summed`: an op
    takes the seconds of both, as a processor packs what it multiplies before it does; else of the longer."""

    products: Shares
    memory: Shares
    summed: bool = False

    def seconds(self, products: float, moved: float) -> float:
        """Those of a pass with so many seconds of products and of moving bytes."""
        return products + moved if self.summed else max(products, moved)


def reached(op: Op, device: Device, settings: RunSettings, numbers: OpNumerics) -> Reached:
    """What `op` reaches on `device`."""
    memory = device.memory_share, device.memory_share
    if not device.op_shares or (device.backend == "cuda" and settings.stack != "torch"):
        return Reached(WHOLE, memory)
    known, name = _by_name(device.op_shares), op_name(op)
    short = numbers.dtype in SIXTEEN_BITS
    names = (name, ALIKE.get(name, ""), OF_KIND.get(op.kind, ""))
    keys = (key for own in names for key in ((f"{own}/16", own) if short else (own,)))
    share = next((known[key] for key in keys if key in known), None)
    if op.kind in PRODUCT_KINDS:
        if share and device.backend == "cuda":
            return Reached(share, (device.memory_share * share[0], device.memory_share * share[1]))
        return Reached(share, WHOLE, summed=True) if share else Reached(WHOLE, memory)
    if name == "batch_norm" and share and device.multiprocessors:
        share = _of_channels(op, device.multiprocessors, share)
    return Reached(WHOLE, share or memory)


def widening_share(op: Op, device: Device, settings: RunSettings) -> float:
    """What of the memory's rate autocast's copies for an op reach: those from 16 into 32 bits, which all but products
    read, less where that was measured on a GPU."""
    if op.kind in PRODUCT_KINDS or device.kernels is None or settings.stack != "torch":
        return 1.0
    share = _by_name(device.op_shares).get("to/16")
    return 1.0 if share is None else share[0] / device.memory_share


def _of_channels(op: Op, multiprocessors: int, share: Shares) -> Shares:
    """What is left of a batch norm's share where channels are fewer than what works on them."""
    shape = op.outputs[0].shape if op.outputs else ()
    channels = shape[1].fixed if len(shape) > 1 else multiprocessors
    return share[0] * min(1.0, channels / multiprocessors), share[1] * min(1.0, channels / (2 * multiprocessors))


@lru_cache(maxsize=64)
def _by_name(shares: tuple[OpShare, ...]) -> dict[str, Shares]:
    return {name: (forward, backward) for name, forward, backward in shares}
