"""Seconds of the collectives between the ops of a block that is cut over the devices of a replica.

An op of kind `communication` says in its target what happens forward and backward (`placer.all_gather.reduce_scatter`,
`-` for nothing), and in its written bytes how large the whole buffer is. `exchange` is rows that go to both neighbours.
They run one after the other, and nothing hides them: each stands between two ops of which one needs the other.
"""

from __future__ import annotations

from itertools import pairwise

from placer.channels import Channels
from placer.collectives import CollectiveKind
from placer.compute import BlockSeconds
from placer.graph import BlockClass
from placer.numerics import Numerics

KINDS: dict[str, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
}


def block_communication(
    kind: BlockClass, numerics: Numerics, channels: Channels, devices: tuple[int, ...], rows: int
) -> BlockSeconds:
    """Seconds of a block's collectives over `devices` for a microbatch of `rows` rows."""
    forward = backward = 0.0
    for op, numbers in zip(kind.ops, numerics.ops(kind), strict=True):
        if op.kind == "communication":
            ahead, behind = op.target.split(".")[1:3]
            forward += moving_seconds(ahead, numbers.written * op.written_bytes.at(rows), channels, devices)
            backward += moving_seconds(behind, numbers.written * op.backward_written_bytes.at(rows), channels, devices)
    return BlockSeconds(forward=forward, backward=backward, recompute=forward)


def moving_seconds(word: str, size: float, channels: Channels, devices: tuple[int, ...]) -> float:
    """Seconds of one of the words of a communication op on `size` bytes."""
    if not size or len(devices) < 2:
        return 0.0
    if word == "exchange":
        return max(channels.message(a, b, int(size)) for a, b in pairwise(devices))
    return channels.collective(KINDS[word], devices, size) if word in KINDS else 0.0
