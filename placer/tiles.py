"""What tiles, waves, depth and alignment leave of a product's efficiency on a GPU.

A product is computed in tiles by multiprocessors: a tile that sticks out computes for nothing (tile quantisation), and
the last wave of tiles keeps some multiprocessors idle (wave quantisation): NVIDIA, "Matrix Multiplication Background
User's Guide", sections on tile and wave quantization. The library picks the best tile; smaller tiles reread more. A
tile's inner loop needs some steps of k to fill its software pipeline (CUTLASS, "Efficient GEMM in CUDA").

    share = max over tiles (speed(tile) * b m n / (waves * multiprocessors * tile area)) * k / (k + fill) * alignment

relative to the same for the shape at which ceilings are measured, so that this shape reaches the ceiling itself.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from placer.cluster import Device
from placer.graph import ITEM_BYTES

# Rows x columns of result per tile and the speed of their inner loops: the tile sizes of cuBLAS, "larger tiles are more
# efficient" (NVIDIA's guide, figure "tile size and efficiency": 256x128 1.0, 128x128 0.95 to 1.0, 64x64 about 0.5).
TILES = (
    (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (256, 64, 0.9), (64, 256, 0.9), (128, 64, 0.75),
    (64, 128, 0.75), (64, 64, 0.5),
)  # fmt: skip

# Steps of k before a tile's pipeline is full: 4 stages of 32 (CUTLASS, efficient_gemm.md, multistage on Ampere).
FILL = 128

# Rows that do not start at a multiple of 16 bytes cannot use the widest loads (NVIDIA's guide, section on tensor core
# requirements); the published cost is up to 42% (head sizes that are no multiple of 8 in BigScience's runs).
MISALIGNED = 0.58

# m, n, k of the product whose rate is the measured ceiling of an A100 (stas00/ml-engineering@744d01e, accelerators).
BEST = (1024, 10240, 5120)


def shape_share(device: Device, dtype: str, batch: int, m: int, n: int, k: int) -> float:
    """The share of the device's ceiling that this shape keeps, above 0, at most 1."""
    item = ITEM_BYTES[dtype]
    best = _share(device.multiprocessors, item, 1, *BEST)
    return min(1.0, _share(device.multiprocessors, item, batch, m, n, k) / best)


@lru_cache(maxsize=65536)
def _share(multiprocessors: int, item: int, batch: int, m: int, n: int, k: int) -> float:
    best = max(speed * _filled(multiprocessors, batch, m, n, a, b) for a, b, speed in TILES)
    aligned = all(size * item % 16 == 0 for size in (n, k))
    return best * k / (k + FILL) * (1.0 if aligned else MISALIGNED)


def _filled(multiprocessors: int, batch: int, m: int, n: int, rows: int, columns: int) -> float:
    """The share of the tiles' area, over whole waves, that is result."""
    tiles = batch * ceil(m / rows) * ceil(n / columns)
    waves = ceil(tiles / multiprocessors)
    return batch * m * n / (waves * multiprocessors * rows * columns)
