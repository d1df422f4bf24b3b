"""What torch's own kernels on a GPU take: products that lie badly, attention, convolutions, and issuing an op.

Each is timed in a shape that stands for its kind; `kernel_shares` makes shares of them (`placer/cluster/kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from placer.cluster.calibrate.device_calls import host_seconds
from placer.cluster.calibrate.kernel_shares import KernelTimes
from placer.cluster.calibrate.products import rounded_to, warm_rate
from placer.cluster.calibrate.timings import HURRY, Together

Pair = tuple[float, float]
# Rows, outputs, inputs of a product whose rows of outputs start at a multiple of 16 bytes, of 4, and of 2.
ALIGNED, EVEN, ODD = ((8192, outputs, 768) for outputs in (1000, 1002, 1001))
# Summed over many rows into a result of few tiles, as a weight's gradient is.
SUMMED = (768, 3072, 8192)
# Rows, heads, positions, elements of a head; images, channels, edge.
HEADS = (4, 16, 2048, 128)
PLANES, DEPTHWISE_EDGE = (64, 96, 56, 56), 7
IMAGES, FIRST = (64, 3, 224, 224), (64, 3, 7, 7)


def kernel_times(together: Together) -> KernelTimes | None:
    """Those of a GPU; None on a processor, and where time is up."""
    if not together.on_gpu or together.later_than(HURRY):
        return None
    together.progress("torch's own kernels")
    return KernelTimes(
        aligned=_product(together, ALIGNED),
        misaligned=(_product(together, EVEN), _product(together, ODD)),
        summed=_product(together, SUMMED),
        tensor_float=(_tensor_float(together, turned=False), _tensor_float(together, turned=True)),
        attention=_attention(together, torch.bfloat16),
        attention_float32=_attention(together, torch.float32),
        depthwise=_convolution(together, PLANES, (PLANES[1], 1, DEPTHWISE_EDGE, DEPTHWISE_EDGE), PLANES[1]),
        images=_convolution(together, IMAGES, FIRST, 1)[0],
        warm=warm_rate(together),
        host_op_seconds=host_seconds(),
    )


def _product(together: Together, sizes: tuple[int, int, int]) -> float:
    """FLOP/s of a product of m x k and k x n in bfloat16."""
    m, n, k = sizes
    a, b = (torch.randn(rows, k, device=together.device).to(torch.bfloat16) for rows in (m, n))
    return 2.0 * m * n * k / together.seconds(lambda: torch.mm(a, b.t()))


def _tensor_float(together: Together, *, turned: bool) -> float:
    """FLOP/s of one summed over many rows in TensorFloat-32; turned: those are the outer dim of both in memory."""
    m, n, k = SUMMED
    a, b = (torch.randn(k, columns, device=together.device) for columns in (m, n))
    if not turned:
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    with rounded_to("high"):
        return 2.0 * m * n * k / together.seconds(lambda: torch.mm(a.t(), b))


def _attention(together: Together, dtype: torch.dtype) -> Pair:
    """FLOP/s of causal attention's products, of those that its mask leaves, forward and backward; a backward has five
    products where a forward has two."""
    q, k, v = (torch.randn(HEADS, device=together.device).to(dtype).requires_grad_() for _ in range(3))
    rows, heads, positions, width = HEADS
    flops = 2 * 2.0 * rows * heads * positions**2 * width / 2

    def attend() -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    forward, backward = _passes(together, attend, (q, k, v))
    return flops / forward, 2.5 * flops / backward


def _convolution(together: Together, images: tuple[int, ...], weight: tuple[int, ...], groups: int) -> Pair:
    """FLOP/s of a convolution, forward and backward."""
    x = torch.randn(images, device=together.device).requires_grad_(groups > 1)
    w = torch.randn(weight, device=together.device, requires_grad=True)
    stride = 1 if groups > 1 else 2

    def convolve() -> torch.Tensor:
        return functional.conv2d(x, w, stride=stride, padding=weight[-1] // 2, groups=groups)

    flops = 2.0 * convolve().numel() * weight[1] * weight[2] * weight[3]
    forward, backward = _passes(together, convolve, tuple(one for one in (x, w) if one.requires_grad))
    return flops / forward, (2 if groups > 1 else 1) * flops / backward


def _passes(together: Together, made: Callable[[], torch.Tensor], given: tuple[torch.Tensor, ...]) -> Pair:
    """Seconds of a forward and of its backward."""
    slope = torch.ones_like(made())
    with torch.no_grad():
        forward = together.seconds(made)
    both = together.seconds(lambda: torch.autograd.grad(made(), given, slope))
    return forward, max(both - forward, forward / 10)
