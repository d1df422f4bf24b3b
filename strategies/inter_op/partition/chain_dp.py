"""Exact cuts for schedules with one stage per position: a dynamic program over blocks with Pareto labels.

In: for every stage s and block range [i, j) the `StageChoice`s it could be (one per recompute choice that fits memory).
Out: the cuts that minimise

    sum over stages of piece.additive  +  sum over k of weights[k] * max over stages of piece.peaks[k]

State: (stages placed, blocks placed). A label of a state is one way to get there: its sum and its peaks so far. A label
that is nowhere below another one of its state is dropped: whatever follows, the other ends no worse. A label whose
lower bound reaches `ceiling` is dropped. Nothing else is, so the result is exact below `ceiling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class StageChoice(NamedTuple):
    """What one stage adds: `additive` seconds to the sum, `peaks` seconds to each maximum."""

    additive: float
    peaks: tuple[float, ...]
    recompute: bool


class PartialChain(NamedTuple):
    """A way to have placed the first blocks: its last stage begins at block `first`, the rest is `parent`."""

    additive: float
    peaks: tuple[float, ...]
    first: int
    recompute: bool
    parent: PartialChain | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestBounds:
    """Lower bounds of what the blocks from j on add: `additive[j]` to the sum, `peaks[k][j]` to all peaks k together.

    `peaks` must hold for every single run too: a run [i, j) has peak k of at least peaks[k][i] - peaks[k][j]. The first
    s stages must reach block `reached[s]`.
    """

    additive: tuple[float, ...]
    peaks: tuple[tuple[float, ...], ...]
    reached: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCuts:
    """Inner cuts and recompute per stage, with the value of the objective."""

    value: float
    cuts: tuple[int, ...]
    recompute: tuple[bool, ...]


# None where neither this run nor a longer one fits.
StageChoices = Callable[[int, int, int], Sequence[StageChoice] | None]


def best_chain(
    *, stages: int, choices: StageChoices, weights: tuple[float, ...], rests: RestBounds, ceiling: float
) -> StageCuts | None:
    """The best partition with a value below `ceiling`; None where there is none."""
    blocks = len(rests.additive) - 1
    frontier = {0: [PartialChain(0.0, (0.0,) * len(weights), 0, False, None)]}
    for stage in range(stages):
        left = stages - stage - 1
        frontier = _next(frontier, stage, left, choices, weights, rests, ceiling, blocks)
    found = frontier.get(blocks)
    return None if not found else _partition(min(found, key=lambda label: _value(label, weights)), weights)


def _next(
    frontier: dict[int, list[PartialChain]], stage: int, left: int, choices: StageChoices, weights: tuple[float, ...],
    rests: RestBounds, ceiling: float, blocks: int,
) -> dict[int, list[PartialChain]]:  # fmt: skip
    """The labels after one more stage, `left` stages before the end."""
    following: dict[int, list[PartialChain]] = {}
    for first in sorted(frontier):
        labels = frontier[first]
        nearest = max(first + 1, rests.reached[stage + 1]) if left else blocks
        for last in range(nearest, blocks - left + 1):
            found = None if _hopeless(labels, first, last, weights, rests, ceiling) else choices(stage, first, last)
            if found is None:
                break
            for piece in found:
                for label in labels:
                    made = _extended(label, piece, first)
                    if _bound(made.additive, made.peaks, last, left, weights, rests) < ceiling:
                        _insert(following.setdefault(last, []), made)
    return following


def _hopeless(
    labels: list[PartialChain], first: int, last: int, weights: tuple[float, ...], rests: RestBounds, ceiling: float
) -> bool:
    """Whether no label can be extended by the run [first, last), nor by a longer one, and stay below `ceiling`."""
    run = tuple(suffix[first] - suffix[last] for suffix in rests.peaks)
    return all(
        label.additive
        + rests.additive[first]
        + sum(w * max(peak, own) for w, peak, own in zip(weights, label.peaks, run, strict=True))
        >= ceiling
        for label in labels
    )


def _bound(
    additive: float, peaks: tuple[float, ...], reached: int, left: int, weights: tuple[float, ...], rests: RestBounds
) -> float:
    """A lower bound of the value of every way to go on."""
    total = additive + rests.additive[reached]
    for weight, peak, suffix in zip(weights, peaks, rests.peaks, strict=True):
        total += weight * (max(peak, suffix[reached] / left) if left else peak)
    return total


def _extended(label: PartialChain, piece: StageChoice, first: int) -> PartialChain:
    peaks = tuple(map(max, label.peaks, piece.peaks))
    return PartialChain(label.additive + piece.additive, peaks, first, piece.recompute, label)


def _insert(labels: list[PartialChain], made: PartialChain) -> None:
    """Add `made` unless another is nowhere above it; drop those it is nowhere above."""
    for other in labels:
        if other.additive <= made.additive and all(a <= b for a, b in zip(other.peaks, made.peaks, strict=True)):
            return
    labels[:] = [
        other
        for other in labels
        if made.additive > other.additive or any(a > b for a, b in zip(made.peaks, other.peaks, strict=True))
    ]
    labels.append(made)


def _value(label: PartialChain, weights: tuple[float, ...]) -> float:
    return label.additive + sum(w * peak for w, peak in zip(weights, label.peaks, strict=True))


def _partition(label: PartialChain, weights: tuple[float, ...]) -> StageCuts:
    value = _value(label, weights)
    cuts: list[int] = []
    recompute: list[bool] = []
    while label.parent is not None:
        cuts.append(label.first)
        recompute.append(label.recompute)
        label = label.parent
    return StageCuts(value=value, cuts=tuple(reversed(cuts[:-1])), recompute=tuple(reversed(recompute)))
