"""Gradient fusion: gradients are summed over replicas in buckets, of which more hide more and fewer wait less often.

    after the backward             n t(size / n) of n buckets of `size` bytes in all, t: latency and bytes of the
                                   all-reduce, copies in and out
    beside a backward of B         max over buckets i of t_i + ... + t_n - B (what is ready after i) / size: they are
                                   summed one after another, each ready after its share of B, the last at its end

Beside a backward they are those that DDP makes of the gradients in the order in which these become ready, closed as
soon as they reach the cap: fewer than all bytes divided by it, and the last one holds what is left.

The plan holds the size at which a bucket is closed (`Plan.bucket_bytes`); the search takes the one of `SIZES` that
exposes least, the smallest of equal ones. n t never grows with the size (t(x) / x falls), so that without overlap the
largest size is the best one; but where nodes sum among themselves first (`reductions`), which takes longer of large
pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

# What is searched, by definition no price:
# powers of two from where latency dominates on any link of the catalogue to what no one waits for.
SIZES = tuple(2**exponent for exponent in range(20, 31))


def bucket_count(size: float, bucket_bytes: int) -> int:
    """How many buckets gradients of `size` bytes fill."""
    return max(1, int(-(-size // bucket_bytes)))


def filled(sizes: Iterable[int], bucket_bytes: int) -> tuple[int, ...]:
    """The bytes of the buckets of gradients of these sizes, in order: closed as soon as they reach the cap."""
    found, held = [], 0
    for size in sizes:
        held += size
        if held >= bucket_bytes:
            found.append(held)
            held = 0
    return (*found, held) if held else tuple(found)


def seconds_after(seconds: Callable[[float], float], size: float, bucket_bytes: int) -> float:
    """Seconds of summing `size` bytes after a backward; seconds: of one bucket, from its bytes."""
    count = bucket_count(size, bucket_bytes)
    return count * seconds(size / count)


def exposed_seconds(seconds: Callable[[float], float], buckets: Sequence[int], beside: float) -> float:
    """What summing these buckets adds to a last backward of which `beside` seconds can hide it."""
    whole, left, summing, exposed = sum(buckets), 0, 0.0, 0.0
    known = {size: seconds(size) for size in set(buckets)}
    for size in reversed(buckets):
        summing += known[size]
        exposed = max(exposed, summing - beside * left / whole)
        left += size
    return exposed


def least_exposed(seconds: Callable[[float], float], choices: Iterable[Sequence[int]], beside: float) -> float:
    """The least of `exposed_seconds` over ways to fill buckets; equal ones are looked at once."""
    return min(exposed_seconds(seconds, buckets, beside) for buckets in dict.fromkeys(map(tuple, choices)))
