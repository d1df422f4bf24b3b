"""Even stages of repeating blocks: the program over positions against branch and bound over all cuts."""

from __future__ import annotations

import random

import pytest

from placer.costs.memory.in_flight import in_flight_peaks
from placer.strategies.inter_op.partition.interleaved_branch_bound import (
    Interleaved,
    InterleavedOption,
    best_interleaved,
)
from placer.strategies.inter_op.partition.interleaved_dp import best_repeating

ALL = 10**9


def random_loop(seed: int) -> Interleaved:
    """A model whose blocks repeat between its first and last; some of them with tight memory."""
    rng = random.Random(seed)
    positions, turns = rng.choice(((2, 2), (2, 3), (3, 2)))
    stages = positions * turns
    blocks = rng.randint(stages, stages + 4)
    first, inner, last = (rng.uniform(0.5, 2) for _ in range(3))
    again, room = rng.uniform(0.2, 0.5), rng.uniform(0.2, 2.0) * turns * (blocks / stages)
    even = range(blocks // stages, -(-blocks // stages) + 1)
    closing, updating = rng.choice((0, 0, 0, 400)), rng.choice((0, 0, 0, 200))

    def pieces(stage: int, start: int, end: int) -> tuple[InterleavedOption, ...] | None:
        if end - start < even.start:
            return ()
        if end - start >= even.stop:
            return None
        own = [first if b == 0 else last if b == blocks - 1 else inner for b in range(start, end)]
        work, message = sum(own), 0.1 * (stage < stages - 1)
        made = []
        for recompute in (False, True):
            busy = work * (1 + again * recompute)
            kept = round((end - start) * (20 if recompute else 100))
            state, largest = 100 * (end - start), 10 * recompute + 10
            made.append(InterleavedOption(
                busy / turns + message, 4 * busy, 0.3 * work, recompute, state, ((kept, largest),),
                closing=closing * (end - start), updating=updating * (end - start),
            ))  # fmt: skip
        return tuple(made)

    peaks = in_flight_peaks("interleaved", positions, stages, positions * rng.randint(1, 3))
    return Interleaved(
        positions=positions, turns=turns, options=pieces, peaks=peaks, rooms=((round(400 * room),),) * positions,
        needs=(0,) * (blocks + 1), fill_bounds=(0.0,) * (blocks + 1), steady_bounds=(0.0,) * (blocks + 1),
        grouped=((),) * blocks,
    )  # fmt: skip


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_positions_one_by_one_find_what_all_cuts_hold(start: int) -> None:
    for seed in range(start, start + 20):
        loop = random_loop(seed)
        wanted = best_interleaved(loop, ceiling=ALL, patience=ALL)
        found = best_repeating(loop, ceiling=ALL)
        assert wanted.complete
        assert (found is None) == (wanted.cuts is None)
        if found is not None and wanted.cuts is not None:
            assert found.value == pytest.approx(wanted.cuts.value, rel=1e-12)


def test_the_random_loops_are_of_all_kinds() -> None:
    found = [best_repeating(random_loop(seed), ceiling=ALL) for seed in range(60)]
    assert sum(partition is None for partition in found) >= 3
    assert sum(partition is not None and any(partition.recompute) for partition in found) >= 10
    assert sum(partition is not None and not all(partition.recompute) for partition in found) >= 10


def test_nothing_reaches_a_ceiling_below_the_best() -> None:
    loop = next(loop for loop in map(random_loop, range(60)) if best_repeating(loop, ceiling=ALL))
    best = best_repeating(loop, ceiling=ALL)
    assert best is not None
    assert best_repeating(loop, ceiling=best.value) is None
