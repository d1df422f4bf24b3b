"""Gradient fusion: gradients are summed over replicas in buckets, of which more hide more and fewer wait less often.

    n buckets of `size` bytes in all, t(size / n) seconds each (latency and bytes of the all-reduce, copies in and out)
    after the backward             n t
    beside a backward of B         max(t, n t - (n-1)/n B): bucket i is ready after i/n of B, the last one at its end

The plan holds the size at which a bucket is closed (`Plan.bucket_bytes`); the search takes the one of `SIZES` that
exposes least, the smallest of equal ones. n t never grows with the size (t(x) / x falls), so that without overlap the
largest size is the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

# What is searched, by definition no price:
# powers of two from where latency dominates on any link of the catalogue to what no one waits for.
SIZES = tuple(2**exponent for exponent in range(20, 31))


def bucket_count(size: float, bucket_bytes: int) -> int:
    """How many buckets gradients of `size` bytes fill."""
    return max(1, int(-(-size // bucket_bytes)))


def exposed_seconds(seconds: Callable[[float], float], size: float, bucket_bytes: int, beside: float) -> float:
    """What reducing `size` bytes adds to a last backward of which `beside` seconds can hide it; 0: none.

    seconds: of one bucket, from its bytes.
    """
    count = bucket_count(size, bucket_bytes)
    each = seconds(size / count)
    return max(each, count * each - beside * (count - 1) / count)


def least_exposed(seconds: Callable[[float], float], size: float, sizes: Iterable[int], beside: float) -> float:
    """The least of `exposed_seconds` over bucket sizes; those that fill as many buckets are looked at once."""
    counts = {bucket_count(size, limit): limit for limit in sizes}
    return min(exposed_seconds(seconds, size, limit, beside) for limit in counts.values())
