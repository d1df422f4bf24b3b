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

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.ideals import Floats, Ideals, Indices, common, crossing, outside

ROWS = 32  # alike ideals in one table: fewer share more, and leave fewer columns that hold one of them
COLUMNS = 4096
ROUNDING = 1e-9
MEMORY_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class DeviceCounts:
    """How many devices of each kind, and the bytes of an accelerator."""

    accelerators: int
    cpus: int
    memory: float


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


class SpentError(Exception):
    """The budget ended before the program did: nothing is proved."""


@dataclass(kw_only=True)
class Effort:
    """Pairs of ideals priced so far; `spend` raises SpentError beyond `budget` pairs or past the time `until`."""

    pairs: int = 0
    budget: int | None = None
    until: float | None = None

    def spend(self, pairs: int) -> None:
        """Count `pairs` more."""
        self.pairs += pairs
        late = self.until is not None and time.perf_counter() > self.until
        if late or (self.budget is not None and self.pairs > self.budget):
            raise SpentError


@dataclass(frozen=True, kw_only=True)
class ContiguousChain:
    """A contiguous placement: its largest load, and the device and classes of each part in pipeline order."""

    value: float
    segments: tuple[tuple[int, frozenset[int]], ...]


@dataclass(frozen=True, kw_only=True)
class IdealProgram:
    """One run of the recurrence: what it is about, and the limit below which values are kept."""

    ideals: Ideals
    machines: DeviceCounts
    absorbed: Absorption
    limit: float
    effort: Effort

    @property
    def slack(self) -> float:
        """What sums over ideals may be off by."""
        return ROUNDING * max(float(self.ideals.accelerator[-1]), float(self.ideals.host[-1]))

    def lowest(self, accelerators: int, cpus: int) -> float:
        """The least accelerator time an ideal must hold after that many devices for the others to take the rest."""
        left = self.machines.accelerators - accelerators
        taken = self.absorbed(self.machines.cpus - cpus, self.limit)
        return float(self.ideals.accelerator[-1]) - left * self.limit - taken - self.slack


Values = dict[tuple[int, int], Floats]
Table = Callable[[IdealProgram, Indices, Indices], Floats]


def best_chain(program: IdealProgram) -> ContiguousChain | None:
    """The best chain whose loads are all below the limit, or None: there is none among these ideals."""
    values: Values = {}
    for cpus in range(program.machines.cpus + 1):
        for accelerators in range(program.machines.accelerators + 1):
            values[accelerators, cpus] = _layer(program, values, accelerators, cpus)
    last = values[program.machines.accelerators, program.machines.cpus]
    return _walked_back(program, values) if last[-1] < program.limit else None


def _layer(program: IdealProgram, values: Values, accelerators: int, cpus: int) -> Floats:
    """V(accelerators, cpus, .), infinite where it is not below the limit or outside the window."""
    ideals = program.ideals
    found = np.full(ideals.count, np.inf)
    if accelerators == cpus == 0:
        found[0] = 0.0
    low = program.lowest(accelerators, cpus)
    for earlier, older, table, reach in _predecessors(program, values, accelerators, cpus):
        np.minimum(found, earlier, out=found)  # this device stays empty
        # What the device before did not improve was extended when that device was the next one.
        for rows, columns in _blocks(program, np.flatnonzero(earlier < older), low, reach):
            candidates = np.maximum(table(program, rows, columns), earlier[rows][:, None])
            found[columns] = np.minimum(found[columns], candidates.min(axis=0))
    found[(ideals.accelerator < low) | (found >= program.limit)] = np.inf
    return found


def _predecessors(
    program: IdealProgram, values: Values, accelerators: int, cpus: int
) -> Iterator[tuple[Floats, Floats, Table, float]]:
    """The last device: the values one and two of its kind ago, its table, the accelerator time it can take."""
    none = np.full(program.ideals.count, np.inf)
    if accelerators:
        older = values.get((accelerators - 2, cpus), none)
        yield values[accelerators - 1, cpus], older, _accelerator_table, program.limit
    if cpus:
        older = values.get((accelerators, cpus - 2), none)
        yield values[accelerators, cpus - 1], older, _host_table, program.absorbed(1, program.limit)


