"""Can a Piper problem be done within a time `limit` per stage? One pass over the ideals, from the last stage to the first.

    front(empty) = {(0, 0)}
    front(U)     = the undominated of { (k + d t, s + d) : V an ideal within U, (k, s) in front(V), degrees (d, t),
                     least time of the stage U - V on (d, t) + extra time within memory at y = ceil((s + d) / d) <= limit,
                     k + d t + devices needed by the rest <= devices,  s + d <= microbatches }

where k counts devices and s adds up data degrees: within a limit, fewer of both are never worse, since y grows with s.
What is turned down tells the next limit at which anything can change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placer.placement.piper import PiperProblem
from placer.strategies.knapsack import Floats, Ints
from placer.strategies.piper_pairs import Degrees, Family, Pairs
from placer.strategies.piper_recompute import Recompute

# Times that differ by less are the same time summed in another order.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChoice:
    """A stage: an index into the pairs, one into the degrees, and the microbatches that it keeps."""

    pair: int
    degrees: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """`stages`, first to last, or none where the limit cannot be met; `next_limit`: below it the answer is the same."""

    stages: tuple[StageChoice, ...]
    next_limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a pass walks over. `needed[i]`: devices that the nodes of ideal i need at least, for any limit asked."""

    problem: PiperProblem
    family: Family
    by: Degrees
    pairs: Pairs
    recompute: Recompute
    needed: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grown:
    """What the fronts below an ideal grow into: devices and data degrees used, and from what by which alternative."""

    devices: Ints
    data: Ints
    before: Ints
    alternative: Ints


class _Pass:
    """One pass: the alternatives within the limit, and the fronts of the ideals done so far in two long arrays."""

    def __init__(self, space: Space, limit: float):
        self.space, self.limit = space, limit
        pairs, by = space.pairs, space.by
        within = pairs.least <= limit * (1 + ROUNDING)
        self.pair, self.degrees = np.nonzero(within)
        above = pairs.least[~within]
        self.next_limit = float(above.min(initial=np.inf))
        self.lower = pairs.lower[self.pair]
        self.costs, self.data = by.devices[self.degrees], by.data[self.degrees]
        self.time = pairs.least[self.pair, self.degrees]
        ideals = len(space.family.inside)
        self.first = np.searchsorted(pairs.upper[self.pair], np.arange(ideals + 1))
        self.start, self.count = np.zeros(ideals, dtype=np.int64), np.zeros(ideals, dtype=np.int64)
        self.front_devices, self.front_data = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        self.count[0] = 1

    def run(self) -> Swept:
        """The fronts of all ideals, then the stages of one of the last."""
        last = len(self.start) - 1
        for ideal in range(1, last + 1):
            self._add(ideal, self._accepted(ideal, self._grown(ideal), count=True))
        stages = self._traced(last) if self.count[last] else ()
        return Swept(stages=stages, next_limit=self.next_limit)

    def _grown(self, ideal: int) -> _Grown:
        """Every front below `ideal` with every alternative that ends there, within devices and microbatches."""
        problem, needed = self.space.problem, self.space.needed
        alternatives = np.arange(self.first[ideal], self.first[ideal + 1])
        counts = self.count[self.lower[alternatives]]
        ends = np.cumsum(counts)
        alternative = np.repeat(alternatives, counts)
        within = np.arange(len(alternative)) - np.repeat(ends - counts, counts)
        before = np.repeat(self.start[self.lower[alternatives]], counts) + within
        devices = self.front_devices[before] + self.costs[alternative]
        data = self.front_data[before] + self.data[alternative]
        rest = max(0, int(needed[-1] - needed[ideal]))
        kept = np.flatnonzero((devices + rest <= problem.devices) & (data <= problem.microbatches))
        return _Grown(devices=devices[kept], data=data[kept], before=before[kept], alternative=alternative[kept])

    def _accepted(self, ideal: int, grown: _Grown, *, count: bool) -> _Grown:
        """Those whose extra time within memory fits the limit."""
        y = -(-grown.data // self.data[grown.alternative])
        time = self.time[grown.alternative] + self._extra(grown, y) / self.data[grown.alternative]
        fits = time <= self.limit * (1 + ROUNDING)
        if count:
            self.next_limit = min(self.next_limit, float(time[~fits].min(initial=np.inf)))
        kept = np.flatnonzero(fits)
        return _Grown(
            devices=grown.devices[kept],
            data=grown.data[kept],
            before=grown.before[kept],
            alternative=grown.alternative[kept],
        )

    def _extra(self, grown: _Grown, y: Ints) -> Floats:
        """Extra time, scaled by the data degree, at least."""
        recompute = self.space.recompute
        degrees, pair = self.degrees[grown.alternative], self.pair[grown.alternative]
        extra = np.zeros(len(y))
        most = int(y.max(initial=0)) + 1
        code = recompute.key[degrees] * most + y
        order = np.argsort(code, kind="stable")
        found, first = np.unique(code[order], return_index=True)
        for one, low, high in zip(found, first, np.append(first[1:], len(order)), strict=False):
            of = order[low:high]
            extra[of] = recompute.row(int(one) // most, int(one) % most).lower[pair[of]]
        return extra

    def _add(self, ideal: int, grown: _Grown) -> None:
        """The undominated ones become the front of `ideal`."""
        order = np.lexsort((grown.data, grown.devices))
        data = grown.data[order]
        ahead = np.minimum.accumulate(np.concatenate(([np.iinfo(np.int64).max], data[:-1])))
        kept = order[data < ahead]
        self.start[ideal], self.count[ideal] = len(self.front_devices), len(kept)
        self.front_devices = np.concatenate((self.front_devices, grown.devices[kept]))
        self.front_data = np.concatenate((self.front_data, grown.data[kept]))

    def _traced(self, ideal: int) -> tuple[StageChoice, ...]:
        """The stages behind the first entry of the front of `ideal`, first stage first."""
        at, stages = int(self.start[ideal]), list[StageChoice]()
        while ideal:
            grown = self._accepted(ideal, self._grown(ideal), count=False)
            same = (grown.devices == self.front_devices[at]) & (grown.data == self.front_data[at])
            found = int(np.flatnonzero(same)[0])
            alternative, data = int(grown.alternative[found]), int(grown.data[found])
            y = -(-data // int(self.data[alternative]))
            stages.append(StageChoice(pair=int(self.pair[alternative]), degrees=int(self.degrees[alternative]), y=y))
            at, ideal = int(grown.before[found]), int(self.lower[alternative])
        return tuple(stages)


def sweep(space: Space, limit: float) -> Swept:
    """Stages within `limit` by the optimistic tables of `space.recompute`, or none."""
    return _Pass(space, limit).run()
