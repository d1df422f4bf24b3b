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
from functools import partial

import numpy as np

from placer.strategies.engine.arrays import Floats, Ints
from placer.strategies.engine.ideals import grown
from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.devices import DeviceCounts
from placer.strategies.placement.ideals import ROUNDING, Ideals, Step, accelerator_loads, best_before, take_step
from placer.strategies.placement.limits import Effort

SingleSteps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class SequentialProgram:
    """One run of the recurrence: a value to undercut, and (ideal, ideal with one class more, class) for every step."""

    folded: Folded
    ideals: Ideals
    devices: DeviceCounts
    upper: float
    effort: Effort
    steps: SingleSteps

    @property
    def accelerator(self) -> Step:
        """What one more accelerator does."""
        loads = partial(accelerator_loads, self.ideals, self.devices.memory)
        return Step(loads=loads, combine=np.add, near=partial(_near, self), columns=self.ideals.count)


def best_sequence(program: SequentialProgram) -> tuple[int, ...] | None:
    """The device of every class, the number of accelerators standing for a CPU; None where none undercuts `upper`."""
    values: list[Floats] = []
    for _ in range(program.devices.accelerators + 1):
        values.append(_layer(program, values))
    return _walked_back(program, values) if np.isfinite(values[-1][-1]) else None


def single_steps(folded: Folded, ideals: Ideals) -> SingleSteps:
    """Every pair of ideals that differ by one class, smaller ideals first."""
    masks = [int.from_bytes(row.tobytes(), "little") for row in ideals.words]
    index = {mask: position for position, mask in enumerate(masks)}
    pairs = [
        (mask.bit_count(), position, index[larger], (larger ^ mask).bit_length() - 1)
        for position, mask in enumerate(masks)
        for larger in grown(mask, folded.needs)
        if larger in index
    ]
    return tuple((smaller, larger, c) for _, smaller, larger, c in sorted(pairs))


def _layer(program: SequentialProgram, values: list[Floats]) -> Floats:
    """W(k, .) after those of fewer accelerators, infinite where it cannot undercut `upper`."""
    ideals, host = program.ideals, program.folded.host
    if values:
        layer = values[-1].copy()
        rows = np.flatnonzero(values[-1] < (values[-2] if len(values) > 1 else np.inf))
        take_step(program.accelerator, ideals, layer, values[-1], rows, program.effort)
    else:
        layer = np.full(ideals.count, np.inf)
        layer[0] = 0.0
    for smaller, larger, c in program.steps if program.devices.cpus else ():
        layer[larger] = min(layer[larger], layer[smaller] + host[c])
    layer[layer + _rest(program) >= program.upper * (1 + ROUNDING)] = np.inf
    return layer


def _near(program: SequentialProgram, rows: Ints) -> Ints:
    """The ideals of at most one memory more than one of the rows, and no less accelerator time than all."""
    ideals = program.ideals
    fits = ideals.size <= ideals.size[rows].max() + program.devices.memory
    return np.flatnonzero(fits & (ideals.accelerator >= ideals.accelerator[rows].min()))


def _rest(program: SequentialProgram) -> Floats:
    """What the classes outside each ideal take at least, one after the other."""
    folded, cpus = program.folded, program.devices.cpus
    fastest = [
        min(seconds if fits else np.inf, host if cpus else np.inf)
        for seconds, fits, host in zip(folded.accelerator, folded.supported, folded.host, strict=True)
    ]
    bits = np.unpackbits(program.ideals.words.view(np.uint8), axis=1, bitorder="little")[:, : folded.count]
    return np.asarray(np.where(bits, 0.0, np.minimum(fastest, program.upper)).sum(axis=1))


def _walked_back(program: SequentialProgram, values: list[Floats]) -> tuple[int, ...]:
    ideals, host = program.ideals, program.folded.host
    arriving: dict[int, list[tuple[int, int]]] = {}
    for smaller, larger, c in program.steps if program.devices.cpus else ():
        arriving.setdefault(larger, []).append((smaller, c))
    devices = [program.devices.accelerators] * program.folded.count
    accelerators, index = program.devices.accelerators, ideals.count - 1
    while index:
        earlier = values[accelerators - 1] if accelerators else np.full(ideals.count, np.inf)
        if accelerators and earlier[index] <= values[accelerators][index]:
            accelerators -= 1
            continue
        hosted = [(values[accelerators][smaller] + host[c], smaller) for smaller, c in arriving.get(index, ())]
        on_host, before_host = min(hosted, default=(np.inf, 0))
        rows = np.flatnonzero(np.isfinite(earlier))
        program.effort.spend(len(rows))
        value, before = best_before(program.accelerator, earlier, rows, index)
        if value < on_host:
            accelerators -= 1
            for c in ideals.members(index) - ideals.members(before):
                devices[c] = accelerators
            index = before
        else:
            index = before_host
    return tuple(devices)
