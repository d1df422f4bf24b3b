"""Seconds of the collectives between the ops of a block that is cut over the devices of a replica.

An op of kind `communication` says in its target what happens forward and backward (`placer.all_gather.reduce_scatter`,
`-` for nothing), and in its written bytes how large the whole buffer is. `exchange` is rows that go to both neighbours.
A replica of two axes has lines of devices along each: `.outer2` or `.inner2` behind the words says along which, the
inner axis of 2 devices; all lines of an axis do so at once.
They run one after the other, and nothing hides them: each stands between two ops of which one needs the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from placer.costs.communication.collectives import CollectiveKind
from placer.costs.communication.network import Network
from placer.costs.compute.roofline import BlockSeconds
from placer.costs.precision import Numerics
from placer.graph import BlockClass
from placer.spmd.local_ops import NOTHING

Lines: TypeAlias = tuple[tuple[int, ...], ...]

KINDS: dict[str, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
}


class Communication(NamedTuple):
    """One of the words of a communication op, along which axis, the bytes of its whole buffer, whether backward."""

    word: str
    axis: str
    size: float
    backward: bool


def block_communication(
    kind: BlockClass, numerics: Numerics, network: Network, devices: tuple[int, ...], rows: int
) -> BlockSeconds:
    """Seconds of a block's collectives over `devices` for a microbatch of `rows` rows."""
    spent = {False: 0.0, True: 0.0}
    for one in communications(kind, numerics, rows):
        spent[one.backward] += moving_seconds(one.word, one.size, network, lines_of(devices, one.axis))
    return BlockSeconds(forward=spent[False], backward=spent[True], recompute=spent[False], selective=spent[False])


def communications(kind: BlockClass, numerics: Numerics, rows: int) -> Iterator[Communication]:
    """What the devices of a replica say to each other for a block and a microbatch of `rows` rows, op by op."""
    for op, numbers in zip(kind.ops, numerics.ops(kind), strict=True):
        if op.kind == "communication":
            ahead, behind, *axis = op.target.split(".")[1:]
            for word, size, backward in (
                (ahead, op.written_bytes.at(rows), False),
                (behind, op.backward_written_bytes.at(rows), True),
            ):
                if size and word != NOTHING:
                    yield Communication(word, "".join(axis), numbers.written * size, backward)


def lines_of(devices: tuple[int, ...], axis: str = "") -> Lines:
    """The lines of a replica's devices along an axis (`outer2`, `inner2`); one of all devices where none is named."""
    if not axis:
        return (devices,)
    fast = int(axis.removeprefix("outer").removeprefix("inner"))
    if axis.startswith("outer"):
        return tuple(devices[first::fast] for first in range(fast))
    return tuple(devices[first : first + fast] for first in range(0, len(devices), fast))


def moving_seconds(word: str, size: float, network: Network, lines: Lines) -> float:
    """Seconds of one of the words of a communication op on `size` bytes, along all lines at once; of the slowest."""
    if not size or len(lines[0]) < 2:
        return 0.0
    if word == "exchange":
        return max(network.messages(sources, targets, int(size)) for sources, targets in _neighbours(lines))
    if word not in KINDS:
        return 0.0
    if len(lines) == 1:
        return network.collective(KINDS[word], lines[0], size)
    # Lines through several nodes share what leads out of them.
    return max(network.collective(KINDS[word], line, size, _sharing(line, lines, network)) for line in lines)


def _neighbours(lines: Lines) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The neighbours that exchange rows at once: of all lines the first two, the next two and so on."""
    return pairwise(zip(*lines, strict=True))


def _sharing(line: tuple[int, ...], lines: Lines, network: Network) -> int:
    """How many lines lie on the same nodes as this one."""
    nodes = network.cluster.node_of
    own = {nodes[device] for device in line}
    return sum({nodes[device] for device in other} == own for other in lines)