def _blocks(program: IdealProgram, rows: Indices, low: float, reach: float) -> Iterator[tuple[Indices, Indices]]:
    """Those of `rows` that are alike, and the ideals that hold one of them within the window."""
    seconds = program.ideals.accelerator
    rows = rows[np.argsort(program.ideals.walk[rows])]
    for block in (rows[start : start + ROWS] for start in range(0, len(rows), ROWS)):
        first = np.searchsorted(seconds, max(low, seconds[block].min() - program.slack))
        last = np.searchsorted(seconds, seconds[block].max() + reach + program.slack, side="right")
        columns = common(program.ideals, block, np.arange(first, last))
        for start in range(0, len(columns), COLUMNS):
            program.effort.spend(len(block) * len(columns[start : start + COLUMNS]))
            yield block, columns[start : start + COLUMNS]


def _accelerator_table(program: IdealProgram, rows: Indices, columns: Indices) -> Floats:
    """load(I - I'), infinite where I' is not inside I, bytes do not fit or a class is not supported."""
    ideals = program.ideals
    table = crossing(ideals, rows, columns)
    table += ideals.accelerator[columns] - ideals.accelerator[rows][:, None]
    if ideals.size[-1] > program.machines.memory:
        full = program.machines.memory + MEMORY_ROUNDING * float(ideals.size[-1])
        table[ideals.size[columns] - ideals.size[rows][:, None] > full] = np.inf
    if ideals.unsupported[-1]:
        table[ideals.unsupported[columns] > ideals.unsupported[rows][:, None]] = np.inf
    return _inside_only(ideals, rows, columns, table)


def _host_table(program: IdealProgram, rows: Indices, columns: Indices) -> Floats:
    """host(I - I'), infinite where I' is not inside I."""
    ideals = program.ideals
    return _inside_only(ideals, rows, columns, ideals.host[columns] - ideals.host[rows][:, None])


def _inside_only(ideals: Ideals, rows: Indices, columns: Indices, table: Floats) -> Floats:
    stray = outside(ideals, rows, columns)
    if stray is not None:
        table[stray] = np.inf
    return table


def _walked_back(program: IdealProgram, values: Values) -> ContiguousChain:
    """The chain behind the value of the full ideal: at each device the predecessor that attains it."""
    accelerators, cpus = program.machines.accelerators, program.machines.cpus
    index = program.ideals.count - 1
    segments: list[tuple[int, frozenset[int]]] = []
    while accelerators or cpus:
        device, before = _attaining(program, values, accelerators, cpus, index)
        if before != index:
            segments.append((device, program.ideals.members(index) - program.ideals.members(before)))
        accelerators, cpus = (
            (accelerators - 1, cpus) if device < program.machines.accelerators else (accelerators, cpus - 1)
        )
        index = before
    value = float(values[program.machines.accelerators, program.machines.cpus][-1])
    return ContiguousChain(value=value, segments=tuple(reversed(segments)))


def _attaining(program: IdealProgram, values: Values, accelerators: int, cpus: int, index: int) -> tuple[int, int]:
    """The last device of V(accelerators, cpus, index) and the ideal before it."""
    best = (np.inf, 0, 0)
    column = np.array([index])
    for earlier, _, table, _ in _predecessors(program, values, accelerators, cpus):
        device = accelerators - 1 if table is _accelerator_table else program.machines.accelerators + cpus - 1
        best = min(best, (float(earlier[index]), device, index))
        rows = np.flatnonzero(earlier < program.limit)
        if len(rows):
            prices = np.maximum(table(program, rows, column)[:, 0], earlier[rows])
            best = min(best, (float(prices.min()), device, int(rows[prices.argmin()])))
    return best[1], best[2]
