"""What gloo copies of its own around gathers and scatters between CPUs.

A gather copies the shard that is sent into a buffer and the whole from there (gloo/allgather.cc); a scatter the whole
into one, of which it copies out this rank's shard (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp:
`AsyncAllgatherWork`, `reduce_scatter_tensor_coalesced`).
"""

from __future__ import annotations

from typing import NamedTuple


class Copies(NamedTuple):
    """Bytes read and written per byte of the whole, and in how many kernels."""

    passes: float
    kernels: int

    def plus(self, other: Copies) -> Copies:
        """Both."""
        return Copies(self.passes + other.passes, self.kernels + other.kernels)


def gloo_copies(parts: int) -> Copies:
    """Of a gather or scatter over so many `parts`: the whole once and a shard once, each read and written."""
    return Copies(2 + 2 / parts, 2)
