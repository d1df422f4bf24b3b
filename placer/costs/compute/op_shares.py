"""What ops reach on a device where that was measured op by op (`Device.op_shares`, a processor); elsewhere one share of
the memory's bandwidth is that of all that move bytes, and products reach what the curve says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from placer.cluster.cluster import Device, OpShare
from placer.costs.precision import PRODUCT_KINDS, op_name
from placer.graph import Op

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


def reached(op: Op, device: Device) -> Reached:
    """What `op` reaches on `device`."""
    memory = device.memory_share, device.memory_share
    if not device.op_shares:
        return Reached(WHOLE, memory)
    known, name = _by_name(device.op_shares), op_name(op)
    share = known.get(ALIKE.get(name, name)) or known.get(OF_KIND.get(op.kind, ""))
    if op.kind in PRODUCT_KINDS:
        return Reached(share, WHOLE, summed=True) if share else Reached(WHOLE, memory)
    return Reached(WHOLE, share or memory)


@lru_cache(maxsize=64)
def _by_name(shares: tuple[OpShare, ...]) -> dict[str, Shares]:
    return {name: (forward, backward) for name, forward, backward in shares}
