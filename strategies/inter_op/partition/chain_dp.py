"""Exact cuts for schedules with one stage per position: a dynamic program over blocks with Pareto labels.

In: for every stage s and block range [i, j) the `StageOption`s it could be (one per recompute choice that fits memory).
Out: the cuts that minimise

    sum over stages of fill  +  max over stages of steady  +  max over stages of tail

State: (stages placed, blocks placed). A label of a state is one way to get there: its sum and its peaks so far. A label
that is nowhere below another one of its state is dropped: whatever follows, the other ends no worse. A label whose
lower bound reaches `ceiling` is dropped. Nothing else is, so the result is exact below `ceiling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from placer.plans.plan import Recompute
from placer.strategies.engine.fronts import insert


class StageOption(NamedTuple):
    """What one stage adds."""

    fill: float
    steady: float
    tail: float
    recompute: Recompute


class _PartialChain(NamedTuple):
    """A way to have placed the first blocks: its last stage begins at block `first`, the rest is `parent`."""

    fill: float
    steady: float
    tail: float
    first: int
    recompute: Recompute
    parent: _PartialChain | None

    @property
    def value(self) -> float:
        return self.fill + (self.steady + self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestBounds:
    """Lower bounds of what the blocks from j on add: `fill[j]` to the sum, `steady[j]` to all steadies together.

    `steady` must hold for every single block range too: [i, j) has at least steady[i] - steady[j]. The first s stages
    must reach block `reached[s]`.
    """

    fill: tuple[float, ...]
    steady: tuple[float, ...]
    reached: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCuts:
    """Inner cuts and recompute per stage, with the value of the objective."""

    value: float
    cuts: tuple[int, ...]
    recompute: tuple[Recompute, ...]


# None where neither this block range nor a longer one fits.
StageOptions = Callable[[int, int, int], Sequence[StageOption] | None]
_Frontier = dict[int, list[_PartialChain]]


def best_cuts(*, stages: int, options: StageOptions, rests: RestBounds, ceiling: float) -> StageCuts | None:
    """The best cuts with a value below `ceiling`; None where there are none."""
    frontier = {0: [_PartialChain(0.0, 0.0, 0.0, 0, False, None)]}
    for stage in range(stages):
        frontier = _next(frontier, stage, stages - stage - 1, options, rests, ceiling)
    found = min(frontier.get(len(rests.fill) - 1, ()), key=lambda label: label.value, default=None)
    return None if found is None else _cuts(found)


def _next(
    frontier: _Frontier, stage: int, left: int, options: StageOptions, rests: RestBounds, ceiling: float
) -> _Frontier:
    """The labels after one more stage, `left` stages before the end."""
    following: _Frontier = {}
    blocks = len(rests.fill) - 1
    for first in sorted(frontier):
        labels = frontier[first]
        nearest = max(first + 1, rests.reached[stage + 1]) if left else blocks
        for last in range(nearest, blocks - left + 1):
            found = None if _hopeless(labels, first, last, rests, ceiling) else options(stage, first, last)
            if found is None:
                break
            for option in found:
                for label in labels:
                    made = _extended(label, option, first)
                    if _bound(made, last, left, rests) < ceiling:
                        insert(following.setdefault(last, []), made)
    return following


def _hopeless(labels: list[_PartialChain], first: int, last: int, rests: RestBounds, ceiling: float) -> bool:
    """Whether no label can be extended by the range [first, last), nor by a longer one, and stay below `ceiling`."""
    own = rests.steady[first] - rests.steady[last]
    return all(label.fill + rests.fill[first] + (max(label.steady, own) + label.tail) >= ceiling for label in labels)


def _bound(label: _PartialChain, reached: int, left: int, rests: RestBounds) -> float:
    """A lower bound of the value of every way to go on."""
    steady = max(label.steady, rests.steady[reached] / left) if left else label.steady
    return label.fill + rests.fill[reached] + steady + label.tail


def _extended(label: _PartialChain, option: StageOption, first: int) -> _PartialChain:
    steady, tail = max(label.steady, option.steady), max(label.tail, option.tail)
    return _PartialChain(label.fill + option.fill, steady, tail, first, option.recompute, label)


def _cuts(label: _PartialChain) -> StageCuts:
    value = label.value
    cuts: list[int] = []
    recompute: list[Recompute] = []
    while label.parent is not None:
        cuts.append(label.first)
        recompute.append(label.recompute)
        label = label.parent
    return StageCuts(value=value, cuts=tuple(reversed(cuts[:-1])), recompute=tuple(reversed(recompute)))
