"""The cases: emulated nodes with links of several rates, and bytes of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from examples.measured.emulated.machines import Machines, Node

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """Ranks on `machines`, one a device, sum `size` bytes."""

    machines: Machines
    size: int


def cases() -> Iterator[Summed]:
    """Those of one shape of nodes next to each other, so that processes are started once for all of them."""
    for name, counts, links, sizes in (
        ("slow", (2, 2), (100, 100), (256 * KIB, 4 * MIB)),
        ("fast", (2, 2), (800, 800), (4 * MIB,)),
        ("one slow", (2, 2), (400, 50), (MIB,)),
        ("equal", (1, 1, 1), (200, 200, 200), (256 * KIB, 4 * MIB)),
        ("one fast", (1, 1, 1), (800, 200, 200), (MIB, 8 * MIB)),
        ("one slow", (1, 1, 1), (400, 400, 50), (MIB,)),
        ("equal", (2, 1, 1), (100, 100, 100), (MIB,)),
        ("one fast", (2, 1, 1), (600, 150, 150), (MIB, 4 * MIB)),
        ("three slow", (3, 1), (50, 50), (256 * KIB, MIB)),
        ("a pair", (1, 1), (200, 100), (256 * KIB, 4 * MIB)),
    ):
        for size in sizes:
            yield Summed(machines=_machines(name, counts, links), size=size)


def _machines(name: str, counts: tuple[int, ...], links: tuple[float, ...]) -> Machines:
    """Nodes with so many devices each, which have a whole core where there is one."""
    nodes = (Node(share=1.0, megabits=rate, devices=count) for count, rate in zip(counts, links, strict=True))
    return Machines(name=name, nodes=tuple(nodes))
