"""The stages a Piper problem may have: pairs of ideals, with the least time of each on each pair of degrees.

An ideal here is a set of nodes that holds every successor of its nodes: what is left after some stages were cut off.
A stage is the difference of an ideal and a smaller one. Everything that adds up over nodes (time, parameters, memory)
is the difference of two sums over ideals; the bytes over its border come from one product of matrices,

    in(U, V)  = X(U, U) - X(U, V),   X(U, V) = sum of W(a, b) over edges with a outside U and b in V
    out(U, V) = X(V, V) - X(U, V)

The time of a stage with the cheapest variant of every node is a lower bound of its time, and its time where that fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placer.placement.published_planners.piper import PiperProblem, Variant
from placer.strategies.engine.arrays import Flags, Floats, Ints
from placer.strategies.engine.knapsack import ROUNDING
from placer.strategies.placement.piper.families import IdealFamily, least_work


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreePairs:
    """Pairs of degrees: stage alternatives by index; `devices` = data x tensor."""

    data: Ints
    tensor: Ints

    @property
    def devices(self) -> Ints:
        """Devices of a stage."""
        return self.data * self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the nodes offer at one tensor degree, nodes x variants; a variant that is not there takes inf time."""

    time: Floats
    parameters: Floats
    a: Floats
    b: Floats
    forward: Floats
    backward: Floats
    runs: Flags

    def cost(self, problem: PiperProblem, data: int) -> Floats:
        """`data` x the time that each variant adds to a stage, edges apart."""
        return self.time + 4 * (data - 1) / problem.microbatches / problem.bandwidth * self.parameters

    def least_memory(self, y: int) -> Floats:
        """Bytes of the smallest variant of each node with `y` microbatches kept; 0 where there is none."""
        sizes = np.where(np.isfinite(self.time), self.a * y + self.b, np.inf).min(axis=1)
        return np.where(self.runs, sizes, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePairs:
    """Stages: from ideal `upper` down to `lower`, sorted by `upper`; `least[p, k]` time on degrees k, inf: cannot."""

    upper: Ints
    lower: Ints
    least: Floats


def degrees(problem: PiperProblem) -> DegreePairs:
    """Every pair of a tensor degree and a data degree that the devices allow."""
    found = [(d, t) for t in problem.tensor_degrees for d in problem.data_degrees if d * t <= problem.devices]
    data, tensor = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return DegreePairs(data=data, tensor=tensor)


def offer(problem: PiperProblem, tensor: int) -> Offer:
    """The variants of all nodes at one tensor degree as arrays."""
    found = [node.at(tensor) for node in problem.nodes]
    width = max(1, *(len(variants) for variants in found))

    def table(value: str, absent: float) -> Floats:
        return np.array([[getattr(v, value) for v in vs] + [absent] * (width - len(vs)) for vs in found])

    return Offer(
        time=table("time", np.inf),
        parameters=table("parameter_bytes", 0.0),
        a=table("a_bytes", 0.0),
        b=table("b_bytes", 0.0),
        forward=_least_sync(problem, found, forward=True),
        backward=_least_sync(problem, found, forward=False),
        runs=np.array([bool(variants) for variants in found]),
    )


def stage_pairs(problem: PiperProblem, family: IdealFamily, by: DegreePairs, limit: float) -> StagePairs:
    """The stages that can be of use below `limit`."""
    upper, lower = np.nonzero(_contains(family.inside))
    least = np.full((len(upper), len(by.data)), np.inf)
    for tensor in np.unique(by.tensor):
        _fill(least, problem, family, (upper, lower), by, int(tensor))
    # Devices that the nodes of each ideal need at least: their least work over the limit.
    needed = np.floor(family.inside @ least_work(problem) / limit * (1 - 1e-9)).astype(np.int64)
    rest = needed[-1:] - needed[upper]
    least[(by.devices + np.maximum(rest, 0)[:, None] + needed[lower][:, None]) > problem.devices] = np.inf
    useful = (least <= limit).any(axis=1)
    return StagePairs(upper=upper[useful], lower=lower[useful], least=least[useful])


def _fill(
    least: Floats, problem: PiperProblem, family: IdealFamily, pair: tuple[Ints, Ints], by: DegreePairs, tensor: int
) -> None:
    """Writes the columns of one tensor degree into `least`; every stage but the last keeps two microbatches or more."""
    at, (upper, lower) = offer(problem, tensor), pair
    missing = family.inside @ (~at.runs).astype(np.float64)
    kept_one, kept_two = family.inside @ at.least_memory(1), family.inside @ at.least_memory(2)
    memory = np.where(lower == 0, kept_one[upper], kept_two[upper] - kept_two[lower])
    whole = (missing[upper] == missing[lower]) & (memory <= problem.memory_bytes * (1 + ROUNDING))
    into, out_of = _crossing(problem, family, at, forward=True), _crossing(problem, family, at, forward=False)
    own = np.diag(into)[upper] - into[upper, lower] + np.diag(out_of)[lower] - out_of[upper, lower]
    for column in np.flatnonzero(by.tensor == tensor):
        data = int(by.data[column])
        cost = np.where(at.runs, at.cost(problem, data).min(axis=1), 0.0)
        sums = family.inside @ cost
        least[:, column] = np.where(whole, (sums[upper] - sums[lower] + own / problem.bandwidth) / data, np.inf)


def _crossing(problem: PiperProblem, family: IdealFamily, at: Offer, *, forward: bool) -> Floats:
    """X(U, V) of the module, with the sync bytes of the end that lies in the stage."""
    index = {node.id: i for i, node in enumerate(problem.nodes)}
    weight = np.zeros((len(index), len(index)))
    for number, edge in enumerate(problem.edges):
        sync = at.forward[number] if forward else at.backward[number]
        weight[index[edge.source], index[edge.target]] = 2 * (edge.bytes + sync)
    return (~family.inside).astype(np.float64) @ weight @ family.inside.T.astype(np.float64)


def _least_sync(problem: PiperProblem, found: list[tuple[Variant, ...]], *, forward: bool) -> Floats:
    """Per edge the least sync bytes of any variant of its end."""
    index = {node.id: i for i, node in enumerate(problem.nodes)}
    least = []
    for edge in problem.edges:
        end, other = (edge.target, edge.source) if forward else (edge.source, edge.target)
        syncs = [dict(v.forward_bytes if forward else v.backward_bytes).get(other, 0.0) for v in found[index[end]]]
        least.append(min(syncs, default=0.0))
    return np.array(least)


def _contains(inside: Flags) -> Flags:
    """[u, v]: ideal u holds every node of ideal v and more."""
    left_out = inside.astype(np.float32) @ (~inside).T.astype(np.float32)
    holds: Flags = (left_out.T == 0) & (left_out > 0)
    return holds
