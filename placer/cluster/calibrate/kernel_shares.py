"""What was measured of torch's own kernels on GPUs, and the shares of a chip's rates that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from pydantic import BaseModel, ConfigDict

from placer.cluster.kernels import FILL, TorchKernels

# A product summed over many rows into few tiles reaches so much of an aligned one where its work is divided evenly.
STREAMS = 0.9
# What steps of torch's own kernels leave of products that were timed many at once. Half of such a step moves bytes, in
# which the chip draws less power: products of a Llama of a billion parameters ran at 859 TFLOP/s in 16 bits and at 348
# in TensorFloat-32 in its steps on one H200, alone at 756 and 362, and at 666 after a second of nothing else (torch
# 2.11, 28 November 2026; kernels of steps of `examples.measured.calibrated.one_gpu`, torch's profiler).
EAGER = 1.0
# Attention was measured on so many positions, a causal mask over them.
POSITIONS = 2048


class KernelTimes(BaseModel):
    """Torch's own kernels on a GPU in FLOP/s, pairs forward and backward: products in 16 bits aligned, at 4 and at 2
    bytes, and summed over many rows; those in TensorFloat-32 as the instructions want their factors, and the other way;
    attention, convolutions, a large product in 16 bits after a while of nothing else. And seconds to issue an op."""

    model_config = ConfigDict(frozen=True)
    aligned: float
    misaligned: tuple[float, float]
    summed: float
    tensor_float: tuple[float, float]
    attention: tuple[float, float]
    attention_float32: tuple[float, float]
    depthwise: tuple[float, float]
    images: float
    warm: float
    host_op_seconds: float


def kernel_shares(devices: Sequence[KernelTimes], rates: Mapping[str, float]) -> TorchKernels:
    """The shares of equal devices whose best products have these rates."""

    def middle(own: Callable[[KernelTimes], float]) -> float:
        return float(f"{median(map(own, devices)):.4g}")

    def pair(own: Callable[[KernelTimes], tuple[float, float]], rate: float) -> tuple[float, float]:
        return _share(middle(lambda one: own(one)[0]) / rate), _share(middle(lambda one: own(one)[1]) / rate)

    plain, short = rates["float32"], rates.get("bfloat16", rates["float32"])
    filled = POSITIONS / (POSITIONS + 2 * FILL)
    aligned = middle(lambda one: one.aligned)
    return TorchKernels(
        streams=middle(lambda one: one.summed) >= STREAMS * aligned,
        sustained=EAGER,
        misaligned=pair(lambda one: one.misaligned, aligned),
        tensor_float_sums=_share(middle(lambda one: one.tensor_float[1]) / middle(lambda one: one.tensor_float[0])),
        attention=pair(lambda one: one.attention, filled * short),
        attention_float32=pair(lambda one: one.attention_float32, plain),
        depthwise=pair(lambda one: one.depthwise, plain),
        images=_share(middle(lambda one: one.images) / plain),
        host_op_seconds=middle(lambda one: one.host_op_seconds),
    )


def warm_share(devices: Sequence[KernelTimes], rates: Mapping[str, float]) -> float:
    """What is left of the best products in 16 bits after a while of nothing else; all where that was not measured."""
    best = rates.get("bfloat16", rates["float32"])
    return min((_share(one.warm / best) for one in devices), default=1.0)


def _share(value: float) -> float:
    """Of a rate at most all."""
    return float(f"{min(1.0, value):.4g}")
