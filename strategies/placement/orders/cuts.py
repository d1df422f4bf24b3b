"""The best way to cut one order of the classes into runs on devices: least largest load, exact by dynamic programming.

    best[c, t][j] = least over i of max(best[c, t - 1][i], load(i, j))     a run i..j on one more accelerator
                              or of max(best[c - 1, t][i], host(i, j))     or on one more CPU

load(i, j) = accelerator seconds of the run + weight of the hyperedges that it cuts. Of pins p_1 < ... < p_r in the
order a run misses a hyperedge where it lies between two of them, and holds it where i <= p_1 and p_r < j:

    cut(i, j) = all - weight of the gaps (a, b) with a <= i, j <= b - weight of those with i <= p_1, p_r < j

so that the table of all runs is two cumulative sums. Runs that do not fit, or may not run there, load infinitely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placer.placement.legality import MEMORY_ROUNDING
from placer.placement.problem import PlacementProblem
from placer.strategies.placement.contraction import Folded

Floats = NDArray[np.float64]
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """An order of the classes, its least largest load (infinite: no cuts are legal), the device of each class."""

    value: float
    order: Order
    devices: tuple[int, ...]


class Cuts:
    """Cuts orders of one folded problem; `made` counts them."""

    def __init__(self, problem: PlacementProblem, folded: Folded) -> None:
        self._problem, self._folded, self.made = problem, folded, 0
        self._all = math.fsum(weight for _, weight in folded.hyperedges)
        self._costs = np.array([folded.accelerator, folded.host, folded.size, [not s for s in folded.supported]])

    def best(self, order: Order) -> Cut:
        """The best cuts of one order."""
        self.made += 1
        loads, hosts = self._tables(order)
        accelerators, cpus = self._problem.accelerators, self._problem.cpus
        count = len(order)
        value = {(0, 0): np.full(count + 1, math.inf)}
        value[0, 0][0] = 0.0
        came: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}
        for c in range(cpus + 1):
            for t in range(accelerators + 1):
                if (c, t) != (0, 0):
                    value[c, t], came[c, t] = _joined(value.get((c, t - 1)), loads, value.get((c - 1, t)), hosts)
        best = float(value[cpus, accelerators][count])
        return Cut(value=best, order=order, devices=self._walked(order, came) if math.isfinite(best) else ())

    def _walked(
        self, order: Order, came: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.bool_]]]
    ) -> tuple[int, ...]:
        """The device of each class, from the end of the order to its begin."""
        c, t, end = self._problem.cpus, self._problem.accelerators, len(order)
        devices = [0] * len(order)
        while end or (c, t) != (0, 0):
            begins, on_host = came[c, t]
            c, t, host = (c - 1, t, True) if on_host[end] else (c, t - 1, False)
            begin = int(begins[end])
            for index in order[begin:end]:
                devices[index] = self._problem.accelerators + c if host else t
            end = begin
        return tuple(devices)

    def _tables(self, order: Order) -> tuple[Floats, Floats]:
        """The load of every run begin..end on an accelerator and on a CPU; infinite where begin > end."""
        sums = np.concatenate([np.zeros((4, 1)), np.cumsum(self._costs[:, list(order)], axis=1)], axis=1)
        spans = sums[:, None, :] - sums[:, :, None]
        loads = spans[0] + self._cut(order)
        loads[(spans[2] > self._problem.memory * (1 + MEMORY_ROUNDING)) | (spans[3] > 0.5)] = math.inf
        before = np.tri(len(order) + 1, k=-1, dtype=bool)
        loads[before] = math.inf
        hosts = np.where(before, math.inf, spans[1])
        np.fill_diagonal(loads, 0.0)
        return loads, hosts

    def _cut(self, order: Order) -> Floats:
        count = len(order)
        rank = [0] * count
        for place, index in enumerate(order):
            rank[index] = place
        missed, held = np.zeros((count + 1, count + 1)), np.zeros((count + 1, count + 1))
        for pins, weight in self._folded.hyperedges:
            places = sorted(rank[pin] for pin in pins)
            begin = 0
            for place in places:
                if place > begin:
                    missed[begin, place] += weight
                begin = place + 1
            missed[begin, count] += weight
            held[places[0], begin] += weight
        missed = np.cumsum(np.cumsum(missed, axis=0)[:, ::-1], axis=1)[:, ::-1]
        held = np.cumsum(np.cumsum(held[::-1], axis=0)[::-1], axis=1)
        return np.maximum(self._all - missed - held, 0.0)


def _joined(
    accelerator: Floats | None, loads: Floats, cpu: Floats | None, hosts: Floats
) -> tuple[Floats, tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """The better of one run more on an accelerator and on a CPU, where it begins, and on which it is."""
    ways = [
        np.maximum(before[:, None], table)
        for before, table in ((accelerator, loads), (cpu, hosts))
        if before is not None
    ]
    begins = [way.argmin(axis=0) for way in ways]
    values = [way[begin, np.arange(way.shape[1])] for way, begin in zip(ways, begins, strict=True)]
    if len(values) == 1:
        return values[0], (begins[0], np.full(len(values[0]), accelerator is None))
    on_host = values[1] < values[0]
    return np.minimum(*values), (np.where(on_host, begins[1], begins[0]), on_host)
