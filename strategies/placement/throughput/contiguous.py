"""Contiguous placement for throughput: fold the problem, climb to the best chain of ideals, give every node its device.

The program of `ideal_dp` under a limit either finds the best chain (the limit was above it) or proves that every chain
reaches the limit. Small limits are cheap, so the limits rise from a lower bound in steps of 2, 4, 8, ... percent, but
never above the best chain along some topological orders, which is found first.

Where merged bytes could decide (`contraction`), the unmerged problem is solved if it has few enough ideals; otherwise
the placement comes from the problem that counts those bytes and the bound from the one that does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from placer.placement.problem import BoundedPlacement, Placement, PlacementProblem
from placer.strategies.engine.ideals import every_ideal
from placer.strategies.placement.contraction import (
    Folded,
    along_orders,
    everything,
    fold,
    memory_can_bind,
    rounding_of_sums,
)
from placer.strategies.placement.devices import DeviceCounts, device_counts, node_devices
from placer.strategies.placement.ideals import ROUNDING, Ideals, ideals_of
from placer.strategies.placement.limits import Effort, Limits, SpentError
from placer.strategies.placement.throughput.ideal_dp import Absorption, ContiguousChain, IdealProgram, best_chain

# The tables of one ideal are about 20 bytes a class; this keeps them below 1.5 GB.
CELLS = 60_000_000
MOST_IDEALS = 200_000
FIRST_STEP = 0.02


@dataclass(frozen=True, kw_only=True)
class BoundedChain:
    """The best chain found, the bound below which there is none, and how many ideals there are (None: too many)."""

    chain: ContiguousChain | None
    bound: float
    ideals: int | None


def contiguous(problem: PlacementProblem, limits: Limits) -> BoundedPlacement:
    """The best contiguous placement for throughput with a bound."""
    started = time.perf_counter()
    counted = fold(problem)
    free = fold(problem, bytes_of_merged="free") if memory_can_bind(problem) else counted
    if counted.size == free.size:
        return _placed(problem, counted, climb(counted, device_counts(problem, counted), limits))
    unmerged = fold(problem, merge=False)
    exact = climb(unmerged, device_counts(problem, unmerged), limits)
    if exact.ideals is not None:
        return _placed(problem, unmerged, exact)
    legal = climb(counted, device_counts(problem, counted), limits.after(started))
    relaxed = climb(free, device_counts(problem, free), limits.after(started))
    proved = _placed(problem, counted, replace(legal, bound=relaxed.bound))
    return replace(proved, notes=(*proved.notes, "the bound leaves out the bytes of nodes without compute"))


def start(problem: PlacementProblem) -> Placement | None:
    """The best contiguous placement along a few orders, if there is one."""
    folded = fold(problem)
    chain = _along_orders(folded, device_counts(problem, folded))
    return None if chain is None else _node_devices(problem, folded, chain)


def _placed(problem: PlacementProblem, folded: Folded, climbed: BoundedChain) -> BoundedPlacement:
    ideals = "more ideals than are enumerated" if climbed.ideals is None else f"{climbed.ideals} ideals"
    placement = None if climbed.chain is None else _node_devices(problem, folded, climbed.chain)
    notes = (f"{len(problem.nodes)} nodes, {folded.count} classes, {ideals}",)
    return BoundedPlacement(placement=placement, bound=climbed.bound, notes=notes)


def _node_devices(problem: PlacementProblem, folded: Folded, chain: ContiguousChain) -> Placement:
    device = {index: number for number, members in chain.segments for index in members}
    return node_devices(problem, folded, tuple(device[index] for index in range(folded.count)))


def climb(folded: Folded, devices: DeviceCounts, limits: Limits) -> BoundedChain:
    """The best chain with its proof, or the best found and what is proved when the limits end the search."""
    least = compute_bound(folded, devices)
    chain = _along_orders(folded, devices)
    bitsets = every_ideal(folded.needs, min(MOST_IDEALS, CELLS // folded.count))
    if bitsets is None:
        return BoundedChain(chain=chain, bound=least, ideals=None)
    climbed = _climbed(folded, ideals_of(folded, bitsets), devices, limits, least, chain)
    # Loads are differences of sums over ideals: what those round off is not proved.
    return replace(climbed, bound=max(least, climbed.bound - rounding_of_sums(folded)))


def _climbed(
    folded: Folded, ideals: Ideals, devices: DeviceCounts, limits: Limits, bound: float, chain: ContiguousChain | None
) -> BoundedChain:
    """`climb` among these ideals, from a bound and a chain that are known."""
    effort = Effort(limits)
    top = everything(folded) if chain is None else chain.value
    try:
        for limit in _limits(bound, top):
            found = _run(folded, ideals, devices, limit, effort)
            if found is not None:
                return BoundedChain(chain=found, bound=found.value, ideals=ideals.count)
            bound = limit
    except SpentError:
        return BoundedChain(chain=chain, bound=bound, ideals=ideals.count)
    return BoundedChain(chain=chain, bound=top if chain else math.inf, ideals=ideals.count)


def compute_bound(folded: Folded, devices: DeviceCounts) -> float:
    """A bound without search: no class can do better than its faster device, nor all of them than all devices."""
    singles = [_fastest(folded, devices, index) for index in range(folded.count)]
    stuck = math.fsum(h for h, fits in zip(folded.host, folded.supported, strict=True) if not fits)
    shares = [_balanced(folded, devices), stuck / devices.cpus if devices.cpus else 0.0]
    return max(*singles, *shares)


def _fastest(folded: Folded, devices: DeviceCounts, index: int) -> float:
    times = [folded.host[index]] if devices.cpus else []
    if devices.accelerators and folded.supported[index]:
        times.append(folded.accelerator[index])
    return min(times, default=0.0)


def _balanced(folded: Folded, devices: DeviceCounts) -> float:
    """The least t for which accelerators (t each) and CPUs (what t absorbs) take all the compute there is."""
    absorbed = Absorption(folded)
    total = math.fsum(s for s, fits in zip(folded.accelerator, folded.supported, strict=True) if fits)
    total *= 1 - ROUNDING  # sums in another order must not make the last bit of it unreachable
    low, high = 0.0, total + sum(folded.host)
    for _ in range(100):
        middle = (low + high) / 2
        enough = devices.accelerators * middle + absorbed(devices.cpus, middle) >= total
        low, high = (low, middle) if enough else (middle, high)
    return low


def _limits(bound: float, top: float) -> Iterator[float]:
    """Rising limits, the last of them `top`."""
    step, base = FIRST_STEP, max(bound, top * 1e-3)
    while base * (1 + step) < top:
        yield base * (1 + step)
        step *= 2
    yield top


def _run(folded: Folded, ideals: Ideals, devices: DeviceCounts, limit: float, effort: Effort) -> ContiguousChain | None:
    return best_chain(
        IdealProgram(ideals=ideals, devices=devices, absorbed=Absorption(folded), limit=limit, effort=effort)
    )


def _along_orders(folded: Folded, devices: DeviceCounts) -> ContiguousChain | None:
    """The best chain among the prefixes of a few topological orders."""
    return _run(folded, ideals_of(folded, along_orders(folded)), devices, everything(folded), Effort(Limits()))
