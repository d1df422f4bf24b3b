"""The best contiguous placement of a folded problem, with a proof: the program of `contiguous` under rising limits.

A run under a limit either finds the best chain (the limit was above it) or proves that every chain reaches the limit.
Small limits are cheap, so the limits rise from the floor in steps of 2, 4, 8, ... percent, but never above the best
chain along some topological orders, which is found first.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.ideals import Ideals, every_ideal, ideals_of, prefixes
from placer.strategies.placement.throughput.ideal_dp import (
    ROUNDING,
    Absorption,
    ContiguousChain,
    DeviceCounts,
    Effort,
    IdealProgram,
    SpentError,
    best_chain,
)

# The tables of one ideal are about 20 bytes a class; this keeps them below 1.5 GB.
CELLS = 60_000_000
MOST_IDEALS = 200_000
FIRST_STEP = 0.02
# Pairs of ideals priced in a second, measured on one core of this kind of machine in November 2026: 5e7 to 1e8.
EVALUATIONS_A_SECOND = 5e7


@dataclass(frozen=True, kw_only=True)
class BoundedChain:
    """The best chain found, the bound below which there is none, and how many ideals there are (None: too many)."""

    chain: ContiguousChain | None
    bound: float
    ideals: int | None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop: evaluated loads (pairs of ideals), wall clock seconds; None is never."""

    pairs: int | None = None
    seconds: float | None = None

    def after(self, started: float) -> Limits:
        """What is left of them since the clock said `started`."""
        if self.seconds is None:
            return self
        return replace(self, seconds=max(0.0, self.seconds - (time.perf_counter() - started)))

    def effort(self, most: float) -> float:
        """Deterministic seconds for an integer program: `most`, or what the evaluations are worth."""
        return most if self.pairs is None else min(most, self.pairs / EVALUATIONS_A_SECOND)


def climb(folded: Folded, machines: DeviceCounts, limits: Limits) -> BoundedChain:
    """The best chain with its proof, or the best found and what is proved when the limits end the search."""
    until = None if limits.seconds is None else time.perf_counter() + limits.seconds
    effort = Effort(budget=limits.pairs, until=until)
    bound = floor(folded, machines)
    chain = along_orders(folded, machines)
    bitsets = every_ideal(folded, min(MOST_IDEALS, CELLS // folded.count))
    if bitsets is None:
        return BoundedChain(chain=chain, bound=bound, ideals=None)
    ideals = ideals_of(folded, bitsets)
    top = everything(folded) if chain is None else chain.value
    try:
        for limit in _limits(bound, top):
            found = _run(folded, ideals, machines, limit, effort)
            if found is not None:
                return BoundedChain(chain=found, bound=found.value, ideals=ideals.count)
            bound = limit
    except SpentError:
        return BoundedChain(chain=chain, bound=bound, ideals=ideals.count)
    return BoundedChain(chain=chain, bound=top if chain else math.inf, ideals=ideals.count)


def floor(folded: Folded, machines: DeviceCounts) -> float:
    """A bound without search: no class can do better than its faster device, nor all of them than all devices."""
    singles = [_fastest(folded, machines, index) for index in range(folded.count)]
    stuck = math.fsum(h for h, fits in zip(folded.host, folded.supported, strict=True) if not fits)
    shares = [_balanced(folded, machines), stuck / machines.cpus if machines.cpus else 0.0]
    return max(*singles, *shares)


def _fastest(folded: Folded, machines: DeviceCounts, index: int) -> float:
    times = [folded.host[index]] if machines.cpus else []
    if machines.accelerators and folded.supported[index]:
        times.append(folded.accelerator[index])
    return min(times, default=0.0)


def _balanced(folded: Folded, machines: DeviceCounts) -> float:
    """The least t for which accelerators (t each) and CPUs (what t absorbs) take all the compute there is."""
    absorbed = Absorption(folded)
    total = math.fsum(s for s, fits in zip(folded.accelerator, folded.supported, strict=True) if fits)
    total *= 1 - ROUNDING  # sums in another order must not make the last bit of it unreachable
    low, high = 0.0, total + sum(folded.host)
    for _ in range(100):
        middle = (low + high) / 2
        enough = machines.accelerators * middle + absorbed(machines.cpus, middle) >= total
        low, high = (low, middle) if enough else (middle, high)
    return low


def _limits(floor: float, top: float) -> Iterator[float]:
    """Rising limits, the last of them `top`."""
    step, base = FIRST_STEP, max(floor, top * 1e-3)
    while base * (1 + step) < top:
        yield base * (1 + step)
        step *= 2
    yield top


def _run(
    folded: Folded, ideals: Ideals, machines: DeviceCounts, limit: float, effort: Effort
) -> ContiguousChain | None:
    return best_chain(
        IdealProgram(ideals=ideals, machines=machines, absorbed=Absorption(folded), limit=limit, effort=effort)
    )


def everything(folded: Folded) -> float:
    """More than any load."""
    return math.fsum(folded.host) + math.fsum(folded.accelerator) + math.fsum(w for _, w in folded.hyperedges) + 1.0


def along_orders(folded: Folded, machines: DeviceCounts) -> ContiguousChain | None:
    """The best chain among the prefixes of a few topological orders."""
    bitsets = {ideal for order in topological_orders(folded) for ideal in prefixes(order)}
    return _run(folded, ideals_of(folded, sorted(bitsets)), machines, everything(folded), Effort())


def topological_orders(folded: Folded) -> tuple[tuple[int, ...], ...]:
    """A few orders that differ: by number, depth first, light classes first, heavy classes first."""
    keys: tuple[Callable[[int, int], float], ...] = (
        lambda index, _: index,
        lambda _, step: -step,
        lambda index, _: folded.accelerator[index],
        lambda index, _: -folded.accelerator[index],
    )
    return tuple(_topological(folded, key) for key in keys)


def _topological(folded: Folded, key: Callable[[int, int], float]) -> tuple[int, ...]:
    """A topological order: of what is ready, the class with the least key(class, step at which it became ready)."""
    waiting = [len(earlier) for earlier in folded.before]
    ready = [(key(index, 0), index) for index, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    found: list[int] = []
    while ready:
        _, index = heapq.heappop(ready)
        found.append(index)
        for later in sorted(folded.after[index]):
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(ready, (key(later, len(found)), later))
    return tuple(found)
