"""What tiles, waves, depth and alignment leave of a product's efficiency on a GPU.

A product is computed in tiles by multiprocessors: a tile that sticks out computes for nothing (tile quantisation), and
the last wave of tiles keeps some multiprocessors idle (wave quantisation): NVIDIA, "Matrix Multiplication Background
User's Guide", sections on tile and wave quantization. The library picks the best tile; smaller tiles reread more. A
tile's inner loop needs some steps of k to fill its software pipeline (CUTLASS, "Efficient GEMM in CUDA").

    share = max over tiles (speed(tile) * b m n / (waves * multiprocessors * tile area)) * k / (k + fill) * alignment

relative to the same for the shape at which ceilings are measured, so that this shape reaches the ceiling itself.

Where the tiles of a result are fewer than the multiprocessors, as of a convolution's weight gradient, libraries divide
the sum over k among s of them (CUTLASS, efficient_gemm.md, "Parallelized Reductions", split-K): s times as many tiles
with k / s steps each, whose s partial results are written and read again in 4 bytes an element. A product with
one row, column or step of k, as of convolutions of one channel each, is no matter of tiles: it is computed by plain
float32 instructions (torch has kernels for it, ATen/native/cuda/DepthwiseConv2d.cu), and bound by memory as a rule.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from placer.cluster.cluster import Device
from placer.graph import ITEM_BYTES

# Rows x columns of result per tile and the speed of their inner loops: the tile sizes of cuBLAS, "larger tiles are more
# efficient" (NVIDIA's guide, figure "tile size and efficiency": 256x128 1.0, 128x128 0.95 to 1.0, 64x64 about 0.5).
TILES = (
    (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (256, 64, 0.9), (64, 256, 0.9), (128, 64, 0.75),
    (64, 128, 0.75), (64, 64, 0.5),
)  # fmt: skip

# A partial result is written once and read once, in float32, by definition of split-K.
PARTIAL_BYTES = 2 * 4

# What operands lie in where products have a type of their own (of 4 bits: two in a byte, aligned as bytes are).
LIES_IN = {"tfloat32": "float32", "float4": "int8"}

# Steps of k before a tile's pipeline is full: 4 stages of 32 (CUTLASS, efficient_gemm.md, multistage on Ampere).
FILL = 128

# Stream-K (arXiv:2301.03598, section 5): each multiprocessor has an equal part of all steps, and tiles that two of them
# began are put together afterwards, which is worth so many steps (fitted on one H200, 37 shapes in bfloat16).
MENDED = 512
SHORT = 2

# Types without an instruction for products are multiplied element by element: slow enough that tiles of all sizes are
# fed, and that a pipeline of 2 stages of 8 steps is long enough (CUTLASS, default_gemm_configuration.h, OpClassSimt).
PLAIN_FILL = 16

# What is left where rows do not start at a multiple of so many bytes. Asynchronous copies move 16, 8 or 4 bytes
# (CUTLASS, cp_async); narrower ones cost up to 42% (head sizes that are no multiple of 8 in BigScience's runs; even
# ones). Odd sizes at 16 bits have none at all: padding GPT-2's vocabulary from 50257 to 50304 made nanoGPT's whole step
# 25% faster on an A100 (A. Karpathy, 3 February 2023). The head is 27% of that model's FLOPs (232 M of 857 M a token);
# at 40% of the peak overall and 75% in an aligned product it takes 0.27 * 0.40 / 0.75 = 14.5% of the padded step, hence
# 1 + 0.25 / 0.145 = 2.7 times as long unpadded.
Alignment = tuple[tuple[int, float], ...]
ALIGNMENT: Alignment = ((16, 1.0), (4, 0.58), (1, 0.37))

# m, n, k of the product whose rate is the measured ceiling of an A100 (stas00/ml-engineering@744d01e, accelerators).
BEST = (1024, 10240, 5120)


def shape_share(
    device: Device, dtype: str, batch: int, m: int, n: int, k: int, *, rows: bool = False,
    alignment: Alignment = ALIGNMENT, streams: bool = False,
) -> float:  # fmt: skip
    """The share of the device's ceiling that this shape keeps, above 0, at most 1.

    The contiguous dims are n and k, or, for a sum over rows (`rows`: a weight gradient), m and n. streams: whether the
    chip's kernels of 16 bits divide all tiles' steps of k evenly.
    """
    if min(m, n, k) == 1:
        return min(1.0, device.rate("float32") / device.rate(dtype))
    item = ITEM_BYTES[LIES_IN.get(dtype, dtype)]
    plain = device.rate(dtype) <= device.rate("float32")
    best = _share(device.multiprocessors, 0.0, 1, *BEST, plain=plain)
    partial = PARTIAL_BYTES * device.rate(dtype) / (2 * device.memory_bandwidth * device.memory_share)
    share = _share(device.multiprocessors, partial, batch, m, n, k, plain=plain) / best
    if streams and item == SHORT:
        share = max(share, _streamed(device.multiprocessors, batch, m, n, k) / best)
    # Plain instructions read element by element.
    return min(1.0, share) * (1.0 if plain else alignment_share(item, (m, n) if rows else (n, k), alignment))


def _streamed(multiprocessors: int, batch: int, m: int, n: int, k: int) -> float:
    """The share with the largest tile whose steps, all tiles' together, are divided evenly among multiprocessors."""
    rows, columns, _ = TILES[0]
    tiles = batch * ceil(m / rows) * ceil(n / columns)
    steps = tiles * k / multiprocessors
    return batch * m * n / (tiles * rows * columns) * steps / (steps + FILL + MENDED)


@lru_cache(maxsize=65536)
def _share(multiprocessors: int, partial: float, batch: int, m: int, n: int, k: int, *, plain: bool) -> float:
    """The best tile's share with the best number of parts of k; `partial`: steps of k that the bytes of one partial
    result are worth; `plain`: without instructions for products."""
    fill = PLAIN_FILL if plain else FILL

    def seconds(a: int, b: int, speed: float, parts: int) -> float:
        steps, lost = k / parts, partial * parts / k if parts > 1 else 0.0
        filled = _filled(multiprocessors, batch * parts, m, n, a, b)
        return 1 / ((1.0 if plain else speed) * filled * steps / (steps + fill)) + lost

    return 1 / min(
        seconds(a, b, speed, parts)
        for a, b, speed in TILES
        for parts in _parts(multiprocessors, batch * ceil(m / a) * ceil(n / b), k)
    )


def _parts(multiprocessors: int, tiles: int, k: int) -> tuple[int, ...]:
    """Into how many parts k is divided: powers of two, until each multiprocessor has a tile, or a part only fills."""
    most = min(multiprocessors // tiles, k // FILL) if tiles < multiprocessors else 1
    return tuple(2**power for power in range(max(1, most).bit_length()))


def alignment_share(item: int, sizes: tuple[int, int], alignment: Alignment = ALIGNMENT) -> float:
    """What is left of a product whose contiguous dims have these sizes of `item` bytes."""
    return next(share for step, share in alignment if all(size * item % step == 0 for size in sizes))


def _filled(multiprocessors: int, batch: int, m: int, n: int, rows: int, columns: int) -> float:
    """The share of the tiles' area, over whole waves, that is result."""
    tiles = batch * ceil(m / rows) * ceil(n / columns)
    waves = ceil(tiles / multiprocessors)
    return batch * m * n / (waves * multiprocessors * rows * columns)
