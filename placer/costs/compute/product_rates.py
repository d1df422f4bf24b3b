"""Seconds of an op's products: what of a chip's rate each reaches by its shape, or by the kernel that makes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from placer.cluster.cluster import FLASH_SHARES, Device
from placer.cluster.kernels import TorchKernels
from placer.costs.compute.tile_quantization import shape_share
from placer.costs.compute.torch_kernels import attention_share, convolution_share, kernel_share, torch_kernels
from placer.costs.compute.weight_gradients import product_flops
from placer.costs.kept_results import makes_scores
from placer.costs.precision import OpNumerics
from placer.graph import Op, Product
from placer.plans.settings import RunSettings

# Flash attention leaves out the blocks of scores that a causal mask hides: half of them, and half of those on the
# diagonal are for nothing. Blocks of 128 queries (arXiv:2307.08691, section 3.3).
FLASH_BLOCK = 128
CAUSAL = re.compile(r"t0, t1, t2, (?:None|t\d+), [\d.e-]+, True|.*\bis_causal=True")
# Its backward makes the scores again: five products, where the plain one (and many a captured op) has four.
PLAIN_PRODUCTS = 4
FLASH_REMAKES = 5 / 4

# FLOPs at which every curve has reached its ceiling (placer/cluster/tile_curve.py).
LARGE = 1e15


def efficiency(
    product: Product, dtype: str, device: Device, rows: int, kernels: TorchKernels | None = None,
    convolution: bool = False,
) -> float:  # fmt: skip
    """The share of the device's peak rate for `dtype` that a product reaches: by shape where tiles are known; of
    torch's own kernels where these are."""
    if not device.multiprocessors:
        return device.efficiency(dtype, product_flops(product, rows))
    sizes = (product.batch.at(rows), product.m.at(rows), product.n.at(rows), product.k.at(rows))
    summed = product.k.per_row > 0 and product.m.per_row == product.n.per_row == 0
    if kernels is None:
        share = shape_share(device, dtype, *sizes, rows=summed)
    else:
        share = kernel_share(device, dtype, sizes, kernels, summed=summed, convolution=convolution)
    return device.efficiency(dtype, LARGE) * share * (1 - (1 - _sustained(device, dtype, kernels)) * share)


def _sustained(device: Device, dtype: str, kernels: TorchKernels | None) -> float:
    """What is left of the rate of `dtype` on a warm chip; plain instructions, which take less power, lose nothing (one
    H200, 51 TFLOP/s in float32 from the first to the last of 1.6 seconds)."""
    if device.rate(dtype) <= device.rate("float32"):
        return 1.0
    return device.sustained if kernels is None else kernels.sustained


def products_seconds(
    op: Op, products: Sequence[Product], flops: int, numbers: OpNumerics, device: Device, settings: RunSettings,
    rows: int,
) -> float:  # fmt: skip
    """Seconds of an op's arithmetic; FLOPs that no product accounts for run at the efficiency of one large product."""
    rate = device.rate(numbers.dtype)
    if not products:
        return flops / (rate * device.efficiency(numbers.dtype, flops)) if flops else 0.0
    computed, backward = _computed_share(op, settings, device, rows), products is op.backward_products
    kernels = torch_kernels(device, settings)
    total = 0.0
    for product in products:
        own = product_flops(product, rows)
        if own:
            most = _most(
                op, product, numbers.dtype, device, settings, kernels, rows, causal=computed < 1, backward=backward
            )
            # What was measured of a kernel of attention is its own, not a product's.
            if kernels is None or op.kind != "attention" or makes_scores(op, settings, device.backend):
                most = min(most, efficiency(product, numbers.dtype, device, rows, kernels, op.kind == "convolution"))
            total += computed * own / (rate * most)
    return total


def _most(
    op: Op, product: Product, dtype: str, device: Device, settings: RunSettings, kernels: TorchKernels | None,
    rows: int, *, causal: bool, backward: bool,
) -> float:  # fmt: skip
    """The most of the rate of `dtype` that one of an op's products reaches."""
    warm = _sustained(device, dtype, kernels)
    if kernels is None or (op.kind == "attention" and makes_scores(op, settings, device.backend)):
        return warm * _flash_share(op, settings, device, backward=backward)
    if op.kind == "attention":
        share = attention_share(op, kernels, device, dtype, rows, causal=causal, backward=backward)
        return warm * (share / FLASH_REMAKES if backward and len(op.backward_products) <= PLAIN_PRODUCTS else share)
    if op.kind == "convolution":
        return min(warm, convolution_share(op, product, kernels, device, dtype, rows, backward=backward))
    return warm


def _flash_share(op: Op, settings: RunSettings, device: Device, *, backward: bool) -> float:
    """The most of the peak rate an op's products reach: flash kernels have their own ceiling."""
    if op.kind != "attention" or makes_scores(op, settings, device.backend):
        return 1.0
    if device.backend != "cuda":  # of four products, as they were measured; the default is a GPU's
        return 1.0 if device.flash_shares == FLASH_SHARES else device.flash_shares[backward]
    known = {"flash1": device.first_flash_shares, "flash": device.flash_shares, "tuned": device.tuned_shares}
    forward, behind = known[settings.attention]
    if not backward:
        return forward
    return behind / (FLASH_REMAKES if len(op.backward_products) <= PLAIN_PRODUCTS else 1.0)


def _computed_share(op: Op, settings: RunSettings, device: Device, rows: int) -> float:
    """The share of an attention op's products that its kernel computes: a flash one leaves out what a mask hides."""
    fused = op.kind == "attention" and device.backend == "cuda" and not makes_scores(op, settings, device.backend)
    if not fused or not op.products or not CAUSAL.match(op.arguments):
        return 1.0
    positions = op.products[0].n.at(rows)
    return min(1.0, (1 + FLASH_BLOCK / positions) / 2) if positions else 1.0
