"""Can a Piper problem be done within a time `limit` per stage? One pass over the ideals, last stage first.

    front(empty) = {(0, 0)}
    front(U)     = the undominated of { (k + d t, s + d) : V an ideal within U, (k, s) in front(V), degrees (d, t) }
                   with least time of the stage U - V on (d, t) + extra time within memory <= limit
                                                                        where y = ceil((s + d) / d),
                        k + d t + devices needed by the rest <= devices,   s + d <= microbatches

where k counts devices and s adds up data degrees: within a limit, fewer of both are never worse, since y grows with s.
Before it, the same with k and s each for itself (the least k and the least s of an ideal, whatever the other): that
leaves few stages, and often proves at once that there is no plan. What is turned down for its time tells the next
limit at which anything can change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placer.strategies.engine.arrays import Ints
from placer.strategies.engine.fronts import undominated
from placer.strategies.placement.piper.stage_space import StageSpace

# Times that differ by less are the same time summed in another order.
ROUNDING = 1e-12
# More devices or data degrees than any problem has.
FAR = 2**40


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


class _Grown(NamedTuple):
    """What the fronts below an ideal grow into: devices and data degrees used, and from what by which alternative."""

    devices: Ints
    data: Ints
    before: Ints
    alternative: Ints


class Sweep:
    """Passes within one limit: the alternatives (stage, degrees) by ideal, and the fronts of the ideals done."""

    def __init__(self, space: StageSpace, limit: float):
        self.space, self.limit = space, limit
        self.next_limit = float(space.pairs.least[space.pairs.least > limit * (1 + ROUNDING)].min(initial=np.inf))
        self.ideals = len(space.family.inside)
        self._take(*np.nonzero(space.pairs.least <= limit * (1 + ROUNDING)))
        self.rest = np.full(self.ideals, FAR)
        self.possible = self._prepare()

    def run(self) -> Swept:
        """The fronts of all ideals by what the tables say now, and the stages of one of the last."""
        last = self.ideals - 1
        self.start, self.count = np.zeros(self.ideals, dtype=np.int64), np.zeros(self.ideals, dtype=np.int64)
        self.front_devices, self.front_data = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        self.count[0] = 1
        if self.possible:
            for ideal in np.flatnonzero(np.diff(self.first)).tolist():
                self._add(ideal, self._accepted(self._grown(ideal), count=True))
        stages = self._traced(last) if self.count[last] else ()
        return Swept(stages=stages, next_limit=self.next_limit)

    def _prepare(self) -> bool:
        """Keeps the alternatives that can be part of a plan; false where that is proved of none."""
        least = self._least_alone()
        if least[-1] > self.space.problem.devices:
            return False
        self._keep_useful(least)
        return True

    def _take(self, pair: Ints, degrees: Ints) -> None:
        """These alternatives, sorted by pair, are the ones from here on."""
        pairs, by = self.space.pairs, self.space.by
        self.pair, self.degrees, self.lower = pair, degrees, pairs.lower[pair]
        self.devices, self.data = by.devices[degrees], by.data[degrees]
        self.time = pairs.least[pair, degrees]
        self.first = np.searchsorted(pairs.upper[pair], np.arange(self.ideals + 1))

    def _least_alone(self) -> Ints:
        """The least devices of each ideal, whatever its data degrees; drops what never fits, however few those are."""
        devices, data = np.full(self.ideals, FAR), np.full(self.ideals, FAR)
        devices[0] = data[0] = 0
        kept = np.zeros(len(self.pair), dtype=np.bool_)
        for ideal in np.flatnonzero(np.diff(self.first)).tolist():
            here = np.arange(self.first[ideal], self.first[ideal + 1])
            here = here[devices[self.lower[here]] + self.devices[here] <= self.space.problem.devices]
            here = here[self._fits(here, data[self.lower[here]] + self.data[here], count=True)]
            kept[here] = True
            devices[ideal] = (devices[self.lower[here]] + self.devices[here]).min(initial=FAR)
            data[ideal] = (data[self.lower[here]] + self.data[here]).min(initial=FAR)
        self._take(self.pair[kept], self.degrees[kept])
        return devices

    def _keep_useful(self, least: Ints) -> None:
        """Keeps the alternatives with devices enough for what is after and what is before them."""
        self.rest[-1] = 0
        for ideal in range(self.ideals - 1, 0, -1):
            here = slice(self.first[ideal], self.first[ideal + 1])
            np.minimum.at(self.rest, self.lower[here], self.rest[ideal] + self.devices[here])
        upper = self.space.pairs.upper[self.pair]
        kept = least[self.lower] + self.devices + self.rest[upper] <= self.space.problem.devices
        self._take(self.pair[kept], self.degrees[kept])

    def _grown(self, ideal: int) -> _Grown:
        """Every front below `ideal` with every alternative that ends there, within devices and microbatches."""
        alternatives = np.arange(self.first[ideal], self.first[ideal + 1])
        counts = self.count[self.lower[alternatives]]
        alternative = np.repeat(alternatives, counts)
        shift = self.start[self.lower[alternatives]] - (np.cumsum(counts) - counts)
        before = np.arange(len(alternative)) + np.repeat(shift, counts)
        devices = self.front_devices[before] + self.devices[alternative]
        kept = np.flatnonzero(devices + self.rest[ideal] <= self.space.problem.devices)
        before, alternative = before[kept], alternative[kept]
        data = self.front_data[before] + self.data[alternative]
        return _Grown(devices[kept], data, before, alternative)

    def _accepted(self, grown: _Grown, *, count: bool) -> _Grown:
        """Those whose extra time within memory fits the limit."""
        fits = self._fits(grown.alternative, grown.data, count=count)
        return _Grown(*(column[fits] for column in grown))

    def _fits(self, alternative: Ints, data: Ints, *, count: bool) -> Ints:
        """Those whose extra time at these sums of data degrees fits the limit, and whose sums fit the microbatches."""
        own = self.data[alternative]
        y = np.minimum(-(-data // own), self.space.problem.devices + 1)
        extra = self.space.lower(self.degrees[alternative], y, self.pair[alternative])
        time = self.time[alternative] + extra / own
        fits = time <= self.limit * (1 + ROUNDING)
        if count:
            self.next_limit = min(self.next_limit, float(time[~fits].min(initial=np.inf)))
        return np.flatnonzero(fits & (data <= self.space.problem.microbatches))

    def _add(self, ideal: int, grown: _Grown) -> None:
        """The undominated ones become the front of `ideal`."""
        kept = undominated(grown.devices, grown.data)
        self.start[ideal], self.count[ideal] = len(self.front_devices), len(kept)
        self.front_devices = np.concatenate((self.front_devices, grown.devices[kept]))
        self.front_data = np.concatenate((self.front_data, grown.data[kept]))

    def _traced(self, ideal: int) -> tuple[StageChoice, ...]:
        """The stages behind the first entry of the front of `ideal`, first stage first."""
        at, stages = int(self.start[ideal]), list[StageChoice]()
        while ideal:
            grown = self._accepted(self._grown(ideal), count=False)
            same = (grown.devices == self.front_devices[at]) & (grown.data == self.front_data[at])
            found = int(np.flatnonzero(same)[0])
            alternative, data = int(grown.alternative[found]), int(grown.data[found])
            y = -(-data // int(self.data[alternative]))
            stages.append(StageChoice(pair=int(self.pair[alternative]), degrees=int(self.degrees[alternative]), y=y))
            at, ideal = int(grown.before[found]), int(self.lower[alternative])
        return tuple(stages)
