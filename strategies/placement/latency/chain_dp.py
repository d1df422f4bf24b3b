"""A good placement for latency: blocks one after the other along a chain of ideals.

    W(0, {}) = 0
    W(k, I) = min of  W(k-1, I') + load(I - I')      the next accelerator runs I - I', if its bytes fit
                      W(k, I - c) + host(c)          the class c runs on a CPU
                      W(k-1, I)                      an accelerator stays empty
    the time after which all of I is done when nothing overlaps, with k accelerators.

Parts that run beside each other make the placement finish earlier than W says, never later: the evaluator tells. Only
values that can still undercut `upper` are kept: W(k, I) + sum over classes outside I of their faster device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.ideals import Floats, Ideals, Indices, common, crossing, outside
from placer.strategies.placement.throughput.ideal_dp import MEMORY_ROUNDING, ROUNDING, ROWS, DeviceCounts, Effort

SingleSteps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class SequentialProgram:
    """One run of the recurrence: a value to undercut, and (ideal, ideal with one class more, class) for every step."""

    folded: Folded
    ideals: Ideals
    machines: DeviceCounts
    upper: float
    effort: Effort
    steps: SingleSteps


def best_sequence(sequence: SequentialProgram) -> tuple[int, ...] | None:
    """The device of every class, the number of accelerators standing for a CPU; None where none undercuts `upper`."""
    values: list[Floats] = []
    for accelerators in range(sequence.machines.accelerators + 1):
        values.append(_layer(sequence, values, accelerators))
    return _walked_back(sequence, values) if np.isfinite(values[-1][-1]) else None


def single_steps(folded: Folded, ideals: Ideals) -> SingleSteps:
    """Every pair of ideals that differ by one class, smaller ideals first."""
    masks = [int.from_bytes(row.tobytes(), "little") for row in ideals.words]
    index = {mask: position for position, mask in enumerate(masks)}
    before = [sum(1 << other for other in earlier) for earlier in folded.before]
    found = [
        (mask.bit_count(), position, index[mask | 1 << c], c)
        for position, mask in enumerate(masks)
        for c, needed in enumerate(before)
        if not mask >> c & 1 and not needed & ~mask and mask | 1 << c in index
    ]
    return tuple((smaller, larger, c) for _, smaller, larger, c in sorted(found))


def _layer(sequence: SequentialProgram, values: list[Floats], accelerators: int) -> Floats:
    """W(accelerators, .), infinite where it cannot undercut `upper`."""
    ideals = sequence.ideals
    if accelerators == 0:
        found = np.full(ideals.count, np.inf)
        found[0] = 0.0
    else:
        found = values[-1].copy()
        for rows, columns in _blocks(sequence, values):
            candidates = _block_times(sequence, rows, columns) + values[-1][rows][:, None]
            found[columns] = np.minimum(found[columns], candidates.min(axis=0))
    if sequence.machines.cpus:
        host = sequence.folded.host
        for smaller, larger, c in sequence.steps:
            found[larger] = min(found[larger], found[smaller] + host[c])
    found[found + _rest(sequence) >= sequence.upper * (1 + ROUNDING)] = np.inf
    return found


def _rest(sequence: SequentialProgram) -> Floats:
    """What the classes outside each ideal take at least, one after the other."""
    folded, cpus = sequence.folded, sequence.machines.cpus
    fastest = [
        min(seconds if fits else np.inf, host if cpus else np.inf)
        for seconds, fits, host in zip(folded.accelerator, folded.supported, folded.host, strict=True)
    ]
    bits = np.unpackbits(sequence.ideals.words.view(np.uint8), axis=1, bitorder="little")[:, : folded.count]
    return np.asarray(np.where(bits, 0.0, np.minimum(fastest, sequence.upper)).sum(axis=1))


def _blocks(sequence: SequentialProgram, values: list[Floats]) -> list[tuple[Indices, Indices]]:
    """Alike ideals that the last accelerator improved, and those that hold one of them and at most a memory more."""
    ideals, memory = sequence.ideals, sequence.machines.memory
    older = values[-2] if len(values) > 1 else np.inf
    rows = np.flatnonzero(values[-1] < older)
    rows = rows[np.argsort(ideals.walk[rows])]
    found = []
    for block in (rows[start : start + ROWS] for start in range(0, len(rows), ROWS)):
        near = np.flatnonzero(
            (ideals.size <= ideals.size[block].max() + memory) & (ideals.accelerator >= ideals.accelerator[block].min())
        )
        found.append((block, common(ideals, block, near)))
    return [(block, columns) for block, columns in found if len(columns)]


def _block_times(sequence: SequentialProgram, rows: Indices, columns: Indices) -> Floats:
    """load(I - I'), infinite where I' is not inside I, bytes do not fit or a class is not supported."""
    ideals = sequence.ideals
    sequence.effort.spend(len(rows) * len(columns))
    table = crossing(ideals, rows, columns)
    table += ideals.accelerator[columns] - ideals.accelerator[rows][:, None]
    full = sequence.machines.memory + MEMORY_ROUNDING * float(ideals.size[-1])
    table[ideals.size[columns] - ideals.size[rows][:, None] > full] = np.inf
    table[ideals.unsupported[columns] > ideals.unsupported[rows][:, None]] = np.inf
    stray = outside(ideals, rows, columns)
    if stray is not None:
        table[stray] = np.inf
    return table


def _walked_back(sequence: SequentialProgram, values: list[Floats]) -> tuple[int, ...]:
    ideals, host = sequence.ideals, sequence.folded.host
    arriving: dict[int, list[tuple[int, int]]] = {}
    for smaller, larger, c in sequence.steps if sequence.machines.cpus else ():
        arriving.setdefault(larger, []).append((smaller, c))
    devices = [sequence.machines.accelerators] * sequence.folded.count
    accelerators, index = sequence.machines.accelerators, ideals.count - 1
    while index:
        value = values[accelerators][index]
        if accelerators and values[accelerators - 1][index] <= value:
            accelerators -= 1
            continue
        hosted = [(values[accelerators][smaller] + host[c], smaller) for smaller, c in arriving.get(index, ())]
        best = min(hosted, default=(np.inf, 0))
        if accelerators:
            rows = np.flatnonzero(np.isfinite(values[accelerators - 1]))
            times = _block_times(sequence, rows, np.array([index]))[:, 0] + values[accelerators - 1][rows]
            if times.min() < best[0]:
                before = int(rows[times.argmin()])
                accelerators -= 1
                for c in ideals.members(index) - ideals.members(before):
                    devices[c] = accelerators
                index = before
                continue
        index = best[1]
    return tuple(devices)
