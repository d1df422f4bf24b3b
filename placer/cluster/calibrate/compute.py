"""Rates of one device while all are at work: products by size and dtype, memory, seconds per op."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from placer.cluster.calibrate.lockstep import HURRY, Together

CPU_EDGES = (32, 64, 128, 256, 512, 1024, 2048)
CUDA_EDGES = (128, 256, 512, 1024, 2048, 4096, 8192)
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
# A product that would take longer than this is not measured: the curve is flat there anyway.
LONGEST_PRODUCT = 0.3


def products(together: Together) -> dict[str, tuple[tuple[float, float], ...]]:
    """(FLOPs, FLOP/s) of square products by dtype name; on a machine too busy to time all, of the first ones."""
    found: dict[str, tuple[tuple[float, float], ...]] = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        if found and together.later_than(HURRY):
            break
        together.progress(f"matrix products in {name}")
        found[name] = _by_size(together, dtype)
    return found


def memory_bandwidth(together: Together) -> float:
    """Bytes/second of an elementwise sum into a given tensor: the best a memory-bound op reaches."""
    together.progress("memory bandwidth")
    a, b, out = (_tensor(together) for _ in range(3))
    return 3.0 * a.nbytes / together.seconds(lambda: torch.add(a, b, out=out))


def mixed_bandwidth(together: Together) -> float:
    """Bytes/second over the memory-bound ops of a model, each with a new result: sum, GELU, softmax, layer norm.

    On processors their arithmetic and the allocation of results cost several times what the bytes do.
    """
    together.progress("memory-bound ops")
    a, b = _tensor(together), _tensor(together)
    ops: tuple[tuple[float, Callable[[], torch.Tensor]], ...] = (
        (3.0, lambda: torch.add(a, b)),
        (2.0, lambda: functional.gelu(a)),
        (2.0, lambda: torch.softmax(a, -1)),
        (2.0, lambda: functional.layer_norm(a, (a.shape[-1],))),
    )
    seconds = sum(together.seconds(op) for _, op in ops)
    return sum(tensors for tensors, _ in ops) * a.nbytes / seconds


def _tensor(together: Together) -> torch.Tensor:
    """An activation of a usual size: 4 MiB on a processor, 64 MiB on a GPU (larger than its caches)."""
    rows = 16 * 1024 if together.device.type == "cuda" else 1024
    return torch.randn(rows, 1024, device=together.device)


def launch_seconds(together: Together) -> float:
    """Seconds of one op that has nothing to do: a chain of small products, forward and backward."""
    together.progress("seconds per op")
    x = torch.ones(16, device=together.device, requires_grad=True)
    length = 50

    def chain() -> None:
        y = x
        for _ in range(length):
            y = y * 1.0
        torch.autograd.backward(y.sum())

    return together.seconds(chain) / (2 * length)


def _by_size(together: Together, dtype: torch.dtype) -> tuple[tuple[float, float], ...]:
    points: list[tuple[float, float]] = []
    expected = 0.0
    tiny = torch.ones(1, 1, device=together.device, dtype=dtype)
    dispatch = together.seconds(lambda: torch.mm(tiny, tiny))
    for edge in CUDA_EDGES if together.device.type == "cuda" else CPU_EDGES:
        if expected > LONGEST_PRODUCT or (len(points) > 2 and together.later_than(HURRY)):
            break
        # Random numbers: a chip draws less power and clocks higher on zeros.
        a = torch.randn(edge, edge, device=together.device).to(dtype)
        b = torch.randn(edge, edge, device=together.device).to(dtype)
        seconds = together.seconds(lambda a=a, b=b: torch.mm(a, b))  # type: ignore[misc]
        # The cost of one op stands apart (`launch_seconds`): counted here too, it would be counted twice.
        alone = max(seconds - dispatch, seconds / 10)
        points.append((2.0 * edge**3, 2.0 * edge**3 / alone))
        expected = 8 * together.slowest(seconds)
    return tuple(points)
