"""Orders of a folded problem's classes, several made at once: arrays whose first dim is the order.

Shapes: E orders, C classes, H hyperedges, D the most of what is listed of a class; lists are filled up with the number
C or H, which stands for none. A class is ready when all it needs has been taken. A hyperedge is open while some of its
classes are taken and some are not: what is open where a device ends is what it sends and gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placer.placement.problem import PlacementProblem
from placer.strategies.engine.ideals import by_number, greedy_order, members, turned
from placer.strategies.placement.contraction import Folded

Floats = NDArray[np.float32]
Counts = NDArray[np.int64]
SMALL = 1e-30


@dataclass(frozen=True, eq=False)
class ClassGraph:
    """The classes of a problem as arrays.

    seconds_C, bytes_C: shares of what one accelerator would have were all alike (fair). weight_H, pins_H: seconds of
    sending over the fair seconds, how many classes. edges_CD: the hyperedges of a class; readers_CD: the classes that
    need it; needs_C: how many it needs. ahead_C, behind_C: seconds of the longest way from a beginning up to the class
    and from the class to an end, over those of the longest way. tight: bytes of all over the memory of all.
    """

    devices: int
    seconds_C: Floats  # noqa: N815 (shapes)
    bytes_C: Floats  # noqa: N815
    weight_H: Floats  # noqa: N815
    pins_H: Floats  # noqa: N815
    edges_CD: Counts  # noqa: N815
    readers_CD: Counts  # noqa: N815
    needs_C: Floats  # noqa: N815
    ahead_C: Floats  # noqa: N815
    behind_C: Floats  # noqa: N815
    tight: float

    @property
    def count(self) -> int:
        """How many classes there are."""
        return len(self.seconds_C)

    @staticmethod
    def of(problem: PlacementProblem, folded: Folded) -> ClassGraph:
        """That of a problem and what `fold` made of it."""
        devices, edges = max(1, problem.accelerators), [list[int]() for _ in range(folded.count)]
        for index, (pins, _) in enumerate(folded.hyperedges):
            for pin in pins:
                edges[pin].append(index)
        fair, whole = max(sum(folded.accelerator) / devices, SMALL), max(sum(folded.size), SMALL)
        readers = turned(folded.needs)
        ahead, behind = _ways(folded.accelerator, folded.needs), _ways(folded.accelerator, readers)
        return ClassGraph(
            devices=devices,
            seconds_C=_array(folded.accelerator) / np.float32(fair),
            bytes_C=_array(folded.size) * np.float32(devices / whole),
            weight_H=_array([weight / fair for _, weight in folded.hyperedges]),
            pins_H=_array([len(pins) for pins, _ in folded.hyperedges]),
            edges_CD=_filled(edges, len(folded.hyperedges)),
            readers_CD=_filled([list(members(bits)) for bits in readers], folded.count),
            needs_C=_array([bits.bit_count() for bits in folded.needs]),
            ahead_C=ahead, behind_C=behind,
            tight=whole / (devices * problem.memory) if problem.memory else 0.0,
        )  # fmt: skip


@dataclass(eq=False)
class OrdersMade:
    """How far `size` orders of one graph are made; all have taken as many classes.

    missing_EC: how many classes that a class needs are not taken; held_EH: how many of a hyperedge are. newest_EC,
    since_EC: how many were taken when the newest class that it needs was, and when it became ready. The last column of
    each is of what stands for none. seconds_E: seconds of what is taken.
    """

    graph: ClassGraph
    size: int
    taken: int = 0
    ready_EC: NDArray[np.bool_] = field(init=False)  # noqa: N815
    missing_EC: Floats = field(init=False)  # noqa: N815
    held_EH: Floats = field(init=False)  # noqa: N815
    newest_EC: Floats = field(init=False)  # noqa: N815
    since_EC: Floats = field(init=False)  # noqa: N815
    seconds_E: Floats = field(init=False)  # noqa: N815
    orders: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        graph, shape = self.graph, (self.size, self.graph.count + 1)
        self.missing_EC = np.repeat(np.append(graph.needs_C, np.float32(np.inf))[None, :], self.size, axis=0)
        self.ready_EC = self.missing_EC == 0
        self.held_EH = np.zeros((self.size, len(graph.weight_H) + 1), dtype=np.float32)
        self.newest_EC, self.since_EC = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
        self.seconds_E = np.zeros(self.size, dtype=np.float32)
        self.orders = [[] for _ in range(self.size)]

    @property
    def finished(self) -> bool:
        """Whether nothing is left to take."""
        return self.taken == self.graph.count

    def take(self, chosen_E: Counts) -> None:  # noqa: N803
        """Go on by one class in every order."""
        graph, every = self.graph, np.arange(self.size)
        self.taken += 1
        self.ready_EC[every, chosen_E] = False
        readers = graph.readers_CD[chosen_E]
        at = every[:, None]
        self.missing_EC[at, readers] -= 1
        self.newest_EC[at, readers] = self.taken
        woken = self.missing_EC[at, readers] == 0
        self.ready_EC[at, readers] |= woken
        self.since_EC[at, readers] = np.where(woken, self.taken, self.since_EC[at, readers])
        self.held_EH[at, graph.edges_CD[chosen_E]] += 1
        self.seconds_E += graph.seconds_C[chosen_E]
        for order, one in zip(self.orders, chosen_E.tolist(), strict=True):
            order.append(one)


def _ways(seconds: Sequence[float], needs: Sequence[int]) -> Floats:
    """Seconds of the longest way that ends with each class, itself among it, over those of the longest."""
    found = [0.0] * len(needs)
    for one in greedy_order(needs, by_number):
        found[one] = seconds[one] + max((found[other] for other in members(needs[one])), default=0.0)
    return _array(found) / np.float32(max(*found, SMALL))


def _filled(lists: Sequence[Sequence[int]], none: int) -> Counts:
    """Lists as rows, filled up with the number that stands for none."""
    most = max(1, *(len(each) for each in lists))
    return np.array([[*each, *[none] * (most - len(each))] for each in lists], dtype=np.int64)


def _array(values: Sequence[float]) -> Floats:
    return np.asarray(values, dtype=np.float32)
