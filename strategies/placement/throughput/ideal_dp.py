"""Exact contiguous placement for throughput: a dynamic program over ideals, within a limit on the load.

    V(0, 0, {}) = 0
    V(k, l, I) = min over ideals I' inside I of
        max(V(k-1, l, I'), load(I - I'))     the next accelerator takes I - I', if its bytes fit and all is supported
        max(V(k, l-1, I'), host(I - I'))     the next CPU takes it
    the best largest load with k accelerators and l CPUs on the classes of I; a device may stay empty.

Only values below `limit` are kept, which is what makes it fast: compute alone confines I to a window,

    total - (K-k) limit - absorbed((L-l) limit)  <=  accelerator(I),     accelerator(I - I') < limit,

where absorbed(t) is the most accelerator time that t of CPU time can take over (a fractional knapsack). Where the
program finds nothing, no contiguous placement has all loads below `limit`: that is a proof.
(The recurrence: Tarnawski et al., NeurIPS 2020, section 5.1; the windows and the tables of pairs are ours.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from placer.strategies.engine.arrays import Floats, Ints
from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.devices import DeviceCounts
from placer.strategies.placement.ideals import (
    ROUNDING,
    Ideals,
    Step,
    accelerator_loads,
    best_before,
    host_loads,
    take_step,
)
from placer.strategies.placement.limits import Effort

COLUMNS = 4096


class Absorption:
    """absorbed(t): the most accelerator time that CPUs can take over in t of their own time."""

    def __init__(self, folded: Folded) -> None:
        pairs = [
            (host, accelerator)
            for host, accelerator, fits in zip(folded.host, folded.accelerator, folded.supported, strict=True)
            if fits and accelerator > 0
        ]
        pairs.sort(key=lambda pair: pair[0] / pair[1])
        self._host = np.concatenate([[0.0], np.cumsum([host for host, _ in pairs])])
        self._accelerator = np.concatenate([[0.0], np.cumsum([accelerator for _, accelerator in pairs])])

    def __call__(self, cpus: int, each: float) -> float:
        """Accelerator time that `cpus` CPUs take over in `each` of time; none without a CPU, at most all of it."""
        if cpus == 0:
            return 0.0
        budget = cpus * each
        whole = int(np.searchsorted(self._host, budget, side="right")) - 1
        if whole + 1 == len(self._host):
            return float(self._accelerator[whole])
        share = (budget - self._host[whole]) / (self._host[whole + 1] - self._host[whole])
        return float(self._accelerator[whole] + share * (self._accelerator[whole + 1] - self._accelerator[whole]))


@dataclass(frozen=True, kw_only=True)
class ContiguousChain:
    """A contiguous placement: its largest load, and the device and classes of each part in pipeline order."""

    value: float
    segments: tuple[tuple[int, frozenset[int]], ...]


@dataclass(frozen=True, kw_only=True)
class IdealProgram:
    """One run of the recurrence: what it is about, and the limit below which values are kept."""

    ideals: Ideals
    devices: DeviceCounts
    absorbed: Absorption
    limit: float
    effort: Effort

    @property
    def slack(self) -> float:
        """What sums over ideals may be off by."""
        return ROUNDING * max(float(self.ideals.accelerator[-1]), float(self.ideals.host[-1]))

    def lowest(self, accelerators: int, cpus: int) -> float:
        """The least accelerator time an ideal must hold after that many devices for the others to take the rest."""
        left = self.devices.accelerators - accelerators
        taken = self.absorbed(self.devices.cpus - cpus, self.limit)
        return float(self.ideals.accelerator[-1]) - left * self.limit - taken - self.slack


# By how many accelerators and CPUs hold it, for each ideal.
Values = dict[tuple[int, int], Floats]
# The number of a device, what it adds, the values one and two of its kind ago.
LastDevice = tuple[int, Step, Floats, Floats]


def best_chain(program: IdealProgram) -> ContiguousChain | None:
    """The best chain whose loads are all below the limit, or None: there is none among these ideals."""
    values: Values = {}
    for cpus in range(program.devices.cpus + 1):
        for accelerators in range(program.devices.accelerators + 1):
            values[accelerators, cpus] = _layer(program, values, accelerators, cpus)
    last = values[program.devices.accelerators, program.devices.cpus]
    return _walked_back(program, values) if last[-1] < program.limit else None


def _layer(program: IdealProgram, values: Values, accelerators: int, cpus: int) -> Floats:
    """V(accelerators, cpus, .), infinite where it is not below the limit or outside the window."""
    ideals = program.ideals
    layer = np.full(ideals.count, np.inf)
    if accelerators == cpus == 0:
        layer[0] = 0.0
    for _, step, earlier, older in _last_devices(program, values, accelerators, cpus):
        np.minimum(layer, earlier, out=layer)  # this device stays empty
        # What the device before did not improve was extended when that device was the next one.
        take_step(step, ideals, layer, earlier, np.flatnonzero(earlier < older), program.effort)
    low = program.lowest(accelerators, cpus)
    layer[(ideals.accelerator < low) | (layer >= program.limit)] = np.inf
    return layer


def _last_devices(program: IdealProgram, values: Values, accelerators: int, cpus: int) -> Iterator[LastDevice]:
    """The accelerator and the CPU that can be the last of so many."""
    ideals, devices, none = program.ideals, program.devices, np.full(program.ideals.count, np.inf)
    low = program.lowest(accelerators, cpus)
    if accelerators:
        loads = partial(accelerator_loads, ideals, devices.memory)
        near = partial(_window, program, low, program.limit)
        step = Step(loads=loads, combine=np.maximum, near=near, columns=COLUMNS)
        yield accelerators - 1, step, values[accelerators - 1, cpus], values.get((accelerators - 2, cpus), none)
    if cpus:
        near = partial(_window, program, low, program.absorbed(1, program.limit))
        step = Step(loads=partial(host_loads, ideals), combine=np.maximum, near=near, columns=COLUMNS)
        number = devices.accelerators + cpus - 1
        yield number, step, values[accelerators, cpus - 1], values.get((accelerators, cpus - 2), none)


def _window(program: IdealProgram, low: float, reach: float, rows: Ints) -> Ints:
    """The ideals of at least `low` accelerator time, and at most `reach` more than one of the rows."""
    seconds = program.ideals.accelerator
    first = np.searchsorted(seconds, max(low, seconds[rows].min() - program.slack))
    last = np.searchsorted(seconds, seconds[rows].max() + reach + program.slack, side="right")
    return np.arange(first, last)


def _walked_back(program: IdealProgram, values: Values) -> ContiguousChain:
    """The chain behind the value of the full ideal: at each device the ideal before that attains it."""
    accelerators, cpus = program.devices.accelerators, program.devices.cpus
    index = program.ideals.count - 1
    segments: list[tuple[int, frozenset[int]]] = []
    while accelerators or cpus:
        device, before = _attaining(program, values, accelerators, cpus, index)
        if before != index:
            segments.append((device, program.ideals.members(index) - program.ideals.members(before)))
        on_accelerator = device < program.devices.accelerators
        accelerators, cpus = (accelerators - 1, cpus) if on_accelerator else (accelerators, cpus - 1)
        index = before
    value = float(values[program.devices.accelerators, program.devices.cpus][-1])
    return ContiguousChain(value=value, segments=tuple(reversed(segments)))


def _attaining(program: IdealProgram, values: Values, accelerators: int, cpus: int, index: int) -> tuple[int, int]:
    """The last device of V(accelerators, cpus, index) and the ideal before it."""
    best = (np.inf, 0, 0)
    for number, step, earlier, _ in _last_devices(program, values, accelerators, cpus):
        best = min(best, (float(earlier[index]), number, index))
        value, before = best_before(step, earlier, np.flatnonzero(earlier < program.limit), index)
        best = min(best, (value, number, before))
    return best[1], best[2]
