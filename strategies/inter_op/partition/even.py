"""Even cuts: the partition one would draw by hand. A baseline, and a ceiling for the exact searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from placer.strategies.inter_op.partition.chain_dp import StageCuts
from placer.strategies.inter_op.partition.interleaved_branch_bound import follow
from placer.strategies.inter_op.partition.stage_costs import OutlineCosts
from placer.strategies.space.outline import recomputes


def even_cuts(weights: Sequence[float], stages: int) -> tuple[int, ...]:
    """Where to cut for `stages` non-empty block ranges whose weights end nearest to equal shares of the total."""
    sums = [0.0, *accumulate(weights)]
    cuts: list[int] = []
    for stage in range(1, stages):
        low, high = (cuts[-1] if cuts else 0) + 1, len(weights) - (stages - stage)
        wanted = sums[-1] * stage / stages
        cuts.append(min(range(low, high + 1), key=lambda cut: (abs(sums[cut] - wanted), cut)))
    return tuple(cuts)


def level_cuts(weights: Sequence[float], stages: int) -> tuple[int, ...]:
    """The same with numbers of blocks that differ by one at most."""
    sums, (each, more) = [0.0, *accumulate(weights)], divmod(len(weights), stages)
    cuts = [0]
    for stage in range(1, stages):
        wanted = sums[-1] * stage / stages
        choices = [each + 1] * (more > 0) + [each] * (stages - stage + 1 > more)
        size = min(choices, key=lambda n: (abs(sums[cuts[-1] + n] - wanted), n))
        more -= size - each
        cuts.append(cuts[-1] + size)
    return tuple(cuts[1:])


def evenly_cut(costs: OutlineCosts) -> StageCuts | None:
    """The best partition with even cuts, if one fits."""
    seconds = costs.rests.steady
    weights = [a - b for a, b in pairwise(seconds)]
    if not any(weights):
        weights = [1.0] * len(weights)
    cut = level_cuts if costs.outline.virtual > 1 else even_cuts
    cuts = cut(weights, costs.outline.stages)
    found = [made for made in _evenly(costs, cuts) if made is not None]
    return min(found, key=lambda made: made.value, default=None)


def _evenly(costs: OutlineCosts, cuts: tuple[int, ...]) -> Iterator[StageCuts | None]:
    if costs.outline.virtual > 1:
        loop = costs.loop()
        yield from (follow(loop, cuts, recompute) for recompute in recomputes(costs.problem))
    else:
        yield _chained(costs, cuts)


def _chained(costs: OutlineCosts, cuts: tuple[int, ...]) -> StageCuts | None:
    """Each stage with the cheapest recompute choice that fits."""
    edges = (0, *cuts, len(costs.rests.fill) - 1)
    chosen = []
    for stage, (first, last) in enumerate(pairwise(edges)):
        options = costs.options(stage, first, last)
        if not options:
            return None
        chosen.append(min(options, key=lambda own: own.fill + (own.steady + own.tail)))
    value = sum(own.fill for own in chosen) + max(own.steady for own in chosen) + max(own.tail for own in chosen)
    return StageCuts(value=value, cuts=cuts, recompute=tuple(own.recompute for own in chosen))
