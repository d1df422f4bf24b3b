"""How much of a chip's peak rate a matrix product reaches, by its size.

A product of M x N x K is cut into tiles of the result, one per processor (streaming multiprocessor, compute unit) at a
time. For a square product of `flops` = 2 n^3 the share of the peak is

    share = ceiling * waves * depth
    waves = tiles / (processors * ceil(tiles / processors))     tiles = (n / edge)^2: the last wave is not full
    depth = n / (n + 128)                                       a tile fills and drains its pipeline once along K

and the best of the tile edges below is taken, smaller tiles reaching less because they reread more. Source of the
mechanism: NVIDIA, "Matrix Multiplication Background User's Guide", DU-09799-001 (2023), 2.3 Typical tile dimensions in
cuBLAS and performance, 3.1 Tile quantization, 3.2 Wave quantization. `ceiling` is the measured best of the chip. What a
wave's remainder costs is smoothed over neighbouring sizes, since a curve by FLOPs stands for products of every shape.
"""

from __future__ import annotations

from itertools import accumulate
from math import ceil, exp

from placer.cluster.cluster import Curve

# Edge of a square result tile and its share of the speed of the largest: a tile of edge e moves 2 K e elements for
# 2 K e^2 FLOPs, so below the edge that the shared memory can feed the share falls in proportion (section 2.3 of that
# guide; 256x128 1.0, 128x128 0.95, 64x64 0.5 from memory of its figure).
TILES = ((181.0, 1.0), (128.0, 0.95), (64.0, 0.5))
# Fill and drain of the multiply pipeline of one tile, in elements of K: assumed to be a tile's edge, not measured.
DEPTH = 128.0
_EDGES = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)


def tile_curve(ceiling: float, processors: int, *, source: str = "") -> Curve:
    """The curve of a chip with `processors` that reaches `ceiling` at best; it never falls."""
    rising = tuple(accumulate((_smooth(n, processors) for n in _EDGES), max))
    points = tuple(
        (2.0 * n**3, round(ceiling * share / rising[-1], 4)) for n, share in zip(_EDGES, rising, strict=True)
    )
    return Curve(points=points, source=source)


def _smooth(n: int, processors: int) -> float:
    """Mean share over sizes around `n`."""
    sizes = [n * exp(step / 20) for step in range(-4, 5)]
    return sum(_share(size, processors) for size in sizes) / len(sizes)


def _share(n: float, processors: int) -> float:
    """The share of the peak that a square product of edge `n` reaches with its best tile."""
    return max(speed * _filled((n / edge) ** 2, processors) for edge, speed in TILES) * n / (n + DEPTH)


def _filled(tiles: float, processors: int) -> float:
    """The share of the processors that work, over all waves of tiles."""
    return tiles / (processors * ceil(tiles / processors))
