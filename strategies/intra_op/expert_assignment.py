"""Which expert lives on which device, so that the most loaded device has as little as can be.

In: the load of each expert and the number of devices, of which each holds its equal piece of the experts (one more or
less where they do not divide: grouped products and the pieces of their weights want no more freedom). Out: the experts,
device after device.

    minimise  max over devices d of sum over experts e on d of load_e,   as many experts on d as its piece has

Longest processing time first (Graham 1969) with full devices closed, then exchanges of two experts between the most
loaded device and another as long as one lowers the larger of the two loads. `least_load` bounds what any placement has.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.rules.expert_loads import overload
from placer.rules.layouts import even


def expert_order(loads: Sequence[float], degree: int) -> tuple[int, ...]:
    """The experts of each device in turn, ascending on each; empty where none is better than their own order."""
    if len(set(loads)) < 2 or degree > len(loads):
        return ()
    held = _longest_first(loads, even(len(loads), degree))
    while _exchanged(loads, held):
        pass
    order = tuple(expert for experts in held for expert in sorted(experts))
    return order if overload(loads, order, degree) < overload(loads, (), degree) else ()


def least_load(loads: Sequence[float], degree: int) -> float:
    """No placement loads its most loaded device with less: the mean, or the largest beside the smallest it can have."""
    sizes, ascending = even(len(loads), degree), sorted(loads)
    beside = sum(ascending[: min(sizes) - 1])
    return max(sum(loads) / degree, ascending[-1] + beside)


def _longest_first(loads: Sequence[float], sizes: Sequence[int]) -> list[list[int]]:
    """Every expert, the heaviest first, to the least loaded device that is not full."""
    held: list[list[int]] = [[] for _ in sizes]
    for expert in sorted(range(len(loads)), key=lambda expert: (-loads[expert], expert)):
        free = (device for device, size in enumerate(sizes) if len(held[device]) < size)
        held[min(free, key=lambda device: (sum(loads[e] for e in held[device]), device))].append(expert)
    return held


def _exchanged(loads: Sequence[float], held: list[list[int]]) -> bool:
    """Make the exchange with the most loaded device that lowers the larger load of two most; False where none does."""
    totals = [sum(loads[e] for e in experts) for experts in held]
    most = max(range(len(held)), key=lambda device: totals[device])
    best: tuple[float, int, int, int] | None = None
    for other in (device for device in range(len(held)) if device != most):
        for mine in range(len(held[most])):
            for theirs in range(len(held[other])):
                moved = loads[held[most][mine]] - loads[held[other][theirs]]
                larger = max(totals[most] - moved, totals[other] + moved)
                if larger < totals[most] * (1 - 1e-12) and (best is None or (larger, other, mine, theirs) < best):
                    best = (larger, other, mine, theirs)
    if best is None:
        return False
    _, other, mine, theirs = best
    held[most][mine], held[other][theirs] = held[other][theirs], held[most][mine]
    return True
