"""FLOP/s of square products by size and type; on a GPU also what of them is left while it is warm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch

from placer.cluster.calibrate.timings import HURRY, Together

CPU_EDGES = (32, 64, 128, 256, 512, 1024, 2048)
CUDA_EDGES = (128, 256, 512, 1024, 2048, 4096, 8192)
# By the names of the catalogue; float32 in TensorFloat-32 on a GPU alone.
DTYPES = {
    "float32": torch.float32,
    "tfloat32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "float16": torch.float16,
}
TENSOR_FLOAT = "tfloat32"
# A product that would take longer than this is not measured: the curve is flat there anyway.
LONGEST_PRODUCT = 0.3
# The chip settles within a second (an H200: see `sustained` in placer/cluster/hardware/devices.yaml).
WARM_SECONDS, BETWEEN_LOOKS = 1.5, 4


def products(together: Together) -> dict[str, tuple[tuple[float, float], ...]]:
    """(FLOPs, FLOP/s) of square products by dtype name; on a machine too busy to time all, of the first ones."""
    found: dict[str, tuple[tuple[float, float], ...]] = {}
    for name, dtype in DTYPES.items():
        if found and together.later_than(HURRY):
            break
        if name == TENSOR_FLOAT and not together.on_gpu:
            continue
        together.progress(f"matrix products in {name}")
        with rounded_to("high" if name == TENSOR_FLOAT else "highest"):
            found[name] = _by_size(together, dtype)
    return found


@contextmanager
def rounded_to(precision: str) -> Iterator[None]:
    """Products of float32 in the body are made so (`torch.set_float32_matmul_precision`)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _by_size(together: Together, dtype: torch.dtype) -> tuple[tuple[float, float], ...]:
    points: list[tuple[float, float]] = []
    expected = 0.0
    dispatch = _dispatch_seconds(together, dtype)
    for edge in CUDA_EDGES if together.on_gpu else CPU_EDGES:
        if expected > LONGEST_PRODUCT or (len(points) > 2 and together.later_than(HURRY)):
            break
        a, b = _factors(together, edge, dtype)
        seconds = together.seconds(lambda a=a, b=b: torch.mm(a, b))  # type: ignore[misc]
        points.append((2.0 * edge**3, 2.0 * edge**3 / max(seconds - dispatch, seconds / 10)))
        expected = 8 * together.slowest(seconds)
    return tuple(points)


def _dispatch_seconds(together: Together, dtype: torch.dtype) -> float:
    """What stands apart of an op's seconds (`launch_seconds`): counted in a product's, too, it would be counted twice.
    Of a GPU's kernel, whose smallest product takes longer than others that have nothing to do."""
    tiny = torch.ones(1, 1, device=together.device, dtype=dtype)
    return together.seconds((lambda: tiny * 1.0) if together.on_gpu else (lambda: torch.mm(tiny, tiny)))


def _factors(together: Together, edge: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Of random numbers: a chip draws less power and clocks higher on zeros."""
    a, b = (torch.randn(edge, edge, device=together.device).to(dtype) for _ in range(2))
    return a, b


def warm_rate(together: Together) -> float:
    """FLOP/s of a large product in 16 bits after a while of nothing else: a warm chip under its power limit clocks
    lower."""
    edge = CUDA_EDGES[-1]
    a, b = _factors(together, edge, torch.bfloat16)
    begun, seconds = time.perf_counter(), list[float]()
    while not seconds or time.perf_counter() - begun < WARM_SECONDS:
        started = time.perf_counter()
        for _ in range(BETWEEN_LOOKS):
            torch.mm(a, b)
        together.synchronize()
        seconds.append((time.perf_counter() - started) / BETWEEN_LOOKS)
    return 2.0 * edge**3 / together.slowest(median(seconds[2 * len(seconds) // 3 :]))
