"""Contiguous placement for throughput: fold the problem, climb to the best chain of ideals, give every node its device.

Where merged bytes could decide (`contraction`), the unmerged problem is solved if it has few enough ideals; otherwise
the placement comes from the problem that counts those bytes and the bound from the one that does not.
"""

from __future__ import annotations

import time
from dataclasses import replace

from placer.placement.problem import BoundedPlacement, Placement, PlacementProblem
from placer.strategies.placement.contraction import Folded, fold, memory_can_bind
from placer.strategies.placement.throughput.ideal_dp import ContiguousChain, DeviceCounts
from placer.strategies.placement.throughput.rising_limits import BoundedChain, Limits, climb


def contiguous(problem: PlacementProblem, limits: Limits) -> BoundedPlacement:
    """The best contiguous placement for throughput with a bound."""
    started = time.perf_counter()
    counted = fold(problem)
    free = fold(problem, bytes_of_merged="free") if memory_can_bind(problem) else counted
    if counted.size == free.size:
        return _found(problem, counted, climb(counted, machines(problem, counted), limits))
    unmerged = fold(problem, merge=False)
    exact = climb(unmerged, machines(problem, unmerged), limits)
    if exact.ideals is not None:
        return _found(problem, unmerged, exact)
    legal = climb(counted, machines(problem, counted), limits.after(started))
    relaxed = climb(free, machines(problem, free), limits.after(started))
    proved = _found(problem, counted, replace(legal, bound=relaxed.bound))
    return replace(proved, notes=(*proved.notes, "the bound leaves out the bytes of nodes without compute"))


def machines(problem: PlacementProblem, folded: Folded) -> DeviceCounts:
    """The devices of the problem, no more of a kind than there are classes to give them."""
    return DeviceCounts(
        accelerators=min(problem.accelerators, folded.count),
        cpus=min(problem.cpus, folded.count),
        memory=problem.memory,
    )


def chain_placement(problem: PlacementProblem, folded: Folded, chain: ContiguousChain) -> Placement:
    """The device of every node; the chain's CPUs come after the problem's accelerators."""
    accelerators = machines(problem, folded).accelerators
    devices = [0] * folded.count
    for device, members in chain.segments:
        for index in members:
            devices[index] = device if device < accelerators else device - accelerators + problem.accelerators
    return folded.placement(tuple(devices))


def _found(problem: PlacementProblem, folded: Folded, climbed: BoundedChain) -> BoundedPlacement:
    ideals = "more ideals than are enumerated" if climbed.ideals is None else f"{climbed.ideals} ideals"
    placement = None if climbed.chain is None else chain_placement(problem, folded, climbed.chain)
    notes = (f"{len(problem.nodes)} nodes, {folded.count} classes, {ideals}",)
    return BoundedPlacement(placement=placement, bound=climbed.bound, notes=notes)
