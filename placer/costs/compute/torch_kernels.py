"""What torch's own kernels reach on a GPU where they were measured (`Device.kernels`): attention, convolutions.

Attention     share(head, positions) = share * 3/2 d / (d + 64) * s / (s + fill) * padded

A tile of queries goes over the keys, and a head of d takes d / (d + 64) as many products for each score's exponential,
which other units make (FlashAttention-3, arXiv:2407.08608, section 1: their rate, and figure 5: heads of 64 beside
128). It fills a pipeline first: `FILL` keys' worth, of which causal attention has half as many in the mean. A tile that
sticks out computes for nothing. The measured shares are those of a head of 128 and of many positions.

Convolutions  on tensor cores want channels last, and where the tensors of a model have them first cuDNN lays a pass's
input out anew and its result back (NVIDIA, "Convolutional Layers User's Guide", section "Tensor Layouts"; kernels
`nchwToNhwcKernel` in a profile). Products of 1 x 1 at stride 1 need none, where rows of positions are aligned.
"""

from __future__ import annotations

import re
from math import ceil

from placer.cluster.cluster import Device
from placer.cluster.kernels import FILL, TorchKernels
from placer.costs.compute.tile_quantization import LIES_IN, Alignment, shape_share
from placer.costs.precision import TENSOR_FLOAT, OpNumerics
from placer.graph import ITEM_BYTES, Op, Product
from placer.plans.settings import RunSettings

# Exponentials of a score are worth so many elements of a head, and the head of which shares are told: fitted on one
# H200 (six shapes of attention, 26 November 2026; `examples.measured.calibrated.ops`).
HEAD, WIDE = 64, 128
TILE = 128
ALL_ALIKE: Alignment = ((1, 1.0),)
# What of the memory's rate laying out elements of two bytes reaches (the same measurements).
LAID_OUT = 0.7
# Of the float32 rate what convolutions of one channel each reach in 16 bits and channels last, forward and backward:
# 10.7 and 8.1 TFLOP/s in 18 layers of 7 x 7 of a ConvNeXt-tiny (kernels `conv2d_c1_k1_nhwc_specialized` and their like
# in a profile of its step on one H200, torch 2.11, 28 November 2026; models of `examples.measured.calibrated.one_gpu`).
DEPTHWISE_LAST = 0.16, 0.12
# Of a convolution's arguments a stride above 1.
STRIDED = re.compile(r"t0, t1, (?:None|t2), \[(?!1, 1\])")
# Pointwise ops whose backward reads what was broadcast again.
MULTIPLYING = frozenset({"mul", "div", "mul_", "div_"})
# Rows of positions start at a multiple of so many bytes where a 1 x 1 convolution is a plain product.
ALIGNED = 16


def torch_kernels(device: Device, settings: RunSettings) -> TorchKernels | None:
    """Those of `device` where torch's run and were measured."""
    return device.kernels if settings.stack == "torch" else None


def kernel_share(
    device: Device, dtype: str, sizes: tuple[int, int, int, int], kernels: TorchKernels, *, summed: bool,
    convolution: bool,
) -> float:  # fmt: skip
    """The share of the device's ceiling that a product of this batch, m, n and k keeps; summed: over rows, as the
    gradient of a weight. Where rows are misaligned an older kernel runs, which takes factors as they lie."""
    alignment = ((16, 1.0), (4, kernels.misaligned[0]), (1, kernels.misaligned[1]))
    turned = summed and dtype == TENSOR_FLOAT and not convolution

    def share(of: Alignment) -> float:
        return shape_share(device, dtype, *sizes, rows=summed, alignment=of, streams=kernels.streams)

    return min(share(alignment), kernels.tensor_float_sums * share(ALL_ALIKE)) if turned else share(alignment)


def attention_share(
    op: Op, kernels: TorchKernels, device: Device, dtype: str, rows: int, *, causal: bool, backward: bool
) -> float:
    """The share of the rate of `dtype` that an attention op's products reach."""
    product = op.products[0]
    shape = _shaped(product, rows)
    if device.rate(dtype) <= device.rate("float32") or dtype in ("float32", "tfloat32"):
        plain = device.rate("float32") / device.rate(dtype)
        return plain * kernels.attention_float32[backward] * shape
    keys = product.n.at(rows)
    return kernels.attention[backward] * shape * keys / (keys + FILL * (2 if causal else 1))


def _shaped(product: Product, rows: int) -> float:
    """What is left of a share for a head of this width, and of the tiles of queries that are queries."""
    queries, head = product.m.at(rows), product.k.at(rows)
    of_head = min(1.0, head / (head + HEAD) * (WIDE + HEAD) / WIDE)
    return of_head * queries / (TILE * max(1, ceil(queries / TILE)))


def convolution_share(
    op: Op, product: Product, kernels: TorchKernels, device: Device, dtype: str, rows: int, *, backward: bool
) -> float:
    """The most of the rate of `dtype` that a product of a convolution reaches."""
    plain = device.rate("float32") / device.rate(dtype)
    if depthwise(product, rows):
        specialized = op.channels_last and ITEM_BYTES[LIES_IN.get(dtype, dtype)] == 2
        return plain * (DEPTHWISE_LAST if specialized else kernels.depthwise)[backward]
    return plain * kernels.images if len(op.backward_products) == 1 else 1.0


def depthwise(product: Product, rows: int) -> bool:
    """Whether a product is that of a channel alone."""
    return min(product.m.at(rows), product.n.at(rows), product.k.at(rows)) == 1


def laid_out_bytes(op: Op, numbers: OpNumerics, device: Device, rows: int) -> tuple[float, float]:
    """Bytes that a convolution moves to have channels last, forward and backward."""
    plain = device.rate(numbers.dtype) <= device.rate("float32")
    if op.kind != "convolution" or op.channels_last or not op.outputs or plain:
        return 0.0, 0.0
    product, gradients = op.products[0], len(op.backward_products)
    item = ITEM_BYTES[LIES_IN.get(numbers.dtype, numbers.dtype)]
    if depthwise(product, rows) or gradients == 1 or _plain_product(op, product, item, rows):
        return 0.0, 0.0
    given, made = numbers.read * op.read_bytes.per_row * rows, numbers.written * op.written_bytes.at(rows)
    moved = 2 * (given + made) / (LAID_OUT if item < ITEM_BYTES["float32"] else 1.0)
    return moved, gradients * moved


def _plain_product(op: Op, product: Product, item: int, rows: int) -> bool:
    """Whether a convolution is a product of the tensors as they lie: 1 x 1 at stride 1, its positions aligned."""
    made = op.outputs[0]
    given = op.read_bytes.per_row * rows // ITEM_BYTES[made.dtype]
    positions = product.m.at(rows)
    in_place = given == positions * product.k.at(rows)  # neither more positions than results nor windows of several
    each = positions // max(1, made.shape_at(rows)[0])
    return in_place and not STRIDED.match(op.arguments) and each * item % ALIGNED == 0
